"""Is an oracle right? Its rules and operations against brute force on small events."""

from __future__ import annotations

from .examination import OracleAudit, audit_oracle

__all__ = ["OracleAudit", "audit_oracle"]

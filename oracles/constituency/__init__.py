"""Binary constituency trees: the oracle and its kernels."""

from __future__ import annotations

from .oracle import Constituency

__all__ = ["Constituency"]

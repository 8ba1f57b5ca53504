"""Binary constituency trees."""

from __future__ import annotations

from .oracle import Constituency

__all__ = ["Constituency"]

"""Monotone alignments."""

from __future__ import annotations

from .oracle import Alignment

__all__ = ["Alignment"]

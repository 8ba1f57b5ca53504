"""Monotone alignments: the oracle and its kernels."""

from __future__ import annotations

from .oracle import Alignment

__all__ = ["Alignment"]

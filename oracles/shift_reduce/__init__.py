"""Shift-reduce derivations: the oracle and its kernels."""

from __future__ import annotations

from .oracle import ShiftReduce

__all__ = ["ShiftReduce"]

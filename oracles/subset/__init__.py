"""Subsets of k of n: the oracle and its kernels."""

from __future__ import annotations

from .oracle import Subset

__all__ = ["Subset"]

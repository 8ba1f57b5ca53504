"""Spanning trees: the oracle, elimination, and their kernels."""

from __future__ import annotations

from .oracle import SpanningTree

__all__ = ["SpanningTree"]

"""Spanning trees: the oracle, elimination, and their kernels."""

from .oracle import SpanningTree

__all__ = ["SpanningTree"]

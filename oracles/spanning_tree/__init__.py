"""Spanning trees: the oracle, elimination, and their kernels."""

from .oracle import SpanningTree as SpanningTree

"""Assignments: the oracle, matchings, the Birkhoff polytope, and their kernels."""

from .oracle import Assignment

__all__ = ["Assignment"]

"""Assignments: the oracle, matchings, the Birkhoff polytope, and their kernels."""

from __future__ import annotations

from .oracle import Assignment

__all__ = ["Assignment"]

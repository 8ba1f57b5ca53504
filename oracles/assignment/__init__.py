"""Assignments: the oracle, matchings, the Birkhoff polytope, and their kernels."""

from .oracle import Assignment as Assignment

"""Projective dependency trees: the oracle and Eisner's recursion."""

from __future__ import annotations

from .oracle import ProjectiveTree

__all__ = ["ProjectiveTree"]

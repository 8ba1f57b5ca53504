"""Projective dependency trees: the oracle, Eisner's recursion and its kernels."""

from __future__ import annotations

from .oracle import ProjectiveTree

__all__ = ["ProjectiveTree"]

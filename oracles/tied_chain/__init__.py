"""Chains whose transitions are the same at every step."""

from __future__ import annotations

from .oracle import TiedChain

__all__ = ["TiedChain"]

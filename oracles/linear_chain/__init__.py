"""Linear chains: the oracle and its kernels."""

from __future__ import annotations

from .oracle import LinearChain

__all__ = ["LinearChain"]

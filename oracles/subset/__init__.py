"""Subsets of k of n: the oracle and its kernels."""

from .oracle import Subset as Subset

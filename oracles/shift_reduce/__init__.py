"""Shift-reduce derivations: the oracle and its kernels."""

from .oracle import ShiftReduce as ShiftReduce

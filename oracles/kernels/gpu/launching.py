"""How large the programs of a launch are."""

from __future__ import annotations

import triton

WARP = 32
"""Threads that move together."""


def lanes(size: int, least: int = 1) -> int:
    """The extent of a block that holds ``size`` numbers: a power of two."""
    return max(int(triton.next_power_of_2(size)), least)


def warps(block: int, numbers: int = 4, most: int = 16) -> int:
    """Warps for a block of so many numbers: each thread holds some ``numbers`` of them in registers."""
    return min(max(block // (WARP * numbers), 1), most)

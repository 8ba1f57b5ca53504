"""Launches: sizes of their programs, and how many rows they take."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
from torch import Tensor

WARP = 32
"""Threads that move together."""

SCRATCH = 2**28
"""Bytes of workspaces: rows beyond wait for those before, and use their memory again."""

FILLING = 264
"""Rows that occupy a large device: so many are taken together even where they need more than `SCRATCH`, up to `MOST_SCRATCH`."""

MOST_SCRATCH = 2**32

ALIGNED = 16
"""Parts of a batch begin at multiples of so many rows, and so of 16 bytes: one compiled kernel serves them all, with the same bits."""


Space = tuple[int, torch.dtype]
"""What a row needs of a workspace: how many numbers of which type."""


def lanes(size: int, least: int = 1) -> int:
    """The extent of a block that holds ``size`` numbers: a power of two."""
    return max(int(triton.next_power_of_2(size)), least)


def warps(block: int, numbers: int = 4, most: int = 16) -> int:
    """Warps for a block of so many numbers: each thread holds some ``numbers`` of them in registers."""
    return min(max(block // (WARP * numbers), 1), most)


def rows_at_once(needed: int) -> int:
    """How many rows a launch takes that need so many bytes of workspace each."""
    count = max(SCRATCH // needed, min(FILLING, MOST_SCRATCH // needed), 1)
    return count // ALIGNED * ALIGNED or count


def launches(rows: Tensor, *spaces: Space) -> Iterator[tuple[slice, list[Tensor]]]:
    """Parts of a batch, with workspaces that they use one after the other.

    Args:
        rows: the batch; rows are independent of each other, so that no result depends on how they are parted.
        spaces: what each row needs; a workspace is ``[rows of the part, numbers]``.
    """
    most = max(min(rows_at_once(sum(numbers * dtype.itemsize for numbers, dtype in spaces)), len(rows)), 1)
    made = [torch.empty(most, numbers, dtype=dtype, device=rows.device) for numbers, dtype in spaces]
    for first in range(0, len(rows), most):
        last = min(first + most, len(rows))
        yield slice(first, last), [space[: last - first] for space in made]

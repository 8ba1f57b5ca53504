"""Kernels of the linear chain, on the GPU: one program walks through one sequence, with its prefixes in registers.

Source: Rabiner 1989, section III, in the domain of logarithms; the product with the Hessian is the tangent of both recursions (Mensch &
Blondel 2018, algorithm 4), in which the tangent of ``log Σ exp`` is a mean under the weights that the recursion has at hand.

The scores of a step lie in the registers of the program, loaded once, two steps ahead of their use. One ``exp`` per score serves a step:
backward, the weights that make the suffixes are, times a number per tag, the marginals. Numbers stay small on chains of any length: from
each step its greatest score is taken, from prefixes what the step before had as their greatest, from suffixes the log-partition of the
step, and the sum of it all, in float64, is the log-partition. So the marginals of a step sum to 1 but for the rounding of this one step.

What bounds them is memory: with b·n·t² scores, `log_partition` reads them once, `marginals` reads them twice and writes as many numbers,
`covariance_product` reads scores and direction twice and writes once, `argmax` reads and writes once, `sample` reads once, and for each
sample a column per step, and writes every sample. For 1024 sequences of 128 steps and 32 tags in float32 (537 MB), `marginals` moves
1.6 GB, which takes an H200 (4.8 TB/s) a third of a millisecond. There are n dependent steps in each direction.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from ..active_set.gpu import Map, launcher
from ..kernels.gpu.launching import Space, lanes, launches, warps
from .gpu_recursions import covariance_kernel, forward_kernel, marginals_kernel
from .gpu_walks import argmax_kernel, best, walk_kernel, write_kernel

__all__ = ["argmax", "best", "covariance_product", "log_partition", "marginals", "sample", "serves", "workspace"]

MOST_TAGS = 64
"""The scores of a step stay in registers."""

LANES = 1024
"""Samples that one program draws, times tags."""

WRITTEN = 8
"""Steps of a structure that one program writes out."""


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[1] <= MOST_TAGS and math.prod(event) < 2**31


def workspace(event: tuple[int, ...]) -> int:
    """How many int32 numbers `best` needs for one problem: where each tag of each step comes from."""
    return event[0] * event[1]


def _map(event: tuple[int, ...]) -> Map:
    block = lanes(event[1])
    few = warps(block * block, 16)
    return Map(best, workspace(event), torch.int32, event[:2], (block, block == event[1]), (few, max(few, 4)))


project = launcher(_map)
"""SparseMAP: see `active_set`."""


def log_partition(rows: Tensor, log_partition: Tensor) -> None:
    """The log-partition [b] of rows [b, n, t, t]."""
    _, length, tags, _ = rows.shape
    block = lanes(tags)
    forward_kernel[(len(rows),)](
        rows, log_partition, rows, rows, length, tags, block, tags == block, False, num_warps=_warps(tags, rows.dtype)
    )


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor) -> None:
    """Marginals [b, n, t, t] of rows, and their log-partition [b]."""
    _, length, tags, _ = rows.shape
    block = lanes(tags)
    for part, (prefixes, shifts) in launches(rows, *_tables(rows, rows.dtype)):
        marginals_kernel[(len(prefixes),)](
            rows[part], marginals[part], log_partition[part], prefixes, shifts, length, tags, block, tags == block,
            num_warps=_warps(tags, rows.dtype),
        )  # fmt: skip


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor) -> None:
    """Cov(z) · direction [b, n, t, t]."""
    _, length, tags, _ = rows.shape
    block = lanes(tags)
    for part, (prefixes, shifts, tangents) in launches(rows, *_tables(rows, rows.dtype), (length * tags, rows.dtype)):
        covariance_kernel[(len(prefixes),)](
            rows[part], direction[part], product[part], prefixes, tangents, shifts, length, tags, block, tags == block,
            num_warps=warps(block * block, 8),
        )  # fmt: skip


def argmax(rows: Tensor, structures: Tensor) -> None:
    """MAP structures [b, n, t, t] of rows."""
    _, length, tags, _ = rows.shape
    block = lanes(tags)
    for part, (pointers,) in launches(rows, (workspace((length, tags, tags)), torch.int32)):
        argmax_kernel[(len(pointers),)](
            rows[part], structures[part], pointers, length, tags, block, tags == block, num_warps=_warps(tags, rows.dtype)
        )


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor) -> None:
    """Structures [b, s, n, t, t] from uniforms [b, s, n]: forward filtering once, then backward sampling, a lane for each sample."""
    _, length, tags, _ = rows.shape
    count, block = uniforms.shape[1], lanes(tags)
    together = min(lanes(count), max(LANES // block, 1))
    shares = triton.cdiv(count, together)
    pieces = triton.cdiv(length, WRITTEN)
    spaces = (*_tables(rows, torch.float64), (1, torch.float64), (length * count, torch.int32))
    for part, (prefixes, shifts, log_partition, drawn) in launches(rows, *spaces):
        batch = len(drawn)
        forward_kernel[(batch,)](
            rows[part], log_partition, prefixes, shifts, length, tags, block, tags == block, True,
            num_warps=_warps(tags, torch.float64),
        )  # fmt: skip
        walk_kernel[(batch * shares,)](
            rows[part], uniforms[part], prefixes, log_partition, drawn, count, shares, length, tags, together, block,
            num_warps=warps(together * block, 8, 4),
        )  # fmt: skip
        write_kernel[(batch * count * pieces,)](
            drawn, structures[part], count, pieces, length, tags, block, WRITTEN, num_warps=warps(block * block, 8, 4)
        )


def _warps(tags: int, dtype: torch.dtype) -> int:
    """For 32 tags in float32 one warp, whose sums need no barrier; masks take registers too, and float64 twice as many for everything."""
    block = lanes(tags)
    numbers = 32 if block == tags <= 32 else 16
    return warps(block * block, numbers if dtype == torch.float32 else 8)


def _tables(rows: Tensor, dtype: torch.dtype) -> tuple[Space, Space]:
    """The numbers of prefixes [n, t], and of what is taken from the scores of every step [n]."""
    return (rows.shape[1] * rows.shape[2], dtype), (rows.shape[1], dtype)

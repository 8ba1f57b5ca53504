"""Assignments: rows [b, n, n]; see `gpu_matching` for the best permutation, and `gpu_permanent` for sums over all of them."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..active_set.gpu import Map, launcher
from .gpu_matching import MOST, best, program, workspace
from .gpu_permanent import LARGEST, draw, fill, pair, weighed

__all__ = ["argmax", "best", "covariance_product", "log_partition", "marginals", "project", "sample", "serves", "workspace"]


def serves(operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> bool:
    """The sizes that these kernels take; see `structgrad.oracles.kernels.gpu`."""
    return event[0] <= (MOST if operation == "argmax" else LARGEST)


project = launcher(lambda event: Map(best, 1, torch.float64, (event[0],), (program(event)[0],)))
"""Projection on the Birkhoff polytope, of so few rows that the atoms always find room: see `active_set`."""


def argmax(rows: Tensor, structures: Tensor) -> None:
    """Best permutations."""
    size = rows.shape[1]
    block, width = program(rows.shape[1:])
    _argmax[(len(rows),)](rows, structures, size, block, num_warps=width)


def log_partition(rows: Tensor, log_partition: Tensor) -> None:
    """Log-partitions [b] of rows."""
    for part, found in weighed(rows, 1):
        fill(found, log_partition[part], rows.shape[1], 1)


def marginals(rows: Tensor, marginals: Tensor, log_partition: Tensor) -> None:
    """Marginals [b, n, n] and log-partitions [b] of rows."""
    for part, found in weighed(rows, 2):
        fill(found, log_partition[part], rows.shape[1], 2)
        pair(found, marginals[part])


def covariance_product(rows: Tensor, direction: Tensor, product: Tensor) -> None:
    """Derivatives of the marginals along directions [b, n, n]: means of slopes, as they differ from that of all permutations."""
    for part, found in weighed(rows, 2, direction):
        fill(found, found.total, rows.shape[1], 2, tangent=True)
        pair(found, product[part], tangent=True)


def sample(rows: Tensor, uniforms: Tensor, structures: Tensor) -> None:
    """Permutations by uniforms [b, s, n]: one table per row, then from the last row of each sample to the first."""
    for part, found in weighed(rows, 1):
        fill(found, found.total, rows.shape[1], 1)
        draw(found, uniforms[part], structures[part])


@triton.jit
def _argmax(rows, structures, size, block: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * size * size
    best(rows + start, structures + start, structures, size, block)

"""Operations on derivations for batches of rows on the CPU: compiled, in as many threads as pay, exact at any scale up to 10⁶."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import kernels
from .packing import Array, Packed

EDGE = 4
"""Inner-loop steps of an edge and an item, roughly."""


def log_partition(packed: Packed, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Log-partitions [b] of rows [b, d] in float64, -inf where no structure is feasible; and boolean [b], where they can be relied upon."""
    (totals,), certified = _evaluated(packed, rows, None, ())
    return totals, certified


def marginals(packed: Packed, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Marginals [b, d], 0 where no structure is feasible, and what `log_partition` gives."""
    (totals, found), certified = _evaluated(packed, rows, None, (0,))
    return found, totals, certified


def covariance_product(packed: Packed, rows: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """``Cov(z) v`` [b, d] for directions v [b, d]; and boolean [b], where it can be relied upon."""
    (_, found), certified = _evaluated(packed, rows, directions, (1,))
    return found, certified


def argmax(packed: Packed, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The best structures [b, d] and their scores [b]; of edges that tie at a node, the first. -inf, and some structure, where all are."""
    given = rows.double().contiguous()
    structures, values = torch.zeros_like(given), torch.empty(len(given), dtype=torch.float64)
    _launch("argmax", packed, (given,), (), (structures, values))
    return structures.to(rows.dtype), values.to(rows.dtype)


def sample(packed: Packed, rows: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Exact samples [b, m, d] from uniforms [b, m, steps], one for each node of a derivation in preorder; 0 where no structure is feasible.

    With them comes boolean [b], where they can be relied upon.
    """
    inputs = rows.double().contiguous(), uniforms.double().contiguous()
    shape = (*uniforms.shape[:2], rows.shape[1])
    (structures,), certified = _certified("sample", packed, inputs, [kernels.zeros(shape, torch.float64)])
    return structures.to(rows.dtype), certified


def _evaluated(packed: Packed, rows: Tensor, directions: Tensor | None, wanted: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
    given = rows.double().contiguous()
    along = given if directions is None else directions.double().contiguous()
    results = [kernels.zeros(tuple(given.shape) if place in wanted else (0, 0), torch.float64) for place in range(2)]
    results = [*results, torch.zeros(len(given), dtype=torch.float64)]
    results, certified = _certified("evaluate", packed, (given, along), results)
    return [results[2], *(results[place].to(rows.dtype) for place in wanted)], certified


def _certified(operation: str, packed: Packed, inputs: tuple[Tensor, ...], results: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Results of numbers in one range, and in a wide one where that does not suffice; and where this one does."""
    certified = torch.zeros(len(inputs[0]), dtype=torch.bool)
    _launch(operation, packed, inputs, (False,), (*results, certified))
    failed = (~certified).nonzero().squeeze(1)
    if len(failed):
        # Zeros, since a kernel writes feasible rows alone.
        again = [torch.zeros((len(failed), *result.shape[1:]), dtype=result.dtype) if len(result) else result for result in results]
        still = torch.zeros(len(failed), dtype=torch.bool)
        _launch(operation, packed, tuple(given[failed] for given in inputs), (True,), (*again, still))
        for result, redone in zip(results, again, strict=True):
            if len(result):
                result[failed] = redone
        certified[failed] = still
    return results, certified


def _launch(operation: str, packed: Packed, inputs: tuple[Tensor, ...], options: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
    """Call a kernel, whose empty results stay whole where the batch is split over threads."""
    kernel = getattr(importlib.import_module(".cpu", __package__), operation)
    tables = Packed(*(np.asarray(table) for table in packed))
    empty = [place for place, result in enumerate(results) if not len(result)]

    def call(*arrays: Array) -> None:
        given, filled = arrays[: len(inputs)], list(arrays[len(inputs) :])
        for place in empty:
            filled.insert(place, results[place].numpy())
        kernel(tables, *given, *options, *filled)

    if len(inputs[0]):
        split = [result for result in results if len(result)]
        kernels.launch(call, (*inputs, *split), (), EDGE * len(packed.first))

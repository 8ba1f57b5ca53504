"""Euclidean projection on ``{x : 0 ≤ x ≤ 1, Σx = k}``: the simplex for k = 1, the hypersimplex of k-subsets in general."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import kernels
from ..active_set.solution import Projection, moved_free
from ..capabilities.base import KernelPlan

HALVINGS = 60
"""Of a bracket no longer than log n: what is left is below the rounding of float64."""


def project(rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest points of float64 rows, forbidden parts (``-inf``) at 0, and what proves them nearest.

    Cost: O(n log n) by sorting; compiled, O(n) of some five passes on the CPU, and a row per program on the GPU.

    Returns:
        The points [b, n]; bool [b, n], the parts strictly between 0 and 1; [b], a bound on what any other point of the set is nearer.
        A row with fewer than k parts above -inf has the point 0 and the bound ``inf``.

    Example:
        >>> point, free, gap = project(torch.tensor([[1.0, 0.6, 0.2, -3.0]], dtype=torch.float64), 2)
        >>> point
        tensor([[1.0000, 0.7000, 0.3000, 0.0000]], dtype=torch.float64)
        >>> free.tolist(), bool(gap < 1e-12)
        ([[False, True, True, False]], True)
    """
    kernel = kernels.find("simplex", "project", rows, (k,))
    if kernel is None:
        return _project(rows, k)
    rooms = (rows.shape, rows.dtype), (rows.shape, torch.bool), (rows.shape[:1], rows.dtype)
    point, free, gap = kernel.computed((rows.contiguous(),), rooms, lambda rows: _project(rows, k), certified=False)
    return point, free, gap


def plan(operation: str, event: tuple[int, ...], k: int) -> KernelPlan | None:
    """What `project` goes straight to, and the derivative of what it finds, ``move_free``."""
    if operation == "move_free":
        return KernelPlan(
            ((event, None),),
            lambda directions, free: (moved_free(directions, free, 1),),
            certified=False,
            kernel=lambda directions: kernels.find("simplex", "move_free", directions),
        )
    if operation != "project":
        return None
    rooms = (event, torch.float64), (event, torch.bool), ((), torch.float64), (event, None)
    return KernelPlan(
        rooms, lambda rows: _project(rows, k), certified=False, kernel=lambda rows: kernels.find("simplex", "project_and_give", rows, (k,))
    )


def closed(found: Sequence[Tensor], decompose: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Projection:
    """What `project` or its plan gives of every item, of any batch, with the way to write means [b, n] as atoms and weights."""
    mean, free, gap, *given = found
    if mean.ndim != 2:
        mean, free, gap = mean.reshape(-1, mean.shape[-1]), free.reshape(-1, mean.shape[-1]), gap.reshape(-1)
    return Projection(gap=gap, decompose=lambda: decompose(mean), mean=mean, free=free, given=given[0] if given else None)


def halves(rows: Tensor) -> bool:
    """Whether `halved` serves rows [..., n]: on a GPU, up to a length."""
    return kernels.gpu.takes(rows) and kernels.find("entmax", "solve", rows.flatten(0, -2) if rows.ndim > 1 else rows[None]) is not None


def halved(rows: Tensor, excess: Tensor, highest: Tensor) -> Tensor:
    """``[1 + (α − 1)(θ − t)]₊^(1/(α−1))`` with t such that they sum to 1, by a kernel of the GPU, where it `halves`.

    Args:
        rows: float64 [b, n], whose greatest score is 0.
        excess: float64 [b], α − 1.
        highest: float64 [b], the most that t can be; the least is 0.
    """
    kernel = kernels.find("entmax", "solve", rows)
    assert kernel is not None
    points = kernel.results(tuple(rows.shape), rows)
    kernel.run((rows.contiguous(), excess.contiguous(), highest.contiguous()), (points,), _reference_halved)
    return points


def _reference_halved(rows: Tensor, excess: Tensor, highest: Tensor) -> tuple[Tensor]:
    return (by_halving(rows, excess.unsqueeze(-1), highest.unsqueeze(-1)),)


def by_halving(rows: Tensor, excess: Tensor, high: Tensor) -> Tensor:
    """What `halved` computes, in torch, for rows [*batch, n]; the others are [*batch, 1]."""
    low = torch.zeros_like(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = _power(rows - middle, excess).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    p = _power(rows - low, excess)
    slope = torch.where(p > 0, torch.where(p > 0, p, 1) ** (1 - excess), 0).sum(-1, keepdim=True)
    newton = low + (p.sum(-1, keepdim=True) - 1) / slope.clamp(min=1e-300)
    return _power(rows - torch.minimum(torch.maximum(newton, low), high), excess)


def _power(x: Tensor, excess: Tensor) -> Tensor:
    """``[1 + (α−1) x]₊^(1/(α−1))``, exact down to its limit ``exp x``."""
    logarithm = torch.log1p((excess * x).clamp(min=-1)) / torch.where(excess == 0, 1, excess)
    return torch.where(excess == 0, x, logarithm).exp()


def _project(rows: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """In torch: ``clip(θ − τ, 0, 1)``, with τ found exactly between two of the scores θ and θ − 1, where the sum of the clips bends."""
    origin = rows.topk(k, dim=-1).values[..., -1:]
    feasible = origin > -math.inf
    # Measured from the k-th largest score, τ lies within [-1, 0]: what is beyond ±2 is 0 or 1 for certain, and may stand nearer.
    # A row without k parts has no such origin; what comes of it is replaced at the end.
    near = (rows - origin).clamp(-2, 2)
    bends = torch.cat([near, near - 1], -1).sort(-1, descending=True)
    # Walking τ downwards, the sum rises with slope (parts entered − parts that are full).
    slopes = torch.where(bends.indices < rows.shape[-1], 1, -1).cumsum(-1)[..., :-1]
    totals = pad((slopes * -bends.values.diff(dim=-1)).cumsum(-1), (1, 0))
    piece = (totals < k).sum(-1, keepdim=True).clamp(1, totals.shape[-1] - 1)
    upper, lower = bends.values.gather(-1, piece - 1), bends.values.gather(-1, piece)
    middle = (upper + lower) / 2
    inside, full = (near > middle) & (near - 1 < middle), near - 1 >= middle
    threshold = (torch.where(inside, near, 0).sum(-1, keepdim=True) + full.sum(-1, keepdim=True) - k) / inside.sum(-1, keepdim=True)
    # 0 / 0 where no part is inside: the sum is k on the whole piece, to which rounding may have led.
    threshold = torch.minimum(torch.maximum(threshold.nan_to_num(0, 0, 0), lower), upper)
    point = torch.where(feasible, (near - threshold).clamp(0, 1), 0)
    # ⟨θ − μ, z − μ⟩ ≤ Σ max(r, 0) − rμ with r = θ − μ − τ, for every z of k parts: 0 but for rounding.
    residual = near - point - threshold
    gap = (residual.clamp(min=0) - residual * point).sum(-1).clamp(min=0)
    return point, (point > 0) & (point < 1), torch.where(feasible.squeeze(-1), gap, math.inf)

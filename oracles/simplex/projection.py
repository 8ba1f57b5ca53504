"""Euclidean projection on ``{x : 0 ≤ x ≤ 1, Σx = k}``: the simplex for k = 1, the hypersimplex of k-subsets in general."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import kernels
from ..active_set.solution import Projection

HALVINGS = 60
"""Of a bracket no longer than log n: what is left is below the rounding of float64."""


def project(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The nearest points of float64 rows, forbidden parts (``-inf``) at 0, and what proves them nearest.

    Cost: O(n log n) by sorting; compiled, O(n) of some five passes.

    Returns:
        The points [b, n], and a bound [b] on what any other point of the set is nearer. A row with fewer than k parts above -inf has the
        point 0 and the bound ``inf``.

    Example:
        >>> point, gap = project(torch.tensor([[1.0, 0.6, 0.2, -3.0]], dtype=torch.float64), 2)
        >>> point
        tensor([[1.0000, 0.7000, 0.3000, 0.0000]], dtype=torch.float64)
        >>> bool(gap < 1e-12)
        True
    """
    kernel = kernels.find("simplex", "project", rows, (k,))
    if kernel is None:
        return _project(rows, k)
    point, gap = kernel.computed((rows,), (None, ((), None)), lambda rows: _project(rows, k))
    return point, gap


def closed(rows: Tensor, k: int, decompose: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Projection:
    """`project`, with a function that writes means [b, n] as atoms and weights."""
    mean, gap = project(rows, k)
    return Projection(gap=gap, decompose=lambda: decompose(mean), mean=mean, tangent=along_face)


def along_face(mean: Tensor, direction: Tensor) -> Tensor:
    """Directions [..., n] along the face that holds means: less their average over the parts strictly between 0 and 1, 0 for the others."""
    moves = (mean > 0) & (mean < 1)
    average = torch.where(moves, direction, 0).sum(-1, keepdim=True) / moves.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(moves, direction - average, 0)


def by_halving(rows: Tensor, excess: Tensor) -> Tensor:
    """``[1 + (α − 1)(θ − t)]₊^(1/(α−1))`` with t such that they sum to 1.

    The unknown is the probability v of one part, the pivot: the others are ``(v^(α−1) + (α − 1)(θ − θ_pivot))^(1/(α−1))``, and their sum
    has a slope of at most n in v. A threshold would not do where α is large: the next number to it may move a sum from 1.2 to 0.8.

    Args:
        rows: float64 [*batch, n], whose greatest score is 0.
        excess: float64 [*batch, 1], α − 1; both broadcast.
    """
    size = torch.broadcast_shapes(rows.shape, excess.shape)
    rows, excess = rows.expand(size), excess.to(rows).expand(*size[:-1], 1)
    steep = excess >= 1
    # Without values, as on the device meta, every case has to be thought of.
    some, every, limit = (True, False, True) if rows.is_meta else (bool(steep.any()), bool(steep.all()), bool((excess == 0).any()))
    x = excess * (rows - torch.where(steep, _least_in_support(rows, excess), 0)) if some else excess * rows
    outside, logarithms = steep & (x < 0), x.log()
    divisor = torch.where(excess == 0, 1, excess)

    def points(pivot: Tensor) -> Tensor:
        power = excess * pivot.log()
        found = power if every else torch.log1p((power.expm1() + x).clamp(min=-1))
        found = torch.where(steep, torch.logaddexp(power, logarithms), found) if some else found
        found = torch.where(excess == 0, pivot.log() + rows, found / divisor) if limit else found / excess
        return found.exp().masked_fill(outside, 0) if some else found.exp()

    low, high = torch.zeros_like(excess), torch.ones_like(excess)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        above = points(middle).sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return points(high)


def _least_in_support(rows: Tensor, excess: Tensor) -> Tensor:
    """The lowest score of the support [*batch, 1]: one is in it where what lies above sums to less than 1 once its probability is 0."""
    order = rows.sort(-1, descending=True).values
    low, high = torch.zeros_like(excess, dtype=torch.int64), torch.full_like(excess, rows.shape[-1], dtype=torch.int64)
    for _ in range(rows.shape[-1].bit_length()):
        middle = (low + high) // 2
        lead = rows - order.gather(-1, middle)
        inside = torch.where(lead > 0, (excess * lead) ** (1 / excess), 0).sum(-1, keepdim=True) < 1
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return order.gather(-1, low)


def _project(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
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
    return point, torch.where(feasible.squeeze(-1), gap, math.inf)

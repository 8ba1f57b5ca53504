"""Attention mappings under upper bounds: constrained softmax and constrained sparsemax."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..oracles.numerics import share_rows
from ..oracles.options import Within
from ..oracles.transforms import operation
from .relaxations import Attention, checked_rows

Bound = Annotated[float, Within(above=0, most=1)]


class _Constrained(Attention):
    """A mapping under one bound for all parts, raised where a category has too few of them."""

    upper: Bound

    def _bounds(self, scores: Tensor) -> Tensor:
        """[*batch, 1]: the bound, or 1/m where only m parts are allowed and m times the bound is below 1."""
        allowed = (share_rows(scores.detach(), 1) > -math.inf).sum(-1, keepdim=True)
        return (1 / allowed.clamp(min=1).double()).clamp(min=self.upper)


@dataclass(frozen=True)
class ConstrainedSparsemax(_Constrained, name="csparsemax", references=("malaviya2018sparse",)):
    """Constrained sparsemax attention: the nearest probabilities to the scores that are at most u. Deterministic.

    ``p = argmin ½‖p − θ‖²`` over the simplex, subject to ``p ≤ u``, for each category.
    Exact for its own, relaxed, objective: ``1_A (γ − mean_A γ)``, A the parts strictly between 0 and u.

    Cost: a sort, one loss gradient. No oracle call.

    Args:
        upper: u, above 0; raised to 1/m in a category of which only m parts are allowed, where m·u is below 1. The authors bound each word
            by what its fertility leaves, for which the function `csparsemax` takes a tensor.

    References:
        Malaviya, Ferreira & Martins 2018, "Sparse and constrained attention for neural machine translation", section 3.3.
    """

    upper: Bound = 0.8

    def mapping(self, scores: Tensor) -> Tensor:
        return csparsemax(scores, self._bounds(scores))


@dataclass(frozen=True)
class ConstrainedSoftmax(_Constrained, name="csoftmax", references=("martins2017learning",)):
    """Constrained softmax attention: the probabilities nearest to softmax, in relative entropy, that are at most u. Deterministic.

    Exact for its own, relaxed, objective: ``1_A p (γ − m)``, A the parts below u, ``m = Σ_A pγ / Σ_A p``.

    Cost: a sort, one loss gradient. No oracle call.

    Args:
        upper: u, above 0; raised to 1/m in a category of which only m parts are allowed, where m·u is below 1.

    References:
        Martins & Kreutzer 2017, "Learning what's easy: fully differentiable neural easy-first taggers", section 3.1.
    """

    upper: Bound = 0.8

    def mapping(self, scores: Tensor) -> Tensor:
        return csoftmax(scores, self._bounds(scores))


# Scores and bounds to probabilities, and which of them are at their bounds.
Solver = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Weights = Callable[[Tensor], Tensor]

SLACK = 1e-6  # how far the bounds may sum below 1: the rounding of float32
TOUCHING = 1e-12  # a part this close to its bound is held by it


@operation(scores=1, upper=1, gives="event")
def csparsemax(scores: Tensor, upper: float | Tensor) -> Tensor:
    """Constrained sparsemax along the last dimension: ``argmin ½‖p − θ‖²`` over the simplex, subject to ``p ≤ u``.

    With A the parts strictly between 0 and their bound: ``dθ = 1_A (γ − mean_A γ)`` and ``du = 1[p = u] (γ − mean_A γ)``; both are 0 where
    A is empty. Forbidden parts (-inf) are 0. Computed in float64, exactly.

    Cost: a sort of 2n numbers.

    Args:
        scores: ``[*batch, n]``.
        upper: u, a number or a tensor that broadcasts to the scores, which may require a gradient; of sum 1 or more over the parts that are
            not forbidden (elsewhere than on the CPU, where that is not looked at, ``p = u`` where it is less).

    References:
        Malaviya, Ferreira & Martins 2018, "Sparse and constrained attention for neural machine translation", section 3.3 and appendix.

    Example:
        >>> csparsemax(torch.tensor([1.0, 0.8, -1.0, -1.2]), torch.tensor([0.5, 0.4, 0.5, 0.5]))
        tensor([0.5000, 0.4000, 0.1000, 0.0000])
    """
    return _constrained("csparsemax", scores, upper, _clipped, lambda p: (p > 0).to(p.dtype))


@operation(scores=1, upper=1, gives="event")
def csoftmax(scores: Tensor, upper: float | Tensor) -> Tensor:
    """Constrained softmax along the last dimension: ``argmax ⟨p, θ⟩ + H(p)`` over the simplex, subject to ``p ≤ u``.

    ``p = min(u, e^θ/Z)``. With A the parts below their bound: ``dθ = 1_A p (γ − m)`` and ``du = 1[p = u] (γ − m)`` with
    ``m = Σ_A pγ / Σ_A p``; both are 0 where A is empty. Forbidden parts (-inf) are 0. Computed in float64, exactly.

    Cost: a sort of n numbers.

    Args:
        scores: ``[*batch, n]``.
        upper: u, as for `csparsemax`.

    References:
        Martins & Kreutzer 2017, "Learning what's easy: fully differentiable neural easy-first taggers", section 3.1 and appendix.

    Example:
        >>> csoftmax(torch.tensor([2.0, 0.0, 0.0]), 0.5)
        tensor([0.5000, 0.2500, 0.2500])
    """
    return _constrained("csoftmax", scores, upper, _capped, lambda p: p)


def _constrained(call: str, scores: Tensor, upper: float | Tensor, solve: Solver, free: Weights) -> Tensor:
    rows = checked_rows(call, scores)
    # More than 1 binds nothing.
    bound = rows.new_full((), upper) if isinstance(upper, int | float) else torch.as_tensor(upper, dtype=rows.dtype, device=rows.device)
    bounds = bound.clamp(max=1).expand_as(rows)
    if rows.device.type == "cpu":
        allowed, limits = share_rows(rows.detach(), 1) > -math.inf, share_rows(bounds.detach(), 1)
        if not bool((limits >= 0).all()):
            raise ValueError(f"`{call}` got upper bounds of {float(limits.min())} and more; expected numbers that are not negative")
        totals = torch.where(allowed, limits, 0).sum(-1)
        if bool(((totals < 1 - SLACK) & allowed.any(-1)).any()):
            least = float(totals[(allowed.any(-1)).expand_as(totals)].min())
            raise ValueError(f"`{call}` got upper bounds that sum to {least:.6g} in some row; expected 1 or more over its allowed parts")
    result: Tensor = _Bounded.apply(rows, bounds, solve, free)  # type: ignore[no-untyped-call]
    return result.to(scores.dtype)


class _Bounded(torch.autograd.Function):
    """A solution under bounds; ``free`` gives the weights of its parts below their bounds in the derivative."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bounds: Tensor, solve: Solver, free: Weights) -> Tensor:
        # Computed once for rows that share scores and bounds.
        distinct, limits = torch.broadcast_tensors(share_rows(rows, 1), share_rows(bounds, 1))
        allowed = distinct > -math.inf
        p, bounded = solve(distinct, torch.where(allowed, limits, 0))
        p, ctx.free = p.expand_as(rows), free
        ctx.save_for_backward(p, (bounded & allowed).expand_as(rows))
        return p

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        p, bounded = ctx.saved_tensors
        weights = torch.where(bounded, 0, ctx.free(p))
        total = weights.sum(-1, keepdim=True)
        # Both are measured from the mean of γ over the parts that are free.
        distance = grads[0] - (weights * grads[0]).sum(-1, keepdim=True) / total.clamp(min=1e-300)
        return weights * distance, torch.where(bounded & (total > 0), distance, 0), None, None


def _clipped(rows: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """``clip(θ − τ, 0, u)``, with τ found exactly between two of the numbers θ and θ − u, where the sum of the clips bends."""
    allowed = rows > -math.inf
    top = rows.amax(-1, keepdim=True)
    x = torch.where(allowed, rows - torch.where(top > -math.inf, top, 0), 0)
    bends = torch.cat([x, x - bounds], -1).sort(-1, descending=True)
    # Walking τ downwards, the sum rises with slope (parts entered − parts that are full).
    slopes = torch.where(bends.indices < x.shape[-1], 1, -1).cumsum(-1)[..., :-1]
    totals = torch.nn.functional.pad((slopes * -bends.values.diff(dim=-1)).cumsum(-1), (1, 0))
    piece = (totals < 1).sum(-1, keepdim=True).clamp(1, totals.shape[-1] - 1)
    lower, upper = bends.values.gather(-1, piece), bends.values.gather(-1, piece - 1)
    middle = (lower + upper) / 2
    inside, full = (x > middle) & (x - bounds < middle), x - bounds >= middle
    excess = torch.where(inside, x, torch.where(full, bounds, 0)).sum(-1, keepdim=True) - 1
    threshold = torch.minimum(torch.maximum((excess / inside.sum(-1, keepdim=True)).nan_to_num(0, 0, 0), lower), upper)
    p = torch.minimum((x - threshold).clamp(min=0), bounds)
    return p, p >= bounds - TOUCHING


def _capped(rows: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """``min(u, e^θ/Z)``: parts reach their bounds in the order of ``u/e^θ``, and the others share what is left."""
    allowed = rows > -math.inf
    order = torch.where(allowed, bounds.log() - rows, math.inf).sort(dim=-1, stable=True).indices
    x, limits, among = rows.gather(-1, order), bounds.gather(-1, order), allowed.gather(-1, order)
    left = (1 - torch.nn.functional.pad(limits.cumsum(-1), (1, 0))[..., :-1]).clamp(min=0)
    rest = x.flip(-1).logcumsumexp(-1).flip(-1)
    share = torch.where(among, x - rest + left.log(), -math.inf)
    fits = (share < limits.log() - TOUCHING) | ~among
    count = (~fits).long().cumprod(-1).sum(-1, keepdim=True)
    bounded = torch.arange(x.shape[-1], device=x.device) < count
    level = (left.log() - rest).gather(-1, count.clamp(max=x.shape[-1] - 1))
    p = torch.where(bounded, limits, torch.where(among, (x + level).exp(), 0))
    return torch.zeros_like(p).scatter(-1, order, p), torch.zeros_like(bounded.expand_as(p)).scatter(-1, order, bounded.expand_as(p))

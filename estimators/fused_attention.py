"""Attention mappings that give some parts equal probabilities: sparsemax of scores that a proximal operator has fused."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.numerics import share_rows
from ..oracles.options import Positive
from ..oracles.transforms import operation
from .relaxations import Attention, checked_rows, entmax
from .surrogates import with_backward


@dataclass(frozen=True)
class Fusedmax(Attention, name="fusedmax", references=("niculae2017regularized",)):
    """Fusedmax attention: sparsemax of the nearest scores in total variation, so that neighbours share probabilities. Deterministic.

    ``p = argmax ⟨p, θ⟩ − ½‖p‖² − λ Σ_i |p_(i+1) − p_i|`` over the simplex, for each category.
    Exact for its own, relaxed, objective; the Jacobian averages over runs of equal probability. A category whose scores differ by less than
    about 2λ is uniform and has no gradient, which is how training can stand still at its start: choose λ below the spread of the scores.

    Cost: O(n²) arithmetic for n parts of a category, one loss gradient. No oracle call.

    Args:
        strength: λ, positive. The authors use 1.

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.2.
    """

    strength: Positive = 1.0

    def mapping(self, scores: Tensor) -> Tensor:
        return fusedmax(scores, self.strength)


@dataclass(frozen=True)
class Oscarmax(Attention, name="oscarmax", references=("niculae2017regularized",)):
    """Oscarmax attention: parts of similar scores share probabilities, wherever they stand. Deterministic.

    Exact for its own, relaxed, objective; the Jacobian averages over the groups. A category whose scores all lie within λ of each other is
    uniform and has no gradient: choose λ below their spread.

    Cost: a sort and O(n²) arithmetic for n parts of a category, one loss gradient. No oracle call.

    Args:
        strength: λ, positive. The authors use 1.
        magnitudes: sparsemax of the proximal operator of OSCAR, as the authors compute it; without, the maximum of
            ``⟨p, θ⟩ − ½‖p‖² − λ Σ_(i<j) max(p_i, p_j)``, which is the same where scores are positive and nothing is cut (see `oscarmax`).

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.3.
    """

    strength: Positive = 1.0
    magnitudes: bool = True

    def mapping(self, scores: Tensor) -> Tensor:
        return oscarmax(scores, self.strength, magnitudes=self.magnitudes)


@operation(scores=1, gives="event")
def fusedmax(scores: Tensor, strength: float = 1.0) -> Tensor:
    """Fusedmax along the last dimension: ``argmax_p ⟨p, θ⟩ − ½‖p‖² − λ Σ_i |p_(i+1) − p_i|`` over the simplex.

    Sparsemax of the nearest scores in total variation, ``argmin_u ½‖u − θ‖² + λ Σ|u_(i+1) − u_i|``: neighbours share their probability in
    runs. The Jacobian averages over each run. Forbidden parts (-inf) are 0, and left out: what stands on either side become neighbours.
    Computed in float64, exactly.

    Cost: O(n²) in n steps, vectorised over rows.

    Args:
        scores: ``[*batch, n]``.
        strength: λ, not negative; 0 gives sparsemax. Scores that lie closer than about 2λ are fused, and a row that is fused as a whole
            has no gradient.

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.2; Johnson 2013, "A dynamic
        programming algorithm for the fused lasso and L0-segmentation", section 2.

    Example:
        >>> fusedmax(torch.tensor([1.0, 0.9, 0.5, -1.0]), 0.1)
        tensor([0.4667, 0.4667, 0.0667, 0.0000])
    """
    _check("fusedmax", strength)
    rows = checked_rows("fusedmax", scores)
    if strength > 0:
        distinct = share_rows(rows.detach(), 1)
        allowed = distinct > -math.inf
        order = (~allowed).long().sort(dim=-1, stable=True).indices
        fused = _least_variation(torch.where(allowed, distinct, 0).gather(-1, order), allowed.gather(-1, order), strength)
        groups = _groups(fused, allowed.gather(-1, order), torch.zeros_like(fused[..., :1]))
        rows = _replaced(rows, _unsorted(fused, order), order, groups, torch.ones_like(fused))
    return entmax(rows, 2.0).to(scores.dtype)


@operation(scores=1, gives="event")
def oscarmax(scores: Tensor, strength: float = 1.0, *, magnitudes: bool = True) -> Tensor:
    """Oscarmax along the last dimension: sparsemax of ``argmin_u ½‖u − θ‖² + λ Σ_(i<j) max(|u_i|, |u_j|)``.

    Parts of similar scores share their probability, wherever they stand: magnitudes are sorted, lowered by λ for every smaller one, made
    decreasing by isotonic regression, and cut at 0; the Jacobian averages over each group, with signs. Forbidden parts (-inf) are 0 and
    left out. Computed in float64, exactly.

    That is the authors' composition. It maximises ``⟨p, θ⟩ − ½‖p‖² − λ Σ_(i<j) max(p_i, p_j)`` over the simplex where all scores have one
    sign and nothing is cut, and not otherwise: at θ = (1, 0, 0), λ = ½ it gives thirds, where (½, ¼, ¼) is better. Without magnitudes and
    cut (``magnitudes=False``) it is that maximum for all scores, and does not change when a constant is added to them.

    Cost: a sort and O(n²) by the min-max formula of isotonic regression, in memory too.

    Args:
        scores: ``[*batch, n]``.
        strength: λ, not negative; 0 gives sparsemax.
        magnitudes: whether the penalty is on ``|u_i|``, as the authors compute it, or on ``u_i``.

    References:
        Niculae & Blondel 2017, "A regularized framework for sparse and structured neural attention", section 3.3; Zeng & Figueiredo 2014,
        "The ordered weighted l1 norm: atomic formulation, projections, and algorithms", section 4.

    Example:
        >>> oscarmax(torch.tensor([1.0, 0.2, 0.9, -1.0]), 0.1)
        tensor([0.5000, 0.0000, 0.5000, 0.0000])
        >>> oscarmax(torch.tensor([1.0, 0.0, 0.0]), 0.5, magnitudes=False)
        tensor([0.5000, 0.2500, 0.2500])
    """
    _check("oscarmax", strength)
    rows = checked_rows("oscarmax", scores)
    if strength > 0:
        distinct = share_rows(rows.detach(), 1)
        allowed = distinct > -math.inf
        finite = torch.where(allowed, distinct, 0)
        signs = torch.where(finite < 0, -1.0, 1.0).to(finite) if magnitudes else torch.ones_like(finite)
        order = torch.where(allowed, signs * finite, -math.inf).sort(dim=-1, descending=True, stable=True).indices
        among, signs = allowed.gather(-1, order), signs.gather(-1, order)
        # Each value less λ times the number of smaller ones; a forbidden one goes below all others, where nothing joins it.
        smaller = among.sum(-1, keepdim=True) - 1 - torch.arange(among.shape[-1], device=among.device)
        lowered = signs * finite.gather(-1, order) - strength * smaller.to(finite.dtype)
        least = torch.where(among, lowered, math.inf).amin(-1, keepdim=True)
        lowered = torch.where(among, lowered, torch.where(least < math.inf, least, 0) - 1)
        level = _decreasing(lowered)
        groups = _groups(level, among, 1e-12 * lowered.abs().amax(-1, keepdim=True))
        means = _averages(lowered, groups)
        # At a score of 0 that nothing is fused with, u = θ on either side.
        signs = torch.where(means >= 0, signs, 0) if magnitudes else signs
        rows = _replaced(rows, _unsorted(signs * means, order), order, groups, signs)
    return entmax(rows, 2.0).to(scores.dtype)


def _check(call: str, strength: float) -> None:
    if not 0 <= strength < math.inf:
        raise ValueError(f"`{call}` got strength={strength}; expected a finite number that is not negative")


def _replaced(rows: Tensor, values: Tensor, order: Tensor, groups: Tensor, signs: Tensor) -> Tensor:
    """Values in place of the rows, -inf where these are; the backward averages over the groups of the sorted parts, with signs."""

    def pull_back(gamma: Tensor) -> Tensor:
        ordered = signs * gamma.gather(-1, order.expand_as(gamma))
        return _unsorted(signs * _averages(ordered, groups), order)

    return with_backward(torch.where(rows > -math.inf, values, -math.inf), rows, pull_back)


def _unsorted(values: Tensor, order: Tensor) -> Tensor:
    return torch.zeros_like(values).scatter(-1, order.expand_as(values), values)


def _groups(levels: Tensor, among: Tensor, tolerance: Tensor) -> Tensor:
    """The number of the group of each place: neighbours of one level are together, and what is not among them apart."""
    parted = (levels[..., 1:] - levels[..., :-1]).abs() > tolerance
    ends = among[..., 1:] != among[..., :-1]
    return torch.nn.functional.pad((parted | ends).long().cumsum(-1), (1, 0))


def _averages(values: Tensor, groups: Tensor) -> Tensor:
    """At each place, the mean over its group."""
    groups = groups.expand_as(values)
    sums = torch.zeros_like(values).scatter_add(-1, groups, values)
    sizes = torch.zeros_like(values).scatter_add(-1, groups, torch.ones_like(values))
    return (sums / sizes.clamp(min=1)).gather(-1, groups)


def _least_variation(x: Tensor, among: Tensor, strength: float) -> Tensor:
    """``argmin ½‖u − x‖² + λ Σ|u_(i+1) − u_i|`` of rows [..., n], of the places that are among, which come first.

    From left to right, the derivative of the least cost so far in the last value: increasing, piecewise linear, of slope 1 at both ends. It
    is kept as points on its graph. To go on, it is clipped to ±λ: the last value stays where it is unless the next lies beyond.
    """
    places, values = x[..., :1], torch.zeros_like(x[..., :1])
    end = x.new_full((*x.shape[:-1], 1), strength)
    ends = torch.cat([-end, end], -1)
    bounds = []
    for i in range(1, x.shape[-1]):
        on, here = among[..., i : i + 1], x[..., i : i + 1]
        low, high = _crossing(places, values, -strength), _crossing(places, values, strength)
        bounds.append((torch.where(on, low, -math.inf), torch.where(on, high, math.inf)))
        places = torch.cat([places, low, high], -1)
        clipped = torch.cat([values.clamp(-strength, strength), ends], -1)
        values = torch.where(on, clipped + places - here, torch.cat([values, ends], -1))
    found = [_crossing(places, values, 0.0)]
    for low, high in reversed(bounds):
        found.append(torch.minimum(torch.maximum(found[-1], low), high))
    return torch.cat(found[::-1], -1)


def _crossing(places: Tensor, values: Tensor, level: float) -> Tensor:
    """Where the increasing function through points [..., m] meets a level."""
    below, above = values <= level, values >= level
    left, left_value = (torch.where(below, each, -math.inf).amax(-1, keepdim=True) for each in (places, values))
    right, right_value = (torch.where(above, each, math.inf).amin(-1, keepdim=True) for each in (places, values))
    rise, run = right_value - left_value, right - left
    slope = torch.where((rise > 0) & (rise < math.inf), run / rise.clamp(min=1e-300), 1)
    return torch.where(left > -math.inf, left + (level - left_value) * slope, right - (right_value - level))


def _decreasing(z: Tensor) -> Tensor:
    """The nearest decreasing rows: ``min_(j≤i) max_(k≥i) mean(z_j … z_k)`` (Robertson, Wright & Dykstra 1988, theorem 1.4.4)."""
    place = torch.arange(z.shape[-1], device=z.device)
    sums = torch.nn.functional.pad(z.cumsum(-1), (1, 0))
    size = place - place.unsqueeze(-1) + 1
    means = (sums[..., 1:].unsqueeze(-2) - sums[..., :-1].unsqueeze(-1)) / size.clamp(min=1)
    greatest = torch.where(size > 0, means, -math.inf).flip(-1).cummax(-1).values.flip(-1)
    return torch.where(size >= 1, greatest, math.inf).cummin(-2).values.diagonal(dim1=-2, dim2=-1)

"""Expectations of losses under a Gibbs law, by their form: by derivations, or by determinants over spanning trees."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.spanning_tree import SpanningTree
from ..problems.forms import CountForm, LinearForm, LossForm, PointForm, QuadraticForm, flat
from .derivations import GibbsLaw, derivations_of, gibbs_law
from .trees import TreeLaw

MAX_RANGE = 2**20
"""The largest number of values of all counts together."""


class Count(NamedTuple):
    """A function of one count: ``values[k]``, k = ⟨weights, z⟩.

    weights: int64 [*event]. values: float64 [size]; counts that no structure has hold any value.
    """

    weights: Tensor
    values: Tensor


def reduced(form: CountForm, oracle: Oracle, parameters: Tensor) -> Count | LinearForm | None:
    """The simplest form that is the same on all feasible structures; None if the counts have too many values.

    Args:
        form: of a loss.
        oracle: of the structures.
        parameters: natural parameters [*event]; their -inf say which parts are forbidden.
    """
    read = oracle.read_mask(tuple(parameters.shape), parameters.device)
    weights = [torch.where(read, count.to(parameters.device).round().long(), 0) for count in form.counts]
    ranges = [_range(oracle, count, parameters) for count in weights]
    several = [i for i, (low, high) in enumerate(ranges) if low < high]
    if math.prod(ranges[i][1] + 1 for i in several) > MAX_RANGE:
        return None
    joint, size = torch.zeros_like(parameters, dtype=torch.int64), 1
    for i in several:
        joint, size = joint * (ranges[i][1] + 1) + weights[i], size * (ranges[i][1] + 1)
    values = form.function(*_unjoined(torch.arange(size, device=parameters.device), ranges)).double().expand(size)
    if not several:
        return LinearForm(torch.zeros_like(parameters), float(values[0]))
    if len(several) == 1:
        low, high = ranges[several[0]]
        slope = (values[high] - values[low]) / (high - low)
        line = values[low] + slope * torch.arange(high - low + 1, device=values.device)
        rounding = 8 * torch.finfo(values.dtype).eps * values[low : high + 1].abs().max()
        if bool(((values[low : high + 1] - line).abs() <= rounding).all()):
            return LinearForm(slope * joint, float(values[low] - slope * low))
    return Count(joint, values)


def _range(oracle: Oracle, count: Tensor, parameters: Tensor) -> tuple[int, int]:
    """The least and the greatest value over the feasible structures."""
    allowed = parameters > -math.inf
    extremes = []
    for sign in (-1, 1):
        rows = torch.where(allowed, sign * count, -math.inf).to(parameters.dtype).unsqueeze(0)
        extremes.append(int((oracle.argmax_of(rows)[0] * count).sum()))
    return extremes[0], extremes[1]


def _unjoined(joint: Tensor, ranges: list[tuple[int, int]]) -> list[Tensor]:
    """The counts of joint ones, clamped to the range of structures; constant ones as they are."""
    counts = []
    for low, high in reversed(ranges):
        counts.append((joint % (high + 1)).clamp(low, high) if low < high else torch.full_like(joint, high))
        joint = joint // (high + 1) if low < high else joint
    return counts[::-1]


MAX_TABLE = 2**25
"""The most numbers in a table of counts by node, or complex numbers in the determinants of all frequencies."""

Law = GibbsLaw | TreeLaw


def law_of(oracle: Oracle, parameters: Tensor) -> Law | None:
    """The law of natural parameters [*event] with 0 at ignored entries; None if the oracle has no sums in closed form."""
    if isinstance(oracle, SpanningTree):
        return TreeLaw(oracle, parameters)
    derivations = derivations_of(oracle, tuple(parameters.shape))
    return None if derivations is None else gibbs_law(derivations, parameters.flatten())


def has_law(oracle: Oracle, event: tuple[int, ...]) -> bool:
    """Whether `law_of` finds one for scores of a shape."""
    return isinstance(oracle, SpanningTree) or derivations_of(oracle, event) is not None


def holds_counts(oracle: Oracle, event: tuple[int, ...], size: int) -> bool:
    """Whether the law of a count of so many values fits, for an oracle that has a law."""
    derivations = derivations_of(oracle, event)
    numbers = event[-1] ** 2 * (size // 2 + 1) // 2 if derivations is None else derivations.nodes * size
    return numbers <= MAX_TABLE


def entropy_of(law: Law, parameters: Tensor, best: Tensor) -> float:
    """``A(θ) − ⟨θ, μ⟩``, both relative to the best structure."""
    allowed = torch.where(parameters > -math.inf, parameters, 0).flatten()
    return law.log_partition - float(allowed @ best.flatten()) - float(allowed @ (law.marginals - best.flatten()))


class Expected(NamedTuple):
    """``E L``, its gradient [d] in the natural parameters, ``Var L`` (nan if unknown), and the size that its rounding is relative to."""

    kind: str
    value: float
    gradient: Tensor
    variance: float
    magnitude: float


def expectation(law: Law, form: Count | LossForm, parameters: Tensor) -> Expected:
    """The expectation of a loss of a form under a law with these natural parameters."""
    if isinstance(form, Count):
        counts = law.counts(form.weights, len(form.values))
        centre = float(form.values[counts.root.argmax()])
        changes = form.values - centre
        mean = float(counts.root @ changes)
        variance = float(counts.root @ (changes - mean).square())
        return Expected("count", centre + mean, counts.gradient(changes), variance, counts.noise(changes))
    if isinstance(form, PointForm):
        # One value at z*, another elsewhere: ∇ p(z*) = p(z*) (z* − μ).
        structure = flat(form.structure, 0)
        taken = (structure * torch.where(structure > 0, parameters.flatten(), 0)).sum()  # a part that is counted as often as it is
        p, step = math.exp(min(float(taken) - law.log_partition, 0.0)), form.here - form.elsewhere
        gradient = step * p * (structure - law.marginals)
        return Expected("point", form.elsewhere + step * p, gradient, step**2 * p * (1 - p), abs(step) * p)
    if isinstance(form, LinearForm):
        moments = law.moments(flat(form.weights).unsqueeze(0))
        root = moments.root
        gradient = moments.gradient(torch.ones_like(root.mean), torch.zeros_like(root.mean))
        square = float(2 * root.half_square)
        value = float(root.centre + root.mean) + form.constant
        return Expected("linear", value, gradient, max(square - float(root.mean) ** 2, 0.0), square**0.5)
    assert isinstance(form, QuadraticForm), "other counts are reduced"
    # By the first two moments of A z about a structure; the variance would take four.
    moments = law.moments(flat(form.matrix, 1))
    root = moments.root
    offset = root.centre - flat(form.target)
    gradient = moments.gradient(2 * offset, torch.full_like(offset, 2))
    change = 2 * offset @ root.mean + 2 * root.half_square.sum()
    magnitude = 2 * offset.abs() @ (2 * root.half_square).clamp(min=0).sqrt() + 2 * root.half_square.sum()
    return Expected("quadratic", float(offset @ offset + change) + form.constant, gradient, math.nan, float(magnitude))

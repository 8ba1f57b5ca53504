"""The law of an integer count over spanning trees: a Fourier transform of the log-partition at complex scores.

``E e^{iωk} = Z(θ + iωa) / Z(θ)`` for the count ``k = ⟨a, z⟩``, and its inverse transform over ω is the law of k. A transform keeps an
absolute precision, relative to what deviates from the best tree. Where a function of the count changes only at counts that are rarer
still, the law is tilted: scores ``θ + τa`` make these counts likely, and ``P(k) = P_τ(k) e^{A(θ + τa) − A(θ) − τk}``. Of both ways the one
with the smaller rounding error is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ....oracles.spanning_tree import SpanningTree
from .deviations import Deviations

LARGEST_DETERMINANTS = 2**26
"""The most complex numbers, of all frequencies together, that are held at once."""

CLEAR, RELIABLE = 1e-3, 1e-10
"""No tilt is tried where the rounding errors are this much smaller than what is measured, which is itself known from this size on."""

BISECTIONS = 60


class Expectation(NamedTuple):
    """The expectation of a function of a count, its gradient [n + 1, n + 1], and the size of its rounding errors in units of rounding."""

    value: float
    gradient: Tensor
    noise: float


@dataclass(frozen=True, eq=False)
class _Tilted:
    """Counts under tilted scores, one determinant per frequency.

    Attributes:
        scores: [n + 1, n + 1]. ``weights``: [n + 1, n + 1], what each arc counts. ``size``: counts are below this.
        deviations: from the best tree of these scores.
    """

    scores: Tensor
    weights: Tensor
    size: int
    deviations: Deviations

    @classmethod
    def of(cls, oracle: SpanningTree, scores: Tensor, weights: Tensor, size: int) -> _Tilted:
        """Around the best tree."""
        tree = oracle.heads(oracle.argmax(scores))
        return cls(scores, weights, size, Deviations.of(tree, single_root=oracle.single_root))

    def transform(self, relative: Tensor) -> Tensor:
        """``E e^{iω(k − k_T)}`` at the frequencies 0 … half of an odd number of them: complex [f], differentiable in ``log ρ``."""
        changes = self.deviations.less_tree(self.weights)
        columns, factors, _ = self.deviations.scaling(relative.detach())
        ratios = (relative - columns).exp()
        phases = torch.arange(self.size // 2 + 1, dtype=torch.float64, device=relative.device) * (2 * math.pi / self.frequencies)
        matrix = torch.eye(len(factors), dtype=torch.complex128, device=relative.device).expand(len(phases), *factors.shape)
        # One real matrix for everything that changes the count by the same number.
        for change in changes[ratios > 0].unique().tolist():
            part = self.deviations.matrix(torch.where(changes == change, ratios, 0)) * factors
            matrix = matrix + torch.polar(torch.ones_like(phases), phases * change).reshape(-1, 1, 1) * part
        signs, logarithms = torch.linalg.slogdet(matrix)
        transformed: Tensor = signs * (logarithms - logarithms[0]).exp()
        return transformed

    @property
    def frequencies(self) -> int:
        """Odd, so that no determinant is at −1, where sums of a few arcs vanish."""
        return 2 * (self.size // 2) + 1

    @property
    def pivot(self) -> int:
        """The count of the best tree."""
        words = torch.arange(1, self.scores.shape[-1], device=self.scores.device)
        return int(self.weights[self.deviations.heads, words].sum())

    def law(self) -> Tensor:
        """P(k): [size]."""
        with torch.no_grad():
            transform = self.transform(self.deviations.relative(self.scores))
        around: Tensor = torch.fft.irfft(transform.conj(), n=self.frequencies)
        return around.roll(self.pivot)[: self.size].clamp(min=0)

    def expectation(self, values: Tensor) -> Expectation:
        """Of ``values[k]``."""
        padded = torch.nn.functional.pad(values, (0, self.frequencies - self.size)).roll(-self.pivot)
        weights = torch.fft.rfft(padded)
        weights[1:] *= 2
        leaf = self.scores.clone().requires_grad_()
        with torch.enable_grad():
            value = (weights * self.transform(self.deviations.relative(leaf))).real.sum() / self.frequencies
            (gradient,) = torch.autograd.grad(value, leaf)
        # What is 0 at the best tree has the errors of what deviates from it alone.
        share = self.deviating if values[self.pivot] == 0 else 1.0
        return Expectation(float(value.detach()), gradient, share * float(values.abs().max()))

    @property
    def deviating(self) -> float:
        """The probability of all trees but the best one, where the determinants know it to a relative precision; else 1."""
        relative = self.deviations.relative(self.scores)
        graded = self.deviations.scaling(relative).graded
        return -math.expm1(-float(self.deviations.log_weight(relative))) if graded else 1.0


def affordable(words: int, size: int) -> bool:
    """Whether all frequencies fit into memory."""
    return words**2 * (size // 2 + 1) <= LARGEST_DETERMINANTS


def count_law(oracle: SpanningTree, scores: Tensor, weights: Tensor, size: int) -> Tensor:
    """P(k) of a count below ``size``: [size]; right to an absolute precision."""
    return _Tilted.of(oracle, scores, weights.to(scores), size).law()


def expected_changes(oracle: SpanningTree, scores: Tensor, weights: Tensor, changes: Tensor, *, magnitude: float) -> Expectation:
    """The gradient of ``E changes[k]``, k the count of a spanning tree.

    Args:
        oracle: of the trees.
        scores: float64 [n + 1, n + 1]; ignored entries hold 0.
        weights: [n + 1, n + 1], whole numbers of at least 0, what each arc counts.
        changes: float64 [size] for all counts below ``size``; 0 at the most probable one.
        magnitude: ``E|changes[k]|``, as far as an absolute precision tells.
    """
    weights = weights.to(scores)
    plain = _Tilted.of(oracle, scores, weights, len(changes)).expectation(changes)
    if magnitude >= max(CLEAR * plain.noise, RELIABLE * float(changes.abs().max())):
        return plain
    sides = _both_sides(oracle, scores, weights, changes)
    return plain if plain.noise <= sides.noise else sides


def _both_sides(oracle: SpanningTree, scores: Tensor, weights: Tensor, changes: Tensor) -> Expectation:
    """By one tilt for the counts above the most probable one, and another one for those below."""
    counts = torch.arange(len(changes), dtype=scores.dtype, device=scores.device)
    marginals, centre = oracle.marginals(scores), float((weights * oracle.argmax(scores)).sum())
    total = Expectation(0.0, torch.zeros_like(scores), 0.0)
    for side in (1, -1):
        mine = torch.where((counts - centre) * side > 0, changes, 0)
        if bool((mine != 0).any()):
            part = _of_one_side(oracle, scores, weights, mine, side)
            gradient = total.gradient + part.gradient - part.value * marginals
            total = Expectation(total.value + part.value, gradient, total.noise + part.noise)
    rest = changes[int(centre)]
    return total if rest == 0 else total._replace(noise=math.inf)


def _of_one_side(oracle: SpanningTree, scores: Tensor, weights: Tensor, values: Tensor, side: int) -> Expectation:
    """Of values that are 0 on the other side, under the law that makes the nearest count with a value likely.

    The gradient is ``E values[k] z``, from which a multiple of the marginals is still to be taken.
    """
    reached = values.nonzero().flatten()
    nearest = int(reached[0] if side > 0 else reached[-1])
    tilt = _tilt(oracle, scores, weights, nearest - side / 2)
    tilted = scores + tilt * weights
    counts = torch.arange(len(values), dtype=scores.dtype, device=scores.device)
    # Relative to the nearest count, so that no power overflows.
    powers = torch.where(values != 0, values * (-tilt * (counts - nearest)).clamp(max=600).exp(), 0)
    part = _Tilted.of(oracle, tilted, weights, len(values)).expectation(powers)
    factor = float((oracle.log_partition(tilted) - oracle.log_partition(scores) - tilt * nearest).exp())
    return Expectation(factor * part.value, factor * (part.gradient + part.value * oracle.marginals(tilted)), factor * part.noise)


def _tilt(oracle: SpanningTree, scores: Tensor, weights: Tensor, target: float) -> float:
    """The τ at which the mean count is a target, or 0 where it is already beyond it; by bisection, for the mean rises with τ."""

    def mean(tilt: float) -> float:
        return float((oracle.marginals(scores + tilt * weights) * weights).sum())

    side = 1.0 if mean(0.0) < target else -1.0
    reach = 1.0
    while (mean(side * reach) - target) * side < 0 and reach < 1e6:
        reach *= 2
    low, high = sorted((0.0, side * reach))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < target else (low, middle)
    return (low + high) / 2

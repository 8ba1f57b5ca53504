"""Expectations over spanning trees, by determinants of the deviations from one tree.

Let T be a tree, and ``ρ(h → m)`` the weight of an arc relative to that of the arc into m in T. The matrix-tree theorem gives
``Z = w(T) det(I + B)`` with ``B(i, m) = Σ_h ρ(h → m) ([i is above m] − [i is above h])``, sums over the arcs that are not in T, where
"above" means in T, and includes the word itself. (Multiply the Laplacian of all arcs by the inverse of that of T, which is the matrix of
"above".) So an entry is a sum of terms of one sign: over the heads beside the subtree of i where i is above m, over those in it, negative,
where it is not. Nothing cancels; and if T is the best tree and probable, B is small, so that rare events keep their digits, which the
Laplacian itself loses. With a single root, let the weights of the root tend to 0 together: then only the top word of T has the root.

Moments of a linear function are three derivatives of one determinant. The law of an integer count ``k = ⟨a, z⟩`` is a Fourier transform of
the log-partition at complex scores, ``E e^{iωk} = Z(θ + iωa) / Z(θ)``. A transform keeps an absolute precision, relative to the deviations
from the best tree. Where a function of the count changes only at counts that are rarer still, the law is tilted: scores ``θ + τa`` make
these counts likely, and ``P(k) = P_τ(k) e^{A(θ + τa) − A(θ) − τk}``. The way with the smaller rounding error is taken.

Sources: Tutte 1948, "The dissection of equilateral triangles into equilateral triangles", section 3; Koo et al. 2007, "Structured
prediction models via the matrix-tree theorem", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...oracles.spanning_tree import SpanningTree
from .derivations import QuadraticMoments

MARGIN = 0.5
"""By how much, in logarithms, entries are kept below the pivots: √2 is lost where |Re| + |Im| stands for the modulus."""


class TreeScaling(NamedTuple):
    """How to keep B in range.

    columns: [n], what to take off ``log ρ``. factors: [n, n], what to multiply B with then: a similarity, which no determinant feels, and
    what was taken off. graded: whether every entry beside the diagonal is smaller than 1, as where T is probable: elimination then takes
    its pivots from the diagonal, and leaves small numbers their digits.
    """

    columns: Tensor
    factors: Tensor
    graded: bool


@dataclass(frozen=True, eq=False)
class Deviations:
    """What deviates from a tree T on words 1..n.

    Attributes:
        heads: [n], of T.
        above: [n, n + 1], whether word i + 1 is position h or above it in T.
        single_root: whether the root has one child only.
    """

    heads: Tensor
    above: Tensor
    single_root: bool

    @classmethod
    def of(cls, heads: Tensor, *, single_root: bool) -> Deviations:
        """From the heads [n] of T."""
        size = len(heads) + 1
        parents = one_hot(pad(heads, (1, 0)), size).double()
        parents[0] = 0
        reach = torch.eye(size, dtype=torch.float64, device=heads.device) + parents
        for _ in range(size.bit_length()):
            reach = ((reach @ reach) > 0).double()
        return cls(heads, reach.mT[1:] > 0, single_root)

    def relative(self, scores: Tensor) -> Tensor:
        """Scores [..., n + 1, n + 1] of arcs to ``log ρ``: [..., n + 1, n], -inf on T, on the diagonal and where forbidden."""
        into = scores[..., 1:]
        size = into.shape[-2]
        own = one_hot(self.heads, size).mT.bool()
        best = torch.where(own, into, 0).sum(-2, keepdim=True)
        itself = pad(torch.eye(size - 1, dtype=torch.bool, device=own.device), (0, 0, 1, 0))
        return (into - best).masked_fill(own | itself, -math.inf)

    def less_tree(self, weights: Tensor) -> Tensor:
        """Weights [..., n + 1, n + 1] of arcs as the change that an arc brings: [..., n + 1, n], 0 on T."""
        into = weights[..., 1:]
        return into - into.gather(-2, self.heads.expand(*into.shape[:-2], 1, -1))

    def matrix(self, ratios: Tensor) -> Tensor:
        """B [..., n, n] of ρ [..., n + 1, n]."""
        subtree = self.above.to(ratios.dtype)
        beside = 1 - subtree
        if self.single_root:
            top = self.heads == 0
            beside = torch.cat([torch.where(top, beside[:, 0], 0).unsqueeze(1), beside[:, 1:]], 1)
        return torch.where(self.above[:, 1:], beside @ ratios, -(subtree @ ratios))

    def log_weight(self, relative: Tensor) -> Tensor:
        """Of all trees relative to T: [...] for ``log ρ`` [..., n + 1, n], scaled as the first of them needs it."""
        scaling = self.scaling(relative.detach().reshape(-1, *relative.shape[-2:])[0])
        matrix = self.matrix((relative - scaling.columns).exp()) * scaling.factors
        logarithm: Tensor = torch.linalg.slogdet(matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))[1]
        return logarithm

    def scaling(self, relative: Tensor) -> TreeScaling:
        """For ``log ρ`` [n + 1, n]."""
        columns = relative.amax(0).clamp(min=-1e300)
        size = self.matrix((relative - columns).exp()).abs().log() + columns
        size.fill_diagonal_(-math.inf)
        potential, slack = torch.zeros_like(columns), -MARGIN
        while True:
            for _ in range(len(columns) + 1):
                raised = torch.maximum(potential, (size - slack + potential).amax(1))
                if torch.equal(raised, potential):
                    return TreeScaling(columns, (columns + potential - potential.unsqueeze(1)).exp(), slack < 0)
                potential = raised
            # A cycle of gain: nothing settles until every step costs more.
            potential, slack = torch.zeros_like(columns), 2 * max(slack, 0) + 1


class TreeMoments:
    """The moments of ``y = A z`` about its value at a tree T, and the gradient of a function of them.

    Args:
        deviations: from T.
        scores: [n + 1, n + 1], 0 at ignored entries.
        weights: A, [r, n + 1, n + 1].
    """

    def __init__(self, deviations: Deviations, scores: Tensor, weights: Tensor) -> None:
        self._leaf = scores.expand(len(weights), *scores.shape).clone().requires_grad_()
        # Along a direction that is 0 on T, so that what is rare is not a difference of what is likely.
        along = pad(deviations.less_tree(weights), (1, 0))
        with torch.enable_grad():
            log_weight = deviations.log_weight(deviations.relative(self._leaf))
            (taken,) = torch.autograd.grad(log_weight.sum(), self._leaf, create_graph=True)
            self._mean = (taken * along).sum((1, 2))
            (change,) = torch.autograd.grad(self._mean.sum(), self._leaf, create_graph=True)
            self._half = ((change * along).sum((1, 2)) + self._mean.square()) / 2
        words = torch.arange(1, scores.shape[-1], device=scores.device)
        centre = weights[:, deviations.heads, words].sum(-1)
        self.root = QuadraticMoments(centre, self._mean.detach(), self._half.detach())

    def gradient(self, first: Tensor, second: Tensor) -> Tensor:
        """Of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""
        with torch.enable_grad():
            total = (first * self._mean + second * self._half).sum()
        (gradient,) = torch.autograd.grad(total, self._leaf)
        return gradient.sum(0).flatten()


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
        padded = pad(values, (0, self.frequencies - self.size)).roll(-self.pivot)
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

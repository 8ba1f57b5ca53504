"""Expectations over spanning trees, by determinants of the deviations from one tree.

Let T be a tree, and ``ρ(h → m)`` the weight of an arc relative to that of the arc into m in T. "Above" means in T, and includes the word
itself. The matrix-tree theorem gives ``Z = w(T) det(I + B)``. Here ``B(i, m) = Σ_h ρ(h → m) ([i is above m] − [i is above h])`` is a sum
over the arcs that are not in T. (Multiply the Laplacian of all arcs by the inverse of that of T, which is the matrix of
"above".) So an entry is a sum of terms of one sign. If i is above m, it runs over the heads outside the subtree of i. Otherwise it runs
over the heads inside it, and is negative. Nothing cancels. If T is the best tree and probable, B is small, so rare events keep their
digits. The Laplacian itself loses them. With a single root, let the weights of the root tend to 0 together: then only the top word of T has
the root.

Moments of a linear function are three derivatives of one determinant. The law of an integer count ``k = ⟨a, z⟩`` is a Fourier transform of
the log-partition at complex scores, ``E e^{iωk} = Z(θ + iωa) / Z(θ)``. A transform keeps an absolute precision, relative to the deviations
from the best tree.

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
"""Distance in logarithms of entries below the pivots: √2 is lost because |Re| + |Im| stands for the modulus."""


class TreeScaling(NamedTuple):
    """Scales that keep B in range.

    Attributes:
        columns: [n], subtracted from ``log ρ``.
        factors: [n, n], multiplied with B after that: a similarity, which leaves determinants as they are, and the subtracted columns.
        graded: whether every entry off the diagonal is smaller than 1, as for a probable T. Elimination then takes its pivots from the
            diagonal, and small numbers keep their digits.
    """

    columns: Tensor
    factors: Tensor
    graded: bool


@dataclass(frozen=True, eq=False)
class Deviations:
    """Deviations from a tree T on words 1..n.

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
        """Deviations from the tree with these heads [n]."""
        size = len(heads) + 1
        parents = one_hot(pad(heads, (1, 0)), size).double()
        parents[0] = 0
        reach = torch.eye(size, dtype=torch.float64, device=heads.device) + parents
        for _ in range(size.bit_length()):
            reach = ((reach @ reach) > 0).double()
        return cls(heads, reach.mT[1:] > 0, single_root)

    def relative(self, scores: Tensor) -> Tensor:
        """Scores [..., n + 1, n + 1] of arcs to ``log ρ``: [..., n + 1, n], -inf on T, on the diagonal and at forbidden arcs."""
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
        outside = 1 - subtree
        if self.single_root:
            top = self.heads == 0
            outside = torch.cat([torch.where(top, outside[:, 0], 0).unsqueeze(1), outside[:, 1:]], 1)
        return torch.where(self.above[:, 1:], outside @ ratios, -(subtree @ ratios))

    def log_weight(self, relative: Tensor) -> Tensor:
        """The log-weight of all trees relative to T: [...] for ``log ρ`` [..., n + 1, n], scaled for the first of them."""
        scaling = self.scaling(relative.detach().reshape(-1, *relative.shape[-2:])[0])
        matrix = self.matrix((relative - scaling.columns).exp()) * scaling.factors
        logarithm: Tensor = torch.linalg.slogdet(matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))[1]
        return logarithm

    def scaling(self, relative: Tensor) -> TreeScaling:
        """The scales for ``log ρ`` [n + 1, n]."""
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
        # Along a direction that is 0 on T, so that a rare event is not a difference of likely ones.
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
        """The gradient of ``Σ_r first_r E y_r + second_r E y_r² / 2``, y about the centre: [d]."""
        with torch.enable_grad():
            total = (first * self._mean + second * self._half).sum()
        (gradient,) = torch.autograd.grad(total, self._leaf)
        return gradient.sum(0).flatten()


class TreeCounts:
    """The law of an integer count over spanning trees, ``root`` [size], to an absolute precision; one determinant per frequency.

    Args:
        deviations: from the best tree.
        scores: [n + 1, n + 1], 0 at ignored entries.
        weights: [n + 1, n + 1], the count of each arc.
        size: counts are below this.
    """

    def __init__(self, deviations: Deviations, scores: Tensor, weights: Tensor, size: int) -> None:
        self.deviations, self.size, self.weights = deviations, size, weights.to(scores)
        # Odd, so that no determinant is at −1, where sums of a few arcs vanish.
        self.frequencies = 2 * (size // 2) + 1
        self.mode = int(self.weights[deviations.heads, torch.arange(1, scores.shape[-1], device=scores.device)].sum())
        self._leaf = scores.clone().requires_grad_()
        with torch.enable_grad():
            self._transform = self._transformed(deviations.relative(self._leaf))
        around: Tensor = torch.fft.irfft(self._transform.detach().conj(), n=self.frequencies)
        self.root = around.roll(self.mode)[:size].clamp(min=0)

    def _transformed(self, relative: Tensor) -> Tensor:
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

    def gradient(self, values: Tensor) -> Tensor:
        """The gradient of ``E values[count]``: [d]."""
        weights = torch.fft.rfft(pad(values, (0, self.frequencies - self.size)).roll(-self.mode))
        weights[1:] *= 2
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad((weights * self._transform).real.sum() / self.frequencies, self._leaf, retain_graph=True)
        return gradient.flatten()

    def noise(self, values: Tensor) -> float:
        """The size that rounding errors of `gradient` are relative to; small if values are 0 at the best tree and it is likely."""
        relative = self.deviations.relative(self._leaf.detach())
        rare = values[self.mode] == 0 and self.deviations.scaling(relative).graded
        return (-math.expm1(-float(self.deviations.log_weight(relative))) if rare else 1.0) * float(values.abs().max())


class TreeLaw:
    """The Gibbs law of spanning trees, by determinants around the best one; attributes as those of `GibbsLaw`."""

    def __init__(self, oracle: SpanningTree, parameters: Tensor) -> None:
        self._scores, tree = parameters, oracle.heads(oracle.argmax(parameters))
        self._deviations = Deviations.of(tree, single_root=oracle.single_root)
        self.log_partition = float(oracle.log_partition(parameters))
        self.marginals = oracle.marginals(parameters).flatten()
        largest = float(self._deviations.relative(parameters).clamp(min=-1e3).abs().max())
        self.roundings = len(tree) * (2 * largest + 8 * len(tree))

    def moments(self, weights: Tensor) -> TreeMoments:
        """The moments of ``weights z``, weights [r, d]."""
        return TreeMoments(self._deviations, self._scores, weights.unflatten(1, self._scores.shape))

    def counts(self, weights: Tensor, size: int) -> TreeCounts:
        """The law of the count ``⟨weights, z⟩`` below a size."""
        return TreeCounts(self._deviations, self._scores, weights, size)

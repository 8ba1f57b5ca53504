"""Expectations over spanning trees, by determinants of the deviations from one tree.

Let T be a tree, and ``ρ(h → m)`` the weight of an arc relative to that of the arc into m in T. "Above" means in T, and includes the word
itself. The matrix-tree theorem gives ``Z = w(T) det(I + B)``. Here ``B(i, m) = Σ_h ρ(h → m) ([i is above m] − [i is above h])`` is a sum
over the arcs that are not in T. (Multiply the Laplacian of all arcs by the inverse of that of T, which is the matrix of
"above".) So an entry is a sum of terms of one sign. If i is above m, it runs over the heads outside the subtree of i. Otherwise it runs
over the heads inside it, and is negative. Nothing cancels. If T is the best tree and probable, B is small, so rare events keep their
digits. The Laplacian itself loses them. With a single root, let the weights of the root tend to 0 together: then only the top word of T has
the root.

Moments of a linear function are three derivatives of one determinant. The law of an integer count ``k = ⟨a, z⟩`` is a Fourier transform of
the log-partition at complex scores, ``E e^{iωk} = Z(θ + iωa) / Z(θ)``. A transform keeps an absolute precision, so rare counts are read
from the law at scores ``θ + t a``, where they are likely.

Sources: Tutte 1948, "The dissection of equilateral triangles into equilateral triangles", section 3; Koo et al. 2007, "Structured
prediction models via the matrix-tree theorem", section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...oracles.spanning_tree import SpanningTree
from .derivations import Moments

MARGIN = 0.5
"""Distance in logarithms of entries below the pivots: √2 is lost because |Re| + |Im| stands for the modulus."""


SEARCH = {"xatol": 0.1}
"""Precision of a tilt: rounding errors change by a factor of e where it changes by 1."""


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

    def of_tree(self, weights: Tensor) -> Tensor:
        """The sum of weights [..., n + 1, n + 1] over the arcs of T: [...]."""
        return weights[..., self.heads, torch.arange(1, weights.shape[-1], device=weights.device)].sum(-1)

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
        columns, factors = self.scaling(relative.detach().reshape(-1, *relative.shape[-2:])[0])
        matrix = self.matrix((relative - columns).exp()) * factors
        logarithm: Tensor = torch.linalg.slogdet(matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))[1]
        return logarithm

    def scaling(self, relative: Tensor) -> tuple[Tensor, Tensor]:
        """Scales for ``log ρ`` [n + 1, n] that keep B in range: columns [n] to subtract, and factors [n, n] to multiply B with after that.

        They are a similarity, which leaves determinants as they are, and the subtracted columns. If T is probable, every entry off the
        diagonal becomes smaller than 1: elimination takes its pivots from the diagonal, and small numbers keep their digits.
        """
        columns = relative.amax(0).clamp(min=-1e300)
        size = self.matrix((relative - columns).exp()).abs().log() + columns
        size.fill_diagonal_(-math.inf)
        potential, slack = torch.zeros_like(columns), -MARGIN
        while True:
            for _ in range(len(columns) + 1):
                raised = torch.maximum(potential, (size - slack + potential).amax(1))
                if torch.equal(raised, potential):
                    return columns, (columns + potential - potential.unsqueeze(1)).exp()
                potential = raised
            # A cycle of gain: nothing settles until every step costs more.
            potential, slack = torch.zeros_like(columns), 2 * max(slack, 0) + 1


class TreeLaw:
    """The Gibbs law of spanning trees, by determinants around the best one; attributes as those of `GibbsLaw`."""

    def __init__(self, oracle: SpanningTree, parameters: Tensor) -> None:
        self._oracle, self._leaf = oracle, parameters.clone().requires_grad_()
        self._deviations = self._around_best(parameters)
        self.log_partition = float(oracle.log_partition(parameters))
        self.marginals = oracle.marginals(parameters).flatten()
        heads = self._deviations.heads
        largest = float(self._deviations.relative(parameters).clamp(min=-1e3).abs().max())
        self.roundings = len(heads) * (2 * largest + 8 * len(heads))

    def _around_best(self, scores: Tensor) -> Deviations:
        return Deviations.of(self._oracle.heads(self._oracle.argmax(scores)), single_root=self._oracle.single_root)

    def gradient(self, expectation: Tensor) -> Tensor:
        """The gradient [d] in the scores of an expectation of `moments` or `count`."""
        (gradient,) = torch.autograd.grad(expectation, self._leaf, retain_graph=True)
        return gradient.flatten()

    def moments(self, weights: Tensor) -> Moments:
        """The first two moments of ``y = weights z``, weights [r, d], about its value at the best tree."""
        weights = weights.unflatten(1, self._leaf.shape)
        # Along a direction that is 0 on T, so that a rare event is not a difference of likely ones.
        along = pad(self._deviations.less_tree(weights), (1, 0))
        with torch.enable_grad():
            rows = self._leaf.expand(len(weights), *self._leaf.shape)
            log_weight = self._deviations.log_weight(self._deviations.relative(rows))
            (taken,) = torch.autograd.grad(log_weight.sum(), rows, create_graph=True)
            mean = (taken * along).sum((1, 2))
            (change,) = torch.autograd.grad(mean.sum(), rows, create_graph=True)
            half = ((change * along).sum((1, 2)) + mean.square()) / 2
        return Moments(self._deviations.of_tree(weights), mean, half)

    def count(self, weights: Tensor, values: Tensor) -> tuple[Moments, float]:
        """The moments of ``values[⟨weights, z⟩]``, int64 [*event] and [size], and the size that rounding errors are relative to.

        A Fourier transform of determinants keeps an absolute precision of ``p_k``, relative to the largest. So counts below and above that
        of the best tree are read from two laws with scores ``θ + t weights``, each with the tilt t at which rounding errors are least.
        """
        scores, counts = self._leaf.detach(), torch.arange(len(values), dtype=torch.float64, device=values.device)
        weights = weights.to(scores)
        mode = int(self._deviations.of_tree(weights))
        changes = values - values[mode]
        mean, square, noise = scores.new_zeros(()), 0.0, 0.0
        farthest = len(scores) * float(scores[scores.isfinite()].abs().max()) + 1
        for side, bounds in ((counts < mode, (-farthest, 0.0)), (counts > mode, (0.0, farthest))):
            logarithms = torch.where(side, changes.abs(), 0).log()

            def errors(tilt: float, logarithms: Tensor = logarithms) -> Tensor:
                tilted = float(self._oracle.log_partition(scores + tilt * weights)) - self.log_partition
                return logarithms + (tilted - tilt * counts)

            if bool((logarithms > -math.inf).any()):
                tilt = float(minimize_scalar(lambda tilt: float(errors(tilt).max()), bounds=bounds, method="bounded", options=SEARCH).x)
                parts = errors(tilt).exp() * changes.sign()
                law = self._counts(weights, len(values), tilt)
                with torch.enable_grad():
                    mean = mean + law @ parts
                square += float(law.detach().clamp(min=0) @ (parts * changes))
                noise = max(noise, float(parts.abs().max()))
        with torch.enable_grad():
            # The derivative of the mean is E[f(z) (z − z_T)], less the mean times μ − z_T.
            along = torch.where(self.marginals > 0, self._leaf.flatten(), 0) @ self.marginals - self._deviations.of_tree(self._leaf)
            mean = mean - float(mean.detach()) * (along - float(along.detach()))
        return Moments(values[mode], mean, scores.new_tensor(square / 2)), noise

    def _counts(self, weights: Tensor, size: int, tilt: float) -> Tensor:
        """The law [size] of a count at tilted scores; its derivative is that of the weights of trees by the total, relative to T."""
        deviations = self._around_best(self._leaf.detach() + tilt * weights)
        # Odd, so that no determinant is at −1, where sums of a few arcs vanish.
        frequencies = 2 * (size // 2) + 1
        phases = torch.arange(size // 2 + 1, dtype=torch.float64, device=weights.device) * (2 * math.pi / frequencies)
        changes = deviations.less_tree(weights)
        with torch.enable_grad():
            relative = deviations.relative(self._leaf + tilt * weights)
            columns, factors = deviations.scaling(relative.detach())
            ratios = (relative - columns).exp()
            matrix = torch.eye(len(factors), dtype=torch.complex128, device=weights.device).expand(len(phases), *factors.shape)
            # One real matrix for everything that changes the count by the same number.
            for change in changes[ratios > 0].unique().tolist():
                part = deviations.matrix(torch.where(changes == change, ratios, 0)) * factors
                matrix = matrix + torch.polar(torch.ones_like(phases), phases * change).reshape(-1, 1, 1) * part
            signs, logarithms = torch.linalg.slogdet(matrix)
            best = deviations.of_tree(self._leaf) - self._deviations.of_tree(self._leaf)
            transform = signs * (logarithms - logarithms[0].detach() + (best - best.detach())).exp()
            law: Tensor = torch.fft.irfft(transform.conj(), n=frequencies)
            return law.roll(int(deviations.of_tree(weights)))[:size]

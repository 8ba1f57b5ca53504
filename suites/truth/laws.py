"""The Gibbs laws of structures in closed form: over derivations and over spanning trees.

A derivation is a top-down choice of edges, whose probabilities are ratios of inside weights. They are at most 1, so nothing overflows, and
all expectations are sums of products of probabilities, which keep their relative precision, however small they are.

Expectations over spanning trees are determinants of the deviations from one tree T. Let ``ρ(h → m)`` be the weight of an arc relative to
that of the arc into m in T. "Above" means in T, and includes the word itself. The matrix-tree theorem gives ``Z = w(T) det(I + B)``. Here
``B(i, m) = Σ_h ρ(h → m) ([i is above m] − [i is above h])`` is a sum over the arcs that are not in T. (Multiply the Laplacian of all arcs
by the inverse of that of T, which is the matrix of "above".) If i is above m, the sum runs over the heads outside the subtree of i.
Otherwise it runs over the heads inside it, and is negative. So nothing cancels. If T is the best tree and probable, B is small, and rare
events keep their digits; the Laplacian itself loses them. With a single root, let the weights of the root tend to 0 together: then only
the top word of T has the root.

Sources: Tutte 1948, "The dissection of equilateral triangles into equilateral triangles", section 3; Koo et al. 2007, "Structured
prediction models via the matrix-tree theorem", section 3.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from ...oracles import Assignment, Categorical, Constituency, IndependentCategoricals, ProjectiveTree, SpanningTree, Subset
from ...oracles.assignment.oracle import SUMS
from ...oracles.capabilities import Oracle
from ...oracles.derivations import UNIT, Builder, Derivations, DerivedOracle

MAX_ASSIGNMENT = 18  # the largest n of permutations, which have 2ⁿ sets of columns
MAX_CHOICES = 2**27  # the most choices of a pass, which takes about 50 bytes for each
MARGIN = 0.5  # distance in logarithms of entries below the pivots


@lru_cache(maxsize=16)
def derivations_of(oracle: Oracle, event: tuple[int, ...]) -> Derivations | None:
    """The derivations of an oracle; None if there are none, or too many nodes."""
    cubic = isinstance(oracle, Constituency | ProjectiveTree)
    choices = event[0] * oracle.k if isinstance(oracle, Subset) else event[0] ** 3 // 6 if cubic else math.prod(event)
    if choices > MAX_CHOICES or (isinstance(oracle, Assignment) and event[0] > MAX_ASSIGNMENT):
        return None
    if isinstance(oracle, DerivedOracle):
        return oracle.derivations(event)
    if type(oracle) in (Categorical, IndependentCategoricals):
        parts = torch.arange(math.prod(event)).reshape(-1, 1, event[-1])  # a node per category
        builder, node = Builder(parts.numel()), torch.tensor([UNIT])
        for row in parts:
            node = builder.add(node.reshape(1, 1).expand(1, event[-1]), row)
        return builder.finish(node)
    return SUMS.derivations(event) if type(oracle) is Assignment else None


Moments = tuple[Tensor, Tensor, Tensor]  # a centre of y [r], and of y − centre the mean and half the mean square, both differentiable


@dataclass(frozen=True, eq=False)
class GibbsLaw:
    """The Gibbs law of derivations."""

    derivations: Derivations
    choices: tuple[Tensor, ...]  # per level [h, e], the probability of each edge below its node, as leaves of a graph
    mass: Tensor  # by node, the total probability of its sub-derivations: 1, as a function of `choices`
    log_partition: float
    marginals: Tensor  # [d]
    roundings: float  # how many units of rounding a probability may be off

    def gradient(self, expectation: Tensor) -> Tensor:
        """The gradient [d] in the natural parameters of ``E f(z)``, made of `choices`: that is ``E[(f − E f) z]``.

        Each edge adds its probability times the slope of the expectation in it. These sums keep their relative precision if f is small at
        likely structures.
        """
        with torch.enable_grad():
            centred = expectation - float(expectation.detach()) * self.mass[self.derivations.root]
        slopes = torch.autograd.grad(centred, self.choices, allow_unused=True, materialize_grads=True, retain_graph=True)
        total = self.marginals.new_zeros(self.derivations.parts + 1)
        for level, choice, slope in zip(self.derivations.levels, self.choices, slopes, strict=True):
            spread(total, level.parts, choice.detach() * slope)
        return total[:-1]

    def moments(self, weights: Tensor) -> Moments:
        """The first two moments of ``y = weights z``, weights [r, d].

        Every node has them over its sub-derivations, as deviations from the most probable one. Where the law is peaked the deviations are
        rare, and a rare event keeps all its digits; moments about 0 would lose them.
        """
        nodes, padded = self.derivations.nodes, pad(weights, (0, 1)).mT
        centre, mean, half = (weights.new_zeros(nodes, len(weights)) for _ in range(3))
        with torch.enable_grad():
            for level, choice in zip(self.derivations.levels, self.choices, strict=True):
                tails = [level.first] if level.second is None else [level.first, level.second]
                values = padded[level.parts] + sum(centre[places] for places in tails)
                best = choice.argmax(1).reshape(-1, 1, 1).expand(-1, 1, values.shape[-1])
                centre[level.heads] = values.gather(1, best).squeeze(1)
                first = values - centre[level.heads].unsqueeze(1)
                second, zeroth = first.square() / 2, torch.ones_like(first)
                for places in tails:
                    mass = self.mass[places].unsqueeze(-1)
                    second = second * mass + first * mean[places] + zeroth * half[places]
                    first = first * mass + zeroth * mean[places]
                    zeroth = zeroth * mass
                mean[level.heads], half[level.heads] = (torch.einsum("he,her->hr", choice, part) for part in (first, second))
        root = self.derivations.root
        return centre[root], mean[root], half[root]

    def count(self, weights: Tensor, values: Tensor) -> tuple[Moments, float]:
        """The moments of ``values[⟨weights, z⟩]``, int64 [*event] and [size], and the size that rounding errors are relative to.

        Every node has the law of the count over its sub-derivations. Laws of independent items are convolved, and choices mixed: sums of
        products of probabilities, so that every probability keeps its relative precision; a Fourier transform keeps an absolute one.
        """
        nodes, size, padded = self.derivations.nodes, len(values), pad(weights.flatten(), (0, 1))
        laws, lengths = self.marginals.new_zeros(nodes, size), torch.ones(nodes, dtype=torch.int64)
        laws[UNIT, 0] = 1
        with torch.enable_grad():
            for level, choice in zip(self.derivations.levels, self.choices, strict=True):
                steps = padded[level.parts]
                reach = lengths[level.first] + steps + (0 if level.second is None else lengths[level.second] - 1)
                lengths[level.heads] = torch.where(choice > 0, reach, 1).amax(1).clamp(max=size)
                first = laws[:, : int(lengths[level.first].max())][level.first]
                second = None if level.second is None else laws[:, : int(lengths[level.second].max())][level.second]
                block = torch.zeros_like(laws[level.heads])
                for step in steps.unique().tolist():
                    # Edges that count the same, as mixtures of laws or of convolutions of laws.
                    mixed = torch.where(steps == step, choice, 0).unsqueeze(-1) * first
                    if second is None:
                        joint = mixed.sum(1)
                    else:  # sums over i + j = k of products [h, m, n]: [h, m + n − 1]
                        rows, width = first.shape[-1], first.shape[-1] + second.shape[-1] - 1
                        skewed = pad(mixed.mT @ second, (0, rows)).flatten(1)[:, : rows * width]
                        joint = skewed.unflatten(1, (rows, width)).sum(1)
                    block = block + pad(joint, (step, size))[:, :size]
                laws[level.heads] = block
            law = laws[self.derivations.root]
            centre = values[law.argmax()]
            changes = values - centre
            return (centre, law @ changes, law @ changes.square() / 2), float(law.detach() @ changes.abs())


def gibbs_law(derivations: Derivations, scores: Tensor) -> GibbsLaw:
    """Inside weights bottom up, and probabilities of nodes top down, of natural parameters [d] with 0 at ignored entries."""
    padded = pad(scores, (0, 1))
    inside, mass = scores.new_full((derivations.nodes,), -math.inf), scores.new_ones(derivations.nodes)
    inside[UNIT] = 0
    choices, largest = [], 0.0
    for level in derivations.levels:
        weights = inside[level.first] + padded[level.parts]
        if level.second is not None:
            weights = weights + inside[level.second]
        total = weights.logsumexp(1)
        possible = total > -math.inf
        inside[level.heads] = total
        choice = (weights - torch.where(possible, total, 0).unsqueeze(1)).exp()
        choices.append((choice / torch.where(possible, choice.sum(1), 1).unsqueeze(1)).requires_grad_())
        with torch.enable_grad():
            below = mass[level.first] if level.second is None else mass[level.first] * mass[level.second]
            mass[level.heads] = (choices[-1] * below).sum(1)
        largest = max(largest, float(torch.where(possible, total.abs(), 0).max()))
    outside = scores.new_zeros(derivations.nodes)
    outside[derivations.root] = 1
    marginals = scores.new_zeros(derivations.parts + 1)
    for level, choice in zip(reversed(derivations.levels), reversed(choices), strict=True):
        edges = outside[level.heads].unsqueeze(1) * choice.detach()
        spread(marginals, level.parts, edges)
        for tails in (level.first, level.second):
            if tails is not None:
                spread(outside, tails, edges)
    roundings = len(derivations.levels) * (largest + 8)
    return GibbsLaw(derivations, tuple(choices), mass, float(inside[derivations.root]), marginals[:-1], roundings)


def spread(totals: Tensor, places: Tensor, edges: Tensor) -> None:
    """Add values [h, e] to totals at places [h, e], or their sums by node at places [h, 1]."""
    values = edges if places.shape[1] == edges.shape[1] else edges.sum(1, keepdim=True)
    totals.index_add_(0, places.flatten(), values.flatten())


class TreeLaw:
    """The Gibbs law of spanning trees, by determinants of deviations from the best one, T; it has no law of a count."""

    def __init__(self, oracle: SpanningTree, parameters: Tensor) -> None:
        self._leaf = parameters.clone().requires_grad_()
        heads = oracle.heads(oracle.argmax(parameters))
        self._single_root, self._heads, size = oracle.single_root, heads, len(heads) + 1
        parents = one_hot(pad(heads, (1, 0)), size).double()
        parents[0] = 0
        reach = torch.eye(size, dtype=torch.float64, device=heads.device) + parents
        for _ in range(size.bit_length()):
            reach = ((reach @ reach) > 0).double()
        self._above = reach.mT[1:] > 0  # [n, n + 1], whether word i + 1 is position h or above it in T
        self.log_partition = float(oracle.log_partition(parameters))
        self.marginals = oracle.marginals(parameters).flatten()
        largest = float(self._relative(parameters).clamp(min=-1e3).abs().max())
        self.roundings = len(heads) * (2 * largest + 8 * len(heads))

    def gradient(self, expectation: Tensor) -> Tensor:
        """The gradient [d] in the scores of an expectation of `moments`."""
        return torch.autograd.grad(expectation, self._leaf, retain_graph=True)[0].flatten()

    def moments(self, weights: Tensor) -> Moments:
        """The first two moments of ``y = weights z``, weights [r, d], about its value at the best tree."""
        weights, heads = weights.unflatten(1, self._leaf.shape), self._heads
        # Along a direction that is 0 on T, so that a rare event is not a difference of likely ones.
        into = weights[..., 1:]
        along = pad(into - into.gather(-2, heads.expand(len(weights), 1, -1)), (1, 0))
        with torch.enable_grad():
            rows = self._leaf.expand(len(weights), *self._leaf.shape)
            log_weight = self._log_weight(self._relative(rows))
            (taken,) = torch.autograd.grad(log_weight.sum(), rows, create_graph=True)
            mean = (taken * along).sum((1, 2))
            (change,) = torch.autograd.grad(mean.sum(), rows, create_graph=True)
            half = ((change * along).sum((1, 2)) + mean.square()) / 2
        return weights[..., heads, torch.arange(1, weights.shape[-1], device=weights.device)].sum(-1), mean, half

    def _relative(self, scores: Tensor) -> Tensor:
        """Scores [..., n + 1, n + 1] of arcs to ``log ρ``: [..., n + 1, n], -inf on T, on the diagonal and at forbidden arcs."""
        into = scores[..., 1:]
        size = into.shape[-2]
        own = one_hot(self._heads, size).mT.bool()
        best = torch.where(own, into, 0).sum(-2, keepdim=True)
        itself = pad(torch.eye(size - 1, dtype=torch.bool, device=own.device), (0, 0, 1, 0))
        return (into - best).masked_fill(own | itself, -math.inf)

    def _matrix(self, ratios: Tensor) -> Tensor:
        """B [..., n, n] of ρ [..., n + 1, n]."""
        subtree = self._above.to(ratios.dtype)
        outside = 1 - subtree
        if self._single_root:
            top = self._heads == 0
            outside = torch.cat([torch.where(top, outside[:, 0], 0).unsqueeze(1), outside[:, 1:]], 1)
        return torch.where(self._above[:, 1:], outside @ ratios, -(subtree @ ratios))

    def _log_weight(self, relative: Tensor) -> Tensor:
        """The log-weight of all trees relative to T: [...] for ``log ρ`` [..., n + 1, n], scaled for the first of them."""
        columns, factors = self._scaling(relative.detach().reshape(-1, *relative.shape[-2:])[0])
        matrix = self._matrix((relative - columns).exp()) * factors
        logarithm: Tensor = torch.linalg.slogdet(matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device))[1]
        return logarithm

    def _scaling(self, relative: Tensor) -> tuple[Tensor, Tensor]:
        """Scales for ``log ρ`` [n + 1, n] that keep B in range: columns [n] to subtract, and factors [n, n] to multiply B with after that.

        They are a similarity, which leaves determinants as they are, and the subtracted columns. If T is probable, every entry off the
        diagonal becomes smaller than 1: elimination takes its pivots from the diagonal, and small numbers keep their digits.
        """
        columns = relative.amax(0).clamp(min=-1e300)
        size = self._matrix((relative - columns).exp()).abs().log() + columns
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


Law = GibbsLaw | TreeLaw


def law_of(oracle: Oracle, parameters: Tensor) -> Law | None:
    """The law of natural parameters [*event] with 0 at ignored entries; None if the oracle has no sums in closed form."""
    if isinstance(oracle, SpanningTree):
        return TreeLaw(oracle, parameters)
    derivations = derivations_of(oracle, tuple(parameters.shape))
    return None if derivations is None else gibbs_law(derivations, parameters.flatten())

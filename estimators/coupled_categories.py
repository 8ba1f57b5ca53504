"""Antithetic samples of categories, bit by bit along a tree of binary choices: DisARM-SB, DisARM-Tree and CARMS."""

from __future__ import annotations

import abc
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.options import Count, Peers
from ..oracles.random_streams import inner_uniform, random_uniform
from .base import Evaluations, Loss, UnbiasedEstimator, evaluate, with_gradient
from .factorised import log_probabilities, moving_categories


@dataclass(frozen=True)
class Choices:
    """Binary choices that lead to a part, of log-probabilities ``[*batch, *event]``; parts may be taken in another order.

    Attributes:
        order: which part each place of the tree holds, ``[*batch, *event]``.
        right, left: whether a part lies to the right, to the left of a node, float64 ``[nodes, C]``, by places.
        logits: ``[*batch, *categories, nodes]``, of going right.
        shares: ``∂ logit / ∂θ`` by places, ``[*batch, *categories, nodes, C]``.
    """

    order: Tensor
    right: Tensor
    left: Tensor
    logits: Tensor
    shares: Tensor

    @classmethod
    def of(cls, log_probs: Tensor, order: Tensor, tree: tuple[Tensor, Tensor]) -> Choices:
        """From the tree's nodes, whose sides are ``[nodes, C]``."""
        right, left = tree
        places = log_probs.gather(-1, order).unsqueeze(-2)
        sides = [torch.where(side > 0, places, -torch.inf) for side in (right, left)]
        logits = sides[0].logsumexp(-1) - sides[1].logsumexp(-1)
        return cls(order, right, left, logits, sides[0].softmax(-1) - sides[1].softmax(-1))

    def passed(self, bits: Tensor) -> tuple[Tensor, Tensor]:
        """The part that bits ``[..., nodes]`` lead to, by places ``[..., C]``, and which nodes lie on the way, ``[..., nodes]``."""
        missed = bits @ self.left + (1 - bits) @ self.right
        part = (missed == 0).double()
        return part, part @ (self.left + self.right).mT

    def structures(self, parts: Tensor) -> Tensor:
        """Parts by places ``[..., C]`` in the order of the event."""
        return torch.zeros_like(parts).scatter_(-1, self.order.expand_as(parts), parts)


class CoupledCategories(UnbiasedEstimator[FactorisedOracle]):
    """Samples whose binary choices share random numbers, each exact by itself; a subclass says which, and what the estimate is."""

    @abc.abstractmethod
    def _choices(self, log_probs: Tensor) -> Choices: ...

    @abc.abstractmethod
    def _bits(self, logits: Tensor, batch_dims: int, generator: torch.Generator) -> Tensor:
        """Whether each sample goes right at each node, float64 ``[..., *batch, *categories, nodes]``."""

    @abc.abstractmethod
    def _estimate(self, choices: Choices, bits: Tensor, losses: Tensor) -> Tensor:
        """``[*batch, *event]`` by places, from these bits and losses ``[..., *batch, 1...]``, float64."""

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        batch_dims = scores.ndim - oracle.event_ndim
        choices = self._choices(log_probabilities(oracle, scores.detach()))
        bits = self._bits(choices.logits, batch_dims, generator)
        structures = choices.structures(choices.passed(bits)[0])
        losses = evaluate(loss, structures.to(scores.dtype), oracle.event_ndim)
        values = losses.flatten(0, losses.ndim - batch_dims - 1).mean(0)
        estimate = self._estimate(choices, bits, unsqueeze_event(losses.detach().double(), oracle.event_ndim))
        estimate = torch.where(moving_categories(oracle, scores), choices.structures(estimate), 0)
        return with_gradient(values, scores, estimate.to(scores.dtype))


class DisARMOfChoices(CoupledCategories):
    """``ĝ_k = ½ (L(z) − L(z̃)) w_k`` for the logit of every choice k, pulled back to the scores; z̃ has 1 − u where z has u.

    Where both samples pass a choice, ``w_k`` is that of DisARM, ``(b_k − b̃_k) σ(|φ_k|)``; where one does, it is its score, ``b_k − σ_k`` or
    ``σ_k − b̃_k``: the uniform of that choice is nothing to the other sample, whose loss is a baseline.
    """

    num_pairs: int

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=2 * self.num_pairs)

    def _bits(self, logits: Tensor, batch_dims: int, generator: torch.Generator) -> Tensor:
        shape = (self.num_pairs, *logits.shape[batch_dims:])
        uniforms = random_uniform(tuple(logits.shape[:batch_dims]), shape, generator=generator, device=logits.device)
        uniforms = uniforms.movedim(batch_dims, 0)
        # At the edges a choice of probability 0 is never made: uniforms may be 0, and are never 1.
        return torch.stack([uniforms >= (-logits).sigmoid(), uniforms < logits.sigmoid()]).double()

    def _estimate(self, choices: Choices, bits: Tensor, losses: Tensor) -> Tensor:
        (first, second), (on_first, on_second) = bits, choices.passed(bits)[1]
        chance = choices.logits.sigmoid()
        weights = on_first * on_second * (first - second) * choices.logits.abs().sigmoid()
        weights += on_first * (1 - on_second) * (first - chance) - on_second * (1 - on_first) * (second - chance)
        return torch.einsum("...k,...kc->...c", ((losses[0] - losses[1]) / 2 * weights).mean(0), choices.shares)


@dataclass(frozen=True)
class DisARMStickBreaking(DisARMOfChoices, name="disarm_sb", references=("dong2021coupled",)):
    """DisARM-SB: DisARM for every bit of stick-breaking, "this part, or a later one", of categories. Unbiased.

    Parts are taken from the least likely to the most likely. With two it is DisARM.

    Cost: one vector of uniforms and two loss values per pair; only values of the loss are needed.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables"; the formula is that of the authors' code
        (``get_layer_grad_estimation``, ``disarm`` with ``stick_breaking``).

    Example:
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores, generator = torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3), torch.Generator().manual_seed(0)
        >>> DisARMStickBreaking().gradient(loss, "categorical", scores, generator=generator).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500, 0.3800])
    """

    num_pairs: Count = 1

    def _choices(self, log_probs: Tensor) -> Choices:
        return Choices.of(log_probs, ascending(log_probs), sticks(log_probs.shape[-1], log_probs.device))


@dataclass(frozen=True)
class DisARMTree(DisARMOfChoices, name="disarm_tree", references=("dong2021coupled",)):
    """DisARM-Tree: DisARM for every bit of a balanced tree over the parts of categories. Unbiased.

    A sample passes ``log₂ C`` choices in place of up to C − 1, so that its pair parts at the root as a rule. With two parts it is DisARM.

    Cost: one vector of uniforms and two loss values per pair; only values of the loss are needed.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables"; the formula is that of the authors' code
        (``get_layer_grad_estimation``, ``disarm`` with ``tree_structure``), which takes powers of two.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> DisARMTree().gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0)).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500, 0.3800])
    """

    num_pairs: Count = 1

    def _choices(self, log_probs: Tensor) -> Choices:
        parts = log_probs.shape[-1]
        return Choices.of(log_probs, torch.arange(parts, device=log_probs.device).expand(log_probs.shape), halves(parts, log_probs.device))


@dataclass(frozen=True)
class CARMS(CoupledCategories, name="carms", references=("dimitriev2021carms", "dong2021coupled")):
    """CARMS: ``ĝ_i = 1/(2N(N − 1)) Σ_jk w(z_ji, z_ki) (L(z_j) − L(z_k)) (z_ji − z_ki)`` over N antithetic samples. Unbiased.

    ``w = p(z) p(z′) / P(z, z′)`` for a category, P the joint law of two of the samples; with independent ones it would be 1, and the
    estimate leave-one-out. Here all N break sticks, "this part, or a later one", by uniforms that are the margins of a Dirichlet copula:
    ``u_j = (1 − d_j)^{N−1}`` with d uniform on the simplex. No two of them break the same stick if σ is small. The first stick m that parts
    the two decides: ``w = (σ_m − σ_m²)/(σ_m − Φ_m) Π_{k<m} (1 − σ_k)²/(1 − 2σ_k + Φ_k)`` with ``Φ = max(0, 2σ^{1/(N−1)} − 1)^{N−1}``.

    That every pair of different parts is possible needs ``σ_k < ½`` before the last choice: parts are taken from the least likely to the
    most likely. Two samples are the stick-breaking coupling of Dong et al., whose code keeps the order that it gets unless told to sort,
    and drops the pairs that then never come: biased. Nor are weights clipped and smoothed here, as in the code of CARMS: biased too.

    Cost: N vectors of uniforms and N loss values; only values of the loss are needed.

    Args:
        num_samples: N, at least 2.

    References:
        Dimitriev & Zhou 2021, "CARMS: categorical-antithetic-REINFORCE multi-sample gradient estimator"; the formula is that of the
        authors' code, with ``StickBreakingCategorical``; their other construction, by inverse distribution functions in random orders, is
        left out. Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables" (two samples).

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> CARMS(num_samples=3).gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0)).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500, 0.3800])
    """

    num_samples: Peers = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples)

    def _choices(self, log_probs: Tensor) -> Choices:
        return Choices.of(log_probs, ascending(log_probs), sticks(log_probs.shape[-1], log_probs.device))

    def _bits(self, logits: Tensor, batch_dims: int, generator: torch.Generator) -> Tensor:
        shape = (self.num_samples, *logits.shape[batch_dims:])
        uniforms = inner_uniform(tuple(logits.shape[:batch_dims]), shape, generator=generator, device=logits.device)
        exponentials = -uniforms.movedim(batch_dims, 0).log()
        coupled = (1 - exponentials / exponentials.sum(0)).pow(self.num_samples - 1)
        return (coupled < logits.sigmoid()).double()

    def _estimate(self, choices: Choices, bits: Tensor, losses: Tensor) -> Tensor:
        parts, count = choices.passed(bits)[0], self.num_samples
        weights, places = self._weights(choices.logits.sigmoid()), parts.argmax(-1)
        estimate = torch.zeros_like(parts[0])
        for j, k in itertools.combinations(range(count), 2):
            first = torch.minimum(places[j], places[k]).unsqueeze(-1)
            estimate += weights.gather(-1, first) * (losses[j] - losses[k]) * (parts[j] - parts[k])
        return estimate / (count * (count - 1))

    def _weights(self, chance: Tensor) -> Tensor:
        """w of two samples that part at each stick, ``[..., C]``; the last is never the first of two different ones."""
        root = 1 / (self.num_samples - 1)
        both = (2 * chance.pow(root) - 1).clamp(min=0).pow(self.num_samples - 1)
        going_on = (1 - chance).square() / (1 - 2 * chance + both).clamp(min=1e-300)
        parting = (1 - chance) / (1 - both / chance.clamp(min=1e-300))
        before = torch.cat([torch.ones_like(chance[..., :1]), going_on.cumprod(-1)], -1)[..., : chance.shape[-1]]
        return torch.nn.functional.pad(before * parting, (0, 1))


def ascending(log_probs: Tensor) -> Tensor:
    """The parts of each category from the least likely to the most likely."""
    return log_probs.sort(dim=-1, stable=True).indices


def sticks(parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The sides of the nodes of stick-breaking: to the right the part itself, to the left all later ones."""
    right = torch.eye(parts, dtype=torch.float64, device=device)
    return right[:-1], torch.ones_like(right).triu(1)[:-1]


def halves(parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The sides of the nodes of a balanced tree, from the root down."""
    right, left, waiting, places = [], [], [(0, parts)], torch.arange(parts, device=device)
    while waiting:
        first, last = waiting.pop(0)
        if last - first < 2:
            continue
        middle = (first + last) // 2
        left.append((places >= first) & (places < middle))
        right.append((places >= middle) & (places < last))
        waiting += [(first, middle), (middle, last)]
    none = torch.zeros(0, parts, dtype=torch.float64, device=device)
    return (torch.stack(right).double(), torch.stack(left).double()) if right else (none, none)

"""Antithetic samples of bits and categories: ARM, DisARM and ARSM; along a tree of binary choices DisARM-SB, DisARM-Tree and CARMS."""

import abc
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.magnitudes import beyond_memory, counted
from ..oracles.options import Count, Peers
from ..oracles.random_streams import inner_uniform, random_uniform
from .base import Evaluations, UnbiasedEstimator
from .factorised import gumbels, log_probabilities, with_estimate
from .surrogates import Loss, evaluate


@dataclass(frozen=True)
class ARSM(UnbiasedEstimator[FactorisedOracle], name="arsm", references=("yin2019arsm",)):
    """ARSM, augment-REINFORCE-swap-merge: ``ĝ_c = (1/C) Σ_j Δ_{cj} (1 − C π_j)`` for categories of C parts. Unbiased.

    ``π`` is uniform on the simplex, one per category, and ``z = argmin_c π_c e^{−θ_c}``, an exact sample. ``z^{cj}`` is the same with
    ``π_c`` and ``π_j`` exchanged, in every category at once, and ``Δ_{cj} = L(z^{cj}) − (1/C) Σ_m L(z^{mj})``. With two parts it is ARM. A
    forbidden part never wins, takes part in the swaps all the same, and gets no gradient.

    Cost: one noise tensor and the loss on ``C(C − 1)/2 + 1`` structures, one per exchange and the one without; values of the loss suffice.

    References:
        Yin, Yue & Zhou 2019, "ARSM: augment-REINFORCE-swap-merge estimator for […] categorical variables", section 3 and algorithm 1.
    """

    calls = Evaluations(perturbations=1, swap_losses=1)

    def _limitation(self, oracle: FactorisedOracle, event_shape: tuple[int, ...]) -> str | None:
        parts = event_shape[-1]
        swapped = parts * (parts - 1) // 2 + 1
        beyond = beyond_memory(8.0 * swapped * math.prod(event_shape))
        return f"{self.name} takes the loss on {counted(swapped)} structures at a time, {beyond}" if beyond else None

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise, log_probs = gumbels(oracle, scores, generator=generator), log_probabilities(oracle, scores.detach())
        parts, device, batch = scores.shape[-1], scores.device, scores.shape[: scores.ndim - oracle.event_ndim]
        # Orders of the parts [s, C], as they are and with each pair exchanged; which of them belongs to (c, j): [C, C].
        first, second = torch.triu_indices(parts, parts, 1, device=device)
        number = torch.arange(1, len(first) + 1, device=device)
        orders = torch.arange(parts, device=device).repeat(len(first) + 1, 1)
        orders[number, first], orders[number, second] = second, first
        which = torch.zeros(parts, parts, dtype=torch.int64, device=device)
        which[first, second], which[second, first] = number, number
        # argmin π e^{−θ} is the winner of a Gumbel race: π are exponentials e^{−G}, normalised.
        winners = (log_probs.unsqueeze(-2) + noise[..., orders]).argmax(-1).movedim(-1, 0)
        losses = evaluate(loss, torch.nn.functional.one_hot(winners, parts).to(scores.dtype), oracle.event_ndim)
        values = losses.detach().double()[which]
        # One after the other: torch's own mean adds in an order that depends on how many rows there are.
        excess = (values - functools.reduce(torch.add, values) / parts).movedim((0, 1), (-2, -1)).unsqueeze(-3)
        deviations = 1 - parts * (-noise).softmax(-1)
        merged = (excess * deviations.reshape(*batch, math.prod(noise.shape[len(batch) : -1]), 1, parts)).mean(-1)
        return with_estimate(losses.mean(0), oracle, scores, merged.reshape(noise.shape))


@dataclass(frozen=True)
class Choices:
    """Binary choices that lead to a part, of log-probabilities ``[*batch, *event]``; parts may be taken in another order."""

    order: Tensor  # which part each place of the tree holds, [*batch, *event]
    right: Tensor  # whether a part lies to the right of a node, float64 [nodes, C], by places
    left: Tensor  # the same to the left
    logits: Tensor  # of going right, [*batch, *categories, nodes]
    shares: Tensor  # ∂ logit / ∂θ by places, [*batch, *categories, nodes, C]

    @classmethod
    def of(cls, log_probs: Tensor, balanced: bool) -> Self:
        """Along a balanced tree over the parts as they are, or by breaking sticks from the least likely part to the most likely."""
        parts, device = log_probs.shape[-1], log_probs.device
        right, left = halves(parts, device) if balanced else sticks(parts, device)
        order = torch.arange(parts, device=device).expand(log_probs.shape) if balanced else log_probs.sort(dim=-1, stable=True).indices
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
    """Samples whose binary choices share random numbers, each exact by itself; a subclass says which, and what the estimate is.

    Attributes:
        balanced: whether choices go down a balanced tree; else each is "this part, or a later one", from the least likely part on.
    """

    balanced: ClassVar[bool] = False

    @abc.abstractmethod
    def _drawn(self, batch: tuple[int, ...], logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random numbers of the samples, and whether each goes right at each node, ``[..., *batch, *categories, nodes]`` both."""

    @abc.abstractmethod
    def _estimate(self, choices: Choices, numbers: Tensor, bits: Tensor, losses: Tensor) -> Tensor:
        """``[*batch, *event]`` by places, from these bits and losses ``[..., *batch, 1...]``, float64."""

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        batch = tuple(scores.shape[: scores.ndim - oracle.event_ndim])
        choices = Choices.of(log_probabilities(oracle, scores.detach()), self.balanced)
        numbers, bits = self._drawn(batch, choices.logits, generator)
        bits = bits.double()
        losses = evaluate(loss, choices.structures(choices.passed(bits)[0]).to(scores.dtype), oracle.event_ndim)
        estimate = self._estimate(choices, numbers, bits, unsqueeze_event(losses.detach().double(), oracle.event_ndim))
        return with_estimate(losses.flatten(0, losses.ndim - len(batch) - 1).mean(0), oracle, scores, choices.structures(estimate))


@dataclass(frozen=True)
class AntitheticChoices(CoupledCategories):
    """``ĝ_k = ½ (L(z) − L(z̃)) w_k`` for the logit of every choice k, pulled back to the scores; z̃ has 1 − u where z has u.

    Where both samples pass a choice, ``w_k`` is that of DisARM, ``(b_k − b̃_k) σ(|φ_k|)``; where one does, it is its score, ``b_k − σ_k`` or
    ``σ_k − b̃_k``: the uniform of that choice is nothing to the other sample, whose loss is a baseline.
    """

    num_pairs: Count = 1

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=2 * self.num_pairs)

    def _drawn(self, batch: tuple[int, ...], logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape = (self.num_pairs, *logits.shape[len(batch) :])
        numbers = random_uniform(batch, shape, generator=generator, device=logits.device).movedim(len(batch), 0)
        # At the edges a choice of probability 0 is never made: uniforms may be 0, and are never 1.
        return numbers, torch.stack([numbers >= (-logits).sigmoid(), numbers < logits.sigmoid()])

    def _estimate(self, choices: Choices, numbers: Tensor, bits: Tensor, losses: Tensor) -> Tensor:
        weights = self._weights(choices, numbers, bits)
        return torch.einsum("...k,...kc->...c", ((losses[0] - losses[1]) / 2 * weights).mean(0), choices.shares)

    def _weights(self, choices: Choices, numbers: Tensor, bits: Tensor) -> Tensor:
        """``w``, ``[N, *batch, *categories, nodes]``."""
        (first, second), (on_first, on_second) = bits, choices.passed(bits)[1]
        chance = choices.logits.sigmoid()
        weights: Tensor = on_first * on_second * (first - second) * choices.logits.abs().sigmoid()
        weights += on_first * (1 - on_second) * (first - chance) - on_second * (1 - on_first) * (second - chance)
        return weights


class AntitheticBits(AntitheticChoices):
    """Choices between the two parts of a category: all samples pass all of them."""

    balanced = True

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        parts = event_shape[-1]
        return None if parts == 2 else f"{self.name} needs bits, which are categories of two parts, and these have {parts}"


@dataclass(frozen=True)
class ARM(AntitheticBits, name="arm", references=("yin2019arm",)):
    """ARM, augment-REINFORCE-merge: ``ĝ_i = (L(b) − L(b̃)) (u_i − ½)`` for a bit of logit ``φ_i``. Unbiased; bits only.

    ``b = 1[u > 1 − σ(φ)]`` and ``b̃ = 1[u < σ(φ)]`` share one vector of uniforms. The scores of a bit get ``(−ĝ_i, ĝ_i)``.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Yin & Zhou 2019, "ARM: augment-REINFORCE-merge gradient for stochastic binary networks", theorem 1.
    """

    def _weights(self, choices: Choices, numbers: Tensor, bits: Tensor) -> Tensor:
        return 2 * numbers - 1


@dataclass(frozen=True)
class DisARM(AntitheticBits, name="disarm", references=("dong2020disarm", "yin2020probabilistic")):
    """DisARM, also U2G: ``ĝ_i = ½ (L(b) − L(b̃)) (−1)^{b̃_i} 1[b_i ≠ b̃_i] σ(|φ_i|)``, the mean of ARM given its pair. Unbiased; bits only.

    What is left of the uniforms once the bits are known is integrated out, so that the variance is never above that of ARM. A single bit
    of logit 0 has no variance at all.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2020, "DisARM: an antithetic gradient estimator for binary latent variables", equation 5; Yin et al. 2020 (U2G).

    Example:
        >>> scores = torch.zeros(1, 2)
        >>> DisARM().gradient(lambda z: (z[..., 0, 1] - 0.3).square(), "categories", scores, generator=torch.Generator().manual_seed(0))
        tensor([[-0.1000,  0.1000]])
    """


@dataclass(frozen=True)
class DisARMStickBreaking(AntitheticChoices, name="disarm_sb", references=("dong2021coupled",)):
    """DisARM-SB: DisARM for every bit of stick-breaking, "this part, or a later one", of categories. Unbiased.

    Parts are taken from the least likely to the most likely. With two it is DisARM.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables"; the formula is that of the authors' code
        (``get_layer_grad_estimation``, ``disarm`` with ``stick_breaking``).
    """


@dataclass(frozen=True)
class DisARMTree(AntitheticChoices, name="disarm_tree", references=("dong2021coupled",)):
    """DisARM-Tree: DisARM for every bit of a balanced tree over the parts of categories. Unbiased.

    A sample passes ``log₂ C`` choices in place of up to C − 1, so that its pair parts at the root as a rule. With two parts it is DisARM.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2021; the formula is that of the authors' code (``disarm`` with ``tree_structure``), which takes powers of two.
    """

    balanced = True


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

    References:
        Dimitriev & Zhou 2021, "CARMS: categorical-antithetic-REINFORCE multi-sample gradient estimator"; the formula is that of the
        authors' code, with ``StickBreakingCategorical``; their other construction, by inverse distribution functions in random orders, is
        left out. Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables" (two samples).
    """

    num_samples: Peers = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples)

    def _drawn(self, batch: tuple[int, ...], logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        uniforms = inner_uniform(batch, (self.num_samples, *logits.shape[len(batch) :]), generator=generator, device=logits.device)
        exponentials = -uniforms.movedim(len(batch), 0).log()
        copula = (1 - exponentials / exponentials.sum(0)).pow(self.num_samples - 1)
        return copula, copula < logits.sigmoid()

    def _estimate(self, choices: Choices, numbers: Tensor, bits: Tensor, losses: Tensor) -> Tensor:
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

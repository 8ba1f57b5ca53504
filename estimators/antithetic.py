"""Antithetic samples of bits and swaps of categories: ARM, DisARM and ARSM."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.magnitudes import beyond_memory, counted
from ..oracles.options import Count
from ..oracles.random_streams import random_uniform
from .base import Evaluations, Loss, UnbiasedEstimator, evaluate, with_gradient
from .factorised import gumbels, log_probabilities, moving_categories


class AntitheticBits(UnbiasedEstimator[FactorisedOracle]):
    """``(L(b) − L(b̃)) w_i`` for bits ``b = 1[u > 1 − σ(φ)]`` and ``b̃ = 1[u < σ(φ)]`` of one vector of uniforms.

    Both are exact samples. A subclass says what the weight ``w_i`` of a bit is.
    """

    num_pairs: int

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=2 * self.num_pairs)

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        parts = event_shape[-1]
        return None if parts == 2 else f"{self.name} needs bits, which are categories of two parts, and these have {parts}"

    @abc.abstractmethod
    def _weights(self, uniforms: Tensor, logits: Tensor, pair: Tensor) -> Tensor:
        """``[N, *batch, *bits]`` from uniforms of that shape, logits ``[*batch, *bits]`` and Boolean pairs ``[2, N, *batch, *bits]``."""

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        batch, event = scores.shape[: scores.ndim - oracle.event_ndim], scores.shape[scores.ndim - oracle.event_ndim :]
        uniforms = random_uniform(tuple(batch), (self.num_pairs, *event[:-1]), generator=generator, device=scores.device)
        uniforms = uniforms.movedim(len(batch), 0)
        log_probs = log_probabilities(oracle, scores.detach())
        logits = log_probs[..., 1] - log_probs[..., 0]
        # At the edges a bit of probability 0 is never drawn: uniforms may be 0, and are never 1.
        pair = torch.stack([uniforms >= (-logits).sigmoid(), uniforms < logits.sigmoid()])
        losses = evaluate(loss, torch.stack([~pair, pair], -1).to(scores.dtype), oracle.event_ndim)
        difference = unsqueeze_event((losses[0] - losses[1]).detach().double(), oracle.event_ndim - 1)
        estimate = (difference * self._weights(uniforms, logits, pair)).mean(0)
        estimate = torch.where(moving_categories(oracle, scores), torch.stack([-estimate, estimate], -1), 0)
        return with_gradient(losses.mean((0, 1)), scores, estimate.to(scores.dtype))


@dataclass(frozen=True)
class ARM(AntitheticBits, name="arm", references=("yin2019arm",)):
    """ARM, augment-REINFORCE-merge: ``ĝ_i = (L(b) − L(b̃)) (u_i − ½)`` for a bit of logit ``φ_i``. Unbiased; bits only.

    ``b = 1[u > 1 − σ(φ)]`` and ``b̃ = 1[u < σ(φ)]`` share one vector of uniforms. The scores of a bit get ``(−ĝ_i, ĝ_i)``.

    Cost: one vector of uniforms and two loss values per pair; only values of the loss are needed.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Yin & Zhou 2019, "ARM: augment-REINFORCE-merge gradient for stochastic binary networks", theorem 1.

    Example:
        >>> scores, loss = torch.tensor([[0.0, 0.5], [0.0, -1.0]]), lambda z: (z[..., 1].sum(-1) - 0.3).square()
        >>> estimates = ARM().gradient(loss, "categories", scores.expand(100_000, 2, 2), generator=torch.Generator().manual_seed(0))
        >>> [round(value, 2) for value in estimates.mean(0)[:, 1].tolist()]  # σ(1 − σ)(1 − 2·0.3 + 2·(the other's σ))
        [0.22, 0.32]
    """

    num_pairs: Count = 1

    def _weights(self, uniforms: Tensor, logits: Tensor, pair: Tensor) -> Tensor:
        return uniforms - 0.5


@dataclass(frozen=True)
class DisARM(AntitheticBits, name="disarm", references=("dong2020disarm", "yin2020probabilistic")):
    """DisARM, also U2G: ``ĝ_i = ½ (L(b) − L(b̃)) (−1)^{b̃_i} 1[b_i ≠ b̃_i] σ(|φ_i|)``, the mean of ARM given its pair. Unbiased; bits only.

    What is left of the uniforms once the bits are known is integrated out, so that the variance is never above that of ARM. A single bit
    of logit 0 has no variance at all.

    Cost: one vector of uniforms and two loss values per pair; only values of the loss are needed.

    Args:
        num_pairs: independent pairs that are averaged, at least 1.

    References:
        Dong, Mnih & Tucker 2020, "DisARM: an antithetic gradient estimator for binary latent variables", equation 5; Yin, Ho, Yan, Qian &
        Zhou 2020 (U2G).

    Example:
        >>> scores = torch.zeros(1, 2)
        >>> DisARM().gradient(lambda z: (z[..., 0, 1] - 0.3).square(), "categories", scores, generator=torch.Generator().manual_seed(0))
        tensor([[-0.1000,  0.1000]])
    """

    num_pairs: Count = 1

    def _weights(self, uniforms: Tensor, logits: Tensor, pair: Tensor) -> Tensor:
        return (pair[0].double() - pair[1].double()) * logits.abs().sigmoid() / 2


@dataclass(frozen=True)
class ARSM(UnbiasedEstimator[FactorisedOracle], name="arsm", references=("yin2019arsm",)):
    """ARSM, augment-REINFORCE-swap-merge: ``ĝ_c = (1/C) Σ_j Δ_{cj} (1 − C π_j)`` for categories of C parts. Unbiased.

    ``π`` is uniform on the simplex, one per category, and ``z = argmin_c π_c e^{−θ_c}``, an exact sample. ``z^{cj}`` is the same with
    ``π_c`` and ``π_j`` exchanged, in every category at once, and ``Δ_{cj} = L(z^{cj}) − (1/C) Σ_m L(z^{mj})``. With two parts it is ARM. A
    forbidden part never wins, takes part in the swaps all the same, and gets no gradient.

    Cost: one noise tensor and the loss on ``C(C − 1)/2 + 1`` structures, one per exchange and the one without; values of the loss suffice.

    References:
        Yin, Yue & Zhou 2019, "ARSM: augment-REINFORCE-swap-merge estimator for gradient backpropagation through categorical variables",
        section 3 and algorithm 1.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5]).expand(100_000, 3)
        >>> ARSM().gradient(loss, "categorical", scores, generator=torch.Generator().manual_seed(0)).mean(0).round(decimals=2)
        tensor([-0.0400, -0.3500, 0.3800])
    """

    calls = Evaluations(perturbations=1, swap_losses=1)

    def _limitation(self, oracle: FactorisedOracle, event_shape: tuple[int, ...]) -> str | None:
        parts = event_shape[-1]
        swapped = parts * (parts - 1) // 2 + 1
        beyond = beyond_memory(8.0 * swapped * math.prod(event_shape))
        return f"{self.name} takes the loss on {counted(swapped)} structures at a time, {beyond}" if beyond else None

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        noise, log_probs = gumbels(oracle, scores, generator=generator), log_probabilities(oracle, scores.detach())
        orders, which = _swaps(scores.shape[-1], scores.device)
        # argmin π e^{−θ} is the winner of a Gumbel race: π are exponentials e^{−G}, normalised.
        winners = (log_probs.unsqueeze(-2) + noise[..., orders]).argmax(-1).movedim(-1, 0)
        losses = evaluate(loss, torch.nn.functional.one_hot(winners, scores.shape[-1]).to(scores.dtype), oracle.event_ndim)
        estimate = _merged(losses.detach().double()[which], noise)
        estimate = torch.where(moving_categories(oracle, scores), estimate, 0)
        return with_gradient(losses.mean(0), scores, estimate.to(scores.dtype))


def _swaps(parts: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Orders of the parts ``[s, C]``, as they are and with each pair exchanged; which of them belongs to ``(c, j)``: ``[C, C]``."""
    first, second = torch.triu_indices(parts, parts, 1, device=device)
    number = torch.arange(1, len(first) + 1, device=device)
    orders = torch.arange(parts, device=device).repeat(len(first) + 1, 1)
    orders[number, first], orders[number, second] = second, first
    which = torch.zeros(parts, parts, dtype=torch.int64, device=device)
    which[first, second], which[second, first] = number, number
    return orders, which


def _merged(values: Tensor, noise: Tensor) -> Tensor:
    """``(1/C) Σ_j Δ_{cj} (1 − C π_j)`` from losses ``[C, C, *batch]`` and Gumbel noise ``[*batch, *event]``."""
    parts, batch = len(values), values.shape[2:]
    excess = (values - values.mean(0)).movedim((0, 1), (-2, -1)).unsqueeze(-3)
    deviations = 1 - parts * (-noise).softmax(-1)
    merged = (excess * deviations.reshape(*batch, math.prod(noise.shape[len(batch) : -1]), 1, parts)).mean(-1)
    return merged.reshape(noise.shape)

"""Pairs of structures whose samplers walk by opposite uniforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.options import Count
from ...oracles.random_streams import RowGenerator, random_uniform
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate


@dataclass(frozen=True)
class AntitheticPairs(Estimator[SamplingOracle]):
    """Antithetic pairs of structures: ``ĝ = (1/2P) Σ_p Σ_{z∈p} (L(z) − b_p) ∇ log p(z)``, b_p the mean loss of the other pairs. Unbiased.

    A sampler turns uniforms u into an exact sample, decision by decision; the other of the pair is what ``1 − u`` gives, an exact sample
    too. The plain average of the two is unbiased however they depend on each other, and needs no weights as DisARM and CARMS do, but for
    the same reason the loss of the one is no baseline for the other: that is left to other pairs, and with a single one there is none. The
    variance falls where opposite uniforms give opposite terms, and rises where they give equal ones: bits and first choices do the former.

    Cost: 2 P samples, 2 P loss values, one log-partition and its gradient.

    Args:
        num_pairs: P, at least 1.

    References:
        Dong, Mnih & Tucker 2021, "Coupled gradient estimators for discrete latent variables", whose samples are coupled so, for categories.

    Example:
        >>> from structgrad.oracles import Subset
        >>> weights, scores = torch.tensor([1.0, -0.5, 2.0, 0.0]), torch.tensor([0.3, -0.2, 0.5, 0.0])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = AntitheticPairs().gradient(lambda z: z @ weights, Subset(2), scores.expand(100_000, 4), generator=generator)
        >>> exact = torch.func.grad(lambda theta: Subset(2).marginals(theta) @ weights)(scores)
        >>> bool((estimates.mean(0) - exact).abs().max() < 0.01)
        True
    """

    num_pairs: Count = 2

    name: ClassVar[str] = "antithetic_pairs"
    references: ClassVar[tuple[str, ...]] = ("dong2021coupled",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=2 * self.num_pairs, marginals=1, samples=2 * self.num_pairs)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        pairs = self.num_pairs
        recorded = Recorded(generator)
        first = oracle.sample(scores, pairs, generator=recorded)
        samples = torch.cat([first, oracle.sample(scores, pairs, generator=Opposite(recorded))])
        losses = evaluate(loss, samples, oracle.event_ndim)
        values = losses.detach().unflatten(0, (2, pairs))
        if pairs > 1:
            means = values.mean(0)
            values = values - (means.sum(0) - means) / (pairs - 1)
        return carry(losses.mean(0), (values.flatten(0, 1) * oracle.log_prob(samples, scores)).mean(0))


class Recorded(RowGenerator):
    """Serves the uniforms of another generator, and keeps them."""

    source: torch.Generator
    drawn: list[Tensor]

    def __new__(cls, source: torch.Generator) -> Recorded:
        return super().__new__(cls, source.device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, source: torch.Generator) -> None:
        self.source, self.drawn = source, []

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        self.drawn.append(random_uniform((rows,), (width,), generator=self.source, device=device))
        return self.drawn[-1]


class Opposite(RowGenerator):
    """Serves ``1 − 2⁻⁵³ − u`` for the uniforms that another one served, in their order: multiples of 2⁻⁵³ below 1, as they are."""

    waiting: list[Tensor]

    def __new__(cls, recorded: Recorded) -> Opposite:
        return super().__new__(cls, recorded.device)  # type: ignore[call-arg]  # torch's stub does not know the device

    def __init__(self, recorded: Recorded) -> None:
        self.waiting = list(recorded.drawn)

    def uniforms(self, rows: int, width: int, device: torch.device) -> Tensor:
        return (1 - 2.0**-53) - self.waiting.pop(0)

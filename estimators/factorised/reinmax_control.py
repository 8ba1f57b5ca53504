"""ReinMax with a difference of Gumbel relaxations added, which is meant as a control variate and is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ...oracles.options import Count, Positive
from ..base import Evaluations
from .common import PullBack, Race, conditional_race, softmax_product
from .gumbel_rao import ConditionalRaces


@dataclass(frozen=True)
class ReinMaxControl(ConditionalRaces):
    """ReinMax-CV: ``ĝ = ReinMax + η ((1/K) Σ_k J_τ(x^k) − J_τ(log q + G)) γ(z)`` with ``q = (p + z)/2``. Biased.

    ``x^k`` are Gumbel races of probabilities q that z won, as in `ReinMaxRao`, and G is the noise with which z won the race of p itself.
    Given z, ReinMax is no random number: what has mean 0 given z can only add variance to it, and what lowers its variance moves its mean.
    The two relaxations do not have the same mean, because a winner under p leaves other noise than a winner under q; so for η ≠ 0 the mean
    is not that of ReinMax, and linear losses are biased. (The authors' code puts the relaxed sample in place of G, which moves it further.)

    Cost: one exact sample, K + 1 noise tensors, one loss gradient.

    Args:
        temperature: τ of the relaxations, positive; ReinMax itself is that of temperature 1, as in the code.
        eta: η; 0 is ReinMax.
        num_conditionals: K, at least 1.

    References:
        Wang & Bui 2026, "Beyond ReinMax: low-variance gradient estimators for discrete latent variables"; the formula is that of the
        authors' code (``reinmax_cv``), with G and τ where its comments have them.

    Example:
        >>> import torch
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores, generator = torch.tensor([0.3, -0.2, 0.5]), torch.Generator().manual_seed(0)
        >>> estimates = ReinMaxControl().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> bool((estimates[:, 2].mean() - 0.38).abs() > 0.01)  # the exact gradient, which ReinMax has, is 0.38
        True
    """

    temperature: Positive = 0.5
    eta: float = 0.5
    num_conditionals: Count = 10

    name: ClassVar[str] = "reinmax_cv"
    references: ClassVar[tuple[str, ...]] = ("wang2026beyond", "liu2023bridging", "paulus2021rao")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, perturbations=self.num_conditionals + 1)

    def _pull_back(self, race: Race) -> PullBack:
        p = race.log_probs.exp()
        middle = (p + race.sample) / 2
        log_middle = middle.clamp(min=1e-300).log()
        noise = conditional_race(race.log_probs, race.sample, race.draw()) - race.log_probs
        plain = ((log_middle + noise) / self.temperature).softmax(-1)
        average = race.relaxed(self.num_conditionals, self.temperature, log_middle)

        def pulled(gamma: Tensor) -> Tensor:
            control = average(gamma) - softmax_product(plain, gamma) / self.temperature
            return 2 * softmax_product(middle, gamma) - softmax_product(p, gamma) / 2 + self.eta * control

        return pulled

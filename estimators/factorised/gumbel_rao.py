"""Straight-through Gumbel-softmax without its noise: Gumbel-Rao and the gapped straight-through estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ...oracles.options import Count, NonNegative, Positive
from ..base import Evaluations
from .common import ExactSampleForward, PullBack, Race, softmax_product


class ConditionalRaces(ExactSampleForward):
    """Forward an exact sample, backward an average over K Gumbel races that it won."""

    temperature: float
    num_conditionals: int

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, perturbations=self.num_conditionals)


@dataclass(frozen=True)
class GumbelRao(ConditionalRaces):
    """Gumbel-Rao: forward an exact sample z, backward ``ĝ = (1/K) Σ_k J_τ(x^k) γ(z)``, straight-through Gumbel-softmax given z. Biased.

    ``x^k = θ + G^k`` are noisy scores given that z is their argmax, and ``J_τ(x) = (diag y − y yᵀ)/τ`` with ``y = softmax(x/τ)``. The noise
    ``G^k`` is held fixed when θ is differentiated: only so is the mean that of straight-through Gumbel-softmax, for every K. (The total
    derivative, noise included, has another mean: 0.0417 in place of 0.1667 on two classes of equal scores.) The variance is that of
    straight-through Gumbel-softmax, of which the part that remains when z is known is divided by K.

    Cost: one exact sample, K noise tensors, one loss gradient.

    Args:
        temperature: τ, positive.
        num_conditionals: K, at least 1. The paper uses 10, 100 and 1000.

    References:
        Paulus, Maddison & Krause 2021, "Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, generator = torch.zeros(100_000, 2), torch.Generator().manual_seed(0)
        >>> estimates = GumbelRao().gradient(lambda z: z[..., 0], Categorical(), scores, generator=generator)
        >>> round(float(estimates[:, 0].mean()), 3)
        0.167
    """

    temperature: Positive = 1.0
    num_conditionals: Count = 10

    name: ClassVar[str] = "gumbel_rao"
    references: ClassVar[tuple[str, ...]] = ("paulus2021rao",)

    def _pull_back(self, race: Race) -> PullBack:
        return race.relaxed(self.num_conditionals, self.temperature)


@dataclass(frozen=True)
class GappedStraightThrough(ExactSampleForward):
    """Gapped straight-through: forward an exact sample z, backward ``ĝ = J_τ(x) γ(z)`` at scores that are moved until z wins. Biased.

    The sampled part is raised to the best score, and the others are lowered where they are less than a gap below it:
    ``x_z = max θ`` and ``x_j = min(θ_j, max θ − gap)``. The moves are held fixed when θ is differentiated. No noise besides the sample.

    Cost: one exact sample, one loss gradient.

    Args:
        temperature: τ, positive.
        gap: a number (GST-1.0), or ``"p"`` for ``−log(1 − p_z)/p_z`` (GST-p), the mean of the gap that Gumbel noise leaves.

    References:
        Fan, Chi, Rudnicky & Ramadge 2022, "Training discrete deep generative models via gapped straight-through estimator", section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
        >>> z = GappedStraightThrough().structure(Categorical(), scores, generator=torch.Generator().manual_seed(1))
        >>> (z * torch.tensor([1.0, -0.5, 2.0])).sum().backward()
        >>> z.detach(), scores.grad
        (tensor([1., 0., 0.]), tensor([ 0.0611, -0.2955,  0.2344]))
    """

    temperature: Positive = 1.0
    gap: NonNegative | Literal["p"] = 1.0

    name: ClassVar[str] = "gst"
    references: ClassVar[tuple[str, ...]] = ("fan2022training",)

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1)

    def _pull_back(self, race: Race) -> PullBack:
        best = race.log_probs.amax(-1, keepdim=True)
        moved = torch.where(race.sample > 0, best, torch.minimum(race.log_probs, best - self._gap(race)))
        relaxed = (moved / self.temperature).softmax(-1)
        return lambda gamma: softmax_product(relaxed, gamma) / self.temperature

    def _gap(self, race: Race) -> Tensor | float:
        if not isinstance(self.gap, str):
            return self.gap
        p = (race.sample * race.log_probs.exp()).sum(-1, keepdim=True).clamp(1e-300, 1)
        return -torch.log1p(-p) / p

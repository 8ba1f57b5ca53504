"""Straight-through Gumbel-softmax without its noise: Gumbel-Rao and the gapped straight-through estimator."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..oracles.capabilities import FactorisedOracle
from ..oracles.options import Count, NonNegative, Positive
from .base import Evaluations, PathwiseEstimator
from .factorised import PullBack, _behind, gumbels, log_probabilities, moving_categories, softmax_product
from .surrogates import with_backward


@dataclass(frozen=True)
class Race:
    """An exact sample as the winner of a Gumbel race."""

    log_probs: Tensor  # float64 [*batch, *event]
    sample: Tensor  # the winner, float64 [*batch, *event]
    draw: Callable[[], Tensor]  # Gumbel noise without conditions, [*batch, *event]

    def relaxed(self, count: int, temperature: float, log_probs: Tensor | None = None) -> PullBack:
        """The mean of ``J_τ(x) = (diag y − y yᵀ)/τ`` with ``y = softmax(x/τ)``, as a product, over races ``x`` that the sample won.

        Other log-probabilities than those of the sample are taken where given.
        """
        log_probs = self.log_probs if log_probs is None else log_probs
        points = []
        for _ in range(count):  # one at a time: intermediate results for all of them would not fit the caches
            # The winner has weight 1 and the others less, so that no maximum need be taken out.
            weights = _behind(log_probs, self.sample, self.draw()).mul_(-1 / temperature).exp_()
            points.append(weights.div_(weights.sum(-1, keepdim=True)))

        def product(gamma: Tensor) -> Tensor:
            total = torch.zeros_like(gamma)
            for point in points:
                total += softmax_product(point, gamma)
            return total / (count * temperature)

        return product


class ExactSampleForward(PathwiseEstimator[FactorisedOracle]):
    """Forward an exact sample, backward a linear function of γ: a subclass says which one."""

    objective = "expected"
    linear = True

    @abc.abstractmethod
    def _pull_back(self, race: Race) -> PullBack: ...

    def structure(self, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        sample = oracle.sample(scores, generator=generator)
        log_probs, moving = log_probabilities(oracle, scores.detach()), moving_categories(oracle, scores)
        pull_back = self._pull_back(Race(log_probs, sample.double(), lambda: gumbels(oracle, scores, generator=generator)))
        return with_backward(sample, scores, lambda gamma: torch.where(moving, pull_back(gamma.double()), 0).to(scores.dtype))


@dataclass(frozen=True)
class ConditionalRaces(ExactSampleForward):
    """Forward an exact sample, backward an average over K Gumbel races that it won."""

    temperature: Positive = 1.0
    num_conditionals: Count = 10

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=1, loss_gradients=1, samples=1, perturbations=self.num_conditionals)


@dataclass(frozen=True)
class GumbelRao(ConditionalRaces, name="gumbel_rao", references=("paulus2021rao",)):
    """Gumbel-Rao: forward an exact sample z, backward ``ĝ = (1/K) Σ_k J_τ(x^k) γ(z)``, straight-through Gumbel-softmax given z. Biased.

    ``x^k = θ + G^k`` are noisy scores given that z is their argmax, and ``J_τ(x) = (diag y − y yᵀ)/τ`` with ``y = softmax(x/τ)``. The noise
    ``G^k`` is held fixed when θ is differentiated: only so is the mean that of straight-through Gumbel-softmax, for every K. (The total
    derivative, noise included, has another mean: 0.0417 in place of 0.1667 on two classes of equal scores.) The variance is that of
    straight-through Gumbel-softmax, of which the part that remains when z is known is divided by K.

    Args:
        num_conditionals: K, at least 1. The paper uses 10, 100 and 1000.

    References:
        Paulus, Maddison & Krause 2021, "Rao-Blackwellizing the straight-through Gumbel-softmax gradient estimator", section 3.

    Example:
        >>> loss, generator = lambda z: z[..., 0], torch.Generator().manual_seed(0)
        >>> round(float(GumbelRao().gradient(loss, "categorical", torch.zeros(100_000, 2), generator=generator)[:, 0].mean()), 3)
        0.167
    """

    def _pull_back(self, race: Race) -> PullBack:
        return race.relaxed(self.num_conditionals, self.temperature)


@dataclass(frozen=True)
class GappedStraightThrough(ExactSampleForward, name="gst", references=("fan2022training",)):
    """Gapped straight-through: forward an exact sample z, backward ``ĝ = J_τ(x) γ(z)`` at scores that are moved until z wins. Biased.

    The sampled part is raised to the best score, and the others are lowered where they are less than a gap below it:
    ``x_z = max θ`` and ``x_j = min(θ_j, max θ − gap)``. The moves are held fixed when θ is differentiated. No noise besides the sample.

    Args:
        gap: a number (GST-1.0), or ``"p"`` for ``−log(1 − p_z)/p_z`` (GST-p), the mean of the gap that Gumbel noise leaves.

    References:
        Fan, Chi, Rudnicky & Ramadge 2022, "Training discrete deep generative models via gapped straight-through estimator", section 4.

    Example:
        >>> scores = torch.tensor([0.3, -0.2, 0.5], requires_grad=True)
        >>> z = GappedStraightThrough().structure("categorical", scores, generator=torch.Generator().manual_seed(1))
        >>> (z * torch.tensor([1.0, -0.5, 2.0])).sum().backward()
        >>> z.detach(), scores.grad
        (tensor([1., 0., 0.]), tensor([ 0.0611, -0.2955,  0.2344]))
    """

    temperature: Positive = 1.0
    gap: NonNegative | Literal["p"] = 1.0

    calls = Evaluations(losses=1, loss_gradients=1, samples=1)

    def _pull_back(self, race: Race) -> PullBack:
        best = race.log_probs.amax(-1, keepdim=True)
        p = (race.sample * race.log_probs.exp()).sum(-1, keepdim=True).clamp(1e-300, 1)
        gap = -torch.log1p(-p) / p if isinstance(self.gap, str) else self.gap
        moved = torch.where(race.sample > 0, best, torch.minimum(race.log_probs, best - gap))
        relaxed = (moved / self.temperature).softmax(-1)
        return lambda gamma: softmax_product(relaxed, gamma) / self.temperature

"""Leave-one-out with control variates of a discrete Stein operator: RODEO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import FactorisedOracle, Oracle
from ...oracles.capabilities.derivatives import unsqueeze_event
from ...oracles.options import Peers
from ..base import Estimator, Evaluations, Loss, Objective, with_gradient
from ..score_function.taylor import with_slopes
from .common import log_probabilities, moving_categories, softmax_product


@dataclass(frozen=True)
class Rodeo(Estimator[FactorisedOracle]):
    """RODEO: ``ĝ = (1/N) Σ_i (L(z_i) − mean_{j≠i}(L + α A h_j)(z_j)) s_i + β A(h_i s)(z_i)``, A of mean 0 under p. Unbiased.

    ``A f(z) = Σ_c (Σ_m p_cm f(z^{c→m}) − f(z))`` is the Gibbs Stein operator, one resampled category at a time, and s the score. ``h_i`` is
    built from the *other* samples alone, so that both corrections have mean 0: here it is ``h_i(z) = ⟨γ̄, z − p⟩`` with their mean gradient
    γ̄, where the authors send it through a network that they train along, with α and β. Of an h that is linear both have a closed form,
    without losses of the neighbours: ``A h(z) = −h(z)``, and for category c ``A(h s) = Cov γ̄_c + (⟨γ̄_c, s_c⟩ − 2 h(z)) s_c``.

    At α = 1, β = ½ a linear loss keeps half of its variance within each category, and none between categories.

    Cost: N samples and N loss gradients at them, and none at the neighbours.

    Args:
        alpha: α, of the control of the baseline. The operator is a sum over categories; that of the authors is the mean.
        beta: β, of the control of the estimate.
        num_samples: N, at least 2.

    References:
        Shi, Zhou, Hwang, Titsias & Mackey 2022, "Gradient estimation with discrete Stein operators"; the formula is that of the authors'
        code for bits (``discrete_stein_oldavg``) with the identity for its network, and with as many parts as there are.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores, generator = torch.tensor([0.3, -0.2, 0.5]), torch.Generator().manual_seed(0)
        >>> estimates = Rodeo().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    alpha: float = 1.0
    beta: float = 0.5
    num_samples: Peers = 2

    name: ClassVar[str] = "rodeo"
    references: ClassVar[tuple[str, ...]] = ("shi2022gradient",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (FactorisedOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, loss_gradients=self.num_samples, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: FactorisedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses, slopes = with_slopes(self.name, loss, samples, oracle.event_ndim)
        estimate = self._estimate(oracle, log_probabilities(oracle, scores.detach()).exp(), (samples, losses.detach(), slopes))
        estimate = torch.where(moving_categories(oracle, scores), estimate, 0)
        return with_gradient(losses.mean(0), scores, estimate.to(scores.dtype))

    def _estimate(self, oracle: FactorisedOracle, p: Tensor, seen: tuple[Tensor, ...]) -> Tensor:
        """``[*batch, *event]`` from probabilities of that shape, and samples, losses, slopes ``[N, ...]``."""
        samples, losses, slopes = (values.double() for values in seen)
        event = tuple(range(-oracle.event_ndim, 0))
        others = (slopes.sum(0) - slopes) / (self.num_samples - 1)
        score = samples - p
        within = (others * score).sum(-1, keepdim=True)
        across = within.sum(event, keepdim=True)
        values = unsqueeze_event(losses, oracle.event_ndim)
        controlled = values - self.alpha * across
        baseline = (controlled.sum(0) - controlled) / (self.num_samples - 1)
        control = softmax_product(p, others) + (within - 2 * across) * score
        return ((values - baseline) * score + self.beta * control).mean(0)

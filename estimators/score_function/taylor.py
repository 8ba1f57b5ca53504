"""Control variates from a Taylor expansion of the loss: around the mean structure (MuProp), around the other samples (double)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.capabilities.base import inner
from ...oracles.options import Count, Peers
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate, learns_besides, upstream_gradient


@dataclass(frozen=True)
class MuProp(Estimator[SamplingOracle]):
    """MuProp: ``ĝ = (1/N) Σ (L(z_i) − L(μ) − ⟨γ(μ), z_i − μ⟩) ∇ log p(z_i) + Cov(z) γ(μ)``. Unbiased.

    What is subtracted is the expansion of the loss around the mean structure μ, of which ``Cov(z) γ(μ) = ∇⟨γ, μ(θ)⟩`` is the gradient. So a
    linear loss has no variance; any other is as noisy as what the expansion leaves of it, which may be more than the loss itself where that
    is not smooth inside the hull. The mean structure of any oracle is its marginals, where the paper's network passes means on.

    Cost: N samples, N loss values, one loss gradient inside the hull; the marginals, the log-partition, and the gradients of both.

    Args:
        num_samples: N, at least 1.

    References:
        Gu, Levine, Sutskever & Mnih 2016, "MuProp: unbiased backpropagation for stochastic neural networks"; read as the baseline of the
        same name in the code of Titsias & Shi 2022 (``quadratic_loss.ipynb``), for bits.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, weights = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.tensor([1.0, -0.5, 2.0, 0.0])
        >>> estimates = MuProp().gradient(lambda z: z @ weights, Subset(2), scores.expand(100, 4), generator=torch.Generator())
        >>> bool(estimates.std(0).max() < 1e-6)
        True
    """

    num_samples: Count = 1

    name: ClassVar[str] = "muprop"
    references: ClassVar[tuple[str, ...]] = ("gu2016muprop", "titsias2022double")
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True
    inside_hull: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples + 1, loss_gradients=1, samples=self.num_samples, marginals=2)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses = evaluate(loss, samples, oracle.event_ndim)
        mean = oracle.marginals(scores)
        with torch.enable_grad():
            point = mean.detach().requires_grad_()
            centre = evaluate(loss, point, oracle.event_ndim)
            slope = upstream_gradient(self.name, centre, point, retain_graph=False)
        rest = losses.detach() - centre.detach() - inner(samples - mean.detach(), slope, oracle.event_ndim)
        carrier = (rest * oracle.log_prob(samples, scores)).mean(0) + self._returned(slope, mean, oracle.event_ndim)
        return carry(losses.mean(0), carrier)

    def _returned(self, slope: Tensor, mean: Tensor, event_ndim: int) -> Tensor:
        """``⟨γ, μ(θ)⟩``, ``[*batch]``: what the control variate took away, in the mean."""
        return inner(slope, mean, event_ndim)


@dataclass(frozen=True)
class DoubleControl(Estimator[SamplingOracle]):
    """Double control variates: leave-one-out on ``L(z_i) + b_i`` with ``b_i = α ⟨γ̄_−i, z_i − μ⟩``, minus ``α Cov(z) γ̄``. Unbiased.

    ``γ̄_−i`` is the mean gradient of the loss at the *other* samples and γ̄ that at all N. Given the others, ``b_i`` has mean 0 and
    ``b_i ∇ log p(z_i)`` the mean ``α Cov(z) γ̄_−i``, which the last term takes back. With the own gradient in ``b_i`` the estimate would be
    biased. At α = −1 a linear loss has no variance; at α = 0 it is leave-one-out.

    Cost: N samples and N loss gradients at them; the marginals, the log-partition, and the gradients of both.

    Args:
        alpha: α. The authors learn it along, from 0.
        num_samples: N, at least 2.

    References:
        Titsias & Shi 2022, "Double control variates for gradient estimation in discrete latent variable models"; the formula is that of the
        authors' code (``get_grad_estimation``), which is for bits.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, weights = torch.tensor([0.3, -0.2, 0.5, 0.0]), torch.tensor([1.0, -0.5, 2.0, 0.0])
        >>> estimates = DoubleControl().gradient(lambda z: z @ weights, Subset(2), scores.expand(100, 4), generator=torch.Generator())
        >>> bool(estimates.std(0).max() < 1e-6)
        True
    """

    alpha: float = -1.0
    num_samples: Peers = 2

    name: ClassVar[str] = "double_cv"
    references: ClassVar[tuple[str, ...]] = ("titsias2022double",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, loss_gradients=self.num_samples, samples=self.num_samples, marginals=2)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = oracle.sample(scores, self.num_samples, generator=generator)
        losses, slopes = with_slopes(self.name, loss, samples, oracle.event_ndim)
        mean = oracle.marginals(scores)
        signals = losses.detach() + self.alpha * inner(samples - mean.detach(), self._slopes(slopes), oracle.event_ndim)
        excess = (signals - signals.mean(0)) * (self.num_samples / (self.num_samples - 1))
        carrier = (excess * oracle.log_prob(samples, scores)).mean(0) - self.alpha * inner(slopes.mean(0), mean, oracle.event_ndim)
        return carry(losses.mean(0), carrier)

    def _slopes(self, slopes: Tensor) -> Tensor:
        """``γ̄_−i``, ``[N, *batch, *event]``."""
        return (slopes.sum(0) - slopes) / (self.num_samples - 1)


def with_slopes(name: str, loss: Loss, samples: Tensor, event_ndim: int) -> tuple[Tensor, Tensor]:
    """Losses ``[N, *batch]`` and their gradients ``[N, *batch, *event]`` at samples; the losses go on learning what they hold."""
    learning = torch.is_grad_enabled()
    with torch.enable_grad():
        points = samples.detach().requires_grad_()
        losses = evaluate(loss, points, event_ndim)
        kept = learning and learns_besides(losses, points)
        slopes = upstream_gradient(name, losses, points, retain_graph=kept)
    return losses if kept else losses.detach(), slopes

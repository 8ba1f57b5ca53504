"""The score-function family: only values of the loss are needed, and estimates are unbiased where nothing else is said."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.options import Count, Peers, Within
from ..base import Estimator, Evaluations, Loss, Objective, Tier, carry, evaluate_samples, expand_samples
from ..indices import draw


class ScoreFunction(Estimator[SamplingOracle]):
    """``ĝ = (1/N) Σ_i w_i ∇_θ log p_θ(z_i)`` with independent exact samples ``z_i``; a subclass says what the weights ``w_i`` are.

    The score comes from `log_prob` and autograd, so that any oracle that knows its log-probabilities is served.
    """

    num_samples: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    @abc.abstractmethod
    def _weights(self, losses: Tensor) -> Tensor:
        """[N, *batch] -> [N, *batch]."""

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = draw(loss, oracle, scores, self.num_samples, generator=generator)
        losses = evaluate_samples(loss, samples)
        log_probs = samples.log_probs(scores)
        return carry(losses.mean(0), (self._weights(losses.detach()) * log_probs).mean(0))


@dataclass(frozen=True)
class Reinforce(ScoreFunction):
    """REINFORCE without a baseline: ``ĝ = (1/N) Σ L(z_i) ∇ log p(z_i)``. Unbiased; the variance grows with the loss's offset.

    Args:
        num_samples: N, at least 1.

    References:
        Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", section 4.

    Example:
        >>> from structgrad.oracles import Subset
        >>> scores, target = torch.zeros(100, 4), torch.tensor([1.0, 1.0, 0.0, 0.0])
        >>> estimates = Reinforce().gradient(lambda z: (z - target).square().sum(-1), Subset(2), scores, generator=torch.Generator())
        >>> estimates.shape
        torch.Size([100, 4])
    """

    num_samples: Count = 1

    name: ClassVar[str] = "reinforce"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("williams1992simple",)

    def _weights(self, losses: Tensor) -> Tensor:
        return losses


@dataclass(frozen=True)
class LeaveOneOut(ScoreFunction):
    """REINFORCE with a leave-one-out baseline: ``ĝ = 1/(N−1) Σ (L(z_i) − L̄) ∇ log p(z_i)``.

    Unbiased, because the baseline of a sample is the mean of the *others*. (With the mean of all N the estimate would be (N−1)/N of the
    gradient.) The same estimate as VarGrad.

    Cost: N samples, N loss values, one log-partition and its gradient.

    Args:
        num_samples: N, at least 2.

    References:
        Kool, van Hoof & Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free", equation 8; Richter et al. 2020 (VarGrad).

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = LeaveOneOut(num_samples=4).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    num_samples: Peers = 2

    name: ClassVar[str] = "rloo"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("kool2019buy", "richter2020vargrad")

    def _weights(self, losses: Tensor) -> Tensor:
        return (losses - losses.mean(0)) * (self.num_samples / (self.num_samples - 1))


@dataclass(frozen=True)
class VarGrad(Estimator[SamplingOracle]):
    """VarGrad: ``ĝ = 1/(N−1) Σ (L(z_i) − L̄)(s_i − s̄)`` with the scores ``s_i = ∇ log p(z_i)``: the covariance of losses and scores.

    The same estimate as leave-one-out, because ``Σ (L(z_i) − L̄) s̄ = 0``; only rounding differs. Unbiased.

    Cost: N samples, N loss values, one log-partition and its gradient.

    Args:
        num_samples: N, at least 2.

    References:
        Richter, Boustati, Nüsken, Ruiz & Akyildiz 2020, "VarGrad: a low-variance gradient estimator for variational inference",
        section 3. `half_variance` is the loss of which it is the gradient.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = VarGrad(num_samples=4).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    num_samples: Annotated[int, Within(least=2, because="a variance is taken over them")] = 2

    name: ClassVar[str] = "vargrad"
    references: ClassVar[tuple[str, ...]] = ("richter2020vargrad",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples = draw(loss, oracle, scores, self.num_samples, generator=generator)
        losses = evaluate_samples(loss, samples)
        return carry(losses.mean(0), covariance(losses.detach(), samples.log_probs(scores)))


def covariance(first: Tensor, second: Tensor) -> Tensor:
    """``1/(N−1) Σ (x_i − x̄)(y_i − ȳ)`` over the first dimension: ``[N, *batch]`` twice to ``[*batch]``."""
    return ((first - first.mean(0)) * (second - second.mean(0))).sum(0) / (len(first) - 1)


def half_variance(losses: Tensor, log_probs: Tensor) -> Tensor:
    """``½ Var_N(L + log p)``, ``[*batch]``: its gradient in the scores is the VarGrad estimate for ``E[L(z) + log p(z)]``.

    That is an evidence lower bound with its sign turned, where L is minus the log of the joint probability. It vanishes at the optimum
    ``p ∝ exp(−L)``, for every sample, and so does its gradient.

    Args:
        losses: ``[N, *batch]``, of samples that are held fixed; at least two.
        log_probs: ``[N, *batch]``, from `log_prob` of the same samples, differentiable in the scores.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, table = torch.zeros(3, requires_grad=True), torch.tensor([1.0, -0.5, 2.0])
        >>> optimiser, generator = torch.optim.SGD([scores], lr=0.2), torch.Generator().manual_seed(0)
        >>> for _ in range(500):
        ...     samples = Categorical().sample(scores, 8, generator=generator)
        ...     optimiser.zero_grad()
        ...     half_variance(samples @ table, Categorical().log_prob(samples, scores)).backward()
        ...     optimiser.step()
        >>> (scores.softmax(-1) - (-table).softmax(-1)).abs().max() < 1e-3
        tensor(True)
    """
    if len(losses) < 2:
        raise ValueError(f"`half_variance` got losses of {len(losses)} samples; expected at least 2, a variance is taken over them")
    total = losses.detach() + log_probs
    return covariance(total, total) / 2


def scores_of(oracle: SamplingOracle, samples: Tensor, scores: Tensor, *, as_indices: bool = False) -> Tensor:
    """``∇ log p(z_i)`` of every sample by itself: ``[N, *batch, *event]`` from N structures or indices and scores ``[*batch, *event]``."""
    batch_dims = scores.ndim - oracle.event_ndim
    leaf = expand_samples(scores.detach(), len(samples), oracle.event_ndim).requires_grad_()
    with torch.enable_grad():
        total = oracle.log_prob(samples.movedim(0, batch_dims), leaf, as_indices=as_indices).sum()
    (single,) = torch.autograd.grad(total, leaf)
    return single.movedim(batch_dims, 0)

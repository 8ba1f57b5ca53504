"""Baselines, as wrappers: REINFORCE on the loss minus a value that does not depend on the sample, plus that value.

Shifting the loss leaves the mean of a score-function estimate alone and changes its variance.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.options import Count, Decay
from ..base import NOTHING, Estimator, Evaluations, Loss, Objective, Tier, evaluate_samples, shifted
from ..indices import best, draw
from .reinforce import Reinforce


class Baseline(Estimator[SamplingOracle]):
    """``(1/N) Σ (L(z_i) − b) ∇ log p(z_i)``: a subclass says what b is, ``[*batch]`` or a number, independent of the samples."""

    num_samples: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    @property
    def inner(self) -> Reinforce:
        """The estimator that is wrapped."""
        return Reinforce(self.num_samples)

    def evaluations(self) -> Evaluations:
        return self.inner.evaluations()

    @abc.abstractmethod
    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor | float: ...

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        baseline = self._baseline(loss, oracle, scores.detach(), generator=generator)
        return self.inner.surrogate(shifted(loss, oracle, baseline, scores.dtype), oracle, scores, generator=generator) + baseline


@dataclass(frozen=True)
class ConstantBaseline(Baseline):
    """REINFORCE minus a constant. Unbiased for every constant.

    Cost: that of REINFORCE.

    Args:
        value: b; the expected loss is a good choice, 0 gives plain REINFORCE.
        num_samples: N.

    References:
        Williams 1992, section 4.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = ConstantBaseline(value=1.0).gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    value: float = 1.0
    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_constant"
    tier: ClassVar[Tier] = "core"
    references: ClassVar[tuple[str, ...]] = ("williams1992simple",)

    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> float:
        return self.value


@dataclass(frozen=True)
class RunningMeanBaseline(Baseline):
    """REINFORCE minus a running mean of past losses. Unbiased, because the mean is updated *after* use.

    The state is a value: `observed` returns a new estimator, and a `StructuredLayer` holds the last one. (Mixing the current loss in first
    scales the gradient by ``1 − (1 − decay)/N``, a known error of published code.) Measured after 64 updates, and then frozen, so that
    replicates are independent.

    Cost: that of REINFORCE, and one host copy per `observed`.

    Args:
        mean: the running mean before the first update.
        decay: weight of the past in an update, in [0, 1).
        num_samples: N.

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics", section 3.2.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> from structgrad.estimators import StructuredLayer
        >>> layer = StructuredLayer(Categorical(), RunningMeanBaseline())
        >>> for _ in range(200):
        ...     layer.surrogate(loss, scores.requires_grad_()).backward()
        >>> 0.5 < layer.estimator.mean < 2.0  # the expected loss is 1.11
        True
    """

    mean: float = 0.0
    decay: Decay = 0.9
    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_running_mean"
    references: ClassVar[tuple[str, ...]] = ("havrylov2019cooperative",)
    state: ClassVar[tuple[str, ...]] = ("mean",)

    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> float:
        return self.mean

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        """The estimator after it has seen the values of a batch; itself after none."""
        if not values.numel():
            return self
        return replace(self, mean=self.decay * self.mean + (1 - self.decay) * float(values.detach().mean()))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator after 64 updates at these scores, started from the first value; itself where the batch is empty."""
        values = first_values(self, loss, oracle, scores, generator)
        if not values.numel():
            return self
        state = replace(self, mean=float(values[0].mean()))
        for value in values[1:]:
            state = state.observed(value)
        return state


def first_values(estimator: Estimator[Any], loss: Loss, oracle: Oracle, scores: Tensor, generator: torch.Generator) -> Tensor:
    """``[64, *batch]``: the values of 64 surrogates at the same scores, from which a running state is started."""
    with torch.no_grad():
        values = estimator.surrogate(loss, oracle, scores.expand(64, *scores.shape), generator=generator)
    if not bool(values.isfinite().all()):
        raise ValueError(f"`{estimator.name}` got a loss of NaN or inf where its running state starts; expected finite losses")
    return values


@dataclass(frozen=True)
class GreedyBaseline(Baseline):
    """Self-critical REINFORCE: ``b = L(argmax θ)``. Unbiased; it can *raise* the variance where the best structure's loss is atypical.

    Cost: one argmax and one loss more.

    References:
        Rennie et al. 2017, "Self-critical sequence training for image captioning", section 3.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = GreedyBaseline().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.34, 0.38]
    """

    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_greedy"
    references: ClassVar[tuple[str, ...]] = ("rennie2017self",)

    def evaluations(self) -> Evaluations:
        return replace(self.inner.evaluations(), losses=self.num_samples + 1, argmax=1)

    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return evaluate_samples(loss, best(loss, oracle, scores)).detach()


@dataclass(frozen=True)
class SampledBaseline(Baseline):
    """REINFORCE with a sampled baseline: ``ĝ = (1/N) Σ (L(z_i) − L(z′)) ∇ log p(z_i)``, z′ one more independent sample. Unbiased.

    With z′ fixed every term has the exact gradient as its mean, so that terms which share z′ are uncorrelated: one z′ serves them all, and
    the variance is that of N terms with a z′ each.

    Cost: N + 1 samples and loss values, one log-partition and its gradient.

    Args:
        num_samples: N.

    References:
        Liu, Regier, Tripuraneni, Jordan & McAuliffe 2019, "Rao-Blackwellized stochastic gradients for discrete distributions",
        section 5 (REINFORCE+); Correia et al. 2020, section 5.1.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> loss = lambda z: z @ torch.tensor([1.0, -0.5, 2.0])
        >>> scores = torch.tensor([0.3, -0.2, 0.5])
        >>> generator = torch.Generator().manual_seed(0)
        >>> estimates = SampledBaseline().gradient(loss, Categorical(), scores.expand(100_000, 3), generator=generator)
        >>> [round(value, 2) for value in estimates.mean(0).tolist()]
        [-0.04, -0.35, 0.38]
    """

    num_samples: Count = 1

    name: ClassVar[str] = "reinforce_sampled"
    references: ClassVar[tuple[str, ...]] = ("liu2019rao", "correia2020efficient")

    def evaluations(self) -> Evaluations:
        return replace(self.inner.evaluations(), losses=self.num_samples + 1, samples=self.num_samples + 1)

    def _baseline(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return evaluate_samples(loss, draw(loss, oracle, scores, None, generator=generator)).detach()

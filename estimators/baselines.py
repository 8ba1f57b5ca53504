"""Baselines of REINFORCE: a value that does not depend on the sample is subtracted from the loss."""

import math
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from ..oracles.capabilities import EnumerableOracle, Oracle, SamplingOracle
from ..oracles.capabilities.derivatives import unsqueeze_event
from ..oracles.options import Count, Decay, NonNegative
from .base import NOTHING, Estimator, Evaluations, UnbiasedEstimator
from .exact import LIMIT, expected_loss
from .score_function import ScoreFunction, scores_of
from .surrogates import Loss, OfStructures, draw, evaluate, with_gradient

E = TypeVar("E", bound=Estimator[Any])


@dataclass(frozen=True)
class ConstantBaseline(ScoreFunction, name="reinforce_constant", tier="core", references=("williams1992simple",)):
    """REINFORCE minus a constant. Unbiased for every constant.

    ``ĝ = (1/N) Σ (L(z_i) − b) ∇ log p(z_i)``.

    Args:
        value: b; the expected loss is a good choice, 0 gives plain REINFORCE.

    References:
        Williams 1992, section 4.
    """

    value: float = 1.0
    num_samples: Count = 1

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> float:
        return self.value


@dataclass(frozen=True)
class RunningMeanBaseline(ScoreFunction, name="reinforce_running_mean", references=("havrylov2019cooperative",)):
    """REINFORCE minus a running mean of past losses. Unbiased, because the mean is updated *after* use.

    ``ĝ = (1/N) Σ (L(z_i) − b) ∇ log p(z_i)``, and then ``b ← a·b + (1 − a)·L̄`` with a the decay and ``L̄`` the mean loss of the batch.
    The state is a value: `observed` returns a new estimator, and a `StructuredLayer` holds the last one. (Mixing the current loss in first
    scales the gradient by ``1 − (1 − decay)/N``, a known error of published code.) Measured after 64 updates, and then frozen, so that
    replicates are independent.

    Cost: that of REINFORCE, and one host copy per `observed`.

    Args:
        mean: the running mean before the first update.
        decay: weight of the past in an update, in [0, 1).

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics", section 3.2.

    Example:
        >>> loss, scores = lambda z: z @ torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.3, -0.2, 0.5])
        >>> from structgrad.estimators import StructuredLayer
        >>> layer = StructuredLayer("categorical", RunningMeanBaseline())
        >>> for _ in range(200):
        ...     layer.surrogate(loss, scores.requires_grad_()).backward()
        >>> 0.5 < layer.estimator.mean < 2.0  # the expected loss is 1.11
        True
    """

    mean: float = 0.0
    decay: Decay = 0.9
    num_samples: Count = 1

    state = ("mean",)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> float:
        return self.mean

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        if not values.numel():
            return self
        return replace(self, mean=self.decay * self.mean + (1 - self.decay) * float(values.detach().mean()))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        return started(self, loss, oracle, scores, generator)


def started(estimator: E, loss: Loss, oracle: Oracle, scores: Tensor, generator: torch.Generator, **state: float) -> E:
    """The estimator after 64 updates at these scores, started from the first value; itself where the batch is empty."""
    with torch.no_grad():
        values = estimator.surrogate(loss, oracle, scores.expand(64, *scores.shape), generator=generator)
    if not bool(values.isfinite().all()):
        raise ValueError(f"`{estimator.name}` got a loss of NaN or inf where its running state starts; expected finite losses")
    if not values.numel():
        return estimator
    options: Any = estimator
    running: E = replace(options, mean=float(values[0].mean()), **state)
    for value in values[1:]:
        running = running.observed(value)
    return running


@dataclass(frozen=True)
class GreedyBaseline(ScoreFunction, name="reinforce_greedy", references=("rennie2017self",)):
    """Self-critical REINFORCE: ``b = L(argmax θ)``. Unbiased; it can *raise* the variance where the best structure's loss is atypical.

    References:
        Rennie et al. 2017, "Self-critical sequence training for image captioning", section 3.
    """

    num_samples: Count = 1

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), losses=self.num_samples + 1, argmax=1)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        if isinstance(loss, OfStructures):
            return evaluate(loss.loss, oracle.argmax(scores, as_indices=True), oracle.index_ndim, scores.dtype).detach()
        return evaluate(loss, oracle.argmax(scores), oracle.event_ndim).detach()


@dataclass(frozen=True)
class SampledBaseline(ScoreFunction, name="reinforce_sampled", references=("liu2019rao", "correia2020efficient")):
    """REINFORCE with a sampled baseline: ``ĝ = (1/N) Σ (L(z_i) − L(z′)) ∇ log p(z_i)``, z′ one more independent sample. Unbiased.

    With z′ fixed every term has the exact gradient as its mean, so that terms which share z′ are uncorrelated: one z′ serves them all, and
    the variance is that of N terms with a z′ each.

    References:
        Liu et al. 2019, "Rao-Blackwellized stochastic gradients for discrete distributions", section 5; Correia et al. 2020, section 5.1.
    """

    num_samples: Count = 1

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), losses=self.num_samples + 1, samples=self.num_samples + 1)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        return draw(loss, oracle, scores, None, generator=generator)[1].detach()


@dataclass(frozen=True)
class ConditionalMeanBaseline(ScoreFunction, name="reinforce_conditional_mean", references=("greensmith2004variance",)):
    """REINFORCE minus the exact mean: ``b = E L(z) = Σ_z p(z) L(z)`` of every row, by enumeration. Unbiased.

    Who can afford b has the exact gradient too; this is what learned and running baselines are compared with. It is the best baseline for
    samples whose scores have one length, and close to it elsewhere.

    Cost: N samples, N loss values, and the loss on every structure; the log-partition belongs to the enumeration.

    Args:
        chunk: structures per loss call.

    References:
        Greensmith, Bartlett & Baxter 2004, "Variance reduction techniques for gradient estimates in reinforcement learning", section 5.2.
    """

    num_samples: Count = 1
    chunk: Count = 64
    limit: Count = LIMIT

    needs = (SamplingOracle, EnumerableOracle)

    def evaluations(self) -> Evaluations:
        return replace(super().evaluations(), marginals=0, enumerations=1)

    def _baseline(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        return expected_loss(loss, oracle, scores, self.chunk)


@dataclass(frozen=True)
class OptimalBaseline(UnbiasedEstimator[SamplingOracle], name="reinforce_optimal", references=("weaver2001optimal", "mohamed2020monte")):
    """REINFORCE minus the best constant: ``ĝ = (1/N) Σ (L(z_i) − b) s_i``, where ``b = Σ L(z) ‖s‖² / Σ ‖s‖²`` over pilot samples.

    ``b* = E[L ‖s‖²] / E‖s‖²``, with the score ``s = ∇ log p(z)``, is the constant of least variance; part by part it is
    ``E[L s_j²] / E[s_j²]``. Unbiased, because the pilots are independent of the samples ``z_i``; with b from these it would not be. Where
    every pilot's score is 0, b is their mean loss.

    Cost: samples and loss values of the pilots and the N samples; the log-partition and its gradient per sample, shared where the scores
    are.

    Args:
        pilots: pilot samples per estimate.
        per_part: a constant for every part, instead of one for all.

    References:
        Weaver & Tao 2001, "The optimal reward baseline for gradient-based reinforcement learning", theorem 1; Mohamed, Rosca, Figurnov &
        Mnih 2020, "Monte Carlo gradient estimation in machine learning", section 7.4.1 (fresh samples for the coefficient).
    """

    pilots: Count = 25
    per_part: bool = False
    num_samples: Count = 1

    def evaluations(self) -> Evaluations:
        both = self.pilots + self.num_samples
        return Evaluations(losses=both, marginals=both, samples=both)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        pilots, values = draw(loss, oracle, scores.detach(), self.pilots, generator=generator)
        known, squares = unsqueeze_event(values.detach(), oracle.event_ndim), scores_of(oracle, pilots, scores).square()
        if not self.per_part:
            squares = squares.sum(tuple(range(-oracle.event_ndim, 0)), keepdim=True)
        total = squares.sum(0)
        baseline = torch.where(total > 0, (known * squares).sum(0) / torch.where(total > 0, total, 1), known.mean(0))
        samples, losses = draw(loss, oracle, scores, self.num_samples, generator=generator)
        excess = unsqueeze_event(losses.detach(), oracle.event_ndim) - baseline
        return with_gradient(losses.mean(0), scores, (excess * scores_of(oracle, samples, scores)).mean(0))


@dataclass(frozen=True)
class NormalisedRewards(ScoreFunction, name="reinforce_normalised", references=("havrylov2019cooperative",)):
    """REINFORCE with normalised rewards: ``ĝ = (1/N) Σ (L(z_i) − b) / max(1, √v′) · ∇ log p(z_i)``. Biased in its magnitude.

    b and v are running moments of the losses. The variance takes the current sample in before use, ``v′ = a·v + (1 − a)(L̄ − b)²``, with a
    the decay and ``L̄`` the mean of the N losses, which is the surrogate's value; b is updated after use. So every sample is divided by a
    number of its own: the mean of an estimate is ``E[(L̄ − b)/max(1, √v′) ∇ log p]``. Where v′ cannot pass 1 that is the gradient; as the
    decay goes to 1 it tends to the gradient divided by ``max(1, √v)``, which is the `scale`; between these the largest losses count too
    little, and the direction can change.

    The state is a value, as that of `RunningMeanBaseline`. Measured after 64 updates, and then frozen.

    Cost: that of REINFORCE, and two host copies per `observed`.

    Args:
        mean: b. ``variance``: v.
        decay: weight of the past in an update, in [0, 1); the authors' is 0.9.

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics", section 3.2.
    """

    mean: float = 0.0
    variance: NonNegative = 1.0
    decay: Decay = 0.9
    num_samples: Count = 1

    unbiased = False
    state = ("mean", "variance")

    @property
    def scale(self) -> float:
        return 1 / max(1.0, math.sqrt(self.variance))

    def _carrier(self, losses: Tensor, log_probs: Tensor) -> Tensor:
        return ((losses - self.mean) / self._next_variance(losses.mean(0)).sqrt().clamp(min=1) * log_probs).mean(0)

    def _next_variance(self, values: Tensor) -> Tensor:
        """v′ of every row by itself: the rows of a batch share nothing."""
        return self.decay * self.variance + (1 - self.decay) * (values - self.mean).square()

    def observed(self, values: Tensor = NOTHING, estimates: Tensor = NOTHING) -> Self:
        if not values.numel():
            return self
        values = values.detach()
        mean = self.decay * self.mean + (1 - self.decay) * float(values.mean())
        return replace(self, mean=mean, variance=float(self._next_variance(values).mean()))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        return started(self, loss, oracle, scores, generator, variance=0.0)

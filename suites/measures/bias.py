"""Bias and variance of an estimator on one instance, against the exact gradient, with a verdict."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss, check_call
from ...estimators.noise import Gumbel, Noise, SmoothNoise
from ...oracles.capabilities import EnumerableOracle
from ..base import Instance, NonFiniteError, Problem
from ..statistics.adaptive import Budget, Checkpoint, sample_until
from ..statistics.geometry import Geometry
from ..statistics.interval import Interval
from ..statistics.intervals import UNRESOLVED, bias_interval
from ..statistics.metrics import (
    UNDIRECTED,
    NoisyGradient,
    Summary,
    estimated_against,
    estimated_metrics,
    exact_against,
    exact_metrics,
    first_metrics,
    single,
    without_each_batch,
)
from ..statistics.moments import Moments
from ..statistics.seeds import BLOCK
from ..truth import UNKNOWN, Target, Truth, exact_truth
from ..truth.geometry import geometry
from ..truth.loss_checks import examine_loss
from ..truth.references import MIN_BLOCKS, own_reference, reference_gradient, reference_of
from ..truth.replay import REPLAY_CAP, draws_of, replay, replay_outside, replay_samples
from .bias_tests import (
    ALPHA,
    EQUIVALENCE,
    Verdict,
    averaged_losses,
    bias_test,
    explained_by_rare_events,
    resolved,
    rounding_floor,
)
from .measurement import MeasuredPair, Measurement
from .replicates import Sampling, Tier, draw_moments, extend_moments, finite, warmed
from .suite import Context, Effort, Finding, Suite

__all__ = ["Bias", "Measurement", "Sampling", "Tier", "draw_moments", "measure"]

REFERENCE_WORK = 4
"""Draws of noise of a reference without a closed form, as a multiple of the replicates of the first look."""

VANISHING = 1e-6
"""A gradient below this share of the standard deviation of the loss is flagged: metrics that compare with it are left out."""


def measure(  # noqa: PLR0913
    estimator: Estimator[Any] | str,
    oracle: Any,
    loss: Loss,
    scores: Tensor,
    *,
    truth: Truth | None = None,
    sampling: Sampling | None = None,
    effort: Effort | None = None,
    reference: NoisyGradient | None = None,
    scratch: Path | None = None,
) -> Measurement:
    """Bias, variance and relatives of an estimator at one score tensor.

    Deterministic estimators, and those that draw structures through the oracle alone, are measured exactly (see `replay`) if the space is
    small enough; others by independent replicates.

    Args:
        estimator: an estimator or its name.
        oracle: an oracle or its name; enumerable, unless ``truth`` is given.
        loss: ``[..., *event] -> [...]``.
        scores: one instance, ``[*event]``.
        truth: the exact gradient, if it is known already.
        sampling: replicates, seeds and tier.
        effort: replicates are added until intervals are narrow, see `adaptive`. None takes the number of ``sampling``.
        reference: the gradient of the estimator's own objective, for its bias against that.
        scratch: a folder for the replicates of the last look; those found there are continued.

    Raises:
        ValueError: a loss that cannot be measured (`examine_loss`), a pair that does not fit, scores of another shape, or
            ``tier="exact"`` if only Monte Carlo is possible.

    Example:
        >>> from structgrad.estimators import Reinforce
        >>> from structgrad.oracles import Subset
        >>> weights = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
        >>> found = measure(Reinforce(), Subset(2), lambda z: (z @ weights) ** 2, torch.zeros(4, dtype=torch.float64))
        >>> found.tier, found.verdict, found.metrics["relative_bias"].value < 1e-12
        ('exact', 'unbiased-exact', True)
    """
    sampling = sampling or Sampling()
    made, loss, oracle, scores = _checked_pair(estimator, oracle, loss, scores)
    if truth is None:
        if not isinstance(oracle, EnumerableOracle):
            raise ValueError(f"`measure` got the oracle {oracle.name}, which cannot be enumerated; pass the exact gradient as truth=")
        truth = exact_truth(loss, oracle, scores)
    examine_loss(loss, oracle, scores, differentiated=made.evaluations().loss_gradients > 0)
    target = Target(oracle, loss, scores.detach().to(sampling.dtype), truth)
    task = _Task(made, target, sampling, geometry(oracle, scores.detach(), truth), effort, reference, scratch)
    pair = MeasuredPair.of(made, (oracle, loss, tuple(scores.shape)), truth.count, sampling.seed)
    try:
        return replace(_measured(task), pair=pair)
    except NonFiniteError as error:
        unknown = dict.fromkeys(("relative_bias", "relative_variance"), Interval(None))
        return Measurement(unknown, "mc", None, "broken", pair=pair, reason=str(error))


def _checked_pair(estimator: Any, oracle: Any, loss: Loss, scores: Tensor) -> tuple[Any, ...]:
    estimator, loss, oracle, scores = check_call("measure", estimator=estimator, loss=loss, oracle=oracle, scores=scores)
    reason = estimator.incompatibility(oracle)
    if reason is not None:
        raise ValueError(f"`measure` got a pair that does not fit: {reason}")
    return estimator, loss, oracle, scores


@functools.lru_cache(maxsize=256)
def _examined(oracle: Any, instance: Instance, device: str, differentiated: bool) -> None:
    """Refuse a loss that cannot be measured, once per process for all estimators, like its exact gradient."""
    examine_loss(instance.loss, oracle, instance.scores.to(device), differentiated=differentiated)


@dataclass(frozen=True)
class _Task:
    """One measurement: estimator, instance and settings."""

    estimator: Estimator[Any]
    target: Target
    sampling: Sampling
    geometry: Geometry | None
    effort: Effort | None
    reference: NoisyGradient | None
    scratch: Path | None

    @property
    def information(self) -> Tensor | None:
        return None if self.geometry is None else self.geometry.information

    @property
    def floor(self) -> float:
        """The norm up to which a gradient counts as none; infinite for an unknown one."""
        if self.target.truth.method == UNKNOWN:
            return math.inf
        return VANISHING * self.target.truth.loss_deviation

    def estimated(self, moments: Moments) -> dict[str, Interval]:
        """Metrics of replicates."""
        losses = averaged_losses(self.estimator) if self.estimator.unbiased else None
        known = resolved(moments, self.target.truth, self.sampling.dtype, deterministic=self.estimator.deterministic, losses=losses)
        return estimated_metrics(moments, self.geometry, floor=self.floor, resolved=known)

    @property
    def replay_cap(self) -> int:
        return REPLAY_CAP if self.effort is None else self.effort.replay_cap

    @property
    def equivalence(self) -> float:
        return EQUIVALENCE if self.effort is None else self.effort.equivalence

    @property
    def identity(self) -> str:
        """The identity of replicates on disk."""
        numbers = [self.target.truth.gradient.double(), self.target.scores.double()]
        digest = hashlib.blake2b(b"".join(tensor.cpu().numpy().tobytes() for tensor in numbers), digest_size=12).hexdigest()
        kept = (self.sampling.seed, self.sampling.key, self.sampling.dtype, self.sampling.piece(0))
        return f"{self.estimator!r} version {self.estimator.version} on {digest} with {kept}"


def _measured(task: _Task) -> Measurement:
    estimator, target, sampling = task.estimator, task.target, task.sampling
    summary = exact_summary(estimator, target, sampling, task.replay_cap, task.information)
    if summary is not None:
        verdict = exact_verdict(summary, target.truth, sampling.dtype)
        against = {} if task.reference is None else exact_against(summary, task.reference)
        return Measurement(exact_metrics(summary, task.geometry, floor=task.floor), "exact", None, verdict, against=against)
    if sampling.tier == "exact":
        raise ValueError(f"`measure` got tier='exact' for {estimator.name}, which cannot be replayed here; expected tier='auto' or 'mc'")
    return _sampled_measurement(replace(task, estimator=warmed(estimator, target, sampling)))


def exact_summary(
    estimator: Estimator[Any], target: Target, sampling: Sampling, cap: int, information: Tensor | None = None
) -> Summary | None:
    """The exact moments; None if only replicates are possible."""
    if sampling.tier == "mc":
        return None
    if estimator.deterministic:
        unused = torch.Generator(target.scores.device)
        estimate = estimator.gradient(target.loss, target.oracle, target.scores, generator=unused)
        return finite(single(estimate, target.truth.gradient, information), estimator, target, sampling)
    drawn = draws_of(estimator, target.oracle, target.loss, target.scores)
    if drawn is None or all(drawn):
        return None
    slots, distinct = drawn
    warm = warmed(estimator, target, sampling)
    if distinct:
        summary = replay_outside(warm, target, distinct, cap, information)
    else:
        tuples = target.truth.count**slots <= cap
        summary = replay(warm, target, slots, information) if tuples else replay_samples(warm, target, slots, cap, information)
    return None if summary is None else finite(summary, estimator, target, sampling)


def exact_verdict(summary: Summary, truth: Truth, dtype: torch.dtype = torch.float64) -> Verdict:
    """The verdict of exact moments on the bias of an estimator that runs in a dtype."""
    size = math.sqrt(float((summary.error + summary.gradient).square().sum()) + float(summary.trace))
    floor = rounding_floor(size, truth, dtype)
    if dtype != torch.float64 and float(summary.error.norm()) <= floor > EQUIVALENCE * float(summary.gradient.norm()):
        return "unresolved"  # single precision holds too few digits of so peaked a law
    return "unbiased-exact" if float(summary.error.norm()) <= floor else "biased"


def _sampled_measurement(task: _Task) -> Measurement:
    estimator, target, sampling = task.estimator, task.target, task.sampling
    moments, status, metrics = _moments(task)
    sampling = replace(sampling, replicates=moments.total)
    p_value = bias_test(moments, target.truth, sampling.dtype)
    bound, floor = math.sqrt(bias_interval(moments)[1]), rounding_floor(float(moments.gradient.norm()), target.truth, sampling.dtype)
    rare = metrics["gradient_nonzeros"] is UNRESOLVED
    explained = rare and (not estimator.unbiased or explained_by_rare_events(moments, target.truth, averaged_losses(estimator)))
    verdict: Verdict = "unresolved"
    if p_value is not None and p_value < ALPHA and not explained:
        again = None
        if estimator.unbiased:
            again = bias_test(draw_moments(estimator, target, sampling, slot="confirmation"), target.truth, sampling.dtype)
        verdict = "biased" if not estimator.unbiased or (again is not None and again < ALPHA) else "unresolved"
    elif rare:
        verdict = "unresolved: rare events"
    elif not estimator.unbiased and bias_interval(moments, level=1 - ALPHA)[0] > floor**2:
        # Without a claim, the interval of the bias decides if no direction passes the filter of the test.
        verdict = "biased"
    elif bound <= task.equivalence * float(moments.gradient.norm()):
        verdict = "equivalent"
    against = {} if task.reference is None else estimated_against(moments, task.reference)
    kept, first = without_each_batch(moments), tuple(first_metrics(moments))
    if rare:
        against, kept, first = dict.fromkeys(against, UNRESOLVED), {}, tuple((count, name, UNRESOLVED) for count, name, _ in first)
    if "absolute_bias" in metrics:
        kept, first = {}, ()
    return Measurement(metrics, "mc", moments.total, verdict, p_value, status, against, kept, first)


def _moments(task: _Task) -> tuple[Moments, Literal["converged", "budget"], dict[str, Interval]]:
    """Moments and metrics of as many replicates as the effort asks for; of a fixed number without an effort."""
    if task.effort is None:
        moments = draw_moments(task.estimator, task.target, task.sampling, information=task.information)
        return moments, "budget", task.estimated(moments)
    sampling, found = replace(task.sampling, replicates=task.effort.replicates), dict[int, dict[str, Interval]]()

    def watched(moments: Moments) -> dict[str, Interval]:
        found[moments.total] = known = task.estimated(moments)
        # Without a gradient, the variance must be known relative to itself.
        return known | {"relative_variance": known["absolute_variance"]} if task.floor == math.inf else known

    sampled = sample_until(
        Moments.empty(task.target.truth.gradient, task.information),
        lambda moments, stop: extend_moments(moments, task.estimator, task.target, sampling, stop=stop),
        watched,
        budget=Budget(task.effort.replicates, task.effort.most_replicates, task.effort.seconds),
        checkpoint=None if task.scratch is None else Checkpoint(task.scratch, task.identity),
    )
    return sampled.moments, sampled.status, found.get(sampled.moments.total) or task.estimated(sampled.moments)


class Bias(Suite):
    """Distance of the mean of an estimate from the gradient, and of single estimates from their mean."""

    name: ClassVar[str] = "bias"
    summary: ClassVar[str] = "bias, variance and usefulness of single estimates, against the exact gradient and that of the own objective"
    version: ClassVar[int] = 5
    partial: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        for instance in problem.instances:
            reason = self.limitation(problem, instance, context)
            truth = context.truth(problem, instance) if reason is None else context.law(problem, instance)
            for name, estimator in estimators.items():
                try:
                    if reason is None:
                        yield from _findings(name, estimator, (problem, instance), truth, context)
                    else:
                        _examined(problem.oracle, instance, "cpu", estimator.evaluations().loss_gradients > 0)
                        yield Finding(name, "relative_bias", None, instance=instance.name, status="skipped", reason=reason)
                        yield from _spread(name, estimator, (problem, instance), truth, context)
                except NonFiniteError as error:
                    metric = "relative_bias" if reason is None else "absolute_variance"
                    yield Finding.failed(name, metric, error, instance=instance.name, reference="expected")

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """No exact gradient to compare with; only properties of single estimates are measured, such as their variance."""
        return context.unknown(problem, instance)


def _sampling(problem: Problem, instance: Instance, context: Context) -> Sampling:
    return Sampling(
        replicates=context.effort.replicates,
        seed=context.seed,
        key=("bias", problem.name, problem.stage, instance.name),
        batch_size=context.batch_size,
        tier=context.tier,
        dtype=context.dtype,
    )


def _spread(name: str, estimator: Estimator[Any], place: tuple[Problem, Instance], law: Truth, context: Context) -> Iterator[Finding]:
    """The metrics that need no exact gradient: of the spread, and the bias against the own objective if that has a gradient."""
    problem, instance = place
    reference = _reference(estimator, problem, instance, context)
    target = Target(problem.oracle, instance.loss, instance.scores.to(context.device, context.dtype), law)
    task = _Task(estimator, target, _sampling(problem, instance, context), None, context.effort, None, context.scratch)
    known: dict[str, Any] = {"instance": instance.name}
    if estimator.deterministic:
        unused = torch.Generator(target.scores.device)
        estimate = estimator.gradient(target.loss, target.oracle, target.scores, generator=unused)
        summary = finite(single(estimate, law.gradient), estimator, target, task.sampling)
        metrics, known["tier"] = exact_metrics(summary, floor=math.inf), "exact"
        against = {} if reference is None else exact_against(summary, reference)
    else:
        moments, known["sampling"], metrics = _moments(replace(task, estimator=warmed(estimator, target, task.sampling)))
        known["tier"], known["replicates"] = "mc", moments.total
        against = {} if reference is None else estimated_against(moments, reference)
        against = dict.fromkeys(against, UNRESOLVED) if metrics["gradient_nonzeros"] is UNRESOLVED else against
    for metric in (*UNDIRECTED, "absolute_variance"):
        yield Finding.of(name, metric, metrics[metric], **known)
    for metric, interval in against.items():
        yield Finding.of(name, metric, interval, reference=str(own_reference(estimator)), **known)


def _findings(name: str, estimator: Estimator[Any], place: tuple[Problem, Instance], truth: Truth, context: Context) -> Iterator[Finding]:
    problem, instance = place
    scores, sampling = instance.scores.to(context.device), _sampling(problem, instance, context)
    reference = _reference(estimator, problem, instance, context)
    _checked_pair(estimator, problem.oracle, instance.loss, scores)
    _examined(problem.oracle, instance, context.device, estimator.evaluations().loss_gradients > 0)
    target = Target(problem.oracle, instance.loss, scores.detach().to(sampling.dtype), truth)
    shape = geometry(problem.oracle, scores.detach(), truth)
    found = _measured(_Task(estimator, target, sampling, shape, context.effort, reference, context.scratch))
    known = {"instance": instance.name, "tier": found.tier, "replicates": found.replicates, "sampling": found.sampling}
    for metric, interval in found.metrics.items():
        verdict = {"verdict": found.verdict, "p_value": found.p_value} if metric == "relative_bias" else {}
        against = "" if metric in UNDIRECTED else "expected"
        yield Finding.of(name, metric, interval, reference=against, batches=found.batches.get(metric, ()), **known, **verdict)
    for replicates, metric, interval in found.first:
        swept: dict[str, Any] = {"setting": f"replicates={replicates}", "size": float(replicates), "replicates": replicates}
        yield Finding.of(name, metric, interval, reference="expected", **{**known, **swept})
    yield Finding(name, "truth_norm", float(truth.gradient.norm()), instance=instance.name, reference="expected", tier="exact")
    for metric, interval in found.against.items():
        yield Finding.of(name, metric, interval, reference=str(own_reference(estimator)), **known)


def _reference(estimator: Estimator[Any], problem: Problem, instance: Instance, context: Context) -> NoisyGradient | None:
    """The gradient of an estimator's own objective, if that is not the expected loss; None if there is none.

    The gradient of ``L(argmax θ)`` is 0 almost everywhere, and no target.
    """
    kind = own_reference(estimator)
    if kind == "relaxed":
        return reference_of(estimator, problem.oracle, instance.loss, instance.scores.to(context.device))
    noise = getattr(estimator, "noise", Gumbel())
    if kind != "perturbed" or not isinstance(noise, SmoothNoise):
        return None
    key = (str(context.seed), problem.name, problem.stage, instance.name)
    replicates = max(REFERENCE_WORK * context.effort.replicates, MIN_BLOCKS * BLOCK)
    return _perturbed(noise, problem.oracle, instance, context.device, replicates, key=key)


@functools.lru_cache(maxsize=256)
def _perturbed(  # noqa: PLR0913
    noise: Noise, oracle: Any, instance: Instance, device: str, replicates: int, *, key: tuple[str, ...]
) -> NoisyGradient:
    """The reference of a noise, shared by all its estimators: its stream has the name of the instance alone."""
    scores = instance.scores.to(device)
    return reference_gradient("perturbed", oracle, instance.loss, scores, noise=noise, replicates=replicates, key=key)

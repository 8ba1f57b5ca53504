"""Bias and variance of an estimator on one instance, against the exact gradient, with a verdict."""

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ...estimators import Estimator, Loss, PathwiseEstimator
from ...estimators.base import check_call
from ...estimators.noise import Gumbel, SmoothNoise
from ...oracles import make_oracle
from ...oracles.capabilities import EnumerableOracle
from ...oracles.registry import oracle_name
from ..base import Instance, NonFiniteError, Problem, estimator_name
from ..problems.named import own_loss
from ..problems.sized import sizes_of
from ..statistics import metrics as formulas
from ..statistics.interval import Interval
from ..statistics.intervals import UNRESOLVED, Errors, looks, profile, sample_until
from ..statistics.metrics import UNDIRECTED, Geometry, NoisyGradient, Summary
from ..statistics.moments import Moments
from ..truth import UNKNOWN, Target, Truth, exact_truth
from ..truth.closed_form import own_reference, perturbed_gradient, relaxed_gradient, unknown_because
from ..truth.enumeration import geometry
from ..truth.loss_checks import examine_loss
from ..truth.replay import draws_of, replay, replay_outside, replay_samples
from .bias_tests import ALPHA, EQUIVALENCE, Verdict, averaged_losses, bias_test, explained_by_rare_events, resolved, rounding_floor
from .draws import Sampling, Tier, deterministic_moments, draw_moments, extend_moments, finite
from .suite import Context, Effort, Finding, Measurement, Suite

__all__ = ["Bias", "Measurement", "Sampling", "Tier", "draw_moments", "measure"]

REFERENCE_WORK = 4  # draws of noise of a reference without a closed form, as a multiple of the replicates of the first look
VANISHING = 1e-6  # a gradient below this share of the standard deviation of the loss is flagged: metrics that compare with it are left out


def measure(  # noqa: PLR0913
    estimator: Estimator[Any] | str,
    oracle: Any,
    loss: Loss | str,
    scores: Tensor,
    *,
    truth: Truth | None = None,
    sampling: Sampling | None = None,
    effort: Effort | None = None,
    reference: NoisyGradient | None = None,
    scratch: Path | None = None,
    name: str | None = None,
) -> Measurement:
    """Bias, variance and relatives of an estimator at one score tensor.

    Deterministic estimators, and those that draw structures through the oracle alone, are measured exactly (see `replay`) if the space is
    small enough; others by independent replicates.

    Args:
        estimator: an estimator or its name.
        oracle: an oracle or its name; enumerable, unless ``truth`` is given.
        loss: ``[..., *event] -> [...]``, or its code, such as ``./mine.py:loss``.
        scores: one instance, ``[*event]``.
        truth: the exact gradient, if it is known already.
        sampling: replicates, seeds and tier.
        effort: replicates are added until intervals are narrow, see `intervals`. None takes the number of ``sampling``.
        reference: the gradient of the estimator's own objective, for its bias against that.
        scratch: a folder for the replicates of the last look; those found there are continued.
        name: of the estimator in tables, in place of its own.

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
    made, function, oracle, scores = _checked_pair(estimator, oracle, loss, scores)
    if truth is None:
        if not isinstance(oracle, EnumerableOracle):
            raise ValueError(f"`measure` got the oracle {oracle.name}, which cannot be enumerated; pass the exact gradient as truth=")
        truth = exact_truth(function, oracle, scores)
    examine_loss(function, oracle, scores, differentiated=made.evaluations().loss_gradients > 0)
    target = Target(oracle, function, scores.detach().to(sampling.dtype), truth)
    task = _Task(made, target, sampling, geometry(oracle, scores.detach(), truth), effort, reference, scratch)
    called = str(getattr(function, "name", None) or getattr(function, "__name__", type(function).__name__)).replace("<lambda>", "a lambda")
    event = tuple(scores.shape)
    pair = {
        **{"estimator": name or estimator_name(made), "oracle": oracle_name(oracle), "loss": called, "seed": sampling.seed},
        **{"sizes": sizes_of(oracle, [event]) or f"scores {event}", "log_count": math.log(truth.count), "own": str(own_reference(made))},
    }
    try:
        return replace(task.measured(), pair=pair)
    except NonFiniteError as error:
        unknown = dict.fromkeys(("relative_bias", "relative_variance"), Interval(None))
        return Measurement(unknown, "mc", None, "broken", pair=pair, reason=str(error))


def _checked_pair(estimator: Any, oracle: Any, loss: Loss | str, scores: Tensor) -> tuple[Any, ...]:
    if isinstance(loss, str):
        oracle = make_oracle(oracle)
        loss = own_loss(loss, Instance("scores", scores.detach(), None), oracle)  # type: ignore[arg-type]  # it has no loss yet
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
    def known(self) -> bool:
        """Whether there is an exact gradient to compare with."""
        return self.target.truth.method != UNKNOWN

    @property
    def floor(self) -> float:
        """The norm up to which a gradient counts as none; infinite for an unknown one."""
        return VANISHING * self.target.truth.loss_deviation if self.known else math.inf

    def measured(self) -> Measurement:
        truth, sampling = self.target.truth, self.sampling
        summary = self._exact_summary()
        if summary is None:
            if self.known and sampling.tier == "exact":
                why = "which cannot be replayed here; expected tier='auto' or 'mc'"
                raise ValueError(f"`measure` got tier='exact' for {self.estimator.name}, {why}")
            return replace(self, estimator=sampling.draws(self.target).warmed(self.estimator))._sampled()
        against = {} if self.reference is None else formulas.metrics_against(summary, self.reference)
        error = float(summary.error.norm())
        size = math.sqrt(float((summary.error + summary.gradient).square().sum()) + float(summary.trace))
        floor = rounding_floor(size, truth, sampling.dtype)
        verdict: Verdict = "unbiased-exact" if error <= floor else "biased"
        if sampling.dtype != torch.float64 and error <= floor > EQUIVALENCE * float(summary.gradient.norm()):
            verdict = "unresolved"  # single precision holds too few digits of so peaked a law
        return Measurement(formulas.exact_metrics(summary, self.geometry, floor=self.floor), "exact", None, verdict, against=against)

    def _exact_summary(self) -> Summary | None:
        """The exact moments; None if only replicates are possible."""
        estimator, target, sampling, information = self.estimator, self.target, self.sampling, self.information
        if estimator.deterministic and (sampling.tier != "mc" or not self.known):
            return deterministic_moments(estimator, target, sampling, information)
        drawn = draws_of(estimator, target.oracle, target.loss, target.scores) if self.known and sampling.tier != "mc" else None
        if drawn is None or all(drawn):
            return None
        slots, distinct = drawn
        warm, cap = sampling.draws(target).warmed(estimator), (self.effort or Effort()).replay_cap
        if distinct:
            summary = replay_outside(warm, target, distinct, cap, information)
        elif target.truth.count**slots <= cap:
            summary = replay(warm, target, slots, information)
        else:
            summary = replay_samples(warm, target, slots, cap, information)
        return None if summary is None else finite(summary, estimator, target, sampling)

    def _sampled(self) -> Measurement:
        moments, status, metrics = self._moments()
        rare = metrics["gradient_nonzeros"] is UNRESOLVED
        against = {} if self.reference is None else formulas.metrics_against(moments, self.reference)
        if rare:
            against = dict.fromkeys(against, UNRESOLVED)
        verdict, p_value = self._verdict(moments, rare=rare) if self.known else ("unresolved", None)
        kept = {} if rare or "absolute_bias" in metrics else formulas.without_each_batch(moments)
        return Measurement(metrics, "mc", moments.total, verdict, p_value, status, against, kept)

    def _verdict(self, moments: Moments, *, rare: bool) -> tuple[Verdict, float | None]:
        estimator, truth, dtype, norm = self.estimator, self.target.truth, self.sampling.dtype, float(moments.gradient.norm())
        p_value = bias_test(moments, truth, dtype)
        explained = rare and (not estimator.unbiased or explained_by_rare_events(moments, truth, averaged_losses(estimator)))
        verdict: Verdict = "unresolved"
        if p_value is not None and p_value < ALPHA and not explained:
            again: float | None = 0.0
            if estimator.unbiased:
                sampling = replace(self.sampling, replicates=moments.total)
                again = bias_test(draw_moments(estimator, self.target, sampling, slot="confirmation"), truth, dtype)
            verdict = "biased" if again is not None and again < ALPHA else "unresolved"
        elif rare:
            verdict = "unresolved: rare events"
        elif not estimator.unbiased and profile(Errors.of(moments), level=1 - ALPHA)[0] > rounding_floor(norm, truth, dtype) ** 2:
            # Without a claim, the interval of the bias decides if no direction passes the filter of the test.
            verdict = "biased"
        elif math.sqrt(profile(Errors.of(moments))[1]) <= (EQUIVALENCE if self.effort is None else self.effort.equivalence) * norm:
            verdict = "equivalent"
        return verdict, p_value

    def _moments(self) -> tuple[Moments, Literal["converged", "budget"], dict[str, Interval]]:
        """Moments and metrics of as many replicates as the effort asks for; of a fixed number without an effort."""
        estimator, target, truth = self.estimator, self.target, self.target.truth
        losses = averaged_losses(estimator) if estimator.unbiased else None
        found = dict[int, dict[str, Interval]]()

        def estimated(moments: Moments) -> dict[str, Interval]:
            known = resolved(moments, truth, self.sampling.dtype, deterministic=estimator.deterministic, losses=losses)
            found[moments.total] = metrics = formulas.estimated_metrics(moments, self.geometry, floor=self.floor, resolved=known)
            # Without a gradient, the variance must be known relative to itself.
            return metrics if self.known else metrics | {"relative_variance": metrics["absolute_variance"]}

        if self.effort is None:
            moments = draw_moments(estimator, target, self.sampling, information=self.information)
            estimated(moments)
            return moments, "budget", found[moments.total]
        sampling = replace(self.sampling, replicates=self.effort.replicates)
        moments, status = sample_until(
            Moments.empty(truth.gradient, self.information),
            lambda moments, stop: extend_moments(moments, estimator, target, sampling, stop=stop),
            estimated,
            looks(self.effort.replicates, self.effort.most_replicates),
            seconds=self.effort.seconds,
            checkpoint=None if self.scratch is None else self.scratch / f"moments-{self._identity}.pt",
        )
        if moments.total not in found:  # replicates of a folder that are already more than asked for
            estimated(moments)
        return moments, status, found[moments.total]

    @property
    def _identity(self) -> str:
        """The identity of replicates on disk: estimator, scores and seeds."""
        numbers = [self.target.truth.gradient.double(), self.target.scores.double()]
        digest = hashlib.blake2b(b"".join(tensor.cpu().numpy().tobytes() for tensor in numbers), digest_size=12).hexdigest()
        kept = (self.sampling.seed, self.sampling.key, self.sampling.dtype, self.sampling.piece(0))
        text = f"{self.estimator!r} version {self.estimator.version} on {digest} with {kept}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


class Bias(Suite):
    """Distance of the mean of an estimate from the gradient, and of single estimates from their mean."""

    name: ClassVar[str] = "bias"
    summary: ClassVar[str] = "bias, variance and usefulness of single estimates, against the exact gradient and that of the own objective"
    version: ClassVar[int] = 5
    partial: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        for instance in problem.instances:
            reason, truth = self.limitation(problem, instance, context), context.law(problem, instance)
            for name, estimator in estimators.items():
                try:
                    if reason is not None:
                        yield Finding(name, "relative_bias", None, instance=instance.name, status="skipped", reason=reason)
                    yield from _findings(name, estimator, (problem, instance), truth, context)
                except NonFiniteError as error:
                    metric = "relative_bias" if reason is None else "absolute_variance"
                    yield Finding.failed(name, metric, error, instance=instance.name, reference="expected")

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """No exact gradient; only properties of single estimates are measured, such as their variance."""
        return unknown_because(instance.loss, problem.oracle, instance.scores, cap=context.effort.cap)


def _findings(name: str, estimator: Estimator[Any], place: tuple[Problem, Instance], truth: Truth, context: Context) -> Iterator[Finding]:
    """All metrics; without an exact gradient those that need none, and the bias against the own objective if that has a gradient."""
    problem, instance = place
    scores = instance.scores.to(context.device)
    key = ("bias", problem.name, problem.stage, instance.name)
    sampling = Sampling(context.effort.replicates, context.seed, key, context.batch_size, context.tier, context.dtype)
    reference = _reference(estimator, problem, instance, context)
    _checked_pair(estimator, problem.oracle, instance.loss, scores)
    _examined(problem.oracle, instance, context.device, estimator.evaluations().loss_gradients > 0)
    target = Target(problem.oracle, instance.loss, scores.detach().to(sampling.dtype), truth)
    shape = None if truth.method == UNKNOWN else geometry(problem.oracle, scores.detach(), truth)
    task = _Task(estimator, target, sampling, shape, context.effort, reference, context.scratch)
    found = task.measured()
    at = {"instance": instance.name, "tier": found.tier, "replicates": found.replicates, "sampling": found.sampling}
    for metric, interval in found.metrics.items():
        if task.known or metric in (*UNDIRECTED, "absolute_variance"):
            verdict = {"verdict": found.verdict, "p_value": found.p_value} if metric == "relative_bias" else {}
            against = "expected" if task.known and metric not in UNDIRECTED else ""
            yield Finding.of(name, metric, interval, reference=against, batches=found.batches.get(metric, ()), **at, **verdict)
    if task.known:
        yield Finding(name, "truth_norm", float(truth.gradient.norm()), instance=instance.name, reference="expected", tier="exact")
    for metric, interval in found.against.items():
        yield Finding.of(name, metric, interval, reference=str(own_reference(estimator)), **at)


def _reference(estimator: Estimator[Any], problem: Problem, instance: Instance, context: Context) -> NoisyGradient | None:
    """The gradient of an estimator's own objective other than the expected loss; None for that of ``L(argmax θ)``, which is 0."""
    kind, oracle = own_reference(estimator), problem.oracle
    if kind == "relaxed":
        scores, point = instance.scores.to(context.device), None
        if isinstance(estimator, PathwiseEstimator):
            point = functools.partial(estimator.structure, oracle, generator=torch.Generator(scores.device))
        return relaxed_gradient(oracle, instance.loss, scores, point)
    noise = getattr(estimator, "noise", Gumbel())
    if kind != "perturbed" or not isinstance(noise, SmoothNoise):
        return None
    key = (str(context.seed), problem.name, problem.stage, instance.name)
    return _perturbed(noise, oracle, instance, context.device, REFERENCE_WORK * context.effort.replicates, key=key)


@functools.lru_cache(maxsize=256)
def _perturbed(  # noqa: PLR0913
    noise: SmoothNoise, oracle: Any, instance: Instance, device: str, replicates: int, *, key: tuple[str, ...]
) -> NoisyGradient:
    """The reference of a noise, shared by all its estimators: its stream has the name of the instance alone."""
    return perturbed_gradient(oracle, instance.loss, instance.scores.to(device), noise, key=key, replicates=replicates)

"""Means of an estimator, exact if all its samples can be dealt, else of replicates: the laws of the mean, and comparisons of variances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from scipy import special, stats
from torch import Tensor

from ...estimators.base import Estimator, Evaluations, Loss, Objective, evaluate, expand_samples, with_gradient
from ...estimators.noise import Gumbel, SmoothNoise
from ...estimators.score_function.reinforce import LeaveOneOut, Reinforce
from ...oracles.capabilities import Oracle
from ..measures.bias_tests import averaged_losses, rounding_floor, sequential_test
from ..measures.draws import Sampling, deterministic_moments, draw_moments, finite
from ..statistics.interval import ABSENT, RARE
from ..statistics.intervals import UNRESOLVED, Interval
from ..statistics.metrics import Summary, estimated_metrics, exact_metrics
from ..statistics.moments import BATCHES, Moments
from ..truth import Target
from ..truth.references import STEP, reference_gradient
from ..truth.replay import replay, slots_of
from .cases import FLAT, PEAKED, USUAL, AuditEffort, AuditLoss, Case, Structure, masked_scores, random_scores, seeded, target
from .diagnosis import Point
from .laws import world_state
from .result import Check, FlatComparison, Status, confirmed

REPLAY_CAP = 20_000
"""Largest number of tuples of samples that are dealt."""

REPLICATES = 8192
"""Replicates of an estimated metric of a comparison."""

MIN_GAIN = 0.01
"""Gain below which variances cannot be compared at equal gain."""

TOLERANCE = 1e-9
"""Relative distance below which an exact mean is the target: the rest is rounding."""

REGIMES: dict[str, Callable[[Structure], Tensor]] = {
    "flat": lambda structure: random_scores(structure, FLAT, 1)[0],
    "usual": lambda structure: random_scores(structure, USUAL, 1)[0],
    "peaked": lambda structure: random_scores(structure, PEAKED, 1)[0],
    "masked": lambda structure: masked_scores(structure, 1)[0],
    "equal": lambda structure: torch.zeros(structure.event, dtype=torch.float64),
}
"""Kinds of scores; exact means are compared at all of them."""

TESTED = ("flat", "usual", "peaked")
"""Scores at which means are tested. Errors at unlikely structures, such as clipped weights, do not show at flat scores."""


def exact_mean(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Summary | None:
    """The exact moments of the errors; None if the estimate is random in another way than by samples of the oracle."""
    if estimator.deterministic:
        return deterministic_moments(estimator, target, sampling)
    before = world_state()
    slots = slots_of(estimator, target.oracle, target.loss, target.scores)
    if slots is None or world_state() != before or target.truth.count**slots > REPLAY_CAP:
        return None
    return finite(replay(sampling.draws(target).warmed(estimator), target, slots), estimator, target, sampling)


Sampler = Callable[[str, int], Moments]
"""Moments of fresh replicates, by the name of their stream and their number."""


def sampler(estimator: Estimator[Any], target: Target, sampling: Sampling) -> Sampler:
    """The sampler of an estimator in the state in which it is measured."""
    warm = sampling.draws(target).warmed(estimator)
    return lambda slot, replicates: draw_moments(warm, target, replace(sampling, replicates=replicates), slot=slot)


def metrics_of(estimator: Estimator[Any], aim: Target, sampling: Sampling) -> tuple[dict[str, Interval], Any]:
    """Metrics of the mean and their tier: ``exact``, or ``mc`` from a few thousand replicates."""
    summary = exact_mean(estimator, aim, sampling)
    if summary is not None:
        return exact_metrics(summary, None), "exact"
    return estimated_metrics(sampler(estimator, aim, sampling)("comparison", REPLICATES)), "mc"


def compare(case: Case, losses: float | None) -> FlatComparison:
    """One structure at flat scores, against the gradient of the expected loss times the declared scale.

    REINFORCE averages as many samples as the estimator evaluates losses, also a fraction of one; leave-one-out takes at least two.
    Variances are compared at equal gain, because any learning rate makes up for a factor.
    """
    structure, scores = case.structure, case.scores(FLAT, 1)[0]
    sampling, loss = case.effort.sampling(structure.name, "comparison"), AuditLoss(structure)
    metrics, tier = metrics_of(case.fresh(), target(structure, loss, scores, case.subject.estimator.scale), sampling)
    gain, bias, cosine = ((metrics[name].value, metrics[name].low, metrics[name].high) for name in ("gain", "relative_bias", "cosine"))
    variance = metrics["relative_variance"].value
    relative = None if variance is None or gain[0] is None or abs(gain[0]) < MIN_GAIN else variance / gain[0] ** 2

    def ratio(other: Estimator[Any], share: float) -> float | None:
        """Ratio of variances at equal cost: the other estimator counts with a share of its variance."""
        theirs = metrics_of(other, target(structure, loss, scores), sampling)[0]["relative_variance"].value
        return relative / (theirs * share) if theirs and relative and relative >= 1e-12 else None

    count = max(2, round(losses or 0))
    return FlatComparison(
        where=structure.name,
        tier=tier,
        reference="expected",
        gain=gain,
        relative_bias=bias,
        cosine=cosine,
        relative_variance=variance,
        to_reinforce=ratio(Reinforce(), 1 / losses) if losses else None,
        to_leave_one_out=ratio(LeaveOneOut(num_samples=count), count / max(losses, 2)) if losses else None,
        zero_rate=metrics["zero_gradient_rate"].value,
    )


def described(metrics: dict[str, Interval]) -> str:
    """Bias, gain and cosine, with intervals."""

    def number(interval: Interval) -> str:
        value, low, high = interval.value, interval.low, interval.high
        if value is None:
            return "–"
        return f"{value:.3g}" if low is None or high is None else f"{value:.3g} [{low:.3g}, {high:.3g}]"

    if metrics["relative_bias"] is UNRESOLVED:
        return ABSENT[RARE]
    if metrics["relative_bias"].value is None:
        return f"the gradient is 0, and the bias {number(metrics.get('absolute_bias', Interval(None)))}"
    names = {"bias": "relative_bias", "gain": "gain", "cosine": "cosine"}
    return ", ".join(f"{name} {number(metrics[metric])}" for name, metric in names.items())


def mean_checks(case: Case, law: str, reference: Estimator[Any] | None, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` if the estimator is declared unbiased, or ``mean_of`` if there is a reference; adds to ``points``."""
    estimator, structure = case.subject.estimator, case.structure
    if law == "mean_of":
        if reference is not None and reference.incompatibility(structure.oracle, structure.event) is None:
            yield from same_mean_checks(case, reference, points)
    elif not estimator.unbiased or estimator.objective == "argmax":
        return
    elif estimator.objective == "perturbed":
        noise = getattr(estimator, "noise", Gumbel())
        if isinstance(noise, SmoothNoise):
            yield from same_mean_checks(case, ScoreOfNoise(noise), points, law)
        else:
            detail = f"the gradient under {noise} is not known: its density has no score here"
            yield Check(law, structure.name, "undecided", detail)
    else:
        yield from (expected_checks if estimator.objective == "expected" else relaxed_checks)(case, points)


def expected_checks(case: Case, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` for the expected loss; the means are added to ``points``."""
    structure, effort, options, found_wrong = case.structure, case.effort, case.subject.numbers(), False
    for regime, scores in REGIMES.items():
        aim = target(structure, AuditLoss(structure), scores(structure), case.subject.estimator.scale)
        sampling, where = effort.sampling(structure.name, regime), f"{structure.name}, {regime}"
        point = Point(where, structure.event, aim.truth.gradient, aim.truth.gradient.flatten(), options, aim.truth.marginals.flatten())
        summary = exact_mean(case.fresh(), aim, sampling)
        if summary is not None:
            mean = summary.error + summary.gradient
            points.append(replace(point, found=mean.unsqueeze(0), wanted=summary.gradient))
            floor = rounding_floor(math.sqrt(float(mean.square().sum()) + float(summary.trace)), aim.truth)
            right = float(summary.error.norm()) <= floor
            detail = "the exact mean over all samples is the gradient" if right else described(exact_metrics(summary, None))
            yield Check("objective", where, "holds" if right else "violated", detail)
        elif regime in TESTED:
            # At flat scores a mean is pinned down; elsewhere only errors are searched.
            looked = effort if regime == "flat" else replace(effort, most=min(effort.most, 4 * effort.first))
            check, moments = _tested(sampler(case.fresh(), aim, sampling), where, aim, looked, averaged_losses(case.subject.estimator))
            # Batches at peaked scores are not normal: they explain a wrong mean only if all is right at flatter ones.
            if not found_wrong:
                points.append(replace(point, found=moments.mean + moments.gradient, wanted=moments.gradient, tolerance=None))
            found_wrong |= check.p_value is not None and check.p_value < effort.alpha
            yield check


def _tested(draw: Sampler, where: str, aim: Target, effort: AuditEffort, losses: float) -> tuple[Check, Moments]:
    outcome = sequential_test(draw, aim.truth, effort.effort, losses)
    moments, bound = outcome.moments, outcome.bound
    pinned = bound is not None and bound <= effort.effort.equivalence
    # Rare structures leave the bound wide at peaked scores: an error is proven there, or nothing follows.
    status: Status = "holds" if pinned or not where.endswith(", flat") else "undecided"
    unproven = f"; no error is proven, and the bias is below {bound:.0%} of the gradient" if bound and not pinned else ""
    variances = part_variances(moments) / moments.total
    moves = variances > 1e-24 * float(moments.gradient.square().sum())
    largest = float((moments.total_mean[moves].abs() / variances[moves].sqrt()).max()) if bool(moves.any()) else 0.0
    detail = described(estimated_metrics(moments)) + (f", greatest |t| {largest:.3g}" if largest else ", estimates do not vary")
    return Check("objective", where, status, detail, "", "test", outcome.p_value, unproven=unproven), moments


def part_variances(moments: Moments) -> Tensor:
    """Variances of one estimate, ``[d]``."""
    centred = moments.mean - moments.total_mean
    return (moments.square.sum(0) + moments.count @ centred.square()) / max(moments.total - 1, 1)


def relaxed_checks(case: Case, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` for a relaxed or sparse one: the estimate is the derivative of its value with the same random numbers."""
    structure, loss, own = case.structure, AuditLoss(case.structure), case.subject.estimator.scale
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        scores = random_scores(structure, scale, 1, "relaxed").expand(16, *structure.event)
        found = case.gradient(scores, "relaxed", loss)
        if case.subject.is_function:
            # A function has no value: a relaxed objective is taken to be the loss at the marginals.
            wanted = own * reference_gradient("relaxed", structure.oracle, loss, scores[0]).gradient.expand_as(found)
        else:
            derivative, doubt = derivatives(case.fresh(), structure, scores)
            sure = doubt <= 1e-4 * derivative.flatten(1).norm(dim=-1) + 1e-6
            if not bool(sure.any()):
                yield Check("objective", where, "undecided", "the value jumps at all of these scores: no derivative to compare with")
                continue
            wanted, found = own * derivative[sure], found[sure]
        flat = found.flatten(1).double(), wanted.flatten(1).double()
        points.append(Point(where, structure.event, *flat, case.subject.numbers(), tolerance=1e-5))
        error, norm = float((found - wanted).norm()), float(wanted.norm())
        detail, cause = "the estimate is the derivative of the objective", ""
        if (bad := error > 1e-5 * norm + 1e-8) and norm < 1e-8:
            detail = "the estimate is not 0, and the derivative of the surrogate's value is"
            cause = "the value of the surrogate does not move with the scores: it must be the objective, or with_gradient of it"
        elif bad:
            gain = float((found * wanted).sum() / wanted.square().sum())
            detail = f"the estimate is not the derivative of the objective: bias {error / norm:.3g}, gain {gain:.3g}"
        yield Check("objective", where, "violated" if bad else "holds", detail, cause)


def derivatives(estimator: Estimator[Any], structure: Structure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences of the value of every row, ``[rows, *event]``, and by how much two steps disagree, ``[rows]``."""

    def slope(size: float, step: Tensor) -> Tensor:
        # With gradients enabled: an estimator may need that of the loss for its value.
        up, down = (
            estimator.surrogate(AuditLoss(structure), structure.oracle, rows, generator=seeded(1, "relaxed")).detach().double()
            for rows in (scores + size * step, scores - size * step)
        )
        return (up - down) / (2 * size)

    near, far = torch.zeros_like(scores), torch.zeros_like(scores)
    for part in structure.oracle.read_mask(structure.event).nonzero().tolist():
        step = torch.zeros(structure.event, dtype=scores.dtype)
        step[tuple(part)] = 1
        near[(slice(None), *part)], far[(slice(None), *part)] = slope(STEP, step), slope(2 * STEP, step)
    return (4 * near - far) / 3, (near - far).flatten(1).norm(dim=-1)


@dataclass(frozen=True)
class ScoreOfNoise(Estimator[Oracle]):
    """The gradient of ``E_ε L(argmax(θ + ε))`` by the score of the noise, without bias: ``1/(n−1) Σ (L_i − L̄) ν(ε_i)``."""

    noise: SmoothNoise = Gumbel()
    draws: int = 8

    name: ClassVar[str] = "score_of_noise"
    objective: ClassVar[Objective] = "perturbed"
    unbiased: ClassVar[bool] = True

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.draws, argmax=self.draws, perturbations=self.draws)

    def surrogate(self, loss: Loss, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta, dim = expand_samples(scores.detach(), self.draws, oracle.event_ndim), scores.ndim - oracle.event_ndim
        noise = self.noise.draw(oracle, theta, generator=generator)
        losses = evaluate(loss, oracle.argmax(theta + noise).movedim(dim, 0), oracle.event_ndim).detach().movedim(0, dim)
        centred = (losses - losses.mean(dim, keepdim=True)).reshape(*losses.shape, *[1] * oracle.event_ndim)
        estimate = (centred * self.noise.score(noise)).sum(dim) / (self.draws - 1)
        return with_gradient(losses.mean(dim), scores, torch.where(oracle.free_parts(scores), estimate, 0))


def same_mean_checks(case: Case, reference: Estimator[Any], points: list[Point], law: str = "mean_of") -> Iterator[Check]:
    """A law: the mean is the scale times that of a reference. Exactly if both can be replayed, else by a test at flat scores."""
    structure, effort, own, name = case.structure, case.effort, case.subject.estimator.scale, reference.name
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        aim = target(structure, AuditLoss(structure), case.scores(scale, 1)[0])
        sampling = effort.sampling(structure.name, regime, law)
        point = Point(where, structure.event, aim.scores, aim.scores, case.subject.numbers())
        first, second = exact_mean(case.fresh(), aim, sampling), exact_mean(reference, aim, sampling)
        if first is not None and second is not None:
            found, wanted = first.error + first.gradient, own * (second.error + second.gradient)
            points.append(replace(point, found=found.unsqueeze(0), wanted=wanted))
            distance = float((found - wanted).norm()) / max(float(wanted.norm()), 1e-300)
            gain = float(found @ wanted) / max(float(wanted @ wanted), 1e-300)
            right = distance <= 10 * TOLERANCE
            detail = f"the exact mean is that of {name}"
            wrong = f"the exact mean is not that of {name}: off by {distance:.3g}, gain {gain:.3g}"
            yield Check(law, where, "holds" if right else "violated", detail if right else wrong)
        elif regime == "flat":
            draws = sampler(case.fresh(), aim, sampling), sampler(reference, aim, effort.sampling(structure.name, regime, law, "reference"))
            kept: list[tuple[Moments, Moments]] = []

            def test(slot: str, times: int, draws: tuple[Sampler, Sampler] = draws, kept: list[tuple[Moments, Moments]] = kept) -> float:
                size = times * min(effort.most, 4 * effort.first)
                kept.append((draws[0](slot, size), draws[1](slot, size)))
                return difference_p_value(kept[-1][0], kept[-1][1], own)

            p_value = confirmed(test, effort.alpha)
            here, there = kept[-1]
            gain, half, bound = gain_between(here, there, own)
            points.append(replace(point, found=here.mean + here.gradient, wanted=own * (there.mean + there.gradient), tolerance=None))
            status: Status = "holds" if bound <= effort.effort.equivalence else "undecided"
            detail = f"gain {gain:.3g} ± {half:.2g} against the mean of {name}"
            yield Check(law, where, status, detail, "", "test", p_value, unproven=f"; the means differ by less than {bound:.0%}")


def difference_p_value(first: Moments, second: Moments, scale: float = 1.0) -> float:
    """p-value of "the first mean is scale times the second": Welch tests of every part and along the exact gradient, with Bonferroni."""

    def errors(moments: Moments) -> tuple[Tensor, Tensor]:
        """Means and squared standard errors of all parts, and along the gradient."""
        mean, unit = moments.total_mean + moments.gradient, moments.direction
        along = moments.along.sum() + moments.count @ ((moments.mean - moments.total_mean) @ unit).square()
        squares = torch.cat([part_variances(moments), along[None] / max(moments.total - 1, 1)])
        return torch.cat([mean, (mean @ unit)[None]]), squares / moments.total

    (a, a_variance), (b, b_variance) = errors(first), errors(second)
    variance = a_variance + scale**2 * b_variance
    moves = variance > 1e-24 * float(first.gradient.square().sum())
    ratios = ((a - scale * b).abs() / variance.sqrt())[moves]
    if not len(ratios):
        return 1.0
    return min(1.0, len(ratios) * float(2 * special.stdtr(min(first.total, second.total) - 1, -float(ratios.max()))))


def gain_between(first: Moments, second: Moments, scale: float = 1.0) -> tuple[float, float, float]:
    """``⟨m, r⟩ / ‖r‖²`` against scale times the second mean, half its interval, and a bound of the relative distance of the means."""
    mean, wanted = first.total_mean + first.gradient, scale * (second.total_mean + second.gradient)
    theirs = scale**2 * second.trace / second.total
    noise = first.trace / first.total + theirs
    square = max(float(wanted.square().sum()) - theirs, 1e-300)
    half = float(stats.t.ppf(0.975, BATCHES - 1)) * math.sqrt(noise / square)
    distance = math.sqrt(max(float((mean - wanted).square().sum()) - noise, 0.0) / square)
    return float(mean @ wanted) / square, half, distance + half

"""Two estimators that should have one mean: for claims such as Rao-Blackwellisation, and for objectives that only sampling can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from scipy import special, stats
from torch import Tensor

from ....estimators.base import Estimator, Evaluations, Loss, Objective, evaluate, expand_samples, with_gradient
from ....estimators.noise import Gumbel, SmoothNoise
from ....oracles.base import Oracle
from ...statistics.metrics import summarise
from ...statistics.moments import BATCHES, Moments
from ..confirmation import confirmed
from ..diagnosis import LENGTH, Gain, cause_of_gain
from ..means import TOLERANCE, AuditEffort, exact_mean, sampler
from ..places import FLAT, USUAL, AuditLoss, Structure, random_scores, target
from ..result import Check, Status
from ..subject import Subject

TOTAL_DERIVATIVE = (
    "a derivative through the noise too, which makes the estimate shorter: hold noise that was drawn given the sample fixed (detach it)"
)
"""Of a mean that should be that of an estimator with less noise, as in Gumbel-Rao."""


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


def perturbed_checks(
    subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure, effort: AuditEffort, losses: float | None
) -> Iterator[Check]:
    """The law ``objective`` for the loss of the best structure of noisy scores."""
    noise = getattr(subject.estimator, "noise", Gumbel())
    if not isinstance(noise, SmoothNoise):
        yield Check("objective", structure.name, "undecided", f"the gradient under {noise} is not known: its density has no score here")
        return
    yield from same_mean_checks(subject, fresh, ScoreOfNoise(noise), structure, (effort, losses, "objective"))


def same_mean_checks(
    subject: Subject,
    fresh: Callable[[], Estimator[Any]],
    reference: Estimator[Any],
    structure: Structure,
    how: tuple[AuditEffort, float | None, str],
) -> Iterator[Check]:
    """A law: the mean is the scale times that of the reference. Exactly where both can be replayed, else by a test at flat scores."""
    effort, losses, law = how
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        aim = target(structure, AuditLoss(structure), random_scores(structure, scale, 1)[0])
        sampling = effort.sampling(structure.name, regime, law)
        first, second = exact_mean(fresh(), aim, sampling), exact_mean(reference, aim, sampling)
        if first is not None and second is not None:
            pair = (first.error + first.gradient, subject.estimator.scale * (second.error + second.gradient))
            yield _exactly(subject, (law, where, reference.name), pair, losses)
        elif regime == "flat":
            draws = (sampler(fresh(), aim, sampling), sampler(reference, aim, effort.sampling(structure.name, regime, law, "reference")))
            yield _tested(subject, (law, where, reference.name), draws, (effort, losses))


def _exactly(subject: Subject, names: tuple[str, str, str], pair: tuple[Tensor, Tensor], losses: float | None) -> Check:
    law, where, reference = names
    found, wanted = pair
    distance = float((found - wanted).norm()) / max(float(wanted.norm()), 1e-300)
    if distance <= 10 * TOLERANCE:
        return Check(law, where, "holds", f"the exact mean is that of {reference}")
    gain = float(found @ wanted) / max(float(wanted @ wanted), 1e-300)
    parallel = float((found - gain * wanted).norm()) <= 1e-7 * float(found.norm())
    cause = cause_of_gain(Gain(gain), subject.numbers(), losses) if parallel else ""
    return Check(law, where, "violated", f"the exact mean is not that of {reference}: off by {distance:.3g}, gain {gain:.3g}", cause)


def _tested(
    subject: Subject, names: tuple[str, str, str], draws: tuple[Callable[[str, int], Moments], ...], how: tuple[AuditEffort, float | None]
) -> Check:
    law, where, reference = names
    effort, losses = how
    scale = subject.estimator.scale
    size = min(effort.most, 4 * effort.first)
    kept: list[tuple[Moments, Moments]] = []

    def test(slot: str, times: int) -> float:
        kept.append((draws[0](slot, times * size), draws[1](slot, times * size)))
        return difference_p_value(*kept[-1], scale)

    p_value = confirmed(test, effort.alpha)
    gain, bound, off = gain_between(*kept[-1], scale)
    status: Status = "holds" if bound <= effort.effort.equivalence else "undecided"
    detail = f"gain {gain.value:.3g} ± {gain.half_width:.2g} against the mean of {reference}; the means differ by less than {bound:.0%}"
    return Check(law, where, status, detail, _cause(subject, (law, gain, off), losses), "test", p_value)


def _cause(subject: Subject, found: tuple[str, Gain, bool], losses: float | None) -> str:
    law, gain, off = found
    cause = "" if off else cause_of_gain(gain, subject.numbers(), losses)
    noisy = not subject.is_function and subject.estimator.evaluations().perturbations > 0
    shorter = 0 < gain.value < 1 - gain.half_width
    return TOTAL_DERIVATIVE if law == "mean_of" and noisy and shorter and cause in ("", LENGTH) else cause


def difference_p_value(first: Moments, second: Moments, scale: float = 1.0) -> float:
    """p-value of "the first mean is scale times the second": Welch tests of every part and along the exact gradient, with Bonferroni."""
    a, b = summarise(first), summarise(second)
    gap = a.error + first.gradient - scale * (b.error + second.gradient)
    variance = _part_variances(first) / first.total + scale**2 * _part_variances(second) / second.total
    unit = first.direction
    along = float(gap @ unit), _along(first) / first.total + scale**2 * _along(second) / second.total
    floor = 1e-24 * float(first.gradient.square().sum())
    ratios = [
        abs(float(g)) / math.sqrt(v) for g, v in zip([*gap.tolist(), along[0]], [*variance.tolist(), along[1]], strict=True) if v > floor
    ]
    degrees = min(first.total, second.total) - 1
    return min(1.0, len(ratios) * min(float(2 * special.stdtr(degrees, -ratio)) for ratio in ratios)) if ratios else 1.0


def gain_between(first: Moments, second: Moments, scale: float = 1.0) -> tuple[Gain, float, bool]:
    """``⟨m, r⟩ / ‖r‖²`` against scale times the second mean, an upper bound of the relative distance of the means, whether they part.

    Means part where what is left of their difference beside the gain is clearly more than noise.
    """
    a, b = summarise(first), summarise(second)
    mean, wanted = a.error + first.gradient, scale * (b.error + second.gradient)
    noise = float(a.trace) / first.total + scale**2 * float(b.trace) / second.total
    square = max(float(wanted.square().sum()) - scale**2 * float(b.trace) / second.total, 1e-300)
    half = float(stats.t.ppf(0.975, BATCHES - 1)) * math.sqrt(noise / square)
    distance = math.sqrt(max(float((mean - wanted).square().sum()) - noise, 0.0) / square)
    gain = float(mean @ wanted) / square
    rest = float((mean - gain * wanted).norm())
    return Gain(gain, half), distance + half, rest > 4 * math.sqrt(noise * (1 + gain**2))


def _part_variances(moments: Moments) -> Tensor:
    """[d], of one estimate."""
    centred = moments.mean - moments.count @ moments.mean / moments.count.sum()
    return (moments.square.sum(0) + moments.count @ centred.square()) / max(moments.total - 1, 1)


def _along(moments: Moments) -> float:
    centred = moments.mean - moments.count @ moments.mean / moments.count.sum()
    between = moments.count @ (centred @ moments.direction).square()
    return float(moments.along.sum() + between) / max(moments.total - 1, 1)

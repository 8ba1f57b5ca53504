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
from ....oracles.capabilities import Oracle
from ...statistics.metrics import summarise
from ...statistics.moments import BATCHES, Moments
from ..cases import FLAT, USUAL, AuditLoss, Structure, random_scores, target
from ..confirmation import confirmed
from ..diagnosis import Point, Setting
from ..means import TOLERANCE, AuditEffort, exact_mean, sampler
from ..result import Check, Status
from ..subject import Subject
from .objective import part_variances


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
    subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure, effort: AuditEffort, points: list[Point]
) -> Iterator[Check]:
    """The law ``objective`` for the loss of the best structure of noisy scores."""
    noise = getattr(subject.estimator, "noise", Gumbel())
    if not isinstance(noise, SmoothNoise):
        yield Check("objective", structure.name, "undecided", f"the gradient under {noise} is not known: its density has no score here")
        return
    yield from same_mean_checks(subject, fresh, ScoreOfNoise(noise), structure, (effort, points, "objective"))


def same_mean_checks(
    subject: Subject,
    fresh: Callable[[], Estimator[Any]],
    reference: Estimator[Any],
    structure: Structure,
    how: tuple[AuditEffort, list[Point], str],
) -> Iterator[Check]:
    """A law: the mean is the scale times that of the reference. Exactly where both can be replayed, else by a test at flat scores.

    The means that it finds are added to the points.
    """
    effort, points, law = how
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        aim = target(structure, AuditLoss(structure), random_scores(structure, scale, 1)[0])
        sampling = effort.sampling(structure.name, regime, law)
        first, second = exact_mean(fresh(), aim, sampling), exact_mean(reference, aim, sampling)
        known: dict[str, Any] = {"where": where, "event": structure.event, "setting": Setting(subject.numbers())}
        own = subject.estimator.scale
        if first is not None and second is not None:
            found, wanted = first.error + first.gradient, own * (second.error + second.gradient)
            points.append(Point(found=found.unsqueeze(0), wanted=wanted, **known))
            yield _exactly((law, where, reference.name), found, wanted)
        elif regime == "flat":
            draws = (sampler(fresh(), aim, sampling), sampler(reference, aim, effort.sampling(structure.name, regime, law, "reference")))
            check, (here, there) = _tested((law, where, reference.name), draws, effort, own)
            points.append(Point(found=here.mean + here.gradient, wanted=own * (there.mean + there.gradient), tolerance=None, **known))
            yield check


def _exactly(names: tuple[str, str, str], found: Tensor, wanted: Tensor) -> Check:
    law, where, reference = names
    distance = float((found - wanted).norm()) / max(float(wanted.norm()), 1e-300)
    if distance <= 10 * TOLERANCE:
        return Check(law, where, "holds", f"the exact mean is that of {reference}")
    gain = float(found @ wanted) / max(float(wanted @ wanted), 1e-300)
    return Check(law, where, "violated", f"the exact mean is not that of {reference}: off by {distance:.3g}, gain {gain:.3g}")


def _tested(
    names: tuple[str, str, str], draws: tuple[Callable[[str, int], Moments], ...], effort: AuditEffort, scale: float
) -> tuple[Check, tuple[Moments, Moments]]:
    law, where, reference = names
    size = min(effort.most, 4 * effort.first)
    kept: list[tuple[Moments, Moments]] = []

    def test(slot: str, times: int) -> float:
        kept.append((draws[0](slot, times * size), draws[1](slot, times * size)))
        return difference_p_value(*kept[-1], scale)

    p_value = confirmed(test, effort.alpha)
    gain, half, bound = gain_between(*kept[-1], scale)
    status: Status = "holds" if bound <= effort.effort.equivalence else "undecided"
    detail = f"gain {gain:.3g} ± {half:.2g} against the mean of {reference}"
    return Check(law, where, status, detail, "", "test", p_value, unproven=f"; the means differ by less than {bound:.0%}"), kept[-1]


def difference_p_value(first: Moments, second: Moments, scale: float = 1.0) -> float:
    """p-value of "the first mean is scale times the second": Welch tests of every part and along the exact gradient, with Bonferroni."""
    a, b = summarise(first), summarise(second)
    gap = a.error + first.gradient - scale * (b.error + second.gradient)
    variance = part_variances(first) / first.total + scale**2 * part_variances(second) / second.total
    unit = first.direction
    along = float(gap @ unit), _along(first) / first.total + scale**2 * _along(second) / second.total
    floor = 1e-24 * float(first.gradient.square().sum())
    ratios = [
        abs(float(g)) / math.sqrt(v) for g, v in zip([*gap.tolist(), along[0]], [*variance.tolist(), along[1]], strict=True) if v > floor
    ]
    degrees = min(first.total, second.total) - 1
    return min(1.0, len(ratios) * min(float(2 * special.stdtr(degrees, -ratio)) for ratio in ratios)) if ratios else 1.0


def gain_between(first: Moments, second: Moments, scale: float = 1.0) -> tuple[float, float, float]:
    """``⟨m, r⟩ / ‖r‖²`` against scale times the second mean, half its interval, and a bound of the relative distance of the means."""
    a, b = summarise(first), summarise(second)
    mean, wanted = a.error + first.gradient, scale * (b.error + second.gradient)
    noise = float(a.trace) / first.total + scale**2 * float(b.trace) / second.total
    square = max(float(wanted.square().sum()) - scale**2 * float(b.trace) / second.total, 1e-300)
    half = float(stats.t.ppf(0.975, BATCHES - 1)) * math.sqrt(noise / square)
    distance = math.sqrt(max(float((mean - wanted).square().sum()) - noise, 0.0) / square)
    gain = float(mean @ wanted) / square
    return gain, half, distance + half


def _along(moments: Moments) -> float:
    centred = moments.mean - moments.count @ moments.mean / moments.count.sum()
    between = moments.count @ (centred @ moments.direction).square()
    return float(moments.along.sum() + between) / max(moments.total - 1, 1)

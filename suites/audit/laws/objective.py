"""The law that matters: the mean of an estimator that claims to be unbiased is the gradient of its objective, times its scale."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...measures.testing.bias_tests import rounding_floor
from ...measures.testing.group_sequential import sequential_test
from ...statistics.interval import ABSENT, RARE
from ...statistics.intervals import UNRESOLVED, Interval
from ...statistics.metrics import Summary
from ...statistics.moments import Moments
from ...truth import Target
from ..cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, masked_scores, random_scores, target
from ..diagnosis import Point, Setting
from ..expansions import expansions
from ..means import AuditEffort, Mean, exact_mean, sampler, scaled
from ..result import Check, Status
from ..subject import Subject

REGIMES: dict[str, Callable[[Structure], Tensor]] = {
    "flat": lambda structure: random_scores(structure, FLAT, 1)[0],
    "usual": lambda structure: random_scores(structure, USUAL, 1)[0],
    "peaked": lambda structure: random_scores(structure, PEAKED, 1)[0],
    "masked": lambda structure: masked_scores(structure, 1)[0],
    "equal": lambda structure: torch.zeros(structure.event, dtype=torch.float64),
}
"""Kinds of scores; exact means are compared at all of them, tests see the first alone."""


def expected_checks(
    subject: Subject,
    fresh: Callable[[], Estimator[Any]],
    structure: Structure,
    effort: AuditEffort,
    points: list[Point],
) -> Iterator[Check]:
    """The law ``objective`` for the expected loss; the means that it finds are added to ``points``."""
    setting = Setting(subject.numbers())
    for regime, scores in REGIMES.items():
        aim = scaled(target(structure, AuditLoss(structure), scores(structure)), subject.estimator.scale)
        sampling = effort.sampling(structure.name, regime)
        summary = exact_mean(fresh(), aim, sampling)
        where = f"{structure.name}, {regime}"
        known: dict[str, Any] = {"where": where, "event": structure.event, "setting": setting, "marginals": aim.truth.marginals.flatten()}
        known["expansions"] = functools.cache(functools.partial(expansions, aim))
        if summary is not None:
            points.append(Point(found=(summary.error + summary.gradient).unsqueeze(0), wanted=summary.gradient, **known))
            yield _exact(where, summary, aim)
        elif regime == "flat":
            check, moments = _tested(sampler(fresh(), aim, sampling), where, aim, effort)
            points.append(Point(found=moments.mean + moments.gradient, wanted=moments.gradient, tolerance=None, **known))
            yield check


def _exact(where: str, summary: Summary, aim: Target) -> Check:
    mean = Mean.of_summary(summary)
    error = float(summary.error.norm())
    if error <= rounding_floor(math.sqrt(float(mean.value.square().sum()) + float(summary.trace)), aim.truth):
        return Check("objective", where, "holds", "the exact mean over all samples is the gradient")
    return Check("objective", where, "violated", described(mean))


def _tested(draw: Callable[[str, int], Moments], where: str, aim: Target, effort: AuditEffort) -> tuple[Check, Moments]:
    outcome = sequential_test(draw, aim.truth, effort.effort)
    mean = Mean.of_moments(outcome.moments)
    status: Status = "holds" if outcome.bound is not None and outcome.bound <= effort.effort.equivalence else "undecided"
    detail = described(mean)
    if status == "undecided" and outcome.bound is not None:
        detail += f"; no error is proven, and the bias is below {outcome.bound:.0%} of the gradient"
    return Check("objective", where, status, detail, "", "test", outcome.p_value), outcome.moments


def described(mean: Mean) -> str:
    """The bias of a mean, its gain and its cosine, with intervals."""
    if mean.metrics["relative_bias"] is UNRESOLVED:
        return ABSENT[RARE]
    if mean.metrics["relative_bias"].value is None:
        return f"the gradient is 0, and the bias {_number(mean.metrics['absolute_bias'])}"
    names = {"bias": "relative_bias", "gain": "gain", "cosine": "cosine"}
    return ", ".join(f"{name} {_number(mean.metrics[metric])}" for name, metric in names.items())


def _number(interval: Interval) -> str:
    value, low, high = interval.value, interval.low, interval.high
    if value is None:
        return "–"
    return f"{value:.3g}" if low is None or high is None else f"{value:.3g} [{low:.3g}, {high:.3g}]"

"""The law that matters: the mean of an estimator that claims to be unbiased is the gradient of its objective, times its scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...measures.testing.bias_tests import rounding_floor
from ...measures.testing.group_sequential import sequential_test
from ...statistics.interval import ABSENT, RARE
from ...statistics.intervals import UNRESOLVED, Interval
from ...statistics.metrics import Summary, summarise
from ...statistics.moments import Moments
from ...truth import Target
from ..cases import FLAT, PEAKED, USUAL, AuditLoss, Structure, masked_scores, random_scores, target
from ..diagnosis import Point, Setting
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
"""Kinds of scores; exact means are compared at all of them."""

TESTED = ("flat", "usual", "peaked")
"""Scores at which means are tested. Errors that show only at unlikely structures, such as clipped weights, are not seen at flat scores."""


def expected_checks(
    subject: Subject,
    fresh: Callable[[], Estimator[Any]],
    structure: Structure,
    effort: AuditEffort,
    points: list[Point],
) -> Iterator[Check]:
    """The law ``objective`` for the expected loss; the means that it finds are added to ``points``."""
    setting, found_here = Setting(subject.numbers()), False
    for regime, scores in REGIMES.items():
        aim = scaled(target(structure, AuditLoss(structure), scores(structure)), subject.estimator.scale)
        sampling = effort.sampling(structure.name, regime)
        summary = exact_mean(fresh(), aim, sampling)
        where = f"{structure.name}, {regime}"
        known: dict[str, Any] = {"where": where, "event": structure.event, "setting": setting, "marginals": aim.truth.marginals.flatten()}
        if summary is not None:
            points.append(Point(found=(summary.error + summary.gradient).unsqueeze(0), wanted=summary.gradient, **known))
            yield _exact(where, summary, aim)
        elif regime in TESTED:
            # At flat scores a mean is pinned down; elsewhere errors are looked for alone.
            looked = effort if regime == "flat" else replace(effort, most=min(effort.most, 4 * effort.first))
            check, moments = _tested(sampler(fresh(), aim, sampling), where, aim, looked)
            # Batches at peaked scores are not normal: a cause is looked for there only where nothing is wrong at flatter ones.
            if not found_here:
                points.append(Point(found=moments.mean + moments.gradient, wanted=moments.gradient, tolerance=None, **known))
            found_here |= check.p_value is not None and check.p_value < effort.alpha
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
    pinned = outcome.bound is not None and outcome.bound <= effort.effort.equivalence
    # Rare structures leave the bound wide at peaked scores: an error is proven there, or nothing follows.
    status: Status = "holds" if pinned or not where.endswith(", flat") else "undecided"
    unproven = f"; no error is proven, and the bias is below {outcome.bound:.0%} of the gradient" if outcome.bound and not pinned else ""
    largest = greatest_t(outcome.moments)
    detail = described(mean) + (f", greatest |t| {largest:.3g}" if largest else ", estimates do not vary")
    return Check("objective", where, status, detail, "", "test", outcome.p_value, unproven=unproven), outcome.moments


def greatest_t(moments: Moments) -> float:
    """The greatest |mean error| of a part in standard errors; 0 where nothing varies."""
    errors = summarise(moments).error
    variances = part_variances(moments) / moments.total
    moves = variances > 1e-24 * float(moments.gradient.square().sum())
    return float((errors[moves].abs() / variances[moves].sqrt()).max()) if bool(moves.any()) else 0.0


def part_variances(moments: Moments) -> Tensor:
    """[d], of one estimate."""
    centred = moments.mean - moments.count @ moments.mean / moments.count.sum()
    return (moments.square.sum(0) + moments.count @ centred.square()) / max(moments.total - 1, 1)


def described(mean: Mean) -> str:
    """The bias of a mean, its gain and its cosine, with intervals."""
    if mean.metrics["relative_bias"] is UNRESOLVED:
        return ABSENT[RARE]
    if mean.metrics["relative_bias"].value is None:
        return f"the gradient is 0, and the bias {_number(mean.metrics.get('absolute_bias', Interval(None)))}"
    names = {"bias": "relative_bias", "gain": "gain", "cosine": "cosine"}
    return ", ".join(f"{name} {_number(mean.metrics[metric])}" for name, metric in names.items())


def _number(interval: Interval) -> str:
    value, low, high = interval.value, interval.low, interval.high
    if value is None:
        return "–"
    return f"{value:.3g}" if low is None or high is None else f"{value:.3g} [{low:.3g}, {high:.3g}]"

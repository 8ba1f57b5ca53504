"""Comparisons with registered estimators: variances with REINFORCE and leave-one-out, the mean of a biased one with its twin."""

from __future__ import annotations

import dataclasses
import difflib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...estimators import ESTIMATORS, make_estimator
from ...estimators.base import Estimator
from ...estimators.score_function.reinforce import LeaveOneOut, Reinforce
from ..measures.replicates import Sampling
from ..statistics.intervals import Interval
from ..truth import Target
from .cases import FLAT, AuditLoss, Structure, random_scores, seeded, target
from .laws.declarations import observed
from .means import AuditEffort, Mean, exact_mean, sampler, scaled
from .result import FlatComparison
from .subject import Subject

REPLICATES = 8192

LEAST_GAIN = 0.01
"""Below it, the length of the mean says nothing that variances could be compared at."""

ROUNDS, ROWS = 3, 512

Bounds = tuple[float | None, float | None, float | None]


def compare(
    subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure, effort: AuditEffort, losses: float | None
) -> FlatComparison:
    """One structure at flat scores, against the gradient of the expected loss times the declared scale."""
    aim = scaled(target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0]), subject.estimator.scale)
    mean, tier = mean_of(fresh(), aim, effort.sampling(structure.name, "comparison"))
    variance, gain = mean.metrics["relative_variance"].value, mean.metrics["gain"].value
    # At equal gain: a factor that any learning rate absorbs is no merit.
    relative = None if variance is None or gain is None or abs(gain) < LEAST_GAIN else variance / gain**2
    exact = target(structure, aim.loss, aim.scores)
    others = _variances(exact, effort.sampling(structure.name, "comparison"), losses) if losses else (None, None)
    ratios = [None if not other or not relative or relative < 1e-12 else relative / other for other in others]
    alone = None if ratios[1] is None or losses is None else seconds_ratio(fresh(), exact, max(2, round(losses)))
    return FlatComparison(
        where=structure.name,
        tier=tier,
        reference="expected",
        gain=_bounds(mean.metrics["gain"]),
        relative_bias=_bounds(mean.metrics["relative_bias"]),
        cosine=_bounds(mean.metrics["cosine"]),
        relative_variance=variance,
        to_reinforce=ratios[0],
        to_leave_one_out=ratios[1],
        per_second=None if ratios[1] is None or alone is None else ratios[1] * alone,
        zero_rate=mean.metrics["zero_gradient_rate"].value,
    )


def mean_of(estimator: Estimator[Any], aim: Target, sampling: Sampling) -> tuple[Mean, Any]:
    """The mean, exactly or from a few thousand replicates, and which of both."""
    summary = exact_mean(estimator, aim, sampling)
    if summary is not None:
        return Mean.of_summary(summary), "exact"
    return Mean.of_moments(sampler(estimator, aim, sampling)("comparison", REPLICATES)), "mc"


def _variances(aim: Target, sampling: Sampling, losses: float) -> tuple[float | None, float | None]:
    """Variances of REINFORCE and of leave-one-out with so many losses, relative to the squared norm of the gradient.

    REINFORCE averages as many samples as losses are paid for, a fraction of one too; leave-one-out takes at least two.
    """
    alone = mean_of(Reinforce(), aim, sampling)[0].metrics["relative_variance"].value
    count = max(2, round(losses))
    group = mean_of(LeaveOneOut(num_samples=count), aim, sampling)[0].metrics["relative_variance"].value
    return (None if alone is None else alone / losses), (None if group is None else group * count / max(losses, 2))


def seconds_ratio(estimator: Estimator[Any], aim: Target, samples: int) -> float:
    """Seconds of one estimate as a multiple of those of leave-one-out: the median of a few pairs, side by side."""
    rows, ratios = aim.scores.expand(ROWS, *aim.scores.shape), []
    for _ in range(ROUNDS):
        spent = []
        for contender in (estimator, LeaveOneOut(num_samples=samples)):
            start = time.perf_counter()
            contender.gradient(aim.loss, aim.oracle, rows, generator=seeded(1, "seconds"))
            spent.append(time.perf_counter() - start)
        ratios.append(spent[0] / spent[1])
    return sorted(ratios)[len(ratios) // 2]


def _bounds(interval: Interval) -> Bounds:
    return interval.value, interval.low, interval.high


CLOSE_NAME = 0.75
"""Similarity from which two names are of one idea."""

SAME_COSINE = 0.9999
"""Cosine from which means are multiples of each other, whatever the names."""

SHORT = 5
"""Letters below which a name is like too many others."""

CLOSE_COSINE = 0.98
"""Cosine of two means from which estimators resemble each other."""


@dataclass(frozen=True)
class Twin:
    """A registered estimator, with the options of the subject that it has too, and why it was proposed."""

    estimator: Estimator[Any]
    reason: str


def twin_of(subject: Subject, structure: Structure, effort: AuditEffort) -> Twin | None:
    """The registered estimator it resembles: by ancestry, by name, or by the direction of the mean.

    None for a registered estimator, and if none is close.

    Example:
        >>> from structgrad.estimators import ImplicitMLE
        >>> from structgrad.suites.audit.cases import STRUCTURES
        >>> class Mine(ImplicitMLE):
        ...     pass
        >>> found = twin_of(Subject(Mine(2.0), "Mine"), STRUCTURES["categorical"], AuditEffort())
        >>> found.estimator.name, found.estimator.lambda_, found.reason
        ('imle', 2.0, 'by ancestry')
    """
    own = subject.estimator
    registered = {kind: name for name, kind in ESTIMATORS.items()}
    if type(own) in registered:
        return None
    ancestor = next((registered[kind] for kind in type(own).__mro__ if kind in registered), None)
    if ancestor:
        return Twin(with_options(own, ancestor), "by ancestry")
    behaving, cosine = _by_behaviour(own, structure, effort)
    if cosine >= SAME_COSINE:
        return Twin(behaving, f"by its mean, cosine {cosine:.3f}")
    names = {_plain(text): name for name in _candidates(own, structure) for text in (name, ESTIMATORS[name].__name__)}
    names = {text: name for text, name in names.items() if len(text) >= SHORT}
    for text in (own.name, subject.title.rpartition(":")[2].partition("[")[0].partition("(")[0], type(own).__name__):
        if close := difflib.get_close_matches(_plain(text), names, n=1, cutoff=CLOSE_NAME):
            return Twin(with_options(own, names[close[0]]), "by name")
    return Twin(behaving, f"by its mean, cosine {cosine:.3f}") if cosine >= CLOSE_COSINE else None


def _candidates(own: Estimator[Any], structure: Structure) -> list[str]:
    """Registered estimators of the same objective that can have the structure."""
    names = [name for name, kind in ESTIMATORS.items() if kind.objective == own.objective]
    return [name for name in names if make_estimator(name).incompatibility(structure.oracle, structure.event) is None]


def with_options(own: Estimator[Any], name: str) -> Estimator[Any]:
    """A registered estimator with the values of all options that it shares."""
    other = make_estimator(name)
    shared = {field.name: getattr(own, field.name) for field in dataclasses.fields(other) if field.init and hasattr(own, field.name)}  # type: ignore[arg-type]
    try:
        return dataclasses.replace(other, **shared)  # type: ignore[type-var]
    except (TypeError, ValueError):  # the same name for another kind of option
        return other


def _by_behaviour(own: Estimator[Any], structure: Structure, effort: AuditEffort) -> tuple[Estimator[Any], float]:
    """The one with or without gradients of the loss, as the subject, whose mean has the greatest cosine."""
    aim = target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0])
    sampling, slopes = effort.sampling(structure.name, "twin"), bool(observed(own, structure).counts["loss_gradients"])
    here, found = mean_of(own, aim, sampling)[0].value, []
    for name in _candidates(own, structure):
        other = with_options(own, name)
        if bool(observed(other, structure).counts["loss_gradients"]) == slopes:
            there = mean_of(other, aim, sampling)[0].value
            found.append((float(torch.cosine_similarity(here, there, dim=0)), name))
    cosine, name = max(found, default=(0.0, "exact"))
    return with_options(own, name), cosine


def _plain(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())

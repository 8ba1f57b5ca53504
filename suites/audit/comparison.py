"""Comparisons with registered estimators: variances next to REINFORCE and leave-one-out, the mean of a biased one next to its twin."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from ...estimators import ESTIMATORS, make_estimator
from ...estimators.base import Estimator
from ...estimators.score_function.reinforce import LeaveOneOut, Reinforce
from ..measures.replicates import Sampling
from ..truth import Target
from .cases import FLAT, AuditLoss, random_scores, target
from .laws import Case
from .means import Mean, exact_mean, sampler
from .result import FlatComparison

REPLICATES = 8192

MIN_GAIN = 0.01
"""Gain below which variances cannot be compared at equal gain."""

CLOSE_COSINE = 0.98
"""Cosine of two means from which estimators resemble each other."""


def mean_of(estimator: Estimator[Any], aim: Target, sampling: Sampling) -> tuple[Mean, Any]:
    """The mean and its tier: ``exact``, or ``mc`` from a few thousand replicates."""
    summary = exact_mean(estimator, aim, sampling)
    if summary is not None:
        return Mean.of_summary(summary), "exact"
    return Mean.of_moments(sampler(estimator, aim, sampling)("comparison", REPLICATES)), "mc"


def compare(case: Case, losses: float | None) -> FlatComparison:
    """One structure at flat scores, against the gradient of the expected loss times the declared scale.

    REINFORCE averages as many samples as the estimator evaluates losses, also a fraction of one; leave-one-out takes at least two.
    Variances are compared at equal gain, because any learning rate makes up for a factor.
    """
    structure, scores = case.structure, random_scores(case.structure, FLAT, 1)[0]
    sampling, loss = case.effort.sampling(structure.name, "comparison"), AuditLoss(structure)
    mean, tier = mean_of(case.fresh(), target(structure, loss, scores, case.subject.estimator.scale), sampling)
    gain, bias, cosine = ((one.value, one.low, one.high) for one in (mean.metrics[name] for name in ("gain", "relative_bias", "cosine")))
    variance = mean.metrics["relative_variance"].value
    relative = None if variance is None or gain[0] is None or abs(gain[0]) < MIN_GAIN else variance / gain[0] ** 2

    def ratio(other: Estimator[Any], share: float) -> float | None:
        """Ratio of variances at equal cost: the other estimator counts with a share of its variance."""
        theirs = mean_of(other, target(structure, loss, scores), sampling)[0].metrics["relative_variance"].value
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
        zero_rate=mean.metrics["zero_gradient_rate"].value,
    )


@dataclass(frozen=True)
class Twin:
    """A registered estimator, with the options that the subject shares, and the reason of its choice."""

    estimator: Estimator[Any]
    reason: str


def twin_of(case: Case) -> Twin | None:
    """The registered estimator that a subject resembles: its ancestor, or the one with the most similar mean.

    Returns:
        None for a registered estimator, and if no mean is close.

    Example:
        >>> from structgrad.estimators import ImplicitMLE
        >>> from structgrad.suites.audit.cases import STRUCTURES, AuditEffort
        >>> from structgrad.suites.audit.subject import Subject
        >>> class Mine(ImplicitMLE):
        ...     pass
        >>> found = twin_of(Case(Subject(Mine(2.0), "Mine"), lambda: Mine(2.0), STRUCTURES["categorical"], AuditEffort()))
        >>> found.estimator.name, found.estimator.lambda_, found.reason
        ('imle', 2.0, 'by ancestry')
    """
    own, structure = case.subject.estimator, case.structure
    registered = {kind: name for name, kind in ESTIMATORS.items()}
    if type(own) in registered:
        return None
    ancestor = next((registered[kind] for kind in type(own).__mro__ if kind in registered), None)
    if ancestor:
        return Twin(_with_options(own, ancestor), "by ancestry")
    aim = target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0])
    sampling, slopes = case.effort.sampling(structure.name, "twin"), bool(case.observed().counts["loss_gradients"])
    here, best = mean_of(own, aim, sampling)[0].value, (0.0, "")
    for name, kind in ESTIMATORS.items():
        if kind.objective == own.objective and make_estimator(name).incompatibility(structure.oracle, structure.event) is None:
            other = _with_options(own, name)
            observed = dataclasses.replace(case, fresh=lambda other=other: other).observed()  # type: ignore[misc]
            if bool(observed.counts["loss_gradients"]) == slopes:
                cosine = torch.cosine_similarity(here, mean_of(other, aim, sampling)[0].value, dim=0)
                best = max(best, (float(cosine), name))
    return Twin(_with_options(own, best[1]), f"by its mean, cosine {best[0]:.3f}") if best[0] >= CLOSE_COSINE else None


def _with_options(own: Estimator[Any], name: str) -> Estimator[Any]:
    """A registered estimator with the values of all options that it shares."""
    other = make_estimator(name)
    shared = {field.name: getattr(own, field.name) for field in dataclasses.fields(other) if field.init and hasattr(own, field.name)}  # type: ignore[arg-type]
    try:
        return dataclasses.replace(other, **shared)  # type: ignore[type-var]
    except (TypeError, ValueError):  # an equal name for another kind of option
        return other

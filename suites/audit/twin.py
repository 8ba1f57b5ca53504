"""The twin of a biased estimator: the registered estimator that it resembles most."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, make_estimator
from ...estimators.base import Estimator
from ..measures.draws import Sampling
from ..statistics.metrics import summarise
from ..truth import Target
from .cases import FLAT, AuditLoss, Case, random_scores, target
from .means import REPLICATES, exact_mean, sampler

MIN_COSINE = 0.98
"""Cosine of two means from which estimators resemble each other."""


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
        >>> found = twin_of(Case(Subject(Mine(2.0), "Mine"), STRUCTURES["categorical"], AuditEffort()))
        >>> found.estimator.name, found.estimator.lambda_, found.reason
        ('imle', 2.0, 'by ancestry')
    """
    own, structure = case.fresh(), case.structure
    registered = {kind: name for name, kind in ESTIMATORS.items()}
    if type(own) in registered:
        return None
    ancestor = next((registered[kind] for kind in type(own).__mro__ if kind in registered), None)
    if ancestor:
        return Twin(_with_options(own, ancestor), "by ancestry")
    aim = target(structure, AuditLoss(structure), random_scores(structure, FLAT, 1)[0])
    sampling, slopes = case.effort.sampling(structure.name, "twin"), bool(case.observed().counts["loss_gradients"])
    here, best = _mean(own, aim, sampling), (0.0, "")
    for name, kind in ESTIMATORS.items():
        if kind.objective == own.objective and make_estimator(name).incompatibility(structure.oracle, structure.event) is None:
            other = _with_options(own, name)
            observed = dataclasses.replace(case, subject=dataclasses.replace(case.subject, estimator=other)).observed()
            if bool(observed.counts["loss_gradients"]) == slopes:
                best = max(best, (float(torch.cosine_similarity(here, _mean(other, aim, sampling), dim=0)), name))
    return Twin(_with_options(own, best[1]), f"by its mean, cosine {best[0]:.3f}") if best[0] >= MIN_COSINE else None


def _mean(estimator: Estimator[Any], aim: Target, sampling: Sampling) -> Tensor:
    summary = exact_mean(estimator, aim, sampling) or summarise(sampler(estimator, aim, sampling)("comparison", REPLICATES))
    return summary.error + summary.gradient


def _with_options(own: Estimator[Any], name: str) -> Estimator[Any]:
    """A registered estimator with the values of all options that it shares."""
    other: Any = make_estimator(name)
    shared = {field.name: getattr(own, field.name) for field in dataclasses.fields(other) if field.init and hasattr(own, field.name)}
    with contextlib.suppress(TypeError, ValueError):  # an equal name for another kind of option
        other = dataclasses.replace(other, **shared)
    return other  # type: ignore[no-any-return]

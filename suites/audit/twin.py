"""The twin of a biased estimator, and the scale of the noise of a perturbed one."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators import ESTIMATORS, make_estimator
from ...estimators.base import Estimator
from ...estimators.noise import SmoothNoise
from ..measures.replicates import Sampling
from ..statistics.metrics import summarise
from ..truth import Target
from .cases import FLAT, USUAL, AuditLoss, Case, Structure, all_structures, random_scores, seeded, target
from .dissection import ROWS, Dissection
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


def cause_of_noise(estimator: Estimator[Any], structure: Structure, noise: SmoothNoise) -> str:
    """Whether the structures that the loss gets are those of the noise at another scale; empty if not."""

    def shares(structures: Tensor) -> Tensor:
        flat = structures.reshape(-1, 1, *structure.event).double()
        return (flat == all_structures(structure)).flatten(2).all(-1).double().mean(0)

    for regime in (FLAT, USUAL):
        found = Dissection(estimator, structure, random_scores(structure, regime, 1, "dissection")[0], has_count=False)
        if not found.inside or found.points.numel():
            return ""
        rows = found.scores.expand(16 * ROWS, *structure.event)
        drawn = noise.draw(structure.oracle, rows, generator=seeded(3, "dissection"))
        shown, scales = shares(found.samples), torch.logspace(-1, 1, 41, base=4, dtype=torch.float64).tolist()
        distances = [float((shares(structure.oracle.argmax(rows + scale * drawn)) - shown).abs().max()) for scale in scales]
        best = min(range(len(scales)), key=distances.__getitem__)
        if distances[best] < 0.03 < distances[len(scales) // 2]:
            return f"the structures are those of noise {scales[best]:.2g} times as large: is it multiplied by its scale twice, or never?"
    return ""

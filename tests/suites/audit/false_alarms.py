"""Audits of a correct estimator under many seeds: every violation is a false alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators.base import Loss
from structgrad.estimators.score_function.reinforce import LeaveOneOut, scores_of
from structgrad.suites.audit.cases import STRUCTURES, AuditEffort
from structgrad.suites.audit.laws import Case, batch, rows, sign
from structgrad.suites.audit.means import expected_checks, same_mean_checks
from structgrad.suites.audit.result import Check, settled
from structgrad.suites.audit.subject import subject_of

ON = ("categorical", "subset")

Function = Callable[[Loss, Any, Tensor, torch.Generator], Tensor]


def opaque(loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
    """Leave-one-out with two samples, drawn from a generator of its own, which is seeded by the one that it is given."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    samples = oracle.sample(scores, 2, generator=torch.Generator(scores.device).manual_seed(seed))
    losses = loss(samples)
    excess = (losses - losses.mean(0)) * 2
    return (excess.reshape(*excess.shape, *[1] * oracle.event_ndim) * scores_of(oracle, samples, scores)).mean(0)


def checks_of(function: Function, effort: AuditEffort) -> Iterator[Check]:
    """The checks of one audit that are tests, before they are settled."""
    subject = subject_of(function)
    for name in ON:
        case = Case(subject, lambda: subject.estimator, STRUCTURES[name], effort)
        for law in (sign, rows, batch):
            yield from law(case)
        yield from expected_checks(case, [])
        yield from same_mean_checks(case, LeaveOneOut(), [])


def alarms(function: Function, *, alpha: float, audits: int, first: int = 1024, most: int = 4096) -> int:
    """How many of some audits, each with a seed of its own, find a violation."""
    wrong = 0
    for seed in range(audits):
        checks = settled(list(checks_of(function, AuditEffort(alpha=alpha, seed=seed, first=first, most=most))), alpha)[0]
        wrong += any(check.status == "violated" for check in checks)
    return wrong

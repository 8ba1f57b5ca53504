"""False alarms of the audit: ``python -m structgrad.suites.studies.audit_false_alarms [AUDITS]``.

The laws that are exact have no error rate. This repeats what is tested, under many seeds: the sign, the rows of a batch by their
distribution, the mean against the exact gradient, and the mean against that of another estimator, on two structures, for leave-one-out
whose samples nobody can deal to it. All of it holds, so that every violation is a false alarm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Loss
from ...estimators.score_function.reinforce import LeaveOneOut, scores_of
from ..audit.cases import STRUCTURES
from ..audit.confirmation import settled
from ..audit.diagnosis import Point
from ..audit.laws.batching import batch_checks
from ..audit.laws.direction import sign_check
from ..audit.laws.objective import expected_checks
from ..audit.laws.two_samples import same_mean_checks
from ..audit.means import AuditEffort
from ..audit.result import Check
from ..audit.subject import subject_of
from ..statistics.intervals import wilson

ALPHAS = (0.2, 0.05)
"""Levels at which a few hundred audits tell something; that of an audit is 0.001."""

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
        structure = STRUCTURES[name]
        yield sign_check(lambda: subject.estimator, structure, effort)
        yield from batch_checks(lambda: subject.estimator, structure, seed=effort.seed, alpha=effort.alpha)
        yield from expected_checks(subject, lambda: subject.estimator, structure, effort, [])
        how: tuple[AuditEffort, list[Point], str] = (effort, [], "mean_of")
        yield from same_mean_checks(subject, lambda: subject.estimator, LeaveOneOut(), structure, how)


def alarms(function: Function, *, alpha: float, audits: int, first: int = 1024, most: int = 4096) -> int:
    """How many of some audits, each with a seed of its own, find a violation."""
    wrong = 0
    for seed in range(audits):
        checks = settled(list(checks_of(function, AuditEffort(alpha=alpha, seed=seed, first=first, most=most))), alpha)[0]
        wrong += any(check.status == "violated" for check in checks)
    return wrong


def main(audits: int = 200) -> None:
    """Print one line per level: audits, false alarms, their share with its 95 % interval."""
    torch.set_num_threads(1)
    for alpha in ALPHAS:
        wrong = alarms(opaque, alpha=alpha, audits=audits)
        share = wilson(wrong / audits, audits)
        sys.stdout.write(f"alpha {alpha:g}: {wrong} of {audits} audits, {share.value:.4f} [{share.low:.4f}, {share.high:.4f}]\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))

"""Relaxed and sparse objectives: the surrogate's value is the objective, and the estimate must be its derivative at fixed noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...truth.references import STEP, reference_gradient
from ..cases import FLAT, USUAL, AuditLoss, Structure, random_scores, seeded
from ..diagnosis import Point, Setting
from ..result import Check
from ..subject import Subject

DRAWS = 16
"""Rows that are compared, each with noise of its own."""

_TOLERANCE, _NOTHING = 1e-5, 1e-8
"""Relative, for the rounding of differences; and absolute, for where there is no derivative."""


def relaxed_checks(subject: Subject, fresh: Callable[[], Estimator[Any]], structure: Structure, points: list[Point]) -> Iterator[Check]:
    """The law ``objective`` for a relaxed or a sparse one, exactly: both sides see the same random numbers.

    The estimates that it compares are added to ``points``.
    """
    for regime, scale in (("flat", FLAT), ("usual", USUAL)):
        where = f"{structure.name}, {regime}"
        scores = random_scores(structure, scale, 1, "relaxed").expand(DRAWS, *structure.event)
        estimate = fresh().gradient(AuditLoss(structure), structure.oracle, scores, generator=seeded(1, "relaxed"))
        if subject.is_function:
            reference = reference_gradient("relaxed", structure.oracle, AuditLoss(structure), scores[0]).gradient
            # A function has no value: a relaxed objective is taken to be the loss at the marginals.
            yield _compared(subject, where, (subject.estimator.scale * reference.expand_as(estimate), estimate), points)
            continue
        derivative, doubt = derivatives(fresh(), structure, scores)
        sure = doubt <= 1e-4 * derivative.flatten(1).norm(dim=-1) + 1e-6
        if not bool(sure.any()):
            yield Check("objective", where, "undecided", "the value jumps at all of these scores: no derivative to compare with")
            continue
        yield _compared(subject, where, (subject.estimator.scale * derivative[sure], estimate[sure]), points)


def _compared(subject: Subject, where: str, pair: tuple[Tensor, Tensor], points: list[Point]) -> Check:
    wanted, found = pair
    known: dict[str, Any] = {
        "found": found.flatten(1).double(),
        "wanted": wanted.flatten(1).double(),
        "setting": Setting(subject.numbers()),
    }
    points.append(Point(where, tuple(found.shape[1:]), tolerance=_TOLERANCE, **known))
    error, norm = float((found - wanted).norm()), float(wanted.norm())
    if error <= _TOLERANCE * norm + _NOTHING:
        return Check("objective", where, "holds", "the estimate is the derivative of the objective")
    if norm < _NOTHING:
        cause = "the value of the surrogate does not move with the scores: it must be the objective, or with_gradient of it"
        return Check("objective", where, "violated", "the estimate is not 0, and the derivative of the surrogate's value is", cause)
    gain = float((found * wanted).sum() / wanted.square().sum())
    detail = f"the estimate is not the derivative of the objective: bias {error / norm:.3g}, gain {gain:.3g}"
    return Check("objective", where, "violated", detail)


def derivatives(estimator: Estimator[Any], structure: Structure, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Central differences of the value of every row, ``[rows, *event]``, and by how much two steps disagree, ``[rows]``."""

    def value(rows: Tensor) -> Tensor:
        # With gradients enabled: an estimator may need that of the loss for its value.
        found = estimator.surrogate(AuditLoss(structure), structure.oracle, rows, generator=seeded(1, "relaxed"))
        return found.detach().double()

    near, far = torch.zeros_like(scores), torch.zeros_like(scores)
    read = structure.oracle.read_mask(structure.event)
    for part in read.nonzero().tolist():
        step = torch.zeros(structure.event, dtype=scores.dtype)
        step[tuple(part)] = STEP
        place = (slice(None), *part)
        near[place] = (value(scores + step) - value(scores - step)) / (2 * STEP)
        far[place] = (value(scores + 2 * step) - value(scores - 2 * step)) / (4 * STEP)
    return (4 * near - far) / 3, (near - far).flatten(1).norm(dim=-1)

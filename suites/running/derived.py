"""Derived rows: values that follow from several cells of a run; pure functions of rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..base import Row
from ..metrics import unit_of
from ..statistics.budgets import loss_evaluations
from ..statistics.interval import Interval
from ..statistics.selection import holm

WORK = "work"  # the suite of derived rows


def derive(rows: Iterable[Row]) -> list[Row]:
    """All rows of a run: those of its cells with adjusted p-values, then derived rows."""
    measured = adjusted(list(rows))
    return [*measured, *work_rows(measured), *target_rows(measured)]


def adjusted(rows: list[Row]) -> list[Row]:
    """Apply Holm's correction over all tests of each suite.

    A test may stand behind several rows of one estimator on one instance; it counts once.
    """
    families: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for row in rows:
        if row.p_value is not None:
            families[row.suite][_test(row)] = row.p_value
    corrected = {test: value for family in families.values() for test, value in holm(family).items()}
    return [row if row.p_value is None else replace(row, p_adjusted=corrected[_test(row)]) for row in rows]


def _test(row: Row) -> tuple[str, ...]:
    return row.suite, row.cell, row.estimator, row.instance, row.setting, row.reference


def work_rows(rows: list[Row]) -> Iterator[Row]:
    """Evaluations of the loss by one estimate of every estimator on every instance."""
    supports = {(*_place(row), row.estimator): row.value for row in rows if row.metric == "support" and row.value is not None}
    for row in rows:
        if row.suite == "bias" and row.metric == "gain" and row.reference in ("", "expected") and not row.setting and row.status == "ok":
            yield _derived(row, "loss_evaluations", _evaluations(row, supports.get((*_place(row), row.estimator))))


def target_rows(rows: list[Row]) -> Iterator[Row]:
    """Seconds until a model reaches its target: steps times the interleaved cost of one; censored if the steps are."""
    costs = {(row.problem, row.estimator): row.value for row in rows if row.metric == "step_time" and row.value is not None}
    for row in rows:
        cost = costs.get((row.problem, row.estimator))
        if row.metric == "steps_to_target" and row.status == "ok" and cost is not None:
            value, low, high = (None if steps is None else steps * cost for steps in (row.value, row.low, row.high))
            yield _derived(row, "seconds_to_target", Interval(value, low, high))


def _evaluations(row: Row, support: float | None) -> Interval:
    """Evaluations of the loss by one estimate; None if the size of one of its passes is not known."""
    from ...estimators import make_estimator
    from ...estimators.base import Estimator
    from ...oracles.registry import importing_nothing

    sizes = {} if support is None else {"support_losses": round(support)}
    if row.log_count is not None and row.log_count < 40:
        sizes["enumerations"] = round(math.exp(row.log_count))
    try:
        with importing_nothing(Estimator):
            return Interval(loss_evaluations(make_estimator(row.estimator).evaluations(), **sizes))
    except ValueError:
        return Interval(None)


def _derived(row: Row, metric: str, found: Interval) -> Row:
    """A row of the same estimator on the same instance, of no cell."""
    values = {"value": found.value, "low": found.low, "high": found.high, "interval": found.method}
    blank = {"cell": "", "suite_version": 1, "seconds": None, "p_value": None, "verdict": "", "batches": ()}
    return replace(row, **blank, **values, suite=WORK, metric=metric, unit=unit_of(metric))  # type: ignore[arg-type]


def _place(row: Row) -> tuple[str, str, str, str]:
    return row.problem, row.stage, row.instance, row.loss

"""Derived rows: values that follow from several cells of a run; pure functions of rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import get_args

from ..base import REFERENCE, Row, timed_nearest
from ..metrics import unit_of
from ..statistics.interval import Interval
from ..statistics.multiplicity import holm
from ..statistics.work import Criterion, Curve, break_even, error_curve, loss_evaluations, variance_seconds

WORK = "work"
"""The suite of rows that are derived from bias and time."""

OF_BIAS = ("relative_bias_squared", "relative_variance", "gain", "cosine")
"""Metrics of the suite `bias` that `work_rows` looks at."""

_Place = tuple[str, str, str, str]
"""Problem, stage, instance, loss."""


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
    """Variance times seconds of every estimator on every instance, and the work from which on `REFERENCE` beats it.

    Seconds are those of that stage of the problem, or else with another loss of the same scores, or at another stage. Each break-even is
    given by the squared error and by rho, as the ``setting`` says. The squared error is unfair to estimators that are off by a scale.
    """
    timed = [row for row in rows if row.metric == "seconds_per_estimate" and row.status == "ok"]
    seconds: dict[tuple[str, ...], Interval] = {}
    for row in timed:
        for key in timed_nearest(row.problem, row.stage):
            seconds.setdefault((*key, row.estimator), _interval(row))
    supports = {(*_place(row), row.estimator): row.value for row in rows if row.metric == "support" and row.value is not None}
    places: dict[_Place, dict[str, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.suite == "bias" and row.reference in ("", "expected") and row.metric in OF_BIAS and not row.setting and row.status == "ok":
            places[_place(row)][row.estimator][row.metric] = row
    for place, estimators in places.items():
        found = {name: metrics for name, metrics in estimators.items() if len(metrics) == len(OF_BIAS)}
        nearest = timed_nearest(*place[:2])
        times = {name: next((seconds[*key, name] for key in nearest if (*key, name) in seconds), Interval(None)) for name in found}
        calls = {name: _evaluations(metrics["gain"], supports.get((*place, name))) for name, metrics in found.items()}
        for name, metrics in found.items():
            yield _derived(metrics["gain"], "variance_seconds", variance_seconds(_intervals(metrics), times[name]))
            yield _derived(metrics["gain"], "loss_evaluations", calls[name])
        yield from _break_evens(found, "break_even_seconds", times)
        yield from _break_evens(found, "break_even_evaluations", calls)


def target_rows(rows: list[Row]) -> Iterator[Row]:
    """Seconds until a model reaches its target: steps times the interleaved cost of one; censored if the steps are."""
    costs = {(row.problem, row.estimator): row.value for row in rows if row.metric == "step_time" and row.value is not None}
    for row in rows:
        cost = costs.get((row.problem, row.estimator))
        if row.metric == "steps_to_target" and row.status == "ok" and cost is not None:
            value, low, high = (None if steps is None else steps * cost for steps in (row.value, row.low, row.high))
            yield _derived(row, "seconds_to_target", Interval(value, low, high))


def _break_evens(found: Mapping[str, Mapping[str, Row]], metric: str, costs: Mapping[str, Interval]) -> Iterator[Row]:
    """Break-evens with the reference by both criteria; none if the reference was not measured."""
    for criterion in get_args(Criterion) if REFERENCE in found else ():
        curves: dict[str, Curve | None] = {
            name: error_curve(_intervals(metrics), costs[name], criterion)
            for name, metrics in found.items()
            if costs[name].value is not None
        }
        for name, curve in curves.items():
            if name != REFERENCE:
                row = _derived(found[name]["gain"], metric, break_even(curve, curves.get(REFERENCE)))
                yield replace(row, setting=f"criterion={criterion}")


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


def _intervals(metrics: Mapping[str, Row]) -> dict[str, Interval]:
    return {name: _interval(row) for name, row in metrics.items()}


def _interval(row: Row) -> Interval:
    return Interval(row.value, row.low, row.high, row.interval)


def _place(row: Row) -> _Place:
    return row.problem, row.stage, row.instance, row.loss

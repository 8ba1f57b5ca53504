"""Moments of every estimator on every instance of a problem and stage, in arrays, with what it costs and declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from . import tables

_MOMENTS = ("relative_bias_squared", "relative_variance", "gain")
_MEANS = ("zero_gradient_rate", "loss_evaluations")
_STANDARD_ERRORS = 2 * 1.96


@dataclass(frozen=True, eq=False)
class MetricRows:
    """The rows of one metric at one place.

    Attributes:
        estimators, instances: the number of each row's name among all. ``value``: of each; ``error``: its standard error.
    """

    estimators: np.ndarray
    instances: np.ndarray
    value: np.ndarray
    error: np.ndarray

    def wide(self) -> WideMetric:
        """By estimator and instance, in the order of the rows; where there are several of one, the first."""
        rows, names = pd.factorize(self.estimators)
        columns, items = pd.factorize(self.instances)
        arrays = np.full((2, len(items), len(names)), np.nan)
        # From the last to the first: where there are several, the first stays.
        arrays[:, columns[::-1], rows[::-1]] = np.stack([self.value[::-1], self.error[::-1]])
        return WideMetric(names, items, *arrays)


@dataclass(frozen=True, eq=False)
class WideMetric:
    """One metric of the estimators ``names`` on the instances ``items``, numbers of both; ``value, error`` [instances, estimators]."""

    names: np.ndarray
    items: np.ndarray
    value: np.ndarray
    error: np.ndarray

    def of(self, names: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[estimators, instances] of some of them."""
        places = np.ix_(_positions(self.items, items), _positions(self.names, names))
        value, error = (np.ascontiguousarray(array[places]).T for array in (self.value, self.error))
        return value, error

    def complete(self, items: np.ndarray) -> np.ndarray:
        """The estimators that it is known of on every one of these instances."""
        return np.asarray(self.names[np.isfinite(self.value[_positions(self.items, items)]).all(axis=0)])


def _positions(among: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where each of the wanted numbers stands among others, which are in no order."""
    order = np.argsort(among)
    return np.asarray(order[np.searchsorted(among, wanted, sorter=order)])


@dataclass(frozen=True, eq=False)
class MeasuredPlace:
    """What was measured at one problem and stage.

    Attributes:
        at: the problem and the stage. ``names, items``: of all estimators and instances, by number.
        moments: of bias, variance and gain. ``means``: of zeros and evaluations of the loss, by the name of the estimator.
        seconds: of one estimate, by the number of the estimator.
        declared: who declares itself unbiased for the expected loss.
    """

    at: tuple[str, str]
    names: pd.Index[Any]
    items: pd.Index[Any]
    moments: list[MetricRows]
    means: list[dict[str, float]]
    seconds: dict[int, np.float64]
    declared: dict[str, bool]


def measured_places(rows: pd.DataFrame) -> Iterator[MeasuredPlace]:
    """What rows of `tables.measured` say of each problem and stage, in their order."""
    place = tables.numbered(rows, ["problem", "stage"])
    pairs = list(tables.distinct(rows, ["problem", "stage"]).itertuples(index=False, name=None))
    metric, on_instance = rows["metric"], (rows["instance"] != "").to_numpy()
    moments = [_by_place(rows, place, len(pairs), (metric == name).to_numpy() & on_instance) for name in _MOMENTS]
    means = [_means(rows, place, len(pairs), (metric == name).to_numpy() & on_instance) for name in _MEANS]
    seconds = _by_place(rows, place, len(pairs), (metric == "seconds_per_estimate").to_numpy())
    declared = _declarations(rows, place, len(pairs))
    names, items = rows["estimator"].cat.categories, rows["instance"].cat.categories
    for here, (problem, stage) in enumerate(pairs):
        taken: dict[int, np.float64] = {}
        for name, value in zip(seconds[here].estimators.tolist(), seconds[here].value, strict=True):
            taken.setdefault(name, value)
        own = [found[here] for found in moments], [found[here] for found in means]
        yield MeasuredPlace((str(problem), str(stage)), names, items, *own, taken, declared[here])


def _by_place(rows: pd.DataFrame, place: np.ndarray, count: int, chosen: np.ndarray) -> list[MetricRows]:
    """Chosen rows of each of so many places."""
    at = np.flatnonzero(chosen)
    at = at[np.argsort(place[at], kind="stable")]
    some = rows.iloc[at]
    columns = [some[name].cat.codes.to_numpy() for name in ("estimator", "instance")]
    columns += [some["value"].to_numpy(), ((some["high"] - some["low"]) / _STANDARD_ERRORS).to_numpy()]
    ends = np.searchsorted(place[at], np.arange(1, count))
    return [MetricRows(*parts) for parts in zip(*(np.split(column, ends) for column in columns), strict=True)]


def _means(rows: pd.DataFrame, place: np.ndarray, count: int, chosen: np.ndarray) -> list[dict[str, float]]:
    """The mean over chosen rows of each estimator, for each of so many places."""
    some = rows.loc[chosen, ["estimator", "value"]].assign(place=place[chosen])
    group = tables.numbered(some, ["place", "estimator"])
    means = some["value"].groupby(group).mean()
    found: list[dict[str, float]] = [{} for _ in range(count)]
    for (here, name), value in zip(tables.distinct(some, ["place", "estimator"]).itertuples(index=False, name=None), means, strict=True):
        found[here][name] = float(value)
    return found


def _declarations(rows: pd.DataFrame, place: np.ndarray, count: int) -> list[dict[str, bool]]:
    """Who declares itself unbiased for the expected loss, for each of so many places."""
    first = rows[["estimator", "unbiased", "objective"]].assign(place=place).drop_duplicates(["place", "estimator"])
    unbiased = first["unbiased"] & (first["objective"] == "expected")
    found: list[dict[str, bool]] = [{} for _ in range(count)]
    for here, name, declared in zip(first["place"], first["estimator"], unbiased, strict=True):
        found[here][name] = declared
    return found

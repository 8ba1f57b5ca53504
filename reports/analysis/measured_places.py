"""Moments of every estimator on every instance of a problem and stage, in arrays, with costs and declarations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...suites.base import REFERENCE
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
        """A matrix by estimator and instance, in the order of the rows; the first of several rows counts."""
        rows, names = pd.factorize(self.estimators)
        columns, items = pd.factorize(self.instances)
        value = np.full((len(items), len(names)), np.nan)
        # From the last to the first: where there are several, the first stays.
        value[columns[::-1], rows[::-1]] = self.value[::-1]
        return WideMetric(names, items, value)


@dataclass(frozen=True, eq=False)
class WideMetric:
    """One metric of the estimators ``names`` on the instances ``items``, numbers of both; ``value`` [instances, estimators]."""

    names: np.ndarray
    items: np.ndarray
    value: np.ndarray

    def of(self, names: np.ndarray, items: np.ndarray) -> np.ndarray:
        """[estimators, instances] of some of them."""
        return np.ascontiguousarray(self.value[np.ix_(_positions(self.items, items), _positions(self.names, names))]).T

    def complete(self, items: np.ndarray) -> np.ndarray:
        """The estimators with a value on each of these instances."""
        return np.asarray(self.names[np.isfinite(self.value[_positions(self.items, items)]).all(axis=0)])


def _positions(among: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The position of each wanted number among others, which need not be sorted."""
    order = np.argsort(among)
    return np.asarray(order[np.searchsorted(among, wanted, sorter=order)])


@dataclass(frozen=True, eq=False)
class MeasuredPlace:
    """The measurements of one problem and stage.

    Attributes:
        at: the problem and the stage. ``loss``: its loss. ``names, items``: names of all estimators and instances, by number.
        moments: bias, variance and gain.
        means: rate of zeros and evaluations of the loss, by the name of the estimator.
        seconds: time of one estimate, by the number of the estimator.
        ratios: times relative to `REFERENCE`, by the number of the estimator, with relative standard errors.
            The error of a ratio that was timed once is infinite.
        declared: whether an estimator declares itself unbiased for the expected loss.
    """

    at: tuple[str, str]
    loss: str
    names: pd.Index[Any]
    items: pd.Index[Any]
    moments: list[MetricRows]
    means: list[dict[str, float]]
    seconds: dict[int, float]
    ratios: dict[int, tuple[float, float]]
    declared: dict[str, bool]


def measured_places(rows: pd.DataFrame) -> Iterator[MeasuredPlace]:
    """The rows of `tables.measured` by problem and stage, in their order."""
    place = tables.numbered(rows, ["problem", "stage"])
    pairs = list(tables.distinct(rows, ["problem", "stage"]).itertuples(index=False, name=None))
    metric, on_instance = rows["metric"], (rows["instance"] != "").to_numpy()
    moments = [_by_place(rows, place, len(pairs), (metric == name).to_numpy() & on_instance) for name in _MOMENTS]
    means = [_means(rows, place, len(pairs), (metric == name).to_numpy() & on_instance) for name in _MEANS]
    seconds, ratios = (_by_place(rows, place, len(pairs), (metric == name).to_numpy()) for name in ("seconds_per_estimate", "time_ratio"))
    declared = _declarations(rows, place, len(pairs))
    names, items = rows["estimator"].cat.categories, rows["instance"].cat.categories
    losses = [str(loss) for loss in rows["loss"].astype(object).groupby(place).first()]
    reference = int(names.get_indexer(pd.Index([REFERENCE]))[0])
    for here, (problem, stage) in enumerate(pairs):
        taken = {name: value for name, (value, _) in _first(seconds[here]).items()}
        costs = {name: (value, math.inf if np.isnan(error) else error / value) for name, (value, error) in _first(ratios[here]).items()}
        if not costs and reference in taken:
            # A table from before version 3 of the suite wall_clock: the ratios of medians, whose errors are not known.
            costs = {name: (value / taken[reference], 0.0) for name, value in taken.items()}
        own = [found[here] for found in moments], [found[here] for found in means]
        yield MeasuredPlace((str(problem), str(stage)), losses[here], names, items, *own, taken, costs, declared[here])


def _first(rows: MetricRows) -> dict[int, tuple[float, float]]:
    """The value of each estimator and its standard error, NaN if unknown; of several rows of one estimator the first."""
    columns = (column.tolist() for column in (rows.estimators, rows.value, rows.error))
    return {name: (value, error) for name, value, error in reversed(list(zip(*columns, strict=True)))}


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
    """Whether each estimator declares itself unbiased for the expected loss, for each of so many places."""
    first = rows[["estimator", "unbiased", "objective"]].assign(place=place).drop_duplicates(["place", "estimator"])
    unbiased = first["unbiased"] & (first["objective"] == "expected")
    found: list[dict[str, bool]] = [{} for _ in range(count)]
    for here, name, declared in zip(first["place"], first["estimator"], unbiased, strict=True):
        found[here][name] = declared
    return found

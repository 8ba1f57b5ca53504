"""Small tables as functions of the result table.

The unit of replication is the instance: over instances there are medians and quartiles, never arithmetic means, since ratios to a small
gradient have heavy tails.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ...suites.base import FAILED, timed_nearest
from ...suites.text import ZERO as ZERO
from ...suites.text import interval
from .medians import median_interval, quantiles

T = TypeVar("T")

VERDICTS = ("unbiased-exact", "equivalent", "unresolved", "unresolved: rare events", "biased", "broken")
"""From best to worst. ``unresolved`` means that the test was inconclusive."""

REFERENCE_FAMILIES = ("exact",)
"""Families that compute the truth itself; they take part in every table, but not in the answers."""

CLAIM_METRICS = (
    "relative_bias",
    "relative_variance",
    "relative_mse",
    "cosine",
    "gain",
    "rho",
    "zero_gradient_rate",
    "time_ratio",
    "peak_memory",
)
COST_METRICS = ("seconds_per_estimate", "time_ratio", "peak_memory", "loss_evaluations")
"""Metrics of the cost of an estimate."""

TIMED_SUITES = ("wall_clock", "memory")
"""The suites that measure times and memory, once per problem and not per instance."""

FIRST_SUITES = ("bias", *TIMED_SUITES, "sparsity")
"""If several suites give a metric, the tables use the first of these."""

SPARSITY_METRICS = ("support", "forward_nonzeros", "gradient_nonzeros", "zero_gradient_rate")

_GROUP = ["problem", "stage", "estimator"]


@dataclass(frozen=True)
class Spread:
    """A metric over the instances of one problem and stage.

    Attributes:
        median, lower, upper: the median and the quartiles over instances.
        low, high: a 95 % interval of the median: bootstrap over three instances or more, or that of a single instance; NaN for two.
        instances: their number.
    """

    median: float
    lower: float
    upper: float
    low: float
    high: float
    instances: int

    def __str__(self) -> str:
        """The median with the quartiles in brackets, or with the interval of a single instance."""
        if self.instances == 1:
            return interval(self.median, self.low, self.high)
        return interval(self.median, self.lower, self.upper)


_FIELDS = tuple(Spread.__dataclass_fields__)


def order(frame: pd.DataFrame, column: str) -> list[str]:
    """The values of a column in the order in which the run has them."""
    return [str(value) for value in distinct(frame, [column])[column]]


def records(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table as named tuples."""
    return iter(frame.itertuples(index=False))


def cells(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """The pairs (problem, stage) in the order of the run."""
    pairs = distinct(frame, ["problem", "stage"])
    return [(str(problem), str(stage)) for problem, stage in pairs.itertuples(index=False)]


def distinct(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The combinations of values in some columns of words, in order of appearance, as plain strings."""
    return frame[list(columns)].iloc[_firsts(numbered(frame, columns))].astype(object)


def _firsts(numbers: np.ndarray) -> np.ndarray:
    """The position of the first row of every group that `numbered` gives."""
    return np.flatnonzero(np.diff(np.maximum.accumulate(numbers), prepend=-1))


def remembered(make: Callable[[pd.DataFrame], T]) -> Callable[[pd.DataFrame], T]:
    """The function with a cache for the last table, because a report calls it many times with one table."""
    last: list[tuple[weakref.ref[pd.DataFrame], T]] = []

    @functools.wraps(make)
    def remembering(frame: pd.DataFrame) -> T:
        if not last or last[0][0]() is not frame:
            last[:] = [(weakref.ref(frame), make(frame))]
        return last[0][1]

    return remembering


@remembered
def by_loss(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one loss per problem: problems with several losses are split, with the loss in the name."""
    pairs = distinct(frame, ["problem", "loss"])
    several = pairs.loc[pairs["loss"].ne(""), "problem"].value_counts()
    if not (several > 1).any():
        return frame
    names = frame[["problem", "loss"]].astype(object)
    split = names["problem"].isin(several.index[several > 1]) & names["loss"].ne("")
    return frame.assign(problem=names["problem"].where(~split, names["problem"] + ", " + names["loss"]).astype("category"))


@remembered
def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a number that is no point of a sweep, with words as categories and plain floats.

    The times of a problem are repeated for each of its stages.
    """
    rows = frame[(frame["status"] == "ok") & frame["value"].notna() & (frame["metric"] != "") & (frame["setting"] == "")]
    rows = _once(rows)
    numbers = {name: rows[name].astype("float64") for name in ("value", "low", "high")}
    words = (*_GROUP, "suite", "family", "metric", "instance", "objective", "verdict")
    return _timed_everywhere(rows.assign(**{name: rows[name].astype("category") for name in words}, **numbers))


@remembered
def swept(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a number at one point of a sweep, with plain Python strings and floats."""
    rows = frame[(frame["status"] == "ok") & frame["value"].notna() & (frame["setting"] != "")]
    numbers = {name: rows[name].astype("float64") for name in ("value", "low", "high", "size")}
    strings = {name: rows[name].astype(object) for name in (*_GROUP, "suite", "family", "metric", "instance", "setting")}
    return rows.assign(**strings, **numbers)


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per metric of an instance, if several suites or references give it: the first suite, against the expected loss."""
    key = numbered(rows, [*_GROUP, "instance", "metric"])
    if key.max(initial=-1) + 1 == len(rows):
        return rows
    suites, names = pd.factorize(rows["suite"])
    ranks = {name: rank for rank, name in enumerate(FIRST_SUITES)}
    rank = 2 * np.array([ranks.get(str(name), len(ranks)) for name in names], dtype=int)[suites] + ~rows["reference"].isin(["", "expected"])
    order = np.lexsort((rank, key))
    first = np.concatenate([[True], np.diff(key[order]) != 0])[: len(order)]
    return rows.iloc[np.sort(order[first])]


def numbered(rows: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """The group of each row by some columns of words, numbered from 0 in order of appearance."""
    groups, most = np.zeros(len(rows), dtype=np.int64), 1
    for name in columns:
        codes, count = _codes(rows[name])
        if most * count >= 2**62:
            groups, most = pd.factorize(groups)[0].astype(np.int64), len(rows)
        groups, most = groups * count + codes, most * count
    return np.asarray(pd.factorize(groups)[0])


def _codes(words: pd.Series[Any]) -> tuple[np.ndarray, int]:
    """A code for each word, and the number of codes; a category has them already."""
    if isinstance(words.dtype, pd.CategoricalDtype):
        return words.cat.codes.to_numpy().astype(np.int64) + 1, len(words.cat.categories) + 1
    codes, names = pd.factorize(words, use_na_sentinel=False)
    return codes, max(len(names), 1)


def _timed_everywhere(rows: pd.DataFrame) -> pd.DataFrame:
    """Times are measured at one stage and for one loss of the same scores; the others get the nearest, see `timed_nearest`."""
    timed = rows["suite"].isin(TIMED_SUITES)
    if not timed.any():
        return rows.reset_index(drop=True)
    timing = rows[timed]
    missing = distinct(rows[~timed], _GROUP)
    missing = missing.merge(distinct(timing, _GROUP), how="left", indicator=True)
    missing = missing.loc[missing["_merge"] == "left_only", _GROUP]
    known: dict[tuple[str, ...], int] = {}
    for position, (problem, stage, estimator, metric) in enumerate(timing[[*_GROUP, "metric"]].itertuples(index=False, name=None)):
        for key in timed_nearest(problem, stage):
            known.setdefault((*key, estimator, metric), position)
    given = [
        (nearest, problem, stage)
        for problem, stage, estimator in missing.itertuples(index=False, name=None)
        for metric in timing["metric"].drop_duplicates()
        if (nearest := next((known[at] for key in timed_nearest(problem, stage) if (at := (*key, estimator, metric)) in known), None))
        is not None
    ]
    positions, problems, stages = zip(*given, strict=True) if given else ((), (), ())
    places = {name: pd.Categorical(list(found), rows[name].cat.categories) for name, found in (("problem", problems), ("stage", stages))}
    return pd.concat([rows, timing.iloc[list(positions)].assign(**places)], ignore_index=True)


@remembered
def aggregate(frame: pd.DataFrame) -> pd.DataFrame:
    """Every metric over instances: one row per problem, stage, estimator and metric, with the fields of `Spread`."""
    rows = measured(frame)
    keys = [*_GROUP, "family", "metric"]
    group = numbered(rows, keys)
    table = rows[keys].iloc[_firsts(group)].astype(object).reset_index(drop=True)
    sizes = np.bincount(group, minlength=len(table))
    starts = np.cumsum(sizes) - sizes
    numbers = rows[["value", "low", "high"]].to_numpy(dtype=float)[np.argsort(group, kind="stable")]
    spread = np.empty((len(table), 5))
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        spread[same] = _spread(numbers[starts[same][:, None] + np.arange(size)])
    return table.assign(**dict(zip(_FIELDS, spread.T, strict=False)), instances=sizes)


def _spread(numbers: np.ndarray) -> np.ndarray:
    """[group, instance, (value, low, high)] -> [group, (median, lower, upper, low, high)]."""
    values = numbers[..., 0]
    lower, median, upper = quantiles(values, (0.25, 0.5, 0.75))
    low, high = numbers[:, 0, 1:].T if values.shape[1] == 1 else median_interval(values)
    return np.stack([median, lower, upper, low, high], axis=-1)


@remembered
def spreads(frame: pd.DataFrame) -> dict[tuple[str, str, str, str], Spread]:
    """`Spread` by (problem, stage, estimator, metric)."""
    table = aggregate(frame)
    keys = table[[*_GROUP, "metric"]].itertuples(index=False, name=None)
    return {key: Spread(*row) for key, row in zip(keys, table[list(_FIELDS)].itertuples(index=False, name=None), strict=True)}


def _judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with a number or a verdict: a verdict may stand without a number if events are too rare, or estimates NaN or infinite."""
    known = (frame["status"] == "ok") & (frame["metric"] != "") & (frame["setting"] == "")
    return _once(frame[known & (frame["value"].notna() | (frame["verdict"] != "")) | (frame["verdict"] == "broken")])


@remembered
def verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """The verdict of every problem, stage and estimator: the worst over instances, and how many instances share it."""
    rows = _judged(frame)
    rows = rows[rows["verdict"] != ""]
    group, (codes, words) = numbered(rows, _GROUP), pd.factorize(rows["verdict"])
    rank = np.array([VERDICTS.index(word) for word in words], dtype=int)[codes]
    table = distinct(rows, _GROUP).reset_index(drop=True)
    worst = np.zeros(len(table), dtype=int)
    np.maximum.at(worst, group, rank)
    counts = {"sharing": rank == worst[group], "instances": np.ones_like(rank)}
    told = pd.Series([VERDICTS[place] for place in worst], dtype=None if len(table) else object)
    return table.assign(verdict=told, **{name: np.bincount(group, given, len(table)).astype(int) for name, given in counts.items()})


@remembered
def bias_bounds(frame: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Median over instances of the upper 95 % ends of undecided biases, by (problem, stage, estimator).

    A bias of 0 from samples is not known to be 0: only its bound is known.
    """
    rows = measured(frame)
    rows = rows[(rows["metric"] == "relative_bias") & rows["high"].notna()]
    worst = verdicts(frame).set_index(_GROUP)["verdict"]
    uncertain = set(worst.index[worst.isin(["equivalent", "unresolved"])])
    ends = rows["high"].groupby(numbered(rows, _GROUP)).median()
    keys = distinct(rows, _GROUP).itertuples(index=False, name=None)
    return {key: float(end) for key, end in zip(keys, ends, strict=True) if key in uncertain}


def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Declarations and measurements: one row per problem, stage and estimator; metrics are `Spread` or None.

    ``contradicted`` is true if an estimator that declares itself unbiased for the expected loss is found biased. ``bias_bound`` is that of
    `bias_bounds`, else NaN.
    """
    table = declared(frame)
    contradicted = table.pop("contradicted")
    known = spreads(frame)
    for metric in CLAIM_METRICS:
        table[metric] = _lookup(table, metric, known)
    bounds = bias_bounds(frame)
    table["bias_bound"] = [bounds.get(key, math.nan) for key in table[_GROUP].itertuples(index=False, name=None)]
    table["contradicted"] = contradicted
    return table.reset_index(drop=True)


def declared(frame: pd.DataFrame) -> pd.DataFrame:
    """`claims` without measurements other than the verdict."""
    rows = _judged(frame)
    words = [*_GROUP, "family", "objective"]
    rows = rows[[*words, "unbiased", "deterministic"]].iloc[_firsts(numbered(rows, _GROUP))].astype(dict.fromkeys(words, object))
    table = rows.merge(verdicts(frame), on=_GROUP, how="left").fillna({"verdict": ""})
    return table.assign(contradicted=table["unbiased"] & (table["objective"] == "expected") & table["verdict"].isin(["biased", "broken"]))


def costs(frame: pd.DataFrame) -> pd.DataFrame:
    """Costs of one estimate: medians over instances, one row per problem, stage and estimator; NaN: not measured."""
    rows = aggregate(frame)
    rows = rows[rows["metric"].isin(COST_METRICS)]
    wide = rows.pivot_table(index=_GROUP, columns="metric", values="median", sort=False, observed=True).reindex(columns=list(COST_METRICS))
    return wide.reset_index()


def _lookup(table: pd.DataFrame, metric: str, known: dict[tuple[str, str, str, str], Spread]) -> pd.Series[Any]:
    found = [known.get((*key, metric)) for key in table[_GROUP].itertuples(index=False, name=None)]
    return pd.Series(found, index=table.index, dtype=object)


def summary(frame: pd.DataFrame, metric: str = "relative_mse") -> pd.DataFrame:
    """One metric at a glance: rows are estimators, columns (problem, stage), values `Spread` or None."""
    known = spreads(frame)
    columns = cells(measured(frame))
    estimators = order(measured(frame), "estimator")
    table = {pair: [known.get((*pair, estimator, metric)) for estimator in estimators] for pair in columns}
    index = pd.Index(estimators, name="estimator")
    return pd.DataFrame(table, index=index, columns=pd.MultiIndex.from_tuples(columns, names=["problem", "stage"]), dtype=object)


def sparsity(frame: pd.DataFrame) -> pd.DataFrame:
    """Numbers of structures and parts that every estimator uses; ``structures`` is the median number that exist."""
    rows = measured(frame)
    rows = rows[rows["metric"].isin(SPARSITY_METRICS)]
    table = distinct(rows, _GROUP).reset_index(drop=True)
    known = spreads(frame)
    table["structures"] = pd.Series(np.exp(rows["log_count"].astype("float64"))).groupby(numbered(rows, _GROUP)).median().to_numpy()
    for metric in SPARSITY_METRICS:
        table[metric] = _lookup(table, metric, known)
    return table[table[list(SPARSITY_METRICS[:3])].notna().any(axis=1)].reset_index(drop=True)


def skipped(frame: pd.DataFrame) -> pd.DataFrame:
    """The pairs that were not measured, with the reason and the problems they belong to."""
    rows = frame[frame["status"] == "skipped"].astype(object)
    groups = rows.groupby(["estimator", "oracle", "loss", "reason"], sort=False)
    records = [(*key, ", ".join(sorted(set(filter(None, group["problem"]))))) for key, group in groups]
    return pd.DataFrame(records, columns=["estimator", "oracle", "loss", "reason", "problems"])


def errors(frame: pd.DataFrame) -> pd.DataFrame:
    """The failed rows, with reasons."""
    rows = frame[frame["status"].isin([*FAILED, "nonfinite"])].astype(object)
    columns = ["problem", "stage", "instance", "estimator", "suite", "status", "reason", "traceback"]
    return rows[columns].drop_duplicates().reset_index(drop=True)


def counts(frame: pd.DataFrame) -> dict[str, int]:
    """Number of cells that are ok, failed and skipped; a cell with one failed row failed. Those with NaN, if any, are ``broken`` too."""
    kept = distinct(frame[(frame["cell"] != "") | (frame["status"] == "skipped")], ["cell", "problem", "estimator", "status"])
    cell = kept["cell"].where(kept["cell"] != "", kept["problem"] + "/" + kept["estimator"])
    failed = set(cell[kept["status"].isin(FAILED)])
    measured = set(cell[kept["status"] != "skipped"])
    broken = {"broken": frame["cell"][frame["verdict"] == "broken"].nunique()}
    found = {"ok": len(measured - failed), "failed": len(failed), "skipped": len(set(cell) - measured)}
    return found | (broken if broken["broken"] else {})

"""Small tables as functions of the result table.

The unit of replication is the instance. Tables have medians and quartiles over instances, and no means: ratios to a small gradient have
heavy tails.
"""

import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from ...suites.base import FAILED, timed_nearest
from ...suites.comparison.pairs import identities as identities, items_of as items_of
from ...suites.text import ZERO as ZERO, interval
from ..published import REFERENCE_FAMILIES as REFERENCE_FAMILIES

P = ParamSpec("P")
T = TypeVar("T")

VERDICTS = {
    "unbiased-exact": (
        "=",
        "green",
        "the bias is 0 up to rounding: all random outcomes were enumerated, or the estimator is deterministic",
    ),
    "equivalent": ("≈", "cyan", "the 95 % interval of the bias lies inside the margin below which a bias counts as none"),
    "unresolved": ("?", "yellow", "the number of replicates proves neither; this is no evidence that there is no bias"),
    "unresolved: rare events": ("?", "yellow", "too few replicates differ from the most frequent one to measure more than their share"),
    "biased": ("≠", "", "the test finds a bias"),
    "broken": ("!", "red", "estimates are NaN or infinite"),
}
"""The verdicts of the test for bias, from best to worst: symbol and colour on a terminal, and meaning."""

COST_METRICS = ("seconds_per_estimate", "time_ratio", "peak_memory", "loss_evaluations")  # metrics of the cost of an estimate
TIMED_SUITES = ("wall_clock", "memory")  # the suites that measure times and memory, once per problem and not per instance
FIRST_SUITES = ("bias", *TIMED_SUITES, "sparsity")  # if several suites give a metric, the tables use the first of these

SPARSITY_METRICS = ("support", "forward_nonzeros", "gradient_nonzeros", "zero_gradient_rate")

_GROUP = ["problem", "stage", "estimator"]
_RESAMPLES = 1000


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a metric over the instances of one problem and stage."""

    median: float
    lower: float
    upper: float
    low: float  # of a 95 % interval: bootstrap over three instances or more, or that of a single instance; NaN for two
    high: float
    instances: int

    def __str__(self) -> str:
        """The median with the quartiles in brackets, or with the interval of a single instance."""
        return interval(self.median, *((self.low, self.high) if self.instances == 1 else (self.lower, self.upper)))


_FIELDS = tuple(Spread.__dataclass_fields__)


def order(frame: pd.DataFrame, column: str) -> list[str]:
    """The values of a column in the order in which the run has them."""
    return [str(value) for value in distinct(frame, [column])[column]]


def distinct(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The combinations of values in some columns of words, in order of appearance, as plain strings."""
    return frame[list(columns)].drop_duplicates().astype(object).reset_index(drop=True)


def remembered(make: Callable[Concatenate[pd.DataFrame, P], T]) -> Callable[Concatenate[pd.DataFrame, P], T]:
    """The function with a cache for its last arguments, because a report calls it many times with one table."""
    last: list[tuple[weakref.ref[pd.DataFrame], Any, T]] = []

    @functools.wraps(make)
    def remembering(frame: pd.DataFrame, /, *more: P.args, **named: P.kwargs) -> T:
        if not last or last[0][0]() is not frame or last[0][1] != (more, named):
            last[:] = [(weakref.ref(frame), (more, named), make(frame, *more, **named))]
        return last[0][2]

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
    """The rows with a number that is no point of a sweep, as categories and plain floats; times are repeated for each stage."""
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
    ranks = {name: rank for rank, name in enumerate(FIRST_SUITES)}
    suites = rows["suite"].astype(object).map(ranks).fillna(len(ranks)).to_numpy(dtype=float)
    order = np.lexsort((~rows["reference"].isin(["", "expected"]), suites))
    return rows.reset_index(drop=True).iloc[order].drop_duplicates([*_GROUP, "instance", "metric"]).sort_index()


def _timed_everywhere(rows: pd.DataFrame) -> pd.DataFrame:
    """Times are measured at one stage and for one loss of the same scores; the others get the nearest, see `timed_nearest`."""
    timed = rows["suite"].isin(TIMED_SUITES)
    timing, known = rows[timed], dict[tuple[str, ...], int]()
    for position, (problem, stage, estimator, metric) in enumerate(timing[[*_GROUP, "metric"]].itertuples(index=False, name=None)):
        for key in timed_nearest(problem, stage):
            known.setdefault((*key, estimator, metric), position)
    own, metrics = set(distinct(timing, _GROUP).itertuples(index=False, name=None)), timing["metric"].drop_duplicates()
    given = []
    for problem, stage, estimator in distinct(rows[~timed], _GROUP).itertuples(index=False, name=None):
        for metric in metrics if (problem, stage, estimator) not in own else ():
            nearest = (known[at] for key in timed_nearest(problem, stage) if (at := (*key, estimator, metric)) in known)
            given += [(position, problem, stage) for position in itertools.islice(nearest, 1)]
    positions, problems, stages = zip(*given, strict=True) if given else ((), (), ())
    places = {name: pd.Categorical(list(found), rows[name].cat.categories) for name, found in (("problem", problems), ("stage", stages))}
    return pd.concat([rows, timing.iloc[list(positions)].assign(**places)], ignore_index=True)


@remembered
def aggregate(frame: pd.DataFrame) -> pd.DataFrame:
    """Every metric over instances: one row per problem, stage, estimator and metric, with the fields of `Spread`."""
    rows = measured(frame)
    keys = [*_GROUP, "family", "metric"]
    group, table = identities(rows, keys), distinct(rows, keys)
    sizes = np.bincount(group, minlength=len(table))
    starts = np.cumsum(sizes) - sizes
    numbers = rows[["value", "low", "high"]].to_numpy(dtype=float)[np.argsort(group, kind="stable")]
    spread = np.empty((5, len(table)))
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        values, *ends = np.moveaxis(numbers[starts[same][:, None] + np.arange(size)], -1, 0)
        lower, median, upper = _quantiles(values, (0.25, 0.5, 0.75))
        spread[:, same] = [median, lower, upper, *(np.ravel(ends).reshape(2, -1) if size == 1 else median_interval(values))]
    return table.assign(**dict(zip(_FIELDS, spread, strict=False)), instances=sizes)


def _quantiles(values: np.ndarray, probabilities: tuple[float, ...]) -> np.ndarray:
    """Quantiles along the last axis that stay infinite, and do not become NaN, where values are infinite."""
    method: Literal["linear", "inverted_cdf"] = "linear" if np.isfinite(values).all() else "inverted_cdf"
    return np.asarray(np.quantile(values, probabilities, axis=-1, method=method))


def median_interval(values: np.ndarray) -> np.ndarray:
    """The 95 % percentile bootstrap of the median [2, groups] of values [groups, instances]; NaN for fewer than three instances."""
    size = values.shape[1]
    if size < 3:
        return np.full((2, len(values)), math.nan)
    # The resamples are the same in every call, so that a report can be repeated.
    # The middle of a resample of sorted values is at the middle of the drawn ranks.
    ranks = np.sort(np.random.default_rng(size).integers(size, size=(_RESAMPLES, size)), axis=1)[:, [(size - 1) // 2, size // 2]]
    ordered = np.sort(values, axis=-1)
    medians = [ordered[start : start + 1000][:, ranks].mean(-1) for start in range(0, len(values), 1000)]
    return np.concatenate([_quantiles(part, (0.025, 0.975)) for part in medians], axis=1)


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
    group, rank = identities(rows, _GROUP), pd.Series(list(map(list(VERDICTS).index, rows["verdict"])), dtype=int)
    worst = rank.groupby(group).max()
    sharing = (rank == worst.reindex(group).to_numpy()).groupby(group).sum()
    words = pd.Series(list(VERDICTS), dtype=object).reindex(worst).to_numpy()
    return distinct(rows, _GROUP).assign(verdict=words, sharing=sharing, instances=rank.groupby(group).size())


@remembered
def bias_bounds(frame: pd.DataFrame) -> dict[Any, float]:
    """Median over instances of the upper 95 % ends of undecided biases, by (problem, stage, estimator)."""
    rows = measured(frame)
    rows = rows[(rows["metric"] == "relative_bias") & rows["high"].notna()]
    worst = verdicts(frame).set_index(_GROUP)["verdict"]
    ends = rows.groupby(_GROUP, observed=True, sort=False)["high"].median()
    return ends[ends.index.isin(worst.index[worst.isin(["equivalent", "unresolved"])])].to_dict()


@remembered
def claims(frame: pd.DataFrame) -> pd.DataFrame:
    """Declarations and measurements: one row per problem, stage and estimator, with bias and gain as `Spread` or None.

    ``contradicted`` is true if an estimator that declares itself unbiased for the expected loss is found biased.
    """
    words = [*_GROUP, "family", "objective"]
    rows = _judged(frame)[[*words, "unbiased", "deterministic"]].drop_duplicates(_GROUP).astype(dict.fromkeys(words, object))
    table = rows.merge(verdicts(frame), on=_GROUP, how="left").fillna({"verdict": ""})
    contradicted = table["unbiased"] & (table["objective"] == "expected") & table["verdict"].isin(["biased", "broken"])
    bounds, known, keys = bias_bounds(frame), spreads(frame), list(table[_GROUP].itertuples(index=False, name=None))
    found = {name: pd.Series([known.get((*key, name)) for key in keys], dtype=object) for name in ("relative_bias", "gain")}
    return table.assign(**found, bias_bound=[bounds.get(key, math.nan) for key in keys], contradicted=contradicted)


def sparsity(frame: pd.DataFrame) -> pd.DataFrame:
    """The estimators whose numbers of used structures and parts were counted, with the median number of ``structures`` that exist."""
    rows = measured(frame)
    rows = rows[rows["metric"].isin(SPARSITY_METRICS[:3])]
    counts = pd.Series(np.exp(rows["log_count"].astype("float64"))).groupby(identities(rows, _GROUP)).median()
    return distinct(rows, _GROUP).assign(structures=counts)


def skipped(frame: pd.DataFrame) -> pd.DataFrame:
    """The pairs that were not measured, with the reason and the problems they belong to."""
    rows = frame[frame["status"] == "skipped"].astype(object)
    groups = rows.groupby(["estimator", "oracle", "loss", "reason"], sort=False)["problem"]
    return groups.agg(lambda names: ", ".join(sorted(set(filter(None, names))))).rename("problems").reset_index()


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

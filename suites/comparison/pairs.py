"""Numbers of two runs in pairs, their errors, and how much a number changed.

Two estimates from the same random numbers are compared batch by batch, so that their common noise cancels. Estimates from different random
numbers keep both errors: a stored baseline is an estimate too.

Reference:
    Efron & Tibshirani 1993, "An introduction to the bootstrap", section 11.5 (delete-one-group jackknife).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals
from scipy import special

from ..base import FAILED, Row, to_frame
from ..metrics import RTOL, rule_of
from ..statistics.interval import BATCHES, LEVEL

KEY = ["suite", "problem", "stage", "instance", "loss", "estimator", "metric", "setting", "reference", "dtype", "device"]
"""Columns that identify a number in every run."""

PLACE = [name for name in KEY if name != "metric"]  # equal for all metrics of an estimator on an instance

CELL = ["suite", "problem", "stage", "estimator"]  # columns of a cell, which fails as a whole

VERSIONS = ["schema_version", "suite_version", "oracle_version", "estimator_version"]
SCORES = ["log_count", "entropy", "truth_norm"]  # columns that differ if the scores of a problem differ

_NUMBERS = [*VERSIONS, *SCORES, "value", "low", "high", "replicates", "seed", "p_value"]
_WORDS = [*KEY, "status", "reason", "interval", "unit", "tier", "objective", "verdict"]
COLUMNS = [*_WORDS, *_NUMBERS, "batches", "unbiased", "deterministic"]  # columns of the result table that a comparison reads
POOLED = ("accuracy",)  # metrics of training that are compared as means over the seeds that both runs have

_NORMAL = 1e9  # degrees of freedom at which Student's law is the normal law

AT_GAIN = {"relative_variance": 2, "relative_mse": 2, "orthogonal_bias": 1, "null_bias": 1}
"""Errors that shrink with the estimate, and the power of the gain by which they do."""

Statistic = Callable[[np.ndarray, np.ndarray], np.ndarray]  # a function of the numbers of the base and the head ``[pair, batch]``


def prepared(rows: pd.DataFrame | Iterable[Row]) -> pd.DataFrame:
    """The columns that a comparison reads: numbers as floats with NaN, names as categories."""
    frame = rows if isinstance(rows, pd.DataFrame) else to_frame(rows)
    return frame[COLUMNS].astype({**dict.fromkeys(_NUMBERS, "float64"), **dict.fromkeys(_WORDS, "category")}).reset_index(drop=True)


def is_compared(frame: pd.DataFrame) -> pd.Series:
    """Whether each row holds a number that is compared, and not a failure, a time or a part of the replicates."""
    metrics = [name for name in frame["metric"].unique() if name and rule_of(name).role != "never"]
    parts = [name for name in frame["setting"].unique() if name.startswith("replicates=")]
    return frame["metric"].isin(metrics) & ~frame["setting"].isin(parts) & frame["status"].ne("skipped")


def identities(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """A number for each row, equal for rows that are equal in these columns."""
    return frame.groupby(list(columns), observed=True, sort=False, dropna=False).ngroup().to_numpy()


def items_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table as tuples with the names of its columns."""
    yield from frame.itertuples(index=False)


@dataclass(frozen=True)
class Pairs:
    """The numbers of two runs side by side."""

    keys: pd.DataFrame  # columns `KEY` of each pair
    rows: pd.DataFrame  # of both runs
    places: np.ndarray  # positions in ``rows`` of the base and the head of each pair, [pair, 2]; −1 for none
    failure: np.ndarray  # position of the failure that explains why the head has no number; −1 for none

    def column(self, name: str, places: np.ndarray) -> np.ndarray:
        """Values of a column at some positions; NaN, or an empty text, at −1."""
        column = self.rows[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            return np.asarray(np.append(column.cat.categories.to_numpy(object), "")[np.append(column.cat.codes, -1)[places]])
        return np.asarray(np.append(column.to_numpy(float), np.nan)[places])

    def both(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Values of a column in the base and in the head."""
        return self.column(name, self.places[:, 0]), self.column(name, self.places[:, 1])


def matched(base: pd.DataFrame, head: pd.DataFrame) -> Pairs:
    """Pair the numbers of two prepared runs, in the order of the head, then of the base; the last row of equal keys counts.

    Numbers that differ only in dtype or device are paired too. A failed cell is a pair of its own if the other run has no number of it, or
    has repaired it.
    """
    base, head = pooled(base, head)
    rows = pd.DataFrame({name: _joined(head[name], base[name]) for name in COLUMNS})
    side = np.where(np.arange(len(rows)) < len(head), 1, 0)
    numbers = np.flatnonzero(is_compared(rows))
    ids = identities(rows, KEY)
    places = np.full((ids.max(initial=-1) + 1, 2), -1)
    places[ids[numbers], side[numbers]] = numbers
    places = places[(places >= 0).any(1)]
    alone = [np.flatnonzero(places[:, 1 - one] < 0) for one in (0, 1)]
    if all(map(len, alone)):
        twins = identities(rows, [name for name in KEY if name not in ("dtype", "device")])
        first = [pd.Series(found, twins[places[found, one]]) for one, found in enumerate(alone)]
        first = [found[~found.index.duplicated()] for found in first]
        common = first[0].index.intersection(first[1].index)
        places[first[1][common], 0] = places[first[0][common], 0]
        places = np.delete(places, first[0][common], axis=0)
    cells = identities(rows, CELL)
    failed = np.flatnonzero(rows["status"].isin(FAILED) & rows["metric"].eq(""))
    failures, last = (np.full((cells.max(initial=-1) + 1, 2), -1) for _ in range(2))
    failures[cells[failed], side[failed]] = failed
    for one in (0, 1):
        there = places[places[:, one] >= 0, one]
        last[cells[there], one] = there
    new = failures[(failures[:, 1] >= 0) & (last[:, 0] < 0)]
    repaired = (failures[:, 0] >= 0) & (failures[:, 1] < 0) & (last[:, 1] >= 0)
    named = np.concatenate([np.where(places[:, 1] >= 0, places[:, 1], places[:, 0]), new[:, 1], failures[repaired, 0]])
    places = np.concatenate([places, new, np.stack([failures[repaired, 0], last[repaired, 1]], 1)])
    return Pairs(rows.loc[named, KEY].reset_index(drop=True), rows, places, failures[cells[named], 1])


def _joined(first: pd.Series, second: pd.Series) -> pd.Series:
    if isinstance(first.dtype, pd.CategoricalDtype):
        return pd.Series(union_categoricals([first, second], ignore_order=True))
    return pd.concat([first, second], ignore_index=True)


def pooled(base: pd.DataFrame, head: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both runs with one row for all seeds of a model: their mean over the seeds that both runs have.

    The batches of this row are the means without each of these seeds, so that two runs are compared seed by seed. Rows with fewer than two
    seeds in common stay.
    """
    place = [name for name in KEY if name != "instance"]
    learnt = [frame["suite"].eq("learning") & frame["metric"].isin(POOLED) & frame["instance"].ne("") for frame in (base, head)]
    if not all(rows.any() for rows in learnt):
        return base, head
    frames = [frame.astype(dict.fromkeys([*KEY, "tier"], str)) for frame in (base, head)]
    known = [frame[rows & frame["value"].notna()].drop_duplicates(KEY, keep="last") for frame, rows in zip(frames, learnt, strict=True)]
    common = known[0][KEY].merge(known[1][KEY])
    common = common[common.groupby(place)["instance"].transform("size") > 1]
    result = []
    for frame, rows, seeds in zip(frames, learnt, known, strict=True):
        means = []
        for _, one in seeds.merge(common).sort_values("instance").groupby(place, sort=False):
            values = one["value"].to_numpy(float)
            mean = one.iloc[:1].assign(instance="", value=values.mean(), tier="mc", replicates=float(len(values)))
            means.append(mean.assign(batches=pd.Series([(values.sum() - values) / (len(values) - 1)], mean.index)))
        replaced = rows & pd.MultiIndex.from_frame(frame[place]).isin(pd.MultiIndex.from_frame(common[place]))
        result.append(prepared(pd.concat([frame[~replaced], *means])))
    return result[0], result[1]


@dataclass(frozen=True)
class Estimates:
    """Numbers with their errors, one per pair."""

    value: np.ndarray  # NaN for none
    error: np.ndarray  # standard errors; 0 if exact, NaN if unknown
    degrees: np.ndarray  # degrees of freedom of the errors
    batches: np.ndarray  # the numbers without each batch of replicates, [pair, batch], NaN if there are fewer
    exact: np.ndarray  # whether the row has no sampling error

    @property
    def known(self) -> np.ndarray:
        """Whether each estimate has a value."""
        return np.asarray(np.isfinite(self.error) & ~np.isnan(self.value))

    @property
    def count(self) -> np.ndarray:
        """The number of batches of each estimate."""
        return np.asarray((~np.isnan(self.batches)).sum(1))

    def __getitem__(self, rows: np.ndarray) -> Self:
        return type(self)(*(one[rows] for one in vars(self).values()))

    @classmethod
    def of(cls, pairs: Pairs, places: np.ndarray) -> Self:
        """The estimates in some rows; the error follows from the batches, else is 0 for exact numbers, else follows from the interval."""
        value, low, high = (pairs.column(name, places) for name in ("value", "low", "high"))
        column = pairs.rows["batches"].to_numpy()
        lists = [column[place] if place >= 0 else () for place in places]
        sizes = np.array([0 if one is None else len(one) for one in lists], int)
        batches = np.full((len(places), sizes.max(initial=0)), np.nan)  # also of a row that has fewer than two, or one that is not finite
        for size in np.unique(sizes[sizes > 1]):
            rows = np.flatnonzero(sizes == size)
            numbers = np.array([lists[row] for row in rows], float)
            batches[rows, :size] = np.where(np.isfinite(numbers).all(1, keepdims=True), numbers, np.nan)
        count = (~np.isnan(batches)).sum(1)
        exact = is_exact(pairs, places)
        by_batches = np.isin(pairs.column("interval", places), ("jackknife", "profile"))
        quantile = np.where(by_batches, special.stdtrit(BATCHES - 1, (1 + LEVEL) / 2), special.ndtri((1 + LEVEL) / 2))
        with np.errstate(invalid="ignore"):
            error = np.where(count > 1, jackknife(batches), np.where(exact, 0.0, (high - low) / 2 / quantile))
        degrees = np.where(count > 1, count - 1.0, np.where(by_batches & ~exact, BATCHES - 1.0, _NORMAL))
        return cls(value, error, degrees, batches, exact)

    def at_gain(self, gain: Self, metric: np.ndarray, known: np.ndarray) -> Self:
        """Errors ``[pair]`` of ``ĝ / γ``, whose expectation has the right length, for known gains γ and the same batches of both."""
        square = np.array([AT_GAIN[name] == 2 for name in metric], bool)[:, None]
        mse = (metric == "relative_mse")[:, None]

        def divided(error: np.ndarray, size: np.ndarray) -> np.ndarray:
            return np.where(mse, error - (size - 1) ** 2, error) / np.where(square, size**2, np.abs(size))

        width = min(self.batches.shape[1], gain.batches.shape[1])
        with np.errstate(divide="ignore", invalid="ignore"):
            value = divided(self.value[:, None], gain.value[:, None])[:, 0]
            batches = divided(self.batches[:, :width], gain.batches[:, :width])
        same, several = self.count == gain.count, self.count > 1
        exactly = (self.error == 0) & (gain.error == 0)
        error = np.where(known & same & several, jackknife(batches), np.where(known & same & exactly, 0.0, np.nan))
        return type(self)(value, error, np.where(several, self.count - 1.0, _NORMAL), batches, self.exact)


def is_exact(pairs: Pairs, places: np.ndarray) -> np.ndarray:
    """Whether rows have no sampling error: the exact tier, a count, or bytes."""
    tier = pairs.column("tier", places)
    plain = (tier == "") & np.isnan(pairs.column("replicates", places))
    counted = np.isnan(pairs.column("low", places)) & (plain | (pairs.column("unit", places) == "count"))
    return np.asarray((tier == "exact") | counted)


def jackknife(without: np.ndarray) -> np.ndarray:
    """Standard errors ``[pair]`` of numbers without each batch ``[pair, batch]``; NaN batches do not count."""
    count = (~np.isnan(without)).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        centred = without - (np.nansum(without, 1) / count)[:, None]
        return np.asarray(np.sqrt((count - 1) / count * np.nansum(np.square(centred), 1)))


def contrast(statistic: Statistic, base: Estimates, head: Estimates, paired: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A statistic of two numbers, its standard error and degrees of freedom, each ``[pair]``.

    Batches are compared one by one if ``paired``. Else the errors of both sides add up in squares, with Welch's degrees of freedom.
    """

    def spread(side: Estimates, of_side: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        step = np.minimum(side.error, np.abs(side.value) / 2)
        step = np.where(step == 0, side.error, step)
        slope = np.abs(of_side((side.value + step)[:, None]) - of_side((side.value - step)[:, None]))[:, 0] / 2 * (side.error / step)
        return np.where(side.error == 0, 0.0, np.where(side.count > 1, jackknife(of_side(side.batches)), slope))

    with np.errstate(all="ignore"):
        estimate = statistic(base.value[:, None], head.value[:, None])[:, 0]
        width = min(base.batches.shape[1], head.batches.shape[1])
        together = jackknife(statistic(base.batches[:, :width], head.batches[:, :width]))
        errors = spread(base, lambda x: statistic(x, head.value[:, None])), spread(head, lambda x: statistic(base.value[:, None], x))
        weights = sum(np.where(error > 0, error**4 / side.degrees, 0.0) for error, side in zip(errors, (base, head), strict=True))
        welch = np.where(weights > 0, (errors[0] ** 2 + errors[1] ** 2) ** 2 / weights, _NORMAL)
    return estimate, np.where(paired, together, np.hypot(*errors)), np.where(paired, base.count - 1.0, welch)


def p_above(estimate: np.ndarray, error: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """p-values ``[pair]`` of "it is not above 0"."""
    certain = (error == 0) | ~np.isfinite(estimate)
    with np.errstate(all="ignore"):
        return np.where(certain, np.where(estimate > 0, 0.0, 1.0), special.stdtr(degrees, -estimate / np.where(certain, 1.0, error)))


def is_close(first: np.ndarray, second: np.ndarray, absolute: float | np.ndarray = 1e-12, relative: float = RTOL) -> np.ndarray:
    """Whether numbers agree up to rounding, as `math.isclose`."""
    with np.errstate(invalid="ignore"):
        near = np.abs(first - second) <= np.maximum(relative * np.maximum(np.abs(first), np.abs(second)), absolute)
    return np.asarray((first == second) | (near & np.isfinite(first) & np.isfinite(second)))

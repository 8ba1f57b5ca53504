"""Pairs of numbers: which row of one run belongs to which row of another run, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import union_categoricals

from ..base import FAILED, Row
from ..frames import to_frame
from ..metrics import rule_of

KEY = ["suite", "problem", "stage", "instance", "loss", "estimator", "metric", "setting", "reference", "dtype", "device"]
"""Columns that identify a number in every run."""

CELL = ["suite", "problem", "stage", "estimator"]
"""Columns of a cell, which fails as a whole."""

VERSIONS = ["schema_version", "suite_version", "oracle_version", "estimator_version"]
SCORES = ["log_count", "entropy", "truth_norm"]
"""Columns that differ if the scores of a problem differ."""

_NUMBERS = [*VERSIONS, *SCORES, "value", "low", "high", "replicates", "seed", "p_value"]
_WORDS = [*KEY, "status", "reason", "interval", "unit", "tier", "objective", "verdict"]
COLUMNS = [*_WORDS, *_NUMBERS, "batches", "unbiased", "deterministic"]
"""Columns of the result table that a comparison reads."""

POOLED = ("accuracy",)
"""Metrics of training that are compared as means over the seeds that both runs have."""


def prepared(rows: pd.DataFrame | Iterable[Row]) -> pd.DataFrame:
    """The columns that a comparison reads: numbers as floats with NaN, names as categories."""
    frame = rows if isinstance(rows, pd.DataFrame) else to_frame(rows)
    return frame[COLUMNS].astype({**dict.fromkeys(_NUMBERS, "float64"), **dict.fromkeys(_WORDS, "category")}).reset_index(drop=True)


def is_compared(frame: pd.DataFrame) -> pd.Series[bool]:
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
    """The numbers of two runs side by side.

    Attributes:
        keys: columns `KEY` of each pair.
        rows: the rows of both runs.
        places: positions in ``rows`` of the base and the head of each pair, ``[pair, 2]``; −1 for none.
        failure: position of the failure that explains why the head has no number; −1 for none.
    """

    keys: pd.DataFrame
    rows: pd.DataFrame
    places: np.ndarray
    failure: np.ndarray

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

"""Comparisons over the instances of a problem, or over all problems of an estimator: one change with its interval."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from ...suites.comparison import KEY, MEANING
from ...suites.comparison.pairs import identities
from ...suites.comparison.verdicts import VERDICTS

UNCHANGED = ("identical", "equivalent")
CHANGED = [verdict for verdict in MEANING if verdict not in UNCHANGED]

INSTANCES = [name for name in KEY if name != "instance"]
"""Columns of a group that holds all instances of a problem."""


def grouped(items: pd.DataFrame, judged: Collection[str], by: Sequence[str] = INSTANCES) -> pd.DataFrame:
    """The groups of comparisons that hold a verdict of some kinds, a row each, in the order of the comparisons.

    Both runs have the same instances, which are not resampled: the interval comes from the errors of the estimates alone, which are
    independent.

    Args:
        items: comparisons, as `structgrad.suites.comparison.compare` returns them.
        judged: the verdicts that count.
        by: the columns that the comparisons of a group share.

    Returns:
        The columns `KEY` of the first comparison, without its instance, and

        - ``verdict``: the gravest. ``sharing``: the number of comparisons with it. ``instances``: of all comparisons.
        - ``change, low, high``: geometric mean of the ratios, or mean of the differences, with a 95 % interval. ``scale``: which of both.
        - ``most``: label of the comparison with this verdict that changed most.
        - ``labels``: of all comparisons.
    """
    if items.empty:
        return pd.DataFrame(columns=[*KEY, "verdict", "sharing", "instances", "change", "low", "high", "scale", "most", "labels"])
    ids = identities(items, by)
    rank = items["verdict"].cat.codes.to_numpy(int)
    counts = np.isin(items["verdict"], list(judged))
    gravest = np.full(ids.max() + 1, len(MEANING))
    np.minimum.at(gravest, ids[counts], rank[counts])
    sharing = counts & (rank == gravest[ids])
    change, low, high, base = (items[name].to_numpy(float) for name in ("change", "low", "high", "base"))
    known, ratio = ~np.isnan(change), (items["scale"] == "ratio").to_numpy()
    number = np.bincount(ids[known], minlength=len(gravest))
    all_ratios = np.bincount(ids[known & ~ratio], minlength=len(gravest)) == 0
    with np.errstate(all="ignore"):
        additive = np.where(all_ratios[ids], np.log(change), np.where(ratio, np.nan_to_num(base) * (change - 1), change))
        width = (high - low) / 2 * np.where(ratio, np.nan_to_num(base), 1.0)
        half = np.nan_to_num(np.where(all_ratios[ids], np.log(high) - np.log(change), width))
        centre = np.bincount(ids[known], additive[known], minlength=len(gravest)) / number
        error = np.sqrt(np.bincount(ids[known], half[known] ** 2, minlength=len(gravest))) / number
        ends = [np.where(all_ratios, np.exp(one), one) for one in (centre, centre - error, centre + error)]
    size = pd.Series(np.where(sharing, np.nan_to_num(np.abs(additive)), -1.0), items.index)
    found = items.groupby(ids)
    first = found[KEY].head(1).set_index(pd.Index(pd.unique(ids)))
    result = first.assign(
        instance="",
        verdict=pd.Categorical.from_codes(np.where(gravest < len(MEANING), gravest, -1), dtype=VERDICTS),
        sharing=np.bincount(ids[sharing], minlength=len(gravest)),
        instances=np.bincount(ids),
        change=ends[0],
        low=np.where(error > 0, ends[1], np.nan),
        high=np.where(error > 0, ends[2], np.nan),
        scale=np.where(all_ratios, "ratio", "difference"),
        most=size.groupby(ids).idxmax(),
        labels=pd.Series(found.groups),
    )
    return result[gravest < len(MEANING)].reset_index(drop=True)


def ordered(items: pd.DataFrame, by: str) -> pd.DataFrame:
    """Comparisons or groups by name; or the gravest verdicts first, and the greatest effects among them."""
    change = items["change"].to_numpy(float)
    with np.errstate(all="ignore"):
        effect = np.where(items["scale"] == "ratio", np.where(change > 0, np.abs(np.log(change)), np.inf), np.abs(change))
    names = items.assign(**{name: items[name].astype(str) for name in KEY}, effect=-np.where(np.isnan(change), np.inf, effect))
    return items.loc[names.sort_values(KEY if by == "name" else ["verdict", "effect", *KEY], kind="stable").index]

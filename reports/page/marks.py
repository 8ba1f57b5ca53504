"""Marks of the charts of a page: every estimator at every problem and entropy level, its scores, and the points of sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..analysis import answers, tables
from .looks import looks

_KEY = ["problem", "stage", "estimator"]
_METRICS = {
    **{"relative_bias": "bias", "gain": "gain", "orthogonal_bias": "orthogonal", "cosine": "cosine", "relative_variance": "variance"},
    **{"relative_mse": "mse", "rho": "rho", "loss_evaluations": "evaluations", "seconds_per_estimate": "seconds", "peak_memory": "bytes"},
}


def held(frame: pd.DataFrame, known: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables that the charts share, by name.

    Args:
        frame: the rows of a run, with one loss per problem; see `tables.by_loss`.
        known: of its manifest: ``values_only``, as in `answers.answers`, and ``sizes`` by problem, in words.
    """
    known_sizes, found = known.get("sizes", {}), cells(frame)
    sizes = [known_sizes.get(name, known_sizes.get(name.rpartition(", ")[0], "")) for name in found["problem"]]
    return {
        "cells": found.assign(n=pd.Series(sizes, dtype=object)),
        "standings": answers.standings(answers.answers(frame, known.get("values_only"))),
        "sweeps": sweeps(frame),
    }


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per problem, entropy level and estimator: the instances, metrics with quartiles, and the cell that repeats it.

    ``bias_bound`` is the upper end where a bias was neither found nor excluded, NaN elsewhere; ``cell`` is empty where nothing repeats it.
    """
    rows = tables.measured(frame)
    words = [*_KEY, "oracle", "loss", "family", "cell"]
    rows = rows.loc[rows["metric"].isin(list(_METRICS)), [*words, "seed", "suite", "instance", "log_count", "replicates"]]
    rows = rows.assign(key=tables.numbered(rows, _KEY), late=rows["suite"].ne("bias"))
    # Times are measured at one level and repeated at others: the cell of a row is that of its bias, if it was measured.
    first = rows.sort_values("late", kind="stable").drop_duplicates("key").sort_index()
    table = first[["key", *words, "seed"]].astype(dict.fromkeys(words, object))
    table = table.assign(cell=table["cell"].str[:12], reference=table["family"].isin(tables.REFERENCE_FAMILIES))
    groups = rows[rows["instance"] != ""].groupby("key", sort=False)
    facts = {
        "instances": groups["instance"].nunique(),
        "structures": np.exp(groups["log_count"].median().astype("float64")),
        "replicates": groups["replicates"].max().astype("float64"),
    }
    table = table.merge(pd.DataFrame(facts), left_on="key", right_index=True, how="left").drop(columns="key")
    table = table.merge(tables.claims(frame)[[*_KEY, "verdict", "bias_bound"]], on=_KEY, how="left").fillna({"verdict": ""})
    known = tables.aggregate(frame).drop_duplicates([*_KEY, "metric"], keep="last")
    for metric, name in _METRICS.items():
        # A time is measured once per problem: it has an interval and no quartiles.
        sides = ("low", "high") if name == "seconds" else ("lower", "upper")
        fields = {"median": name, sides[0]: f"{name}_low", sides[1]: f"{name}_high"}
        table = table.merge(known.loc[known["metric"] == metric, [*_KEY, *fields]].rename(columns=fields), on=_KEY, how="left")
    return _looking(table, frame)


def _looking(table: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The table with the colour and the shape of its estimators."""
    known = looks(frame)
    return table.assign(**{name: [known[one][at] for one in table["estimator"]] for at, name in enumerate(("colour", "shape"))})


def sweeps(frame: pd.DataFrame) -> pd.DataFrame:
    """Medians and quartiles over instances at every point of a sweep, by the varied size (``axis``)."""
    rows = tables.swept(frame)
    rows = rows[rows["size"].notna()]
    names = rows["setting"].str.replace(r"=[^,]*", "", n=1, regex=True)
    groups = rows.assign(axis=names).groupby([*_KEY, "metric", "axis", "size"], sort=False)["value"]
    spread = {"median": groups.median(), "lower": groups.quantile(0.25), "upper": groups.quantile(0.75), "instances": groups.size()}
    return _looking(pd.DataFrame(spread).reset_index(), frame)

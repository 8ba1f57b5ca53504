"""All numbers of a run, small enough to travel inside its page."""

from __future__ import annotations

import base64
import json
import math
import zlib
from typing import Any

import pandas as pd

from ...suites.text import rounded, whole
from ..analysis import tables

MOST_ROWS = 120_000
"""Rows of single instances that a page holds at most; for a larger run it holds medians over instances only."""

OVER_INSTANCES, EVERY_INSTANCE = "over instances", "every instance"


def held(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables that a page holds: every metric over instances, with the worst verdict, and the rows behind them."""
    verdicts = tables.verdicts(frame)[["problem", "stage", "estimator", "verdict"]].assign(metric="relative_bias")
    table = tables.aggregate(frame).drop(columns="family")
    table = table.merge(verdicts, on=["problem", "stage", "estimator", "metric"], how="left").fillna({"verdict": ""})
    ends = {"low": "95 % from", "high": "95 % to"}
    found = {OVER_INSTANCES: table.rename(columns={"lower": "lower quartile", "upper": "upper quartile", **ends})}
    if len(frame) <= MOST_ROWS:
        rows = frame[frame["metric"].astype(object).ne("") | frame["status"].ne("ok")]
        chosen = ["problem", "stage", "estimator", "suite", "metric", "instance", "setting", "reference", "value", "low", "high"]
        chosen += ["replicates", "verdict", "p_adjusted", "status", "reason"]
        found[EVERY_INSTANCE] = rows[chosen].rename(columns=ends)
    return found


def summary(found: dict[str, pd.DataFrame], rows: int) -> str:
    """The sizes of the tables of a page, and the file with all rows, in two sentences."""
    medians, single = len(found[OVER_INSTANCES]), found.get(EVERY_INSTANCE)
    behind = "single instances are too many for a page"
    if single is not None:
        behind = f"“{EVERY_INSTANCE}” shows the {whole(len(single))} rows behind them"
    return (
        f"The table opens with {whole(medians)} medians over instances; {behind}. "
        f"Numbers have four digits here; results.parquet, next to this page, has all {whole(rows)} rows in full."
    )


def packed(found: dict[str, pd.DataFrame]) -> str:
    """Tables as columns in JSON, deflated, in base64: a browser unpacks it on demand.

    Numbers have four digits; words are positions in a list of them.
    """
    as_columns = {name: [_column(str(title), values) for title, values in table.items()] for name, table in found.items()}
    return deflated(json.dumps(as_columns, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def deflated(text: str) -> str:
    """A text that a browser can inflate, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _column(title: str, values: pd.Series[Any]) -> dict[str, Any]:
    if pd.api.types.is_numeric_dtype(values):
        return {
            "name": title,
            "numbers": list(map(_strict_value, values.astype("float64").to_numpy(dtype=float, na_value=math.nan).tolist())),
        }
    codes, words = pd.factorize(values.astype(object).fillna("").astype(str))
    return {"name": title, "words": list(words), "codes": codes.tolist()}


def _strict_value(value: float) -> float | int | str | None:
    """Strict JSON, to four digits: whole numbers as integers, infinite ones as words, missing ones as null."""
    if not math.isfinite(value):
        return None if math.isnan(value) else "∞" if value > 0 else "−∞"
    near = rounded(value, 4)
    return int(near) if abs(near) < 1e15 and near == int(near) else near

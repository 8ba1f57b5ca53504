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

_DIGITS = 4


def held(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The tables that a page holds, by the kind of their rows."""
    found = {OVER_INSTANCES: over_instances(frame)}
    return {**found, EVERY_INSTANCE: every_instance(frame)} if len(frame) <= MOST_ROWS else found


def summary(found: dict[str, pd.DataFrame], rows: int) -> str:
    """The sizes of the tables of a page, and the file with all rows, in two sentences."""
    medians, single = len(found[OVER_INSTANCES]), found.get(EVERY_INSTANCE)
    behind = (
        "single instances are too many for a page"
        if single is None
        else f"“{EVERY_INSTANCE}” shows the {whole(len(single))} rows behind them"
    )
    return (
        f"The table opens with {whole(medians)} medians over instances; {behind}. "
        f"Numbers have four digits here; results.parquet, next to this page, has all {whole(rows)} rows in full."
    )


def packed(found: dict[str, pd.DataFrame]) -> str:
    """Tables as columns in JSON, deflated, in base64: a browser unpacks it on demand."""
    as_columns = {name: columns(table) for name, table in found.items()}
    return deflated(json.dumps(as_columns, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def deflated(text: str) -> str:
    """A text that a browser can inflate, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def over_instances(frame: pd.DataFrame) -> pd.DataFrame:
    """Every metric over instances, with the worst verdict where there is one."""
    table = tables.aggregate(frame)
    verdicts = tables.verdicts(frame)[["problem", "stage", "estimator", "verdict"]].assign(metric="relative_bias")
    table = table.merge(verdicts, on=["problem", "stage", "estimator", "metric"], how="left").fillna({"verdict": ""})
    titles = {"lower": "lower quartile", "upper": "upper quartile", "low": "95 % from", "high": "95 % to"}
    return table.drop(columns="family").rename(columns=titles)


def every_instance(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of the table that hold a number or a reason, with the columns that differ between them."""
    rows = frame[frame["metric"].astype(object).ne("") | frame["status"].ne("ok")]
    chosen = ["problem", "stage", "estimator", "suite", "metric", "instance", "setting", "reference", "value", "low", "high"]
    chosen += ["replicates", "verdict", "p_adjusted", "status", "reason"]
    return rows[chosen].rename(columns={"low": "95 % from", "high": "95 % to"})


def columns(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Columns for a script: numbers to four digits as they are, words as positions in a list of them."""
    found: list[dict[str, Any]] = []
    for name, values in table.items():
        if pd.api.types.is_numeric_dtype(values):
            numbers = values.astype("float64").to_numpy(dtype=float, na_value=math.nan).tolist()
            found.append({"name": name, "numbers": list(map(_strict_value, numbers))})
        else:
            codes, words = pd.factorize(values.astype(object).fillna("").astype(str))
            found.append({"name": name, "words": list(words), "codes": codes.tolist()})
    return found


def _strict_value(value: float) -> float | int | str | None:
    """Strict JSON, to four digits: whole numbers as integers, infinite ones as words, missing ones as null."""
    if not math.isfinite(value):
        return None if math.isnan(value) else "∞" if value > 0 else "−∞"
    near = rounded(value, _DIGITS)
    return int(near) if abs(near) < 1e15 and near == int(near) else near

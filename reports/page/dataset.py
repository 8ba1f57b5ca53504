"""The numbers of a run that travel inside its page: all of them, and the marks of its charts with their colours and shapes."""

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ...suites.text import rounded, whole
from ..analysis import answers, tables

MOST_ROWS = 120_000  # rows of single instances that a page holds at most; for a larger run it holds medians over instances only

OVER_INSTANCES, EVERY_INSTANCE = "over instances", "every instance"

_KEY = ["problem", "stage", "estimator"]
_METRICS = {
    **{"relative_bias": "bias", "gain": "gain", "orthogonal_bias": "orthogonal", "cosine": "cosine", "relative_variance": "variance"},
    **{"relative_mse": "mse", "rho": "rho", "loss_evaluations": "evaluations", "seconds_per_estimate": "seconds", "peak_memory": "bytes"},
}

GREY = "#808080"  # the colour of the exact gradient, and of no other estimator

_HUES = {
    **dict.fromkeys(("straight_through",), 0.03),
    **dict.fromkeys(("factorised", "antithetic", "control_variates", "gumbel_rao", "reinmax"), 0.15),
    **dict.fromkeys(("policies", "policy_baselines"), 0.32),
    **dict.fromkeys(("",), 0.5),
    **dict.fromkeys(("score_function", "baselines", "learned_baseline", "ppo", "without_replacement"), 0.64),
    **dict.fromkeys(("relaxations", "sparse_supports", "constrained_attention", "fused_attention"), 0.76),
    **dict.fromkeys(("gumbel", "perturbation"), 0.86),
    **dict.fromkeys(("argmax_differences", "spigot"), 0.95),
}
"""Hues by module of the estimator, and of all other ones; estimators of one hue spread over a tenth of the circle."""

_LIGHTNESS = (0.54, 0.64)
"""Lightness in OKLab. Between these, every hue has a contrast of at least 3 : 1 on a white page and on a dark one."""

_OKLAB = ((1, 0.39633778, 0.21580376), (1, -0.10556135, -0.06385417), (1, -0.08948418, -1.29148555))
_LINEAR_RGB = ((4.07674166, -3.30771159, 0.23096993), (-1.268438, 2.60975740, -0.34131940), (-0.00419609, -0.70341861, 1.70761470))
"""Matrices of B. Ottosson's OKLab: its cube roots of cone responses, and linear sRGB of the responses."""

_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


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
    """Tables as columns in JSON, deflated, in base64. Numbers have four digits; words are positions in a list of them."""
    as_columns: dict[str, list[dict[str, Any]]] = {name: [] for name in found}
    for name, title, values in ((name, str(title), values) for name, table in found.items() for title, values in table.items()):
        if pd.api.types.is_numeric_dtype(values):
            numbers = values.astype("float64").to_numpy(dtype=float, na_value=math.nan).tolist()
            as_columns[name].append({"name": title, "numbers": list(map(_strict_value, numbers))})
        else:
            codes, words = pd.factorize(values.astype(object).fillna("").astype(str))
            as_columns[name].append({"name": title, "words": list(words), "codes": codes.tolist()})
    return deflated(json.dumps(as_columns, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def deflated(text: str) -> str:
    """A text that a browser can inflate, in base64."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _strict_value(value: float) -> float | int | str | None:
    """Strict JSON, to four digits: whole numbers as integers, infinite ones as words, missing ones as null."""
    if not math.isfinite(value):
        return None if math.isnan(value) else "∞" if value > 0 else "−∞"
    near = rounded(value, 4)
    return int(near) if abs(near) < 1e15 and near == int(near) else near


def marks(frame: pd.DataFrame, known: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables that the charts share, by name, from rows with one loss per problem and the catalogue of their manifest."""
    known_sizes, found = known.get("sizes", {}), cells(frame)
    sizes = [known_sizes.get(name, known_sizes.get(name.rpartition(", ")[0], "")) for name in found["problem"]]
    return {
        "cells": found.assign(n=pd.Series(sizes, dtype=object)),
        "standings": answers.standings(answers.answers(frame, known.get("values_only"))),
        "sweeps": sweeps(frame),
    }


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per problem, entropy level and estimator: the instances, metrics with quartiles, and the cell that repeats it."""
    rows = tables.measured(frame)
    words = [*_KEY, "oracle", "loss", "family", "cell"]
    rows = rows.loc[rows["metric"].isin(list(_METRICS)), [*words, "seed", "suite", "instance", "log_count", "replicates"]]
    rows = rows.assign(key=tables.identities(rows, _KEY), late=rows["suite"].ne("bias"))
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
    return table.join(looks(frame), on="estimator")


def sweeps(frame: pd.DataFrame) -> pd.DataFrame:
    """Medians and quartiles over instances at every point of a sweep, by the varied size (``axis``)."""
    rows = tables.swept(frame)
    rows = rows[rows["size"].notna()]
    names = rows["setting"].str.replace(r"=[^,]*", "", n=1, regex=True)
    groups = rows.assign(axis=names).groupby([*_KEY, "metric", "axis", "size"], sort=False)["value"]
    spread = {"median": groups.median(), "lower": groups.quantile(0.25), "upper": groups.quantile(0.75), "instances": groups.size()}
    return pd.DataFrame(spread).reset_index().join(looks(frame), on="estimator")


def looks(frame: pd.DataFrame) -> pd.DataFrame:
    """A colour of its own and a shape of Vega-Lite for every estimator, by its name; within a hue, colours go from dark to light."""
    from ...estimators import ESTIMATORS

    kinds: dict[float | None, list[str]] = {}
    for estimator, family in frame[["estimator", "family"]].drop_duplicates("estimator").astype(str).itertuples(index=False, name=None):
        module = ESTIMATORS[family].__module__.split(".")[2] if family in ESTIMATORS else ""
        kinds.setdefault(None if module == "exact" else _HUES.get(module, _HUES[""]), []).append(estimator)
    found, (dark, light) = {}, _LIGHTNESS
    for number, (hue, same) in enumerate(kinds.items()):
        for position, estimator in enumerate(same):
            place = (position + 0.5) / len(same)
            colour = GREY if hue is None else _colour(hue + 0.1 * place - 0.05, dark + (light - dark) * place)
            found[estimator] = (colour, _SHAPES[(number + position) % len(_SHAPES)])
    return pd.DataFrame(list(found.values()), pd.Index(list(found), dtype=object), ["colour", "shape"])


def _colour(hue: float, lightness: float) -> str:
    """The most saturated colour of a hue and a lightness of OKLab; to import seaborn for it would take longer than the whole page."""
    for chroma in np.arange(0.3, 0, -0.005):
        lab = (lightness, chroma * math.cos(2 * math.pi * hue), chroma * math.sin(2 * math.pi * hue))
        linear = np.array(_LINEAR_RGB) @ (np.array(_OKLAB) @ lab) ** 3
        if (np.abs(linear - 0.5) <= 0.5).all():
            break
    parts = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts.tolist())

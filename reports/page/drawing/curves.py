"""Lines of estimators over a swept quantity, on axes with a place for 0."""

from __future__ import annotations

import pandas as pd

from ...analysis import tables
from .panel import Panel
from .scale import Scale
from .styles import Style


def curves(panel: Panel, table: pd.DataFrame, looks: dict[str, Style], axes: tuple[Scale, Scale]) -> None:
    """One line per estimator through ``(size, value)``, with a band or bars from ``low`` to ``high`` where there is an interval."""
    for name in tables.order(table, "estimator"):
        part = table[table["estimator"] == name].sort_values("size")
        style = looks[name]
        for row in tables.records(part.dropna(subset=["low", "high"])):
            panel.line([axes[0].place(row.size)] * 2, [axes[1].place(row.low), axes[1].place(row.high)], style.colour, opacity=0.5)
        panel.curve([axes[0].place(size) for size in part["size"]], [axes[1].place(value) for value in part["value"]], style)
    axes[0].dress(panel, "x")
    axes[1].dress(panel, "y")


def medians(table: pd.DataFrame) -> pd.DataFrame:
    """Values over instances at every point: the median, with the quartiles as ``low`` and ``high``; of one instance its own interval."""
    grouped = table.groupby(["estimator", "family", "size"], sort=False)
    found = grouped["value"].agg(["median", "count"])
    lower, upper = grouped["value"].quantile(0.25), grouped["value"].quantile(0.75)
    alone = found["count"] == 1
    own = grouped[["low", "high"]].median()
    return pd.DataFrame(
        {"value": found["median"], "low": lower.where(~alone, own["low"]), "high": upper.where(~alone, own["high"])}
    ).reset_index()


def axes_of(table: pd.DataFrame) -> tuple[Scale, Scale]:
    """Axes that hold all points."""
    return Scale.of(table["size"]), Scale.of(table[["value", "low", "high"]].to_numpy(dtype=float).ravel())

"""Convergence: widths of intervals against replicates."""

from __future__ import annotations

import pandas as pd

from ....suites.metrics import label_of
from ...analysis import tables
from ..drawing.curves import axes_of, curves, medians
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import facets
from ..drawing.panel import DOTTED, Panel

KIND = FigureKind(
    "convergence",
    "Convergence of the intervals",
    "Half the width of the 95 % interval, relative to the value, that the first replicates alone would have given; medians over "
    "instances and stages. Intervals that narrow with the square root of the number follow the dotted slope. A line that falls more "
    "slowly has heavy tails: its estimates are less certain than their intervals say.",
)
_PANELS = ("relative_mse", "relative_variance", "relative_bias")


def convergence(material: Material, problem: str) -> Drawing | None:
    """One panel per metric, one line per estimator that draws samples."""
    table = half_widths(material, problem)
    metrics = [metric for metric in _PANELS if (table["metric"] == metric).any()]
    if not metrics:
        return None
    points = {metric: medians(table[table["metric"] == metric]).assign(low=float("nan"), high=float("nan")) for metric in metrics}
    axes = axes_of(pd.concat(points.values()))
    looks = {name: material.styles[name] for name in tables.order(table, "estimator")}
    sheet = facets([label_of(metric) for metric in metrics], looks, lines=True)
    for panel, found in zip(sheet.panels, points.values(), strict=True):
        curves(panel, found, material.styles, axes)
        _slope(panel)
    sheet.label("replicates", "half width / value")
    return KIND.drawn(sheet, problem)


def half_widths(material: Material, problem: str) -> pd.DataFrame:
    """``value``: half the width of an interval relative to its middle, at ``size`` replicates; the whole run is the last point."""
    swept = material.swept
    swept = swept[(swept["problem"] == problem) & swept["setting"].str.startswith("replicates=") & swept["metric"].isin(_PANELS)]
    key = ["stage", "estimator", "instance", "metric"]
    whole = material.rows
    whole = whole[(whole["problem"] == problem) & (whole["suite"] == "bias") & whole["metric"].isin(_PANELS) & whole["replicates"].notna()]
    whole = whole.merge(swept[key].drop_duplicates(), on=key).assign(size=lambda rows: rows["replicates"].astype("float64"))
    both = pd.concat([swept, whole], ignore_index=True)
    width = (both["high"] - both["low"]) / 2 / both["value"]
    both = both.assign(value=width)
    return both[(both["value"] > 0) & (both["value"] < float("inf"))]


def _slope(panel: Panel) -> None:
    """Lines of slope −1/2."""
    left, right, bottom, top = panel.x.first, panel.x.last, panel.y.first, panel.y.last
    height = bottom
    while height < top + (right - left) / 2:
        panel.line([left, right], [height, height - (right - left) / 2], width=0.8, opacity=0.3, dashes=DOTTED)
        height += max((top - bottom) / 4, 0.1)

"""Instances: the spread of an error over them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...analysis import tables
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import strips
from ..drawing.panel import Panel
from ..drawing.scale import Scale
from ..drawing.styles import Style

KIND = FigureKind(
    "instances",
    "Spread over instances",
    "Relative mean squared error of one estimate on every instance. The thin line reaches from the smallest to the largest, the broad "
    "one over the middle half, the mark is the median; with few instances each is a tick. A long line to the right is an estimator that"
    " fails on some instances, which its median hides.",
)
_FEW = 40


def instances(material: Material, problem: str) -> Drawing | None:
    """A row per estimator and a panel per stage."""
    rows = material.rows
    rows = rows[(rows["problem"] == problem) & (rows["metric"] == "relative_mse") & (rows["instance"] != "") & np.isfinite(rows["value"])]
    rows = rows[~rows["family"].isin(tables.REFERENCE_FAMILIES)]
    if rows["instance"].nunique() < 2:
        return None
    names, stages, scale = tables.order(rows, "estimator"), tables.order(rows, "stage"), Scale.of(rows["value"])
    sheet = strips(stages, names)
    for panel, stage in zip(sheet.panels, stages, strict=True):
        _strips(panel, rows[rows["stage"] == stage], {name: material.styles[name] for name in names}, scale)
        scale.dress(panel, "x")
    sheet.label("relative MSE", "")
    return KIND.drawn(sheet, problem)


def _strips(panel: Panel, rows: pd.DataFrame, looks: dict[str, Style], scale: Scale) -> None:
    for height, (name, style) in enumerate(looks.items()):
        values = rows.loc[rows["estimator"] == name, "value"].to_numpy(dtype=float)
        if not len(values):
            continue
        low, lower, middle, upper, high = (scale.place(float(value)) for value in np.quantile(values, (0, 0.25, 0.5, 0.75, 1)))
        panel.line([low, high], [height] * 2, style.colour, opacity=0.7)
        panel.line([lower, upper], [height] * 2, style.colour, 5, 0.35)
        for value in values if len(values) <= _FEW else ():
            panel.line([scale.place(float(value))] * 2, [height - 0.22, height + 0.22], style.colour, 0.8, 0.7)
        panel.mark(middle, height, style)

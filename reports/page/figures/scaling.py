"""Time, memory and variance against length, batch and samples."""

from __future__ import annotations

import pandas as pd

from ....suites.metrics import label_of
from ...analysis import tables
from ..drawing.curves import axes_of, curves
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import facets

KIND = FigureKind(
    "scaling",
    "Scaling",
    "Median time and peak memory of forward and backward against the length of the structure, the rows of a batch and the samples of an"
    " estimate; variance of an estimate against its samples. Both axes are logarithmic, so that a slope is an exponent: one decade up "
    "for one to the right is linear. Bars are 95 % intervals; a line ends where its estimator had no more time, or cannot go on.",
)
_PANELS = (
    ("total_time", "length"),
    ("total_time", "batch"),
    ("total_time", "samples"),
    ("peak_memory", "length"),
    ("peak_memory", "batch"),
    ("relative_variance", "samples"),
)


def scaling(material: Material, problem: str) -> Drawing | None:
    """One panel per quantity and axis; those without points are left out."""
    rows = material.swept
    rows = rows[(rows["suite"] == "scaling") & (rows["problem"] == problem)]
    parts = {(label_of(metric), axis): part for metric, axis in _PANELS if not (part := _points(rows, metric, axis)).empty}
    if not parts:
        return None
    names = dict.fromkeys(name for part in parts.values() for name in tables.order(part, "estimator"))
    titles = [f"{label} against {axis}" for label, axis in parts]
    sheet = facets(titles, {name: material.styles[name] for name in names}, shared=False, lines=True)
    for panel, ((label, axis), part) in zip(sheet.panels, parts.items(), strict=True):
        curves(panel, part, material.styles, axes_of(part))
        panel.x.label, panel.y.label = axis, label
    return KIND.drawn(sheet, problem)


def _points(rows: pd.DataFrame, metric: str, axis: str) -> pd.DataFrame:
    found = rows[(rows["metric"] == metric) & rows["setting"].str.startswith(f"{axis}=") & rows["size"].notna()]
    return found.drop_duplicates(["estimator", "size"])

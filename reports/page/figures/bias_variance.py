"""The plane of bias and variance."""

from __future__ import annotations

import math

import numpy as np

from ...analysis import tables
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import facets
from ..drawing.panel import DOTTED, Panel
from ..drawing.planes import Scales, plane, points, scales

KIND = FigureKind(
    "bias-variance",
    "Bias against variance",
    "A mark is the median over instances, its bars reach to the quartiles. Both are relative to the exact gradient; down and to the "
    "left is better. Dotted lines join points of equal mean squared error. Beyond a dashed line the value is 0.",
)


def bias_against_variance(material: Material, problem: str) -> Drawing | None:
    """Relative bias against relative variance, one panel per stage; dotted lines join points of equal mean squared error."""
    table = points(material, problem, "relative_bias", "relative_variance")
    if table.empty:
        return None
    axes, stages = scales(table), tables.order(table, "stage")
    sheet = facets(stages, {name: material.styles[name] for name in tables.order(table, "estimator")})
    for panel, stage in zip(sheet.panels, stages, strict=True):
        plane(panel, table[table["stage"] == stage], material.styles, axes)
        _error_contours(panel, axes)
    sheet.label("relative bias", "relative variance")
    return KIND.drawn(sheet, problem)


def _error_contours(panel: Panel, axes: Scales) -> None:
    """Dotted lines of equal bias² + variance, one per decade or two."""
    x, y = axes
    step = max(1, math.ceil((y.top - y.bottom) / 4))
    for exponent in range(math.ceil(y.bottom), math.floor(y.top) + 1, step):
        bias = np.logspace(min(x.bottom, exponent / 2), exponent / 2, 60)
        variance = 10.0**exponent - bias**2
        inside = (variance > 10.0**y.bottom) & (bias > 10.0**x.bottom)
        panel.line(np.log10(bias[inside]), np.log10(variance[inside]), width=0.8, opacity=0.35, dashes=DOTTED)

"""Two metrics against each other: a mark per estimator at the medians, bars to the quartiles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ...analysis import tables
from .drawing import Material
from .panel import Panel
from .scale import Scale
from .styles import MARKER_SIZE, Style

Scales = tuple[Scale, Scale]
_SAME_PLACE = 0.012


def points(material: Material, problem: str, x: str, y: str) -> pd.DataFrame:
    """One row per stage and estimator with the medians and quartiles of two metrics."""
    table = material.aggregates
    table = table[table["problem"] == problem]
    keys = ["stage", "estimator", "family"]
    across, along = (
        table[table["metric"] == metric].set_index(keys)[["median", "lower", "upper"]].add_suffix(suffix)
        for metric, suffix in ((x, "_x"), (y, "_y"))
    )
    joined = across.join(along, how="inner")
    return joined[np.isfinite(joined).all(axis=1)].reset_index()


def scales(table: pd.DataFrame) -> Scales:
    """Axes that hold all medians and quartiles."""
    x, y = (Scale.of(table[[f"{bound}_{axis}" for bound in ("median", "lower", "upper")]].to_numpy().ravel()) for axis in "xy")
    return x, y


def plane(panel: Panel, table: pd.DataFrame, looks: dict[str, Style], axes: Scales) -> None:
    """All estimators of one panel. A mark on top of another one is smaller, so that both are seen."""
    axes[0].dress(panel, "x")
    axes[1].dress(panel, "y")
    taken: list[tuple[float, float]] = []
    for point in tables.records(table):
        place = (axes[0].place(point.median_x), axes[1].place(point.median_y))
        hidden = sum(math.dist(_relative(place, axes), _relative(other, axes)) < _SAME_PLACE for other in taken)
        _mark(panel, point, replace(looks[str(point.estimator)], size=MARKER_SIZE * 0.65**hidden), axes)
        taken.append(place)


def _relative(place: tuple[float, float], axes: Scales) -> tuple[float, float]:
    """A place in parts of the axes."""
    x, y = (value / (scale.top - scale.zero) for value, scale in zip(place, axes, strict=True))
    return x, y


def _mark(panel: Panel, point: Any, style: Style, axes: Scales) -> None:
    x, y = axes[0].place(point.median_x), axes[1].place(point.median_y)
    across = [axes[0].place(point.lower_x), axes[0].place(point.upper_x)]
    along = [axes[1].place(point.lower_y), axes[1].place(point.upper_y)]
    panel.line(across, [y, y], style.colour, opacity=0.6)
    panel.line([x, x], along, style.colour, opacity=0.6)
    panel.mark(x, y, style, 0.9)

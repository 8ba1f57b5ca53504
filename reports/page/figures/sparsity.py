"""Sparsity: how many structures and parts are touched, against the stage."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ....suites.metrics import label_of
from ...analysis import tables
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import Frame, Sheet
from ..drawing.panel import Panel
from ..drawing.scale import Scale
from ..drawing.styles import Style, shown

KIND = FigureKind(
    "sparsity",
    "Sparsity",
    "Medians over instances: how many structures have a positive probability in the forward pass, how many parts of the structure that "
    "the loss sees are not 0, and how many of the gradient. Marks grow with the stage.",
)
_PANELS = ("support", "forward_nonzeros", "gradient_nonzeros")
_GREY = "#7f7f7f"


def sparsity(material: Material, problem: str) -> Drawing | None:
    """Support, non-zero parts of the structure and of the gradient: one panel each, one line per estimator, one mark per stage."""
    table = material.aggregates
    table = table[(table["problem"] == problem) & table["metric"].isin(_PANELS) & np.isfinite(table["median"])]
    if table.empty:
        return None
    estimators, stages = tables.order(table, "estimator"), tables.order(table, "stage")
    look = _Ladder(stages, material.styles)
    frame = Frame(11.5, 0.9 + 0.24 * len(estimators) + 0.3, 0)
    sheet = Sheet([Panel() for _ in _PANELS], frame, {}, note={stage: look.mark(stage, Style(_GREY, "o")) for stage in stages})
    for panel, metric in zip(sheet.panels, _PANELS, strict=True):
        _ladder(panel, table[table["metric"] == metric], estimators, look)
        panel.x.label = label_of(metric)
        panel.y.named(map(shown, estimators))
    return KIND.drawn(sheet, problem)


@dataclass(frozen=True)
class _Ladder:
    stages: list[str]
    styles: dict[str, Style]

    def mark(self, stage: str, style: Style) -> Style:
        """Hollow marks that grow with training."""
        size = np.linspace(3.5, 8.5, max(2, len(self.stages)))[self.stages.index(stage)]
        return replace(style, fill="none", size=float(size))


def _ladder(panel: Panel, table: pd.DataFrame, estimators: list[str], look: _Ladder) -> None:
    scale = Scale.of(table["median"])
    for row in tables.records(table):
        style = look.mark(str(row.stage), look.styles[str(row.estimator)])
        panel.mark(scale.place(float(row.median)), estimators.index(str(row.estimator)), style)
    scale.dress(panel, "x")

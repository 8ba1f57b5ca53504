"""How many structures and parts are touched, against the stage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .. import tables
from . import canvas
from .drawing import Drawing, Kind, Material
from .scale import Scale
from .styles import Style, shown

KIND = Kind(
    "sparsity",
    "Sparsity",
    "Medians over instances: how many structures have a positive probability in the forward pass, how many parts of the structure that "
    "the loss sees are not 0, and how many of the gradient. Marks grow with the stage.",
)
_PANELS = {
    "support": "structures in the support",
    "forward_nonzeros": "parts in the structure",
    "gradient_nonzeros": "parts in the gradient",
}
_GREY = "#7f7f7f"


def sparsity(material: Material, problem: str) -> Drawing | None:
    """Support, non-zero parts of the structure and of the gradient: one panel each, one line per estimator, one mark per stage."""
    table = material.aggregates
    table = table[(table["problem"] == problem) & table["metric"].isin(_PANELS) & np.isfinite(table["median"])]
    if table.empty:
        return None
    estimators, stages = tables.order(table, "estimator"), tables.order(table, "stage")
    with canvas.canvas(11.5, 0.9 + 0.24 * len(estimators) + 0.3) as figure:
        panels = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
        for panel, (metric, label) in zip(panels, _PANELS.items(), strict=True):
            _ladder(panel, table[table["metric"] == metric], estimators, _Ladder(stages, material.styles))
            panel.set_xlabel(label)
        panels[0].set_yticks(range(len(estimators)), [shown(name) for name in estimators])
        panels[0].set_ylim(len(estimators) - 0.5, -0.5)
        _stage_legend(figure, stages)
        return KIND.drawn(figure, problem)


@dataclass(frozen=True)
class _Ladder:
    stages: list[str]
    styles: dict[str, Style]

    def size(self, stage: str) -> float:
        """Marks grow with training."""
        return float(np.linspace(3.5, 8.5, max(2, len(self.stages)))[self.stages.index(stage)])


def _ladder(panel: Axes, table: pd.DataFrame, estimators: list[str], look: _Ladder) -> None:
    scale = Scale.of(table["median"])
    for row in tables.records(table):
        style, place = look.styles[str(row.estimator)], scale.place(float(row.median))
        keywords = {**style.keywords(), "fillstyle": "none", "markersize": look.size(str(row.stage))}
        panel.plot([place], [estimators.index(str(row.estimator))], linestyle="none", **keywords)
    scale.dress(panel, "x")


def _stage_legend(figure: Figure, stages: list[str]) -> None:
    look = _Ladder(stages, {})
    handles = [
        Line2D([], [], linestyle="none", marker="o", color=_GREY, fillstyle="none", markersize=look.size(stage), label=stage)
        for stage in stages
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(stages), frameon=False)

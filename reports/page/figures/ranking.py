"""Estimators by rank over instances."""

from __future__ import annotations

import numpy as np
import pandas as pd
import scipy

from ...analysis import answers, tables
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import strips
from ..drawing.panel import Panel

KIND = FigureKind(
    "ranking",
    "Ranking",
    "On every instance of every problem estimators are ranked by ρ, what a step is worth, with the same time for each "
    f"({answers.MAIN_BUDGET} estimates of REINFORCE; the same number of estimates where no times were taken): 0 is the best, 1 the worst. "
    "Marks are means over instances, bars their 95 % intervals. Estimators share their instances, so that bars may overlap and the "
    "difference still be sure: the table of answers says who cannot be told apart.",
)


def ranking(material: Material) -> Drawing | None:
    """A row per estimator, a panel per stage, over the instances of all problems."""
    table = material.ranks
    if table.empty or table["instance"].nunique() < 2 or table["estimator"].nunique() < 3:
        return None
    stages = tables.order(table, "stage")
    means = table.groupby("estimator", sort=False)["rank"].mean().sort_values()
    sheet = strips(stages, list(means.index))
    for panel, stage in zip(sheet.panels, stages, strict=True):
        _ranks(panel, table[table["stage"] == stage], list(means.index), material)
    sheet.label("mean rank, 0 = best", "")
    return KIND.drawn(sheet, "")


def _ranks(panel: Panel, table: pd.DataFrame, names: list[str], material: Material) -> None:
    for height, name in enumerate(names):
        ranks = table.loc[table["estimator"] == name, "rank"].to_numpy(dtype=float)
        if not len(ranks):
            continue
        style, half = material.styles[name], _half_width(ranks)
        panel.line([max(ranks.mean() - half, 0), min(ranks.mean() + half, 1)], [height] * 2, style.colour, 1.6, 0.6)
        panel.mark(ranks.mean(), height, style)
    panel.x.even(-0.04, 1.04)


def _half_width(ranks: np.ndarray) -> float:
    return -float(scipy.special.stdtrit(len(ranks) - 1, 0.025) * ranks.std(ddof=1) / np.sqrt(len(ranks))) if len(ranks) > 1 else 0.0

"""Error against cost: the error that a budget of time, or of evaluations of the loss, buys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ....suites.text import ZERO
from ...analysis import tables
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import facets
from ..drawing.panel import Panel
from ..drawing.scale import Scale

_READ = (
    "A mark is one estimate: what it costs, and its relative root mean squared error (from the medians over instances). The line from "
    "it shows the average of more estimates, down to the bias, which no budget removes. The broad grey line is the Pareto front: the "
    "smallest error that any estimator reaches with a budget. The exact gradient does not compete."
)
SECONDS = FigureKind("error-seconds", "Error against time", _READ)
EVALUATIONS = FigureKind(
    "error-evaluations", "Error against evaluations of the loss", _READ + " The backward of one evaluation counts as two more."
)

_DECADES = 3
_POINTS = 40


@dataclass(frozen=True)
class CostContender:
    """One estimator at one stage: squared bias, variance, and the cost of one estimate."""

    name: str
    bias_squared: float
    variance: float
    cost: float

    def error(self, budget: np.ndarray) -> np.ndarray:
        """Relative root mean squared error of the mean of as many estimates as a budget allows; infinite below the cost of one."""
        error = np.sqrt(self.bias_squared + self.variance * self.cost / budget)
        return np.where(budget >= self.cost * (1 - 1e-9), error, math.inf)


def error_against_seconds(material: Material, problem: str) -> Drawing | None:
    """Seconds, of the largest launch that was timed, per estimate."""
    return _budgets(material, problem, SECONDS, "seconds_per_estimate", "seconds")


def error_against_evaluations(material: Material, problem: str) -> Drawing | None:
    """Evaluations of the loss, as the estimator declares them."""
    return _budgets(material, problem, EVALUATIONS, "loss_evaluations", "evaluations of the loss")


def _budgets(material: Material, problem: str, kind: FigureKind, cost: str, label: str) -> Drawing | None:
    found = contenders(material.aggregates, problem, cost)
    found = {stage: some for stage, some in found.items() if some}
    if not found:
        return None
    names = dict.fromkeys(one.name for some in found.values() for one in some)
    everything = [one for some in found.values() for one in some]
    budgets = np.logspace(0, _DECADES, _POINTS)
    x = Scale.of([one.cost for one in everything] + [max(one.cost for one in everything) * 30])
    y = Scale.of([value for one in everything for value in _ends(one)])
    sheet = facets(list(found), {name: material.styles[name] for name in names})
    for panel, some in zip(sheet.panels, found.values(), strict=True):
        _front(panel, front(some, 10 ** np.linspace(x.bottom, x.top, 4 * _POINTS)), (x, y))
        for one in some:
            style, path = material.styles[one.name], one.cost * budgets
            panel.line(np.log10(path), [y.place(value) for value in one.error(path)], style.colour, opacity=0.7)
            panel.mark(math.log10(one.cost), y.place(_ends(one)[0]), style, 0.95)
        x.dress(panel, "x")
        y.dress(panel, "y")
    sheet.label(label, "relative RMSE")
    return kind.drawn(sheet, problem)


def _ends(one: CostContender) -> tuple[float, float]:
    """The errors of one estimate, and of as many as are drawn."""
    first, last = one.error(one.cost * np.array([1.0, 10.0**_DECADES]))
    return float(first), max(float(last), 1e-3 * float(first))


def contenders(aggregates: pd.DataFrame, problem: str, cost: str) -> dict[str, list[CostContender]]:
    """Those of every stage whose bias, variance and cost are known, but for the families that compute the truth."""
    table = aggregates[(aggregates["problem"] == problem) & ~aggregates["family"].isin(tables.REFERENCE_FAMILIES)]
    needed = ["relative_bias", "relative_variance", cost]
    found: dict[str, list[CostContender]] = {}
    for stage in tables.order(table, "stage"):
        part = table[(table["stage"] == stage) & table["metric"].isin(needed)]
        wide = part.pivot_table(index="estimator", columns="metric", values="median", sort=False).reindex(columns=needed).dropna()
        rows = wide[(wide[cost] > 0) & np.isfinite(wide.to_numpy(dtype=float)).all(axis=1)]
        found[stage] = [
            CostContender(str(name), float(bias) ** 2, float(variance), float(price))
            for name, bias, variance, price in rows.itertuples(name=None)
            if bias > ZERO or variance > ZERO
        ]
    return found


def front(some: list[CostContender], budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Pareto front: budgets from that of the cheapest estimate on, and the smallest error that any contender reaches with each."""
    least = np.min([one.error(budgets) for one in some], axis=0)
    reached = np.isfinite(least)
    return budgets[reached], least[reached]


def _front(panel: Panel, line: tuple[np.ndarray, np.ndarray], axes: tuple[Scale, Scale]) -> None:
    places = [axes[1].place(float(value)) for value in line[1]]
    panel.line(np.log10(line[0]), places, width=6, opacity=0.18, behind=True)

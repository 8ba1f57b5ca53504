"""Descent: the worth of estimates in steps."""

from __future__ import annotations

import math

import pandas as pd

from ...analysis import tables
from ..drawing.curves import medians
from ..drawing.drawing import Drawing, FigureKind, Material
from ..drawing.facets import facets
from ..drawing.panel import DASHED, Panel
from ..drawing.scale import Scale

KIND = FigureKind(
    "descent",
    "Descent",
    "Left: decrease of the expected loss by a step of the mean of 16 estimates, relative to a step of the exact gradient that changes "
    "the distribution as much (same KL divergence); 1 is as good, the grey line is the natural gradient. Middle: ρ of one estimate "
    "along the descent of the exact gradient, from flat to peaked distributions. Right: regret after training for the same time, with "
    "the best of 6 step sizes: 0 has found the minimum, 1 has gained nothing. Bars: quartiles over instances, or the 95 % interval of a"
    " single one.",
)
_AVERAGED = 16


def descent(material: Material, problem: str) -> Drawing | None:
    """Steps of equal divergence, rho along a trajectory, and regret: one panel each, where there are points."""
    swept = material.swept[(material.swept["suite"] == "descent") & (material.swept["problem"] == problem)]
    rows = material.rows
    regrets = rows[(rows["suite"] == "descent") & (rows["problem"] == problem) & (rows["metric"] == "regret")]
    steps = swept[(swept["metric"] == "kl_decrease") & swept["setting"].str.endswith(f",samples={_AVERAGED}")]
    stops = swept[(swept["metric"] == "rho") & swept["setting"].str.startswith("h=")]
    found = {"step of equal KL": steps, "along the descent": stops, "training for equal time": regrets}
    found = {title: part for title, part in found.items() if not part.empty}
    if not found:
        return None
    names = dict.fromkeys(name for part in found.values() for name in tables.order(part, "estimator"))
    sheet = facets(list(found), {name: material.styles[name] for name in names}, shared=False, lines=True)
    for panel, (title, part) in zip(sheet.panels, found.items(), strict=True):
        if title == "training for equal time":
            _regret(panel, part, material, list(names))
        else:
            _linear(panel, medians(part), material, ceiling=swept if part is steps else None)
    return KIND.drawn(sheet, problem)


def _linear(panel: Panel, table: pd.DataFrame, material: Material, *, ceiling: pd.DataFrame | None) -> None:
    """Lines over a logarithmic size; the height is not logarithmic, since a step may go up."""
    x = Scale.of(table["size"])
    for name in tables.order(table, "estimator"):
        part = table[table["estimator"] == name].sort_values("size")
        places, style = [x.place(size) for size in part["size"]], material.styles[name]
        for place, row in zip(places, tables.records(part), strict=True):
            panel.line([place] * 2, [row.low, row.high], style.colour, opacity=0.5)
        panel.curve(places, part["value"], style)
    panel.line((-math.inf, math.inf), (0, 0), width=0.8, opacity=0.4, dashes=DASHED)
    x.dress(panel, "x")
    panel.y.even(max(float(table["value"].min()), -1.0) - 0.1, min(float(table["value"].max()), 1.6) + 0.1)
    if ceiling is None:
        panel.x.first, panel.x.last = panel.x.last, panel.x.first
        panel.x.label, panel.y.label = "normalised entropy, falling", "ρ of one estimate"
        return
    natural = ceiling[ceiling["metric"] == "kl_decrease_natural"].groupby("size")["value"].median()
    panel.line([x.place(size) for size in natural.index], natural, width=3, opacity=0.3, behind=True)
    panel.x.label, panel.y.label = "mean KL divergence of the step", "decrease / that of the exact gradient"


def _regret(panel: Panel, rows: pd.DataFrame, material: Material, names: list[str]) -> None:
    table = medians(rows.assign(size=0.0)).drop_duplicates("estimator")
    scale = Scale.of([value for value in table[["value", "low", "high"]].to_numpy(dtype=float).ravel()])
    found = {str(row.estimator): row for row in tables.records(table)}
    known = [name for name in names if name in found]
    for height, name in enumerate(known):
        low, value, high = (scale.place(max(float(bound), 0.0)) for bound in (found[name].low, found[name].value, found[name].high))
        panel.line([low, high], [height] * 2, material.styles[name].colour, 1.0, 0.6)
        panel.mark(value, height, material.styles[name])
    scale.dress(panel, "x")
    panel.y.named("" for _ in known)
    panel.x.label = "regret, best at the left"

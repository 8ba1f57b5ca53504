"""What estimates are worth in descent."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from .. import tables
from .canvas import INK
from .curves import medians
from .drawing import Drawing, Kind, Material
from .facets import facets
from .scale import Scale

KIND = Kind(
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
    with facets(list(found), {name: material.styles[name] for name in names}, shared=False, lines=True) as (figure, panels):
        for panel, (title, part) in zip(panels, found.items(), strict=True):
            if title == "training for equal time":
                _regret(panel, part, material, list(names))
            else:
                _linear(panel, medians(part), material, ceiling=swept if part is steps else None)
        return KIND.drawn(figure, problem)


def _linear(panel: Axes, table: pd.DataFrame, material: Material, *, ceiling: pd.DataFrame | None) -> None:
    """Lines over a logarithmic size; the height is not logarithmic, since a step may go up."""
    x = Scale.of(table["size"])
    for name in tables.order(table, "estimator"):
        part = table[table["estimator"] == name].sort_values("size")
        places, style = [x.place(size) for size in part["size"]], material.styles[name]
        panel.vlines(places, part["low"], part["high"], color=style.colour, linewidth=0.9, alpha=0.5)
        panel.plot(places, part["value"], alpha=0.9, **style.line())
    panel.axhline(0, color=INK, alpha=0.4, linewidth=0.8, linestyle=(0, (4, 3)))
    x.dress(panel, "x")
    panel.set_ylim(max(float(table["value"].min()), -1.0) - 0.1, min(float(table["value"].max()), 1.6) + 0.1)
    if ceiling is None:
        panel.invert_xaxis()
        panel.set_xlabel("normalised entropy, falling")
        panel.set_ylabel("ρ of one estimate")
        return
    natural = ceiling[ceiling["metric"] == "kl_decrease_natural"].groupby("size")["value"].median()
    panel.plot([x.place(size) for size in natural.index], natural, color=INK, alpha=0.3, linewidth=3, zorder=0)
    panel.set_xlabel("mean KL divergence of the step")
    panel.set_ylabel("decrease / that of the exact gradient")


def _regret(panel: Axes, rows: pd.DataFrame, material: Material, names: list[str]) -> None:
    table = medians(rows.assign(size=0.0)).drop_duplicates("estimator")
    scale = Scale.of([value for value in table[["value", "low", "high"]].to_numpy(dtype=float).ravel()])
    found = {str(row.estimator): row for row in tables.records(table)}
    known = [name for name in names if name in found]
    for height, name in enumerate(known):
        low, value, high = (scale.place(max(float(bound), 0.0)) for bound in (found[name].low, found[name].value, found[name].high))
        style = material.styles[name]
        panel.plot([low, high], [height] * 2, color=style.colour, linewidth=1, alpha=0.6)
        panel.plot([value], [height], linestyle="none", **style.keywords())
    scale.dress(panel, "x")
    panel.set_yticks(range(len(known)), [""] * len(known))
    panel.set_ylim(len(known) - 0.5, -0.5)
    panel.set_xlabel("regret, best at the left")

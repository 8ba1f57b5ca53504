r"""Figures for a paper: drawn by seaborn at the width of a column or of a page, as PDF with its fonts, each with the text of its caption.

A caption is TeX to be read by ``\caption{\input{…}}``: it says what was measured on how much, and the numbers that the figure shows.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ...suites.text import interval, number, plural
from .. import results
from ..analysis import tables
from ..analysis.answers import MAIN_BUDGET
from . import marks
from .drawing.styles import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9
"""Widths in inches: of a column, for one state, and of a page, for several."""

FILES = ("pdf", "tex")
"""The formats in which a figure is saved."""

FONTS: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
}
"""TrueType, which every press takes; sizes that can be read at these widths."""

_TEX = {"\\": r"\textbackslash{}", **{sign: "\\" + sign for sign in "_%#&{}$"}, "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_DECADES = np.logspace(0, 3, 25)


@dataclass(frozen=True)
class PaperFigure:
    """A figure of one problem, with its caption in TeX."""

    name: str
    pdf: bytes
    caption: str

    def save(self, folder: Path) -> list[Path]:
        """Write ``<name>.pdf`` and ``<name>.tex``."""
        written = {f"{self.name}.pdf": self.pdf, f"{self.name}.tex": (self.caption + "\n").encode()}
        for name, content in written.items():
            results.write_whole(folder / name, content)
        return [folder / name for name in written]


def draw(frame: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Iterator[PaperFigure]:
    """Ranking, bias against variance and error against cost of every problem, where they were measured.

    Args:
        frame: the rows of a run.
        known: of its manifest, what it knows of its estimators; as in `marks.held`.
    """
    held = marks.held(tables.by_loss(frame), known or {})
    for problem, cells in held["cells"].groupby("problem", sort=False):
        standings = held["standings"]
        ranked = standings[
            (standings["problem"] == problem) & (standings["question"] == "gradients") & (standings["budget"] == MAIN_BUDGET)
        ]
        ranked = ranked.merge(cells[["stage", "estimator", "colour"]], on=["stage", "estimator"])
        where = _where(cells.iloc[0])
        if len(ranked):
            yield _figure(
                f"ranking-{problem}", ranked, _ranking, f"Worth of a step ($\\rho$) for equal time, with 95\\,\\% intervals, {where}."
            )
        moments = cells.loc[np.isfinite(cells["bias"]) & np.isfinite(cells["variance"])]
        if len(moments):
            text = f"Relative bias and variance of one estimate, medians over instances with quartiles, {where}."
            yield _figure(f"plane-{problem}", moments, _plane, text)
        for cost, word in (("seconds", "seconds"), ("evaluations", "evaluations of the loss")):
            priced = moments[(moments[cost] > 0) & ~moments["reference"] & (moments["bias"] + moments["variance"] > tables.ZERO)]
            if len(priced):
                text = f"Relative root mean squared error against {word}, bands between quartiles over instances, {where}."
                yield _figure(f"error-{cost}-{problem}", priced.assign(cost=priced[cost], axis=word), _error, text)


def _where(cell: Any) -> str:
    structure = f"{cell.oracle}, {number(cell.structures)} structures" if not math.isnan(cell.structures) else str(cell.oracle)
    size = plural(int(cell.instances), "instance") + (
        "" if math.isnan(cell.replicates) else f", {plural(int(cell.replicates), 'replicate')}"
    )
    return tex(f"{cell.problem} ({structure}; loss {cell.loss}; {size}; seed {cell.seed})")


def _figure(name: str, rows: pd.DataFrame, draw_one: Callable[[Axes, pd.DataFrame], list[str]], text: str) -> PaperFigure:
    """A panel per state, side by side."""
    import matplotlib as mpl
    import seaborn as sns
    from matplotlib.figure import Figure

    stages = tables.order(rows, "stage")
    defaults: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    numbers = []
    with mpl.rc_context({**defaults, **FONTS}), sns.axes_style("whitegrid", {"grid.linewidth": 0.4}):
        names = tables.order(rows, "estimator")
        columns = min(len(stages), 3)
        lines = math.ceil(len(stages) / columns)
        width = COLUMN if columns == 1 else PAGE
        legend = draw_one is not _ranking
        height = 0.75 + 0.13 * len(names) if not legend else 2.2
        below = 0.13 * math.ceil(len(names) / (2 if columns == 1 else 4)) + 0.1 if legend else 0.0
        figure = Figure(figsize=(width, lines * height + below), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False, sharex=legend, sharey=legend).ravel()
        for panel, stage in zip(panels, stages, strict=False):
            numbers.append(f"{tex(stage)}: {'; '.join(draw_one(panel, rows[rows['stage'] == stage]))}.")
            panel.set_title(stage)
        for panel in panels[len(stages) :]:
            panel.set_visible(False)
        if legend:
            _legend(figure, rows.drop_duplicates("estimator"), 2 if columns == 1 else 4)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="pdf", metadata={"CreationDate": None})
    return PaperFigure(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), buffer.getvalue(), " ".join([text, *numbers]))


def _legend(figure: Figure, rows: pd.DataFrame, columns: int) -> None:
    from matplotlib.lines import Line2D

    marks_ = [Line2D([], [], marker="o", markersize=4, color=row.colour, label=shown(str(row.estimator))) for row in tables.records(rows)]
    figure.legend(handles=marks_, loc="outside lower center", ncols=columns, fontsize=6, frameon=False)


def _ranking(axes: Axes, rows: pd.DataFrame) -> list[str]:
    import seaborn as sns

    rows = rows.sort_values("score", ascending=False).assign(label=lambda found: found["estimator"].map(shown))
    sns.scatterplot(
        rows, x="score", y="label", hue="label", palette=dict(zip(rows["label"], rows["colour"], strict=True)), s=14, ax=axes, legend=False
    )
    axes.hlines(rows["label"], rows["low"], rows["high"], colors=list(rows["colour"]), linewidth=1.2)
    axes.set(xlabel="ρ, more is better", ylabel="")
    return [f"{tex(row.estimator)} {interval(row.score, row.low, row.high)}" for row in tables.records(rows)]


def _plane(axes: Axes, rows: pd.DataFrame) -> list[str]:
    import seaborn as sns

    at = rows["bias"].where(rows["bias_bound"].isna(), rows["bias_bound"])
    bounds = rows["bias_bound"].notna()
    for some, marker in ((~bounds, "o"), (bounds, "<")):
        part = rows[some].assign(at=at[some])
        palette = dict(zip(part["estimator"], part["colour"], strict=True))
        sns.scatterplot(part, x="at", y="variance", hue="estimator", palette=palette, marker=marker, s=16, ax=axes, legend=False)
    free = rows[~bounds]
    axes.hlines(free["variance"], free["bias_low"], free["bias_high"], colors=list(free["colour"]), linewidth=0.7)
    axes.vlines(at, rows["variance_low"], rows["variance_high"], colors=list(rows["colour"]), linewidth=0.7)
    axes.set_xscale("symlog", linthresh=_smallest(at))
    axes.set_yscale("symlog", linthresh=_smallest(rows["variance"]))
    axes.set(xlabel="relative bias", ylabel="relative variance")
    return [
        f"{tex(row.estimator)} bias {number(row.bias) if math.isnan(row.bias_bound) else f'$<$ {number(row.bias_bound)}'}, "
        f"variance {number(row.variance)}"
        for row in tables.records(rows)
    ]


def _smallest(values: pd.Series[float]) -> float:
    positive = values[values > tables.ZERO]
    return float(10 ** math.floor(math.log10(positive.min()))) if len(positive) else 1e-3


def _error(axes: Axes, rows: pd.DataFrame) -> list[str]:
    import seaborn as sns

    for row in tables.records(rows):
        budget = row.cost * _DECADES
        error, low, high = (
            np.sqrt(bias**2 + np.maximum(variance, 0) / _DECADES)
            for bias, variance in ((row.bias, row.variance), (row.bias_low, row.variance_low), (row.bias_high, row.variance_high))
        )
        sns.lineplot(x=budget, y=error, color=row.colour, linewidth=1, ax=axes)
        axes.fill_between(budget, low, high, color=row.colour, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=str(rows["axis"].iloc[0]), ylabel="relative RMSE")
    return [
        f"{tex(row.estimator)} {number(math.sqrt(row.bias**2 + max(row.variance, 0)))} at {number(row.cost)}"
        for row in tables.records(rows)
    ]


def tex(text: str) -> str:
    r"""Text as TeX takes it.

    Example:
        >>> tex("spanning_tree[k=3], 95 %")
        'spanning\\_tree[k=3], 95 \\%'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)

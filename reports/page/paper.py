r"""Figures for a paper: drawn by seaborn at the width of a column or of a page, as PDF with its fonts, each with the text of its caption.

A caption is TeX for ``\caption{\input{…}}``: the measurement, its size, and the numbers in the figure.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from ...suites.base import split_loss
from ...suites.metrics import label_of
from ...suites.text import interval, number, plural
from .. import results
from ..analysis import tables
from ..analysis.answers import MAIN_BUDGET
from . import marks
from .looks import short_name

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
_DOTS_PER_INCH = 220
_MATRIX = (
    "The best estimator by $\\rho$, the worth of a step, with the time of {} estimates of REINFORCE for each: structures by states, for "
    "every loss. In the cells its mean over instances, in brackets where others cannot be told from it."
)
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


@dataclass(frozen=True)
class PlannedFigure:
    """A figure before it is drawn: its name, its rows, the function that draws a panel, and the start of its caption."""

    name: str
    rows: pd.DataFrame
    panel: Callable[[Axes, pd.DataFrame], list[str]] | None
    text: str

    def draw(self) -> PaperFigure:
        """Draw it: a panel per entropy level, side by side; the matrix without panels."""
        if self.panel is None:
            return PaperFigure(self.name, saved(draw_matrix(self.rows), "pdf"), self.text)
        stages, names = tables.order(self.rows, "stage"), self.rows.drop_duplicates("estimator")
        columns, numbers, legend = min(len(stages), 3), [], self.panel is not _ranking
        columns_of_legend = 2 if columns == 1 else 4
        lines, below = math.ceil(len(stages) / columns), 0.13 * math.ceil(len(names) / columns_of_legend) + 0.1 if legend else 0.0
        height = lines * (2.2 if legend else 0.75 + 0.13 * len(names)) + below
        with _looks("whitegrid"):
            figure = figure_of(COLUMN if columns == 1 else PAGE, height)
            panels = figure.subplots(lines, columns, squeeze=False, sharex=legend, sharey=legend).ravel()
            for panel, stage in zip(panels, stages, strict=False):
                numbers.append(f"{tex(stage)}: {'; '.join(self.panel(panel, self.rows[self.rows['stage'] == stage]))}.")
                panel.set_title(stage)
            for panel in panels[len(stages) :]:
                panel.set_visible(False)
            if legend:
                _legend(figure, dict(zip(names["estimator"], names["colour"], strict=True)), columns_of_legend)
            return PaperFigure(self.name, saved(figure, "pdf"), " ".join([self.text, *numbers]))


def draw(frame: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Iterator[PaperFigure]:
    """Draw all figures of a run, see `planned`."""
    return (figure.draw() for figure in planned(frame, known))


def planned(frame: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Iterator[PlannedFigure]:
    """The matrix of best estimators; for each problem the ranking, bias and variance, error and cost, and growth with size.

    Args:
        frame: the rows of a run.
        known: entry ``catalogue`` of its manifest, as in `marks.held`.
    """
    held = marks.held(tables.by_loss(frame), known or {})
    best = winners(held)
    if len(best):
        yield PlannedFigure("matrix", best, None, _MATRIX.format(MAIN_BUDGET))
    asked = held["standings"][(held["standings"]["question"] == "gradients") & (held["standings"]["budget"] == MAIN_BUDGET)]
    for problem, cells in held["cells"].groupby("problem", sort=False):
        where = _where(cells.iloc[0])
        ranked = asked[asked["problem"] == problem].merge(cells[["stage", "estimator", "colour"]], on=["stage", "estimator"])
        moments = cells[np.isfinite(cells["bias"]) & np.isfinite(cells["variance"])]
        found: list[tuple[str, pd.DataFrame, Callable[[Axes, pd.DataFrame], list[str]], str]] = [
            ("ranking", ranked, _ranking, "Worth of a step ($\\rho$) for equal time, with 95\\,\\% intervals"),
            ("plane", moments, _plane, "Relative bias and variance of one estimate, medians over instances with quartiles"),
        ]
        for cost, word in (("seconds", "seconds"), ("evaluations", "evaluations of the loss")):
            priced = moments[(moments[cost] > 0) & ~moments["reference"] & (moments["bias"] + moments["variance"] > tables.ZERO)]
            text = f"Relative root mean squared error against {word}, bands between quartiles over instances"
            found.append((f"error-{cost}", priced.assign(cost=priced[cost], axis=word), _error, text))
        swept = held["sweeps"][held["sweeps"]["problem"] == problem]
        for (metric, axis), points in swept.groupby(["metric", "axis"], sort=False):
            grown = points[points.groupby(["stage", "estimator"])["size"].transform("nunique") > 1]
            label = label_of(str(metric))
            text = tex(f"{label[0].upper()}{label[1:]} by {axis}, medians over instances with bands between quartiles")
            found.append((f"{metric}-{axis}", grown.assign(label=label), _growth, text))
        for name, rows, panel, text in found:
            if len(rows):
                yield PlannedFigure(re.sub(r"[^a-z0-9]+", "-", f"{name}-{problem}".lower()).strip("-"), rows, panel, f"{text}, {where}.")


def winners(held: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best estimator for each problem and entropy level, with the time of `MAIN_BUDGET` estimates of REINFORCE.

    Estimators for any loss compete.


    Returns:
        One row for each: ``base`` (the problem without its loss), ``loss``, ``stage``, ``estimator``, ``score``, ``colour``, and ``sure``:
        whether no other may be as good.
    """
    standings = held["standings"]
    asked = standings[(standings["question"] == "gradients") & (standings["budget"] == MAIN_BUDGET)]
    rivals = asked[asked["standing"] == "tied"].groupby(["problem", "stage"]).size()
    best = asked[asked["standing"] == "best"].merge(held["cells"][["problem", "stage", "estimator", "loss", "colour"]])
    places = zip(best["problem"], best["stage"], strict=True)
    bases = [split_loss(name.removesuffix(f", {loss}"))[0] for name, loss in zip(best["problem"], best["loss"].astype(str), strict=True)]
    return best.assign(base=bases, sure=[rivals.get(place, 0) == 0 for place in places])


def draw_matrix(best: pd.DataFrame) -> Figure:
    """Structures by states, a panel for every loss: the best estimator by its colour, with its score; in brackets where it is not sure."""
    import seaborn as sns
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    losses, bases, stages = (tables.order(best, name) for name in ("loss", "base", "stage"))
    colours = best.drop_duplicates("estimator").set_index("estimator")["colour"]
    codes = {name: position for position, name in enumerate(colours.index)}
    with _looks("white"):
        figure = figure_of(PAGE if len(losses) * len(stages) > 4 else COLUMN, 0.75 + 0.17 * len(bases) + 0.14 * math.ceil(len(codes) / 4))
        panels = figure.subplots(1, len(losses), squeeze=False, sharey=True).ravel()
        for panel, loss in zip(panels, losses, strict=True):
            rows = best[best["loss"] == loss].set_index(["base", "stage"])
            grid = rows["estimator"].map(codes).unstack().reindex(index=bases, columns=stages)
            scores = [number(row.score, 2) if row.sure else f"({number(row.score, 2)})" for row in tables.records(rows)]
            words = pd.Series(scores, index=rows.index, dtype=object).unstack().reindex(index=bases, columns=stages).fillna("")
            palette = ListedColormap(list(colours))
            looks: dict[str, Any] = {"cmap": palette, "vmin": -0.5, "vmax": len(codes) - 0.5, "linewidths": 0.6, "cbar": False}
            sns.heatmap(grid.astype(float), annot=words, fmt="", annot_kws={"size": 6}, ax=panel, **looks)
            panel.set(xlabel="", ylabel="", title=loss)
            panel.tick_params(axis="both", length=0)
            panel.tick_params(axis="y", rotation=0)
        handles = [Patch(color=colour, label=short_name(str(name))) for name, colour in colours.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), fontsize=6, frameon=False)
    return figure


def _where(cell: Any) -> str:
    structure = f"{cell.oracle}, {number(cell.structures)} structures" if not math.isnan(cell.structures) else str(cell.oracle)
    counts = ((cell.instances, "instance"), (cell.replicates, "replicate"))
    size = ", ".join(plural(int(count), noun) for count, noun in counts if not math.isnan(count))
    return tex(f"{cell.problem} ({'; '.join(filter(None, (structure, f'loss {cell.loss}', size, f'seed {cell.seed}')))})")


@contextmanager
def _looks(style: Literal["white", "whitegrid"]) -> Iterator[None]:
    """The settings of matplotlib for a figure, in place of those of the program."""
    import matplotlib as mpl
    import seaborn as sns

    defaults: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    with mpl.rc_context({**defaults, **FONTS}), sns.axes_style(style, {"grid.linewidth": 0.4}):
        yield


def figure_of(width: float, height: float) -> Figure:
    """An empty one, of so many inches."""
    from matplotlib.figure import Figure as Empty

    return Empty(figsize=(width, height), layout="constrained")


def saved(figure: Figure, kind: Literal["pdf", "png"]) -> bytes:
    """A figure as the bytes of a file, the same whenever it is drawn."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=_DOTS_PER_INCH, metadata={"CreationDate": None} if kind == "pdf" else {"Software": None})
    return buffer.getvalue()


def _legend(figure: Figure, colours: Mapping[Any, str], columns: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], marker="o", markersize=4, color=colour, label=short_name(str(name))) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=6, frameon=False)


def _ranking(axes: Axes, rows: pd.DataFrame) -> list[str]:
    import seaborn as sns

    rows = rows.sort_values("score", ascending=False).assign(label=lambda found: found["estimator"].map(short_name))
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
        if not some.any():  # seaborn warns of colours that no point takes
            continue
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
    for row in tables.records(rows):
        pairs = ((row.bias, row.variance), (row.bias_low, row.variance_low), (row.bias_high, row.variance_high))
        errors = [np.sqrt(bias**2 + np.maximum(variance, 0) / _DECADES) for bias, variance in pairs]
        _line(axes, row.cost * _DECADES, errors, color=row.colour)
    axes.set(xscale="log", yscale="log", xlabel=str(rows["axis"].iloc[0]), ylabel="relative RMSE")
    errors = np.sqrt(rows["bias"] ** 2 + np.maximum(rows["variance"], 0))
    return [f"{tex(row.estimator)} {number(error)} at {number(row.cost)}" for row, error in zip(tables.records(rows), errors, strict=True)]


def _growth(axes: Axes, rows: pd.DataFrame) -> list[str]:
    ends = []
    for name, points in rows.sort_values("size").groupby("estimator", sort=False):
        looks = {"marker": "o", "markersize": 3, "markeredgecolor": "white"}
        _line(axes, points["size"], [points[name] for name in ("median", "lower", "upper")], color=points["colour"].iloc[0], **looks)
        both = [f"{number(points['median'].iloc[end])} at {number(points['size'].iloc[end])}" for end in (0, -1)]
        ends.append(f"{tex(str(name))} {', '.join(both)}")
    scale = "log" if (rows["lower"] > 0).all() else "linear"
    axes.set(xscale="log", yscale=scale, xlabel=str(rows["axis"].iloc[0]), ylabel=str(rows["label"].iloc[0]))
    return ends


def _line(axes: Axes, x: Any, y: Sequence[Any], *, color: str, **looks: Any) -> None:
    """A line with a band: the middle, the lower and the upper ends."""
    axes.plot(x, y[0], color=color, linewidth=1, **looks)
    axes.fill_between(x, y[1], y[2], color=color, alpha=0.15, linewidth=0)


def tex(text: str) -> str:
    r"""Text as TeX takes it.

    Example:
        >>> tex("spanning_tree[k=3], 95 %")
        'spanning\\_tree[k=3], 95 \\%'
    """
    return "".join(_TEX.get(letter, letter) for letter in text)

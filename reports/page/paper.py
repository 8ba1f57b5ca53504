r"""Figures for a paper: drawn by seaborn as PDF, each with the text of its caption, which is TeX for ``\caption{\input{…}}``."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from ...suites.base import split_loss
from ...suites.text import number, plural
from ..analysis import tables
from ..analysis.answers import MAIN_BUDGET
from . import dataset
from .cells import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN, PAGE = 3.3, 6.9  # widths in inches: of a column, for one state, and of a page, for several
FILES = ("pdf", "tex")  # the formats in which a figure is saved

FONTS: dict[Any, Any] = {
    "pdf.fonttype": 42,
    **dict.fromkeys(("font.size", "axes.labelsize"), 7),
    "axes.titlesize": 7.5,
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 6.5),
}
"""TrueType, which every press takes; sizes that can be read at these widths."""

_MATRIX = (
    "The best estimator by $\\rho$ for each structure, entropy level and loss, with the time of {} estimates of REINFORCE. "
    "Cells show its mean over instances, in brackets if other estimators are tied."
)
_PLANE = "Relative bias and variance of one estimate, medians over instances with quartiles; a triangle is an upper bound of the bias"
_ERROR = "Relative root mean squared error against {}, bands between quartiles over instances"
_TEX: Any = {ord("ρ"): r"$\rho$", ord("µ"): r"$\mu$", ord("∞"): r"$\infty$", ord("≈"): r"$\approx$", ord("−"): "$-$", ord("–"): "--"}
_TEX |= {ord(letter): f"${letter}$" for letter in "<>|"}  # other signs in OT1
_ESCAPES: Any = {ord(letter): f"\\{letter}" for letter in "_%#&{}$"}
_ESCAPES |= {ord("\\"): r"\textbackslash{}", ord("~"): r"\textasciitilde{}", ord("^"): r"\textasciicircum{}"}
_DECADES = np.logspace(0, 3, 25)


@dataclass(frozen=True)
class PlannedFigure:
    """A figure before it is drawn: its name, its rows, the function that draws a panel (None: the matrix), and its caption."""

    name: str
    rows: pd.DataFrame
    panel: Callable[[Axes, pd.DataFrame], None] | None
    text: str

    def draw(self) -> dict[str, bytes]:
        """Draw it, a panel per entropy level side by side; the contents of ``<name>.pdf`` and ``<name>.tex``, its caption."""
        from matplotlib.figure import Figure

        stages, names = tables.order(self.rows, "stage"), self.rows.drop_duplicates("estimator")
        columns, per_line = min(len(stages), 3), 2 if len(stages) == 1 else 4
        lines = math.ceil(len(stages) / columns)
        with _looks("white" if self.panel is None else "whitegrid"):
            if self.panel is None:
                figure = draw_matrix(self.rows)
            else:
                figure = Figure(
                    figsize=(COLUMN if columns == 1 else PAGE, 2.2 * lines + 0.13 * math.ceil(len(names) / per_line) + 0.1),
                    layout="constrained",
                )
                panels = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
                for panel, stage in zip(panels, stages, strict=False):
                    self.panel(panel, self.rows[self.rows["stage"] == stage])
                    panel.set_title(stage)
                for panel in panels[len(stages) :]:
                    panel.set_visible(False)
                _legend(figure, dict(zip(names["estimator"], names["colour"], strict=True)), per_line)
            return {f"{self.name}.pdf": saved(figure, "pdf"), f"{self.name}.tex": f"{self.text}\n".encode()}


def planned(frame: pd.DataFrame, known: Mapping[str, Any] | None = None) -> Iterator[PlannedFigure]:
    """The matrix of best estimators; for each problem bias and variance, and error against cost. The catalogue is that of the manifest."""
    held = dataset.marks(tables.by_loss(frame), known or {})
    best = winners(held)
    if len(best):
        yield PlannedFigure("matrix", best, None, _MATRIX.format(MAIN_BUDGET))
    for problem, cells in held["cells"].groupby("problem", sort=False):
        cell = cells.iloc[0]
        structure = f"{cell.oracle}, {number(cell.structures)} structures" if not math.isnan(cell.structures) else str(cell.oracle)
        counts = ((cell.instances, "instance"), (cell.replicates, "replicate"))
        size = ", ".join(plural(int(count), noun) for count, noun in counts if not math.isnan(count))
        facts = "; ".join(filter(None, (structure, f"loss {cell.loss}", size, f"seed {cell.seed}")))
        where = f"{problem} ({facts})".translate(_ESCAPES | _TEX)
        moments = cells[np.isfinite(cells["bias"]) & np.isfinite(cells["variance"])]
        found: list[tuple[str, pd.DataFrame, Callable[[Axes, pd.DataFrame], None], str]] = [("plane", moments, _plane, _PLANE)]
        for cost, word in (("seconds", "seconds"), ("evaluations", "evaluations of the loss")):
            priced = moments[(moments[cost] > 0) & ~moments["reference"] & (moments["bias"] + moments["variance"] > tables.ZERO)]
            found.append((f"error-{cost}", priced.assign(cost=priced[cost], axis=word), _error, _ERROR.format(word)))
        for name, rows, panel, text in found:
            if len(rows):
                name = re.sub(r"[^a-z0-9]+", "-", f"{name}-{problem}".lower()).strip("-")
                yield PlannedFigure(name, rows, panel, f"{text}, {where}.")


def winners(held: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best estimator for each problem, without its loss (``base``), and entropy level, and whether no other is tied (``sure``)."""
    standings = held["standings"]
    asked = standings[(standings["question"] == "gradients") & (standings["budget"] == MAIN_BUDGET)]
    rivals = asked[asked["standing"] == "tied"].groupby(["problem", "stage"]).size()
    best = asked[asked["standing"] == "best"].merge(held["cells"][["problem", "stage", "estimator", "loss", "colour"]])
    places = zip(best["problem"], best["stage"], strict=True)
    bases = [split_loss(name.removesuffix(f", {loss}"))[0] for name, loss in zip(best["problem"], best["loss"].astype(str), strict=True)]
    return best.assign(base=bases, sure=[rivals.get(place, 0) == 0 for place in places])


def draw_matrix(best: pd.DataFrame) -> Figure:
    """Draw the best estimator by its colour: structures by entropy levels, a panel for every loss. Scores are in brackets if others tie."""
    import seaborn as sns
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    losses, bases, stages = (tables.order(best, name) for name in ("loss", "base", "stage"))
    colours = best.drop_duplicates("estimator").set_index("estimator")["colour"]
    codes = {name: position for position, name in enumerate(colours.index)}
    shown = best["score"].map(lambda score: number(score, 2))
    best = best.assign(code=best["estimator"].map(codes), word=shown.where(best["sure"], "(" + shown + ")"))
    with _looks("white"):
        figure = Figure(
            figsize=(PAGE if len(losses) * len(stages) > 4 else COLUMN, 0.75 + 0.17 * len(bases) + 0.14 * math.ceil(len(codes) / 4)),
            layout="constrained",
        )
        panels = figure.subplots(1, len(losses), squeeze=False, sharey=True).ravel()
        for panel, loss in zip(panels, losses, strict=True):
            rows = best[best["loss"] == loss].set_index(["base", "stage"])
            grid, words = (rows[name].unstack().reindex(index=bases, columns=stages) for name in ("code", "word"))
            looks: dict[str, Any] = {"vmin": -0.5, "vmax": len(codes) - 0.5, "linewidths": 0.6, "cbar": False}
            looks |= {"annot": words.fillna(""), "fmt": "", "annot_kws": {"size": 6}, "cmap": ListedColormap(list(colours))}
            sns.heatmap(grid.astype(float), ax=panel, **looks)
            panel.set(xlabel="", ylabel="", title=loss)
            panel.tick_params(axis="both", length=0)
            panel.tick_params(axis="y", rotation=0)
        _legend(figure, dict(colours), min(4, len(codes)))
    return figure


def _plane(axes: Axes, rows: pd.DataFrame) -> None:
    at, colours = rows["bias"].where(rows["bias_bound"].isna(), rows["bias_bound"]), list(rows["colour"])
    for bounded, marker in ((False, "o"), (True, "<")):
        part = rows["bias_bound"].notna() == bounded
        looks: dict[str, Any] = {"c": list(rows["colour"][part]), "marker": marker, "s": 16, "edgecolors": "white", "linewidths": 0.5}
        axes.scatter(at[part], rows["variance"][part], **looks)
    low, high = (rows[name].where(rows["bias_bound"].isna(), at) for name in ("bias_low", "bias_high"))
    axes.hlines(rows["variance"], low, high, colors=colours, linewidth=0.7)
    axes.vlines(at, rows["variance_low"], rows["variance_high"], colors=colours, linewidth=0.7)
    for scale, values in ((axes.set_xscale, at), (axes.set_yscale, rows["variance"])):
        positive = values[values > tables.ZERO]
        scale("symlog", linthresh=10 ** math.floor(math.log10(positive.min())) if len(positive) else 1e-3)
    axes.set(xlabel="relative bias", ylabel="relative variance")


def _error(axes: Axes, rows: pd.DataFrame) -> None:
    for row in tables.items_of(rows):
        pairs = ((row.bias, row.variance), (row.bias_low, row.variance_low), (row.bias_high, row.variance_high))
        middle, low, high = (np.sqrt(bias**2 + np.maximum(variance, 0) / _DECADES) for bias, variance in pairs)
        axes.plot(row.cost * _DECADES, middle, color=row.colour, linewidth=1)
        axes.fill_between(row.cost * _DECADES, low, high, color=row.colour, alpha=0.15, linewidth=0)
    axes.set(xscale="log", yscale="log", xlabel=str(rows["axis"].iloc[0]), ylabel="relative RMSE")


def tex_tables(found: Mapping[str, Table]) -> str:
    r"""Tables for ``\usepackage{booktabs}``, one for each problem: medians with quartiles, and the best of an entropy level in bold."""
    parts = []
    for problem, table in found.items():
        kept = [place for place in range(len(table.columns)) if any(row[place].text not in ("", "–") for row in table.rows)]
        rows, titles = [[row[place] for place in kept] for row in table.rows], [table.columns[place][0] for place in kept]
        shown = pd.DataFrame([[" ".join((cell.text, *cell.notes)) for cell in row] for row in rows], columns=titles)
        bold = pd.DataFrame([["textbf:--rwrap;" * (cell.best and cell.is_number) for cell in row] for row in rows], columns=titles)
        style: Any = shown.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
        caption, looks = f"Estimators on {problem}".translate(_ESCAPES), {"hrules": True, "column_format": "l" * len(titles)}
        parts.append(style.apply(lambda _, bold=bold: bold, axis=None).to_latex(caption=caption, **looks))
    return "\n".join(parts).translate(_TEX)


@contextmanager
def _looks(style: Literal["white", "whitegrid"]) -> Iterator[None]:
    """The settings of matplotlib for a figure, in place of those of the program."""
    import matplotlib as mpl
    import seaborn as sns

    defaults: dict[Any, Any] = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    with mpl.rc_context({**defaults, **FONTS}), sns.axes_style(style, {"grid.linewidth": 0.4}):
        yield


def _legend(figure: Figure, colours: Mapping[Any, str], columns: int) -> None:
    from matplotlib.patches import Patch

    handles = []
    for estimator, colour in colours.items():  # the class of your own file or module, and at most 30 letters
        name, bracket, options = str(estimator).partition("[")
        short = name.rpartition(":")[2] + bracket + options
        handles.append(Patch(color=colour, label=short if len(short) <= 30 else short[:29] + "…"))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=6, frameon=False)


def saved(figure: Figure, kind: Literal["pdf", "png"]) -> bytes:
    """A figure as the bytes of a file, the same whenever it is drawn."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=220, metadata={"CreationDate": None} if kind == "pdf" else {"Software": None})
    return buffer.getvalue()

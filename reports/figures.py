"""Figures as functions of the result table, as SVG text that can be put into a page.

Text and lines take the colour of the surrounding page (``currentColor``), so that one file serves light and dark pages. The same table
gives the same bytes. An estimator family has one colour and marker in every figure.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from ..suites.measures.wall_clock import BATCH
from . import canvas, results, tables
from .canvas import INK

_GREY = "#7f7f7f"
_PANELS_PER_ROW = 3
_PANEL = (3.2, 3.0)
_LEGEND_WIDTH = 2.7
_LEGEND_LINE = 0.19
_MARKER_SIZE = 6.5
_SAME_PLACE = 0.012
_KINDS = {"bias-variance": "bias against variance", "cost-error": "cost against error", "sparsity": "sparsity"}

_HUES = tuple(
    tuple(line.split())
    for line in """
exact
reinforce reinforce_constant reinforce_running_mean reinforce_greedy reinforce_sampled reinforce_optimal reinforce_learned
reinforce_conditional_mean reinforce_normalised reinforce_ppo rloo vargrad sum_and_sample unordered_set importance_weighted_set
step_reinforce step_greedy step_sampled step_conditional_mean step_optimal step_learned step_leave_one_out step_ppo step_ste step_st_gumbel
ste ste_marginals ste_sample simple identity identity_perturbed gst reinmax reinmax_rao
gumbel_softmax st_gumbel gumbel_rao relaxed_top_k relaxed_top_k_st gumbel_crf gumbel_crf_st
perturb_and_map perturb_and_parse stochastic_softmax stochastic_sparsemap perturbed_optimizer perturbed_multiplicative
spigot spigot_steps spigot_ce spigot_eg blackbox imle aimle
structured_attention differentiable_dp sparsemap sparsemap_marginalisation sparsemax_marginalisation top_k_sparsemax
entmax fusedmax oscarmax csparsemax csoftmax arm disarm arsm rebar relax
""".strip().splitlines()
)
"""Families by colour; within one, the marker tells them apart."""

_COLOURS = (INK, *sns.color_palette("colorblind").as_hex())
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p", "<", ">")
_FILLS = ("full", "none", "left", "right", "top", "bottom")


@dataclass(frozen=True)
class Style:
    """How an estimator is drawn: colour and marker of its family, filling of its options."""

    colour: str
    marker: str
    fill: str = "full"
    size: float = _MARKER_SIZE

    def keywords(self) -> dict[str, Any]:
        """Arguments for a line of markers."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": self.size,
            "fillstyle": self.fill,
            "markerfacecoloralt": "none",
            "markeredgecolor": self.colour,
        }


@dataclass(frozen=True)
class Drawing:
    """A finished figure: ``name`` for files and ids, ``svg`` for a page."""

    name: str
    kind: str
    problem: str
    svg: str

    def save(self, directory: Path) -> Path:
        """Write ``<name>.svg`` into a folder."""
        path = directory / f"{self.name}.svg"
        results.write_whole(path, self.svg.encode())
        return path


def family_style(family: str) -> Style:
    """The colour and marker of a family: fixed for those of structgrad, drawn from the name for others."""
    for colour, families in zip(_COLOURS, _HUES, strict=False):
        if family in families:
            return Style(colour, _MARKERS[families.index(family)])
    digest = hashlib.blake2b(family.encode(), digest_size=4).digest()
    return Style(_COLOURS[-1], _MARKERS[digest[1] % len(_MARKERS)])


def styles(frame: pd.DataFrame) -> dict[str, Style]:
    """The style of every estimator; options of one family differ in how the marker is filled."""
    chosen: dict[str, Style] = {}
    seen: dict[str, int] = {}
    pairs = frame[["estimator", "family"]].astype(object).drop_duplicates().itertuples(index=False, name=None)
    for estimator, family in pairs:
        chosen[estimator] = replace(family_style(family), fill=_FILLS[seen.get(family, 0) % len(_FILLS)])
        seen[family] = seen.get(family, 0) + 1
    return chosen


def draw(frame: pd.DataFrame) -> list[Drawing]:
    """All figures of a run: three kinds for every problem, where there is something to draw."""
    return [
        drawing
        for problem in tables.order(tables.measured(frame), "problem")
        for make in (bias_against_variance, cost_against_error, sparsity)
        if (drawing := make(frame, problem)) is not None
    ]


def bias_against_variance(frame: pd.DataFrame, problem: str) -> Drawing | None:
    """Relative bias against relative variance, one panel per stage; dotted lines join points of equal mean squared error."""
    points = _points(frame, problem, "relative_bias", "relative_variance")
    if points.empty:
        return None
    return _faceted(points, _Plot("bias-variance", problem, styles(frame), ("relative bias", "relative variance"), _error_contours))


def cost_against_error(frame: pd.DataFrame, problem: str) -> Drawing | None:
    """Time per estimate (of a batch, by its rows) against the relative root mean squared error, a panel per stage.

    The line joins what nothing else beats in both.
    """
    points = _points(_with_cost(frame), problem, "cost", "relative_rmse")
    if points.empty:
        return None
    axes = ("seconds per estimate, forward + backward", "relative root mean squared error")
    return _faceted(points, _Plot("cost-error", problem, styles(frame), axes, _staircase))


def _with_cost(frame: pd.DataFrame) -> pd.DataFrame:
    """The measured rows with two more metrics: the sum of both times, and the root of the squared error."""
    rows = tables.measured(frame)
    times = rows[rows["metric"].isin(["forward_time", "backward_time"])]
    keys = ["problem", "stage", "estimator", "instance"]
    whole = times.groupby(keys, sort=False)["value"].transform("sum")
    both = times.groupby(keys, sort=False)["metric"].transform("nunique") == 2
    cost = times.assign(value=whole / BATCH, metric="cost", low=math.nan, high=math.nan)[both].drop_duplicates(keys)
    error = rows[rows["metric"] == "relative_mse"]
    root = error.assign(value=np.sqrt(error["value"].clip(lower=0)), metric="relative_rmse")
    return pd.concat([cost, root], ignore_index=True)


def _points(frame: pd.DataFrame, problem: str, x: str, y: str) -> pd.DataFrame:
    """One row per stage and estimator with the medians and quartiles of two metrics."""
    table = tables.aggregate(frame)
    table = table[table["problem"] == problem]
    keys = ["stage", "estimator", "family"]
    across, along = (
        table[table["metric"] == metric].set_index(keys)[["median", "lower", "upper"]].add_suffix(suffix)
        for metric, suffix in ((x, "_x"), (y, "_y"))
    )
    joined = across.join(along, how="inner")
    return joined[np.isfinite(joined).all(axis=1)].reset_index()


@dataclass(frozen=True)
class _Plot:
    kind: str
    problem: str
    styles: dict[str, Style]
    labels: tuple[str, str]
    background: Callable[[Axes, pd.DataFrame, _Scale, _Scale], None]


@dataclass(frozen=True)
class _Scale:
    """A logarithmic axis over the data, with a place for 0 below its smallest value."""

    bottom: float
    top: float
    has_zero: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> _Scale:
        finite = [value for value in values if math.isfinite(value)]
        positive = [math.log10(value) for value in finite if value > tables.ZERO] or [0.0]
        span = max(positive) - min(positive)
        spare = max(0.05 * span, 0.08, (1 - span) / 2)
        return cls(min(positive) - spare, max(positive) + spare, any(value <= tables.ZERO for value in finite))

    @property
    def zero(self) -> float:
        """Where 0 is drawn."""
        return self.bottom - 2 * self._gap()

    def _gap(self) -> float:
        return 0.06 * (self.top - self.bottom)

    def place(self, value: float) -> float:
        """Where a value is drawn: at its logarithm, or at the place of 0."""
        return math.log10(value) if value > tables.ZERO else self.zero

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and labels: decades, or every second and fifth of one on a short axis."""
        decades = range(math.floor(self.bottom), math.ceil(self.top) + 1, max(1, round((self.top - self.bottom) / 5)))
        digits = (1, 2, 5) if self.top - self.bottom < 2.2 else (1,)
        pairs = [(decade + math.log10(digit), _label(digit, decade)) for decade in decades for digit in digits]
        inside = [pair for pair in pairs if self.bottom <= pair[0] <= self.top]
        shown = [(self.zero, "0"), *inside] if self.has_zero else inside
        return [place for place, _ in shown], [label for _, label in shown]

    def limits(self) -> tuple[float, float]:
        return self.zero - self._gap() if self.has_zero else self.bottom, self.top

    def rule_off(self, draw_line: Callable[..., Any]) -> None:
        """A dashed line between 0 and the logarithmic part."""
        if self.has_zero:
            draw_line(self.bottom - self._gap(), color=INK, alpha=0.4, linewidth=0.8, linestyle=(0, (4, 3)))


def _label(digit: int, exponent: int) -> str:
    """``10⁻⁴``, or the plain number where that is short."""
    if -3 <= exponent <= 3:
        return f"{digit * 10.0**exponent:g}"
    factor = "" if digit == 1 else f"{digit}·"
    return f"{factor}10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _faceted(points: pd.DataFrame, plot: _Plot) -> Drawing:
    stages = tables.order(points, "stage")
    columns = min(len(stages), _PANELS_PER_ROW)
    rows = math.ceil(len(stages) / columns)
    names = tables.order(points, "estimator")
    scales = tuple(_Scale.of(points[[f"median_{axis}", f"lower_{axis}", f"upper_{axis}"]].to_numpy().ravel()) for axis in "xy")
    frame = _Frame(columns * _PANEL[0], rows * _PANEL[1] + 0.35, len(names))
    with canvas.canvas(frame.width, frame.height) as figure:
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for panel, stage in zip(panels, stages, strict=False):
            _panel(panel, points[points["stage"] == stage], plot, (scales[0], scales[1]))
            panel.set_title(stage)
        for spare in panels[len(stages) :]:
            spare.set_visible(False)
        for panel in panels[max(0, len(stages) - columns) : len(stages)]:
            panel.tick_params(labelbottom=True)
            panel.set_xlabel(plot.labels[0])
        for panel in panels[: len(stages) : columns]:
            panel.set_ylabel(plot.labels[1])
        _legend(figure, {name: plot.styles[name] for name in names}, frame)
        return _drawing(figure, plot.kind, plot.problem)


@dataclass(frozen=True)
class _Frame:
    """Panels of a size in inches, and a legend of some entries: beside them where it is hardly taller than they are, else below."""

    across: float
    along: float
    entries: int

    @property
    def beside(self) -> bool:
        return _LEGEND_LINE * self.entries + 0.3 <= 1.3 * self.along

    @property
    def legend_columns(self) -> int:
        return 1 if self.beside else max(2, int(self.across / (_LEGEND_WIDTH - 0.3)))

    @property
    def width(self) -> float:
        return self.across + _LEGEND_WIDTH if self.beside else max(self.across, 2 * _LEGEND_WIDTH)

    @property
    def height(self) -> float:
        return max(self.along, self._legend_height) if self.beside else self.along + self._legend_height

    @property
    def _legend_height(self) -> float:
        return _LEGEND_LINE * math.ceil(self.entries / self.legend_columns) + 0.3


def _panel(panel: Axes, points: pd.DataFrame, plot: _Plot, scales: tuple[_Scale, _Scale]) -> None:
    for set_axis, scale in ((panel.xaxis, scales[0]), (panel.yaxis, scales[1])):
        places, labels = scale.ticks()
        set_axis.set_major_locator(FixedLocator(places))
        set_axis.set_major_formatter(FixedFormatter(labels))
        set_axis.set_minor_locator(NullLocator())
    panel.set_xlim(*scales[0].limits())
    panel.set_ylim(*scales[1].limits())
    scales[0].rule_off(panel.axvline)
    scales[1].rule_off(panel.axhline)
    plot.background(panel, points, *scales)
    taken: list[tuple[float, float]] = []
    for point in tables.records(points):
        place = (scales[0].place(point.median_x), scales[1].place(point.median_y))
        hidden = sum(math.dist(_relative(place, scales), _relative(other, scales)) < _SAME_PLACE for other in taken)
        _mark(panel, point, replace(plot.styles[str(point.estimator)], size=_MARKER_SIZE * 0.65**hidden), scales)
        taken.append(place)


def _relative(place: tuple[float, float], scales: tuple[_Scale, _Scale]) -> tuple[float, float]:
    """A place in parts of the axes."""
    x, y = (value / (scale.top - scale.zero) for value, scale in zip(place, scales, strict=True))
    return x, y


def _mark(panel: Axes, point: Any, style: Style, scales: tuple[_Scale, _Scale]) -> None:
    """One estimator: its median, and bars to the quartiles. A mark on top of another one is smaller, so that both are seen."""
    x, y = scales[0].place(point.median_x), scales[1].place(point.median_y)
    across = [scales[0].place(point.lower_x), scales[0].place(point.upper_x)]
    along = [scales[1].place(point.lower_y), scales[1].place(point.upper_y)]
    panel.plot(across, [y, y], color=style.colour, linewidth=0.9, alpha=0.6)
    panel.plot([x, x], along, color=style.colour, linewidth=0.9, alpha=0.6)
    panel.plot([x], [y], linestyle="none", alpha=0.9, **style.keywords())


def _error_contours(panel: Axes, points: pd.DataFrame, x: _Scale, y: _Scale) -> None:
    """Dotted lines of equal bias² + variance, one per decade or two."""
    step = max(1, math.ceil((y.top - y.bottom) / 4))
    for exponent in range(math.ceil(y.bottom), math.floor(y.top) + 1, step):
        bias = np.logspace(min(x.bottom, exponent / 2), exponent / 2, 200)
        variance = 10.0**exponent - bias**2
        inside = (variance > 10.0**y.bottom) & (bias > 10.0**x.bottom)
        panel.plot(np.log10(bias[inside]), np.log10(variance[inside]), color=INK, alpha=0.35, linewidth=0.8, linestyle=":")


def pareto_front(points: pd.DataFrame) -> pd.DataFrame:
    """The estimators that no other one beats in both coordinates, from left to right; the exact gradient does not compete."""
    rivals = points[~points["family"].isin(tables.REFERENCE_FAMILIES)]
    ranked = rivals.sort_values(["median_x", "median_y"])
    best = ranked["median_y"].cummin()
    return ranked[(ranked["median_y"] <= best) & ~best.duplicated()]


def _staircase(panel: Axes, points: pd.DataFrame, x: _Scale, y: _Scale) -> None:
    """The Pareto front, drawn."""
    front = pareto_front(points)
    places = ([x.place(value) for value in front["median_x"]], [y.place(value) for value in front["median_y"]])
    panel.step(*places, where="post", color=INK, alpha=0.45, linewidth=1.1)


def sparsity(frame: pd.DataFrame, problem: str) -> Drawing | None:
    """Support, non-zero parts of the structure and of the gradient: one panel each, one line per estimator, one mark per stage."""
    table = tables.aggregate(frame)
    metrics = {
        "support": "structures in the support",
        "forward_nonzeros": "parts in the structure",
        "gradient_nonzeros": "parts in the gradient",
    }
    table = table[(table["problem"] == problem) & table["metric"].isin(metrics) & np.isfinite(table["median"])]
    if table.empty:
        return None
    estimators, stages = tables.order(table, "estimator"), tables.order(table, "stage")
    with canvas.canvas(11.5, 0.9 + 0.24 * len(estimators) + 0.3) as figure:
        panels = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
        for panel, (metric, label) in zip(panels, metrics.items(), strict=True):
            _ladder(panel, table[table["metric"] == metric], estimators, _Ladder(stages, styles(frame)))
            panel.set_xlabel(label)
        panels[0].set_yticks(range(len(estimators)), estimators)
        panels[0].set_ylim(len(estimators) - 0.5, -0.5)
        _stage_legend(figure, stages)
        return _drawing(figure, "sparsity", problem)


@dataclass(frozen=True)
class _Ladder:
    stages: list[str]
    styles: dict[str, Style]

    def size(self, stage: str) -> float:
        """Marks grow with training."""
        return float(np.linspace(3.5, 8.5, max(2, len(self.stages)))[self.stages.index(stage)])


def _ladder(panel: Axes, table: pd.DataFrame, estimators: list[str], look: _Ladder) -> None:
    scale = _Scale.of(table["median"])
    for row in tables.records(table):
        style, place = look.styles[str(row.estimator)], scale.place(float(row.median))
        keywords = {**style.keywords(), "fillstyle": "none", "markersize": look.size(str(row.stage))}
        panel.plot([place], [estimators.index(str(row.estimator))], linestyle="none", **keywords)
    places, labels = scale.ticks()
    panel.set_xticks(places, labels)
    panel.set_xlim(*scale.limits())
    scale.rule_off(panel.axvline)


def _stage_legend(figure: Figure, stages: list[str]) -> None:
    look = _Ladder(stages, {})
    handles = [
        Line2D([], [], linestyle="none", marker="o", color=_GREY, fillstyle="none", markersize=look.size(stage), label=stage)
        for stage in stages
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(stages), frameon=False)


def _legend(figure: Figure, chosen: dict[str, Style], frame: _Frame) -> None:
    handles = [Line2D([], [], linestyle="none", label=name, **style.keywords()) for name, style in chosen.items()]
    if frame.beside:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, ncols=1)
    else:
        figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=frame.legend_columns)


def _drawing(figure: Figure, kind: str, problem: str) -> Drawing:
    name = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{problem}".lower()).strip("-")
    return Drawing(name, kind, problem, canvas.to_svg(figure, name, f"{_KINDS[kind]}, {problem}"))

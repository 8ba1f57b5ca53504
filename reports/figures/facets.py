"""Panels side by side with one legend of estimators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from . import canvas
from .styles import Style, shown

PANELS_PER_ROW = 3
_PANEL = (3.2, 3.0)
_LEGEND_WIDTH = 2.7
_LEGEND_LINE = 0.19


@dataclass(frozen=True)
class Frame:
    """Panels of a size in inches, and a legend of some entries: beside them where it is hardly taller than they are, else below."""

    across: float
    along: float
    entries: int

    @property
    def beside(self) -> bool:
        """Whether the legend stands beside the panels."""
        return _LEGEND_LINE * self.entries + 0.3 <= 1.3 * self.along

    @property
    def legend_columns(self) -> int:
        """Of the legend."""
        return 1 if self.beside else max(2, int(self.across / (_LEGEND_WIDTH - 0.3)))

    @property
    def width(self) -> float:
        """Of the whole figure."""
        return self.across + _LEGEND_WIDTH if self.beside else max(self.across, 2 * _LEGEND_WIDTH)

    @property
    def height(self) -> float:
        """Of the whole figure."""
        return max(self.along, self._legend_height) if self.beside else self.along + self._legend_height

    @property
    def _legend_height(self) -> float:
        return _LEGEND_LINE * math.ceil(self.entries / self.legend_columns) + 0.3


@contextmanager
def facets(
    titles: Sequence[str], looks: dict[str, Style], *, shared: bool = True, lines: bool = False
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with a panel per title, and a legend of estimators.

    Args:
        titles: of the panels.
        looks: the legend.
        shared: whether panels share their axes, so that only the outer ones are labelled.
        lines: whether the legend shows lines or markers alone.
    """
    columns = min(len(titles), PANELS_PER_ROW)
    rows = math.ceil(len(titles) / columns)
    frame = Frame(columns * _PANEL[0], rows * _PANEL[1] + 0.35, len(looks))
    with canvas.canvas(frame.width, frame.height) as figure:
        grid: np.ndarray = figure.subplots(rows, columns, squeeze=False, sharex=shared, sharey=shared)
        panels = list(grid.ravel())
        for panel, title in zip(panels, titles, strict=False):
            panel.set_title(title)
        for spare in panels[len(titles) :]:
            spare.set_visible(False)
        for panel in panels[max(0, len(titles) - columns) : len(titles)]:
            panel.tick_params(labelbottom=True)
        _legend(figure, looks, frame, lines=lines)
        yield figure, panels[: len(titles)]


@contextmanager
def strips(titles: Sequence[str], names: Sequence[str]) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with a panel per title, and a row per name in each; names stand at the left."""
    columns = min(len(titles), PANELS_PER_ROW)
    rows = math.ceil(len(titles) / columns)
    with canvas.canvas(columns * 2.9 + 1.9, rows * (0.21 * len(names) + 0.85)) as figure:
        grid: np.ndarray = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        panels = list(grid.ravel())
        for panel, title in zip(panels, titles, strict=False):
            panel.set_title(title)
        for spare in panels[len(titles) :]:
            spare.set_visible(False)
        for panel in panels[max(0, len(titles) - columns) : len(titles)]:
            panel.tick_params(labelbottom=True)
        panels[0].set_yticks(range(len(names)), [shown(name) for name in names])
        panels[0].set_ylim(len(names) - 0.5, -0.5)
        yield figure, panels[: len(titles)]


def label_outer(panels: Sequence[Axes], across: str, along: str) -> None:
    """Axis labels where no other panel stands below, or to the left."""
    columns = min(len(panels), PANELS_PER_ROW)
    for panel in panels[max(0, len(panels) - columns) :]:
        panel.set_xlabel(across)
    for panel in panels[::columns]:
        panel.set_ylabel(along)


def _legend(figure: Figure, looks: dict[str, Style], frame: Frame, *, lines: bool) -> None:
    handles = [
        Line2D([], [], label=shown(name), **(style.line() if lines else {"linestyle": "none", **style.keywords()}))
        for name, style in looks.items()
    ]
    if frame.beside:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, ncols=1)
    else:
        figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=frame.legend_columns)

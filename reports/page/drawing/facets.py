"""Panels side by side with one legend of estimators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import canvas
from .canvas import Box, Line, Picture, Shape, Text
from .panel import Panel
from .styles import Style, shown

PANELS_PER_ROW = 3
_INCH = 72.0
_PANEL = (3.2, 3.0)
_LEGEND_WIDTH = 2.7
_LEGEND_LINE = 0.19
_LEGEND_LETTERS = 8.5
_SPARE = 10.0


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
        if not self.entries:
            return self.across
        return self.across + _LEGEND_WIDTH if self.beside else max(self.across, 2 * _LEGEND_WIDTH)

    @property
    def height(self) -> float:
        """Of the whole figure."""
        return max(self.along, self._legend_height) if self.beside else self.along + self._legend_height

    @property
    def _legend_height(self) -> float:
        return _LEGEND_LINE * math.ceil(self.entries / self.legend_columns) + 0.3


@dataclass(frozen=True)
class Sheet:
    """Panels in rows, with a legend.

    Attributes:
        panels: from left to right, then below.
        frame: how large.
        legend: names and styles. ``lines``: whether it shows lines or markers alone.
        shared: whether panels share their axes, so that only the outer ones are labelled. ``note``: words with marks, above.
    """

    panels: list[Panel]
    frame: Frame
    legend: dict[str, Style]
    shared: bool = True
    lines: bool = False
    note: dict[str, Style] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        """Panels in a row."""
        return min(len(self.panels), PANELS_PER_ROW)

    def label(self, across: str, along: str) -> None:
        """Label axes where no other panel stands below, or to the left."""
        for panel in self.panels[max(0, len(self.panels) - self.columns) :]:
            panel.x.label = across
        for panel in self.panels[:: self.columns]:
            panel.y.label = along

    def picture(self) -> Picture:
        """The sheet as shapes."""
        shapes: list[Shape] = []
        boxes: list[Box] = []
        for position, (panel, place) in enumerate(zip(self.panels, self._places(), strict=True)):
            across = not self.shared or position + self.columns >= len(self.panels)
            shapes += panel.outside(place, across=across, along=not self.shared or position % self.columns == 0)
            boxes.append(Box(*place, list(panel.inside(*place[2:]))))
        words = [shape for shape in [*shapes, *self._legend()] if not isinstance(shape, Text) or shape.text]
        return Picture(self.frame.width * _INCH, self.frame.height * _INCH, words, boxes)

    @property
    def _across(self) -> float:
        """The width of the panels: all that the legend leaves."""
        letters = max((len(shown(name)) for name in self.legend), default=0)
        return self.frame.width * _INCH - (letters * 0.6 * _LEGEND_LETTERS + 32 if self.legend and self.frame.beside else 0)

    def _places(self) -> Iterator[tuple[float, float, float, float]]:
        """Left, top, width and height of every panel."""
        columns, rows = self.columns, math.ceil(len(self.panels) / self.columns)
        left = max(panel.y.room for panel in self.panels) + (24 if any(panel.y.label for panel in self.panels) else 10)
        top = 18.0 if self.note or any(panel.title for panel in self.panels) else 6.0
        bottom = 34.0 if any(panel.x.label for panel in self.panels) else 20.0
        across, along = self._across, self.frame.along * _INCH - 4
        shared = self.shared
        width = (across - left) / columns - _SPARE if shared else across / columns - left - _SPARE
        height = (along - bottom) / rows - top if shared else along / rows - top - bottom
        for position in range(len(self.panels)):
            row, column = divmod(position, columns)
            x = left + column * (width + _SPARE + (0 if shared else left))
            yield x, top + row * (height + top + (0 if shared else bottom)), width, height

    def _legend(self) -> Iterator[Shape]:
        """An entry per estimator, in columns; above all of it the note."""
        x = 12.0
        for text, style in self.note.items():
            yield from canvas.mark(x, 8, style)
            yield Text((x + 18, 8 + 0.35 * _LEGEND_LETTERS), text, _LEGEND_LETTERS)
            x += 36 + 0.6 * _LEGEND_LETTERS * len(text)
        frame, line = self.frame, _LEGEND_LINE * _INCH
        rows = math.ceil(len(self.legend) / frame.legend_columns)
        start = (self._across, 18.0) if frame.beside else (12.0, frame.along * _INCH + 16)
        for position, (name, style) in enumerate(self.legend.items()):
            column, row = divmod(position, rows)
            x, y = start[0] + column * (_LEGEND_WIDTH - 0.3) * _INCH, start[1] + row * line
            if self.lines:
                yield Line(((x, y), (x + 20, y)), style.colour, 1.2, dashes=style.dashes)
            yield from canvas.mark(x + 10, y, style.small if self.lines else style)
            yield Text((x + 28, y + 0.35 * _LEGEND_LETTERS), shown(name), _LEGEND_LETTERS)


def facets(titles: Sequence[str], looks: dict[str, Style], *, shared: bool = True, lines: bool = False) -> Sheet:
    """A panel per title, and a legend of estimators."""
    columns = min(len(titles), PANELS_PER_ROW)
    rows = math.ceil(len(titles) / columns)
    frame = Frame(columns * _PANEL[0], rows * _PANEL[1] + 0.35, len(looks))
    return Sheet([Panel(title) for title in titles], frame, looks, shared, lines)


def strips(titles: Sequence[str], names: Sequence[str]) -> Sheet:
    """A panel per title, and a row per name in each; names stand at the left."""
    columns = min(len(titles), PANELS_PER_ROW)
    rows = math.ceil(len(titles) / columns)
    sheet = Sheet([Panel(title) for title in titles], Frame(columns * 2.9 + 1.9, rows * (0.21 * len(names) + 0.85), 0), {})
    for panel in sheet.panels:
        panel.y.named(map(shown, names))
    return sheet

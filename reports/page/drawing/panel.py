"""A panel: axes, and what is drawn between them in the units of the data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from . import canvas
from .canvas import Area, Line, Shape, Text
from .styles import INK, Style

TICK, LABEL, TITLE = 9.0, 9.5, 10.0
"""Sizes of letters, in points."""

DOTTED, DASHED = (1.0, 1.65), (4.0, 3.0)

_LETTER = 0.6
"""The width of a letter, in parts of its size."""


@dataclass
class Axis:
    """One axis: its ends (the first may be the larger one), and the places and words of its ticks."""

    first: float = 0.0
    last: float = 1.0
    ticks: tuple[tuple[float, str], ...] = ()
    label: str = ""

    @property
    def room(self) -> float:
        """The width of its longest word."""
        return max((len(text) for _, text in self.ticks), default=0) * _LETTER * TICK

    def share(self, value: float) -> float:
        """Where a value lies: 0 at the first end, 1 at the last."""
        return (value - self.first) / ((self.last - self.first) or 1.0)

    def even(self, first: float, last: float) -> None:
        """A linear axis with round ticks."""
        rough = abs(last - first) / 6 or 1.0
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999) * power
        low, high = min(first, last), max(first, last)
        places = (count * step for count in range(math.ceil(low / step), math.floor(high / step) + 1))
        self.first, self.last = first, last
        self.ticks = tuple((place, f"{place:.6g}".replace("-", "−")) for place in places)

    def named(self, names: Iterable[str]) -> None:
        """A row for each name, from the top."""
        self.ticks = tuple(enumerate(names))
        self.first, self.last = len(self.ticks) - 0.5, -0.5


@dataclass
class Panel:
    """What one panel shows; ``behind`` lies under all else."""

    title: str = ""
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    content: list[Line | Area | tuple[float, float, Style, float]] = field(default_factory=list)

    def line(  # noqa: PLR0913 - short to call, for figures are made of little else
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        colour: str = INK,
        width: float = 0.9,
        opacity: float = 1.0,
        *,
        dashes: tuple[float, ...] = (),
        behind: bool = False,
    ) -> None:
        """A line through points."""
        points = tuple(zip(map(float, xs), map(float, ys), strict=True))
        if points:
            self.content.insert(0 if behind else len(self.content), Line(points, colour, width, opacity, dashes, rounded=behind))

    def band(self, xs: Iterable[float], lows: Iterable[float], highs: Iterable[float], colour: str) -> None:
        """What lies between two lines, behind all else."""
        across = list(map(float, xs))
        points = (*zip(across, map(float, lows), strict=True), *reversed(list(zip(across, map(float, highs), strict=True))))
        if points:
            self.content.insert(0, Area(points, colour, 0.13, filled=True))

    def mark(self, x: float, y: float, style: Style, opacity: float = 1.0) -> None:
        """The marker of an estimator."""
        self.content.append((x, y, style, opacity))

    def curve(self, xs: Iterable[float], ys: Iterable[float], style: Style) -> None:
        """A line of an estimator with its small markers."""
        across, along = list(xs), list(ys)
        self.line(across, along, style.colour, 1.2, 0.9, dashes=style.dashes)
        for x, y in zip(across, along, strict=True):
            self.mark(x, y, style.small, 0.9)

    def inside(self, width: float, height: float) -> Iterator[Shape]:
        """The content, for a box of a size."""
        for place, _ in self.x.ticks:
            yield Line(((width * self.x.share(place), 0), (width * self.x.share(place), height)), opacity=0.12)
        for place, _ in self.y.ticks:
            yield Line(((0, height * (1 - self.y.share(place))), (width, height * (1 - self.y.share(place)))), opacity=0.12)
        for item in self.content:
            if isinstance(item, Line | Area):
                yield replace(item, points=tuple((width * self.x.share(x), height * (1 - self.y.share(y))) for x, y in item.points))
            else:
                x, y, style, opacity = item
                yield from canvas.mark(width * self.x.share(x), height * (1 - self.y.share(y)), style, opacity)

    def outside(self, box: tuple[float, float, float, float], *, across: bool, along: bool) -> Iterator[Shape]:
        """Axes, ticks and words around a box (left, top, width, height); words of ticks ``across`` and ``along`` it where asked for."""
        left, top, width, height = box
        base = top + height
        yield Line(((left, top), (left, base), (left + width, base)))
        yield Text((left + width / 2, top - 6), self.title, TITLE, "middle")
        for place, text in self.x.ticks:
            at = left + width * self.x.share(place)
            yield Line(((at, base), (at, base + 3.5)))
            yield Text((at, base + 13), text if across else "", TICK, "middle")
        for place, text in self.y.ticks:
            at = base - height * self.y.share(place)
            yield Line(((left - 3.5, at), (left, at)))
            yield Text((left - 6, at + 0.35 * TICK), text if along else "", TICK, "end")
        yield Text((left + width / 2, base + 27), self.x.label, LABEL, "middle")
        yield Text((left - 14 - (self.y.room if along else 0), top + height / 2), self.y.label, LABEL, "middle", upwards=True)

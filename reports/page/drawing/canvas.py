"""A picture as plain shapes: written as SVG for a page, and drawn by matplotlib where pixels are asked for.

Lengths are points, from the upper left corner. Text and lines take the colour of the surrounding page.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .styles import INK, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = tuple[tuple[float, float], ...]

_PIXELS_PER_POINT = 4 / 3
_FAR = 9999.0
"""What lies outside of a panel is cut off; no number of a page needs to be larger."""

_MARKERS: dict[str, Points] = {
    "o": tuple((math.cos(math.tau * turn / 24), math.sin(math.tau * turn / 24)) for turn in range(24)),
    "s": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "^": ((-1, 1), (0, -1), (1, 1)),
    "v": ((-1, -1), (0, 1), (1, -1)),
    "<": ((1, -1), (-1, 0), (1, 1)),
    ">": ((-1, -1), (1, 0), (-1, 1)),
    "D": ((0, -1.41), (1.41, 0), (0, 1.41), (-1.41, 0)),
    "p": tuple((math.sin(math.tau * turn / 5), -math.cos(math.tau * turn / 5)) for turn in range(5)),
    "P": tuple(
        (x / 3, y / 3)
        for x, y in ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1), (-3, -1), (-1, -1))
    ),
    "X": tuple(
        (x / 2, y / 2)
        for x, y in ((-1, -2), (0, -1), (1, -2), (2, -1), (1, 0), (2, 1), (1, 2), (0, 1), (-1, 2), (-2, 1), (-1, 0), (-2, -1))
    ),
}
_FILLED = {"left": (1, 0), "right": (-1, 0), "top": (0, 1), "bottom": (0, -1)}
"""The direction in which a half of a marker ends."""


@dataclass(frozen=True)
class Line:
    """Straight lines through points. ``dashes``: in multiples of its width."""

    points: Points
    colour: str = INK
    width: float = 0.8
    opacity: float = 1.0
    dashes: tuple[float, ...] = ()
    rounded: bool = False


@dataclass(frozen=True)
class Area:
    """A polygon; without a width it has no outline, without ``filled`` nothing else."""

    points: Points
    colour: str
    opacity: float
    filled: bool
    width: float = 0.0


@dataclass(frozen=True)
class Text:
    """A word at a point of its base line: where it begins (``start``), in its ``middle``, or where it has its ``end``."""

    place: tuple[float, float]
    text: str
    size: float
    anchor: str = "start"
    upwards: bool = False


Shape = Line | Area | Text


def mark(x: float, y: float, style: Style, opacity: float = 1.0) -> Iterator[Area]:
    """The marker of an estimator: its outline, and the part that is filled."""
    radius = style.size / 2
    outline = tuple((x + radius * across, y + radius * down) for across, down in _MARKERS[style.marker])
    yield Area(outline, style.colour, opacity, style.fill == "full", 1.0)
    if style.fill in _FILLED:
        yield Area(tuple(_half(outline, (x, y), _FILLED[style.fill])), style.colour, opacity, filled=True)


def _half(outline: Points, centre: tuple[float, float], direction: tuple[int, int]) -> Iterator[tuple[float, float]]:
    """What of a polygon lies against a direction, as seen from its centre."""
    heights = [(x - centre[0]) * direction[0] + (y - centre[1]) * direction[1] for x, y in outline]
    for position, (point, height) in enumerate(zip(outline, heights, strict=True)):
        before, fallen = outline[position - 1], heights[position - 1]
        if (height > 0) != (fallen > 0):
            share = fallen / (fallen - height)
            yield before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])
        if height <= 0:
            yield point


@dataclass(frozen=True)
class Box:
    """A part of a picture with shapes in its own lengths; what reaches out of it is cut off."""

    left: float
    top: float
    width: float
    height: float
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Picture:
    """Shapes, and boxes of shapes."""

    width: float
    height: float
    shapes: Sequence[Shape]
    boxes: Sequence[Box]

    def svg(self, label: str) -> str:
        """The bare ``<svg>`` element, without any id."""
        size = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}" width="{_n(self.width * _PIXELS_PER_POINT)}"'
        font = 'font-family="DejaVu Sans, Verdana, sans-serif" fill="none" stroke-linejoin="round"'
        boxes = "".join(
            f'<svg x="{_n(box.left)}" y="{_n(box.top)}" width="{_n(box.width)}" height="{_n(box.height)}">{_written(box.shapes)}</svg>'
            for box in self.boxes
        )
        opening = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font} role="img" aria-label="{html.escape(label)}">'
        return f"{opening}{_written(self.shapes)}{boxes}</svg>".replace(INK, "currentColor")

    def png(self, dots_per_inch: int) -> bytes:
        """Pixels on white."""
        import matplotlib as mpl
        import seaborn as sns
        from matplotlib.figure import Figure

        with mpl.rc_context({key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}), sns.axes_style("white"):
            figure = Figure(figsize=(self.width / 72, self.height / 72))
            for box in (Box(0, 0, self.width, self.height, self.shapes), *self.boxes):
                left, bottom = box.left / self.width, 1 - (box.top + box.height) / self.height
                axes = figure.add_axes((left, bottom, box.width / self.width, box.height / self.height))
                axes.set(xlim=(0, box.width), ylim=(box.height, 0))
                axes.axis("off")
                for shape in box.shapes:
                    _painted(axes, shape)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=dots_per_inch, facecolor="white")
        return buffer.getvalue()


def _written(shapes: Iterable[Shape]) -> str:
    return "".join(map(_element, shapes))


def _element(shape: Shape) -> str:
    if isinstance(shape, Text):
        x, y = map(_n, shape.place)
        turn = f' transform="rotate(-90 {x} {y})"' if shape.upwards else ""
        anchor = "" if shape.anchor == "start" else f' text-anchor="{shape.anchor}"'
        style = f'font-size="{_n(shape.size)}" fill="{INK}"'
        return f'<text x="{x}" y="{y}" {style}{anchor}{turn}>{html.escape(shape.text, quote=False)}</text>'
    opacity = "" if shape.opacity == 1 else f' opacity="{shape.opacity:g}"'
    path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in shape.points)
    if isinstance(shape, Area):
        outline = f' stroke="{shape.colour}"' if shape.width else ""
        return f'<path d="{path}Z"{outline}' + (f' fill="{shape.colour}"' if shape.filled else "") + f"{opacity}/>"
    dashes = f' stroke-dasharray="{" ".join(_n(part * shape.width) for part in shape.dashes)}"' if shape.dashes else ""
    cap = ' stroke-linecap="round"' if shape.rounded else ""
    return f'<path d="{path}" stroke="{shape.colour}" stroke-width="{shape.width:g}"{dashes}{cap}{opacity}/>'


def _n(value: float) -> str:
    """A length to a tenth of a point."""
    return f"{min(max(value, -_FAR), _FAR):.1f}".removesuffix(".0")


def _painted(axes: Axes, shape: Shape) -> None:
    from matplotlib.patches import Polygon

    if isinstance(shape, Text):
        turn = {"rotation": 90.0, "rotation_mode": "anchor"} if shape.upwards else {}
        side = {"start": "left", "middle": "center", "end": "right"}[shape.anchor]
        axes.text(*shape.place, shape.text, size=shape.size, color=INK, ha=side, va="baseline", **turn)  # type: ignore[arg-type]
    elif isinstance(shape, Area):
        fill = shape.colour if shape.filled else "none"
        edge = shape.colour if shape.width else "none"
        axes.add_patch(Polygon(shape.points, closed=True, facecolor=fill, edgecolor=edge, linewidth=shape.width, alpha=shape.opacity))
    else:
        x, y = zip(*(tuple(min(max(part, -_FAR), _FAR) for part in point) for point in shape.points), strict=True)
        dashes = (0, shape.dashes) if shape.dashes else "-"
        cap = "round" if shape.rounded else "butt"
        axes.plot(x, y, color=shape.colour, linewidth=shape.width, alpha=shape.opacity, linestyle=dashes, solid_capstyle=cap)

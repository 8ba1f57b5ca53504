"""A figure of our look, and its SVG made ready to stand inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK = "#010203"
"""The colour of text and lines. Nothing else has it, so that it can be exchanged for that of the page's text."""

_PIXELS_PER_POINT = 4 / 3
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
_TRANSPARENT = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
_LOOK: dict[str, Any] = {
    **sns.axes_style("ticks"),
    "svg.fonttype": "none",
    "svg.hashsalt": "structgrad",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "axes.grid": True,
    "grid.alpha": 0.12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(_TRANSPARENT, "none"),
}


@contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """A figure [inches] apart from pyplot and from the user's settings, which are the old ones afterwards."""
    standard = {key: value for key, value in mpl.rcParamsDefault.items() if key != "backend"}
    look: dict[Any, Any] = {**standard, **_LOOK}
    with mpl.rc_context(look):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        yield figure


def to_svg(figure: Figure, name: str, label: str) -> str:
    """The bare ``<svg>`` element: ids that begin with its name, the page's text colour, no date."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = body.replace("*{stroke", "svg *{stroke").replace(INK, "currentColor").replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", body)
    return _opening(body, label) + body[body.index(">") + 1 :]


def _opening(svg: str, label: str) -> str:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if found is None:
        raise AssertionError("matplotlib wrote an SVG without a viewBox")
    width, height = (float(side) for side in found.groups())
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width * _PIXELS_PER_POINT:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'

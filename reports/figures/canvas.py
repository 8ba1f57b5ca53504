"""A figure of our look, and its SVG made ready to stand inside a page."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
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
    _settle(figure)
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    body = _slim(body.replace("*{stroke", "svg *{stroke").replace(INK, "currentColor").replace("xlink:href", "href"))
    start, rest = _opening(body, label), body[body.index(">") + 1 :]
    prefix = "f" + hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return start + _classes(_numbered(rest, prefix), prefix)


def _settle(figure: Figure) -> None:
    """Lay the figure out once and for all; saving would draw everything twice, the first time for the layout alone."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def _slim(svg: str) -> str:
    """The same picture in less than half of the bytes: hundredths of a point, ids only where something refers to them, no line breaks."""
    known = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in known else "", svg)
    svg = re.sub(r' transform="rotate\(-?0 [^"]*"', "", svg)
    svg = re.sub(r" ?font-family: 'DejaVu Sans';?", "", svg)
    svg = re.sub(r'(?<=[ "(,])-?\d+\.\d{3,}', _rounded, svg)
    svg = re.sub(r">\s+<", "><", svg)
    svg = re.sub(r"(?<=[\d.z]) ?\n(?=[LMCQz\"])", "", svg)
    while svg != (svg := re.sub(r"<g>((?:<(?!/?g\b)[^>]*>[^<]*)*)</g>", r"\1", svg)):
        pass
    return svg


def _numbered(svg: str, prefix: str) -> str:
    """Short ids that no other figure has."""
    found = {name: f"{prefix}-{count}" for count, name in enumerate(re.findall(r'\bid="([^"]+)"', svg))}
    return re.sub(r'(\bid="|href="#|url\(#)([^")]+)', lambda match: match[1] + found[match[2]], svg)


def _classes(svg: str, prefix: str) -> str:
    """Styles that many elements have, as classes of this figure."""
    counted = Counter(re.findall(r' style="([^"]*)"', svg))
    shared = {style: f"{prefix}s{rank}" for rank, (style, count) in enumerate(counted.most_common()) if count > 2}
    svg = re.sub(r' style="([^"]*)"', lambda found: f' class="{shared[found[1]]}"' if found[1] in shared else found[0], svg)
    rules = "".join(f".{name}{{{style}}}" for style, name in shared.items())
    return svg.replace("</style>", rules + "</style>", 1)


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")


def _opening(svg: str, label: str) -> str:
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    if found is None:
        raise AssertionError("matplotlib wrote an SVG without a viewBox")
    width, height = (float(side) for side in found.groups())
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width * _PIXELS_PER_POINT:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, Verdana, sans-serif" role="img" aria-label="{label}">'

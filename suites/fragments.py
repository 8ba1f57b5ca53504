"""Fragments of HTML for notebooks: a heading, facts, tables of numbers with small pictures.

A fragment is whole in itself: a style sheet of a few rules, tables, and drawings of lines and dots in SVG, without scripts and without
anything that is fetched. Colours are those of the text around it, so that it is legible on light and dark themes; where a viewer strips
drawings, the numbers are left. The drawings are written here and not by matplotlib: a figure of matplotlib has colours of its own, takes
20 to 60 KB, and half a second for its first import, where a dot with its interval takes 100 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Self

from .metrics import label_of, rule_of
from .scale import LogScale
from .statistics.interval import Interval
from .text import number

LIMIT = 30_000
"""Bytes of a fragment at most; what does not fit is counted in a note."""

WIDTH, HEIGHT, TALL = 120, 12, 28
"""Of a picture: that of an interval, and that of a curve, in pixels."""

_MARGIN = 6
_DOT = 2.5
_APART = 30.0
_NOTES, _LONGEST_NOTE = 6, 300
_LONGEST = 60
_CLOSING = 200
"""Bytes for the note on what is left out, and for what closes."""

# The class stands twice, so that rules for tables that a notebook has for all outputs do not win.
_STYLE = (
    "<style>.structgrad{font-size:13px;line-height:1.4}"
    ".structgrad.structgrad table{border-collapse:collapse;margin:.3em 0 .8em;font-size:inherit;color:inherit}"
    ".structgrad.structgrad th,.structgrad.structgrad td{padding:.2em .8em .2em 0;text-align:left;"
    "vertical-align:top;white-space:nowrap;border:0;color:inherit}"
    ".structgrad.structgrad thead th{border-bottom:1px solid;font-weight:600;vertical-align:bottom}"
    ".structgrad.structgrad svg{display:block;overflow:visible}"
    ".structgrad.structgrad path{fill:none;stroke:currentColor}"
    ".structgrad.structgrad circle,.structgrad.structgrad text{fill:currentColor}"
    ".structgrad.structgrad text{font-size:10px;text-anchor:middle;font-weight:400}"
    ".structgrad.structgrad .area{fill:currentColor;fill-opacity:.15;stroke:none}"
    ".structgrad.structgrad .rule{stroke-opacity:.35;stroke-dasharray:2 2}"
    ".structgrad.structgrad small{font-size:11px;font-weight:400;opacity:.8}"
    ".structgrad.structgrad p{margin:.2em 0}</style>"
)


@dataclass(frozen=True)
class IntervalAxis:
    """Where numbers lie in a picture, and which are written below it.

    Attributes:
        first, last: the ends, of logarithms where there is a ``scale``.
        ticks: places and labels. ``rules``: places that a dashed line marks.
    """

    first: float
    last: float
    ticks: tuple[tuple[float, str], ...]
    rules: tuple[float, ...] = ()
    scale: LogScale | None = None

    @classmethod
    def of(cls, metric: str, intervals: Iterable[Interval]) -> Self:
        """The axis of values of a metric: of logarithms where values are compared by their ratio, else with its natural marks.

        Example:
            >>> IntervalAxis.of("relative_mse", [Interval(0.02, 0.01, 0.03), Interval(12.0)]).ticks
            ((-2.0, '0.01'), (-1.0, '0.1'), (0.0, '1'), (1.0, '10'))
            >>> IntervalAxis.of("cosine", [Interval(0.5)]).ticks
            ((0.0, '0'), (1.0, '1'))
        """
        numbers = [end for one in intervals for end in (one.value, one.low, one.high) if end is not None and abs(end) < float("inf")]
        if not numbers or (rule_of(metric).scale != "difference" and min(numbers) >= 0):
            scale = LogScale.of(numbers)
            return cls(*scale.limits(), _apart(zip(*scale.ticks(), strict=True), *scale.limits()), scale=scale)
        # A share of test items lies in a narrow range, where from 0 to 1 nobody could tell values apart.
        marks = () if metric.endswith(("accuracy", "curve_mean")) else (0.0, 1.0)
        first, last = min(*numbers, *marks, numbers[0]), max(*numbers, *marks, numbers[0])
        if first == last:
            first, last = first - 0.5, last + 0.5
        ticks = [(place, number(place)) for place in (*marks, first, last)]
        return cls(first, last, _apart(ticks, first, last), marks)

    def at(self, value: float) -> float:
        """The position of a value in pixels; beyond the ends, at them."""
        place = value if self.scale is None else self.scale.place(value)
        return _position(place, self.first, self.last)

    def heading(self) -> str:
        """The labels of the axis above its pictures."""
        places = ((_position(place, self.first, self.last), text) for place, text in self.ticks)
        texts = "".join(f'<text x="{x:g}" y="10">{text}</text><path d="M{x:g} 13v3"/>' for x, text in places)
        return _svg(texts, 16)

    def mark(self, found: Interval) -> str:
        """A dot with its interval; nothing where there is no value."""
        rules = "".join(f'<path class="rule" d="M{_position(place, self.first, self.last):g} 0v{HEIGHT}"/>' for place in self.rules)
        if found.value is None:
            return _svg(rules, HEIGHT)
        middle = HEIGHT / 2
        ends = (found.value if end is None else end for end in (found.low, found.high))
        low, high = map(self.at, ends)
        # A shorter one lies below the dot.
        bar = f'<path d="M{low:g} {middle - 3:g}v6v-3H{high:g}v-3v6"/>' if high - low >= 2 * _DOT else ""
        return _svg(f'{rules}{bar}<circle cx="{self.at(found.value):g}" cy="{middle:g}" r="{_DOT}"/>', HEIGHT)


def _position(place: float, first: float, last: float) -> float:
    share = (place - first) / (last - first)
    return round(_MARGIN + min(max(share, 0.0), 1.0) * (WIDTH - 2 * _MARGIN), 1)


def _apart(ticks: Iterable[tuple[float, str]], first: float, last: float) -> tuple[tuple[float, str], ...]:
    """Those whose labels do not run into one before, in their order."""
    kept: list[tuple[float, str]] = []
    for place, text in ticks:
        if all(abs(_position(place, first, last) - _position(other, first, last)) >= _APART for other, _ in kept):
            kept.append((place, text))
    return tuple(kept)


def _svg(content: str, height: int) -> str:
    return f'<svg width="{WIDTH}" height="{height}" aria-hidden="true">{content}</svg>'


def curve(points: Sequence[tuple[float, Interval]], widest: float, axis: IntervalAxis) -> str:
    """A line through the values over ``[0, widest]``, and the area between their bounds; heights by the ends of an axis."""

    def place(x: float, y: float) -> str:
        share = (y - axis.first) / (axis.last - axis.first)
        return f"{_position(x, 0.0, widest):g} {round(TALL - 2 - min(max(share, 0.0), 1.0) * (TALL - 4), 1):g}"

    known = [(x, one.value, one.low, one.high) for x, one in points if one.value is not None]
    bounds = [(x, value if low is None else low, value if high is None else high) for x, value, low, high in known]
    if len(known) < 2:
        return _svg("", TALL)
    around = [place(x, low) for x, low, _ in bounds] + [place(x, high) for x, _, high in reversed(bounds)]
    line = "L".join(place(x, value) for x, value, _, _ in known)
    return _svg(f'<path class="area" d="M{"L".join(around)}Z"/><path d="M{line}"/>', TALL)


def metric_heading(metric: str) -> str:
    """What the column of a metric is called: in words, and in plain ones where it has none."""
    return escape(label_of(metric).replace("_", " "))


def small(text: str) -> str:
    """What is said beside."""
    return f"<small>{escape(text)}</small>"


def shortened(text: str) -> str:
    """A name, escaped; of a long one the beginning.

    Example:
        >>> shortened("a<b"), len(shortened("a" * 100))
        ('a&lt;b', 60)
    """
    return escape(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")


@dataclass(frozen=True)
class FragmentTable:
    """A table whose entries are HTML; ``caption`` stands above it."""

    caption: str
    heading: Sequence[str]
    rows: Sequence[Sequence[str]] = field(default_factory=tuple)


def fragment(title: str, facts: Sequence[str], tables: Iterable[FragmentTable], notes: Sequence[str] = ()) -> str:
    """The whole fragment, of at most `LIMIT` bytes: rows that do not fit are left out, and a note says how many.

    Args:
        title: HTML.
        facts: texts, in one line below it.
        tables: as many of their rows as fit.
        notes: texts, at the end.
    """
    parts = [f'<div class="structgrad">{_STYLE}<p>{title}</p>', f"<p>{small(' · '.join(facts))}</p>" if facts else ""]
    ending = "".join(f"<p>{small(note[:_LONGEST_NOTE])}</p>" for note in notes[:_NOTES])
    room, left = LIMIT - len("".join([*parts, ending]).encode()) - _CLOSING, 0
    for table in tables:
        kept = list(_fitting(table, room))
        left += len(table.rows) - max(len(kept) - 1, 0)
        if len(kept) > 1:
            parts += [*kept, "</tbody></table>"]
            room -= len("".join(kept).encode()) + len(parts[-1])
    more = f"<p>{small(f'{left} more lines do not fit here; .frame has every row.')}</p>" if left else ""
    return "".join([*parts, more, ending, "</div>"])


def _fitting(table: FragmentTable, room: int) -> Iterator[str]:
    """The beginning of a table, and as many rows as there is room for."""
    heading = "".join(f"<th>{entry}</th>" for entry in table.heading)
    caption = f"<p>{table.caption}</p>" if table.caption else ""
    lines = (f"<tr>{''.join(f'<td>{entry}</td>' for entry in row)}</tr>" for row in table.rows)
    for line in (f"{caption}<table><thead><tr>{heading}</tr></thead><tbody>", *lines):
        room -= len(line.encode())
        if room < len("</tbody></table>"):
            return
        yield line

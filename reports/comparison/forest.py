"""The forest plot of a comparison: ratios with their intervals, as numbers for the page to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...suites.comparison.groups import Group
from ...suites.text import change, ratio
from . import words

WIDTH, LEFT, ROW = 900, 430, 22
"""Of the drawing, of its names, and of one line of it."""

WIDEST = math.log(100)
"""Beyond a hundredfold, a ratio is drawn at the edge."""


@dataclass(frozen=True)
class ForestLine:
    """One ratio: where its dot and the ends of its interval lie, with what stands beside it."""

    y: float
    x: float
    low: float
    high: float
    name: str
    verdict: str
    symbol: str
    text: str


@dataclass(frozen=True)
class ForestPlot:
    """A drawing of lines on a logarithmic axis.

    Attributes:
        height: in pixels. ``one``: where the ratio 1 lies. ``ticks``: position and label.
        left_out: changed groups that have no ratio, or did not fit.
    """

    height: int
    one: float
    ticks: list[tuple[float, str]]
    lines: list[ForestLine]
    left_out: int


def forest(groups: Sequence[Group], most: int = 40) -> ForestPlot | None:
    """The first ratios of changed groups, in their order; None where there is none."""
    changed = [group for group in groups if group.verdict not in words.UNCHANGED]
    drawn = [group for group in changed if group.scale == "ratio" and group.change.value][:most]
    if not drawn:
        return None
    reach = max(math.log(1.1), *(min(abs(end), WIDEST) for group in drawn for end in _ends(group)))
    lines = [_line(group, number, reach) for number, group in enumerate(drawn)]
    ticks = [(_at(math.log(value), reach), ratio(value, 3)) for value in _ticks(reach)]
    return ForestPlot(ROW * len(lines) + 50, _at(0.0, reach), ticks, lines, len(changed) - len(drawn))


def _ends(group: Group) -> tuple[float, float, float]:
    value = math.log(group.change.value or 1.0)
    low, high = group.change.low, group.change.high
    return value, math.log(low) if low else value, math.log(high) if high else value


def _line(group: Group, number: int, reach: float) -> ForestLine:
    x, low, high = (_at(end, reach) for end in _ends(group))
    name = f"{group.key.metric}, {words.place(group.key)}"
    text = change(group.change, group.scale)
    return ForestLine(ROW * number + ROW, x, low, high, name, group.verdict, words.SYMBOLS[group.verdict], text)


def _at(logarithm: float, reach: float) -> float:
    """The position of a ratio, at the edge where it lies beyond."""
    share = (max(-reach, min(reach, logarithm)) / reach + 1) / 2
    return round(LEFT + 20 + share * (WIDTH - LEFT - 40), 1)


def _ticks(reach: float) -> list[float]:
    ends = math.exp(0.9 * reach)
    return [1 / ends, 1 / math.sqrt(ends), 1.0, math.sqrt(ends), ends]

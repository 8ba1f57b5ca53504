"""A comparison as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jinja2

from ...suites.comparison.groups import Group
from ...suites.comparison.large import LargeComparison, verdicts_of
from ...suites.comparison.verdicts import MEANING, Comparison, Verdict
from ...suites.metrics import METRICS
from ...suites.text import change
from . import words
from .forest import LEFT, WIDTH, ForestPlot, forest

MOST = 500
"""Rows of a table; the rest is counted, and in the CSV."""


@dataclass(frozen=True)
class Section:
    """One run against the base."""

    head: str
    lines: list[str]
    counts: list[tuple[str, Verdict, int]]
    forest: ForestPlot | None
    rows: list[Group]
    left_out: int


def comparison_page(base: str, others: Sequence[tuple[str, Sequence[Comparison]]], *, sort: str) -> str:
    """All candidates against the base, in the look of the report."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("structgrad.reports.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.get_template("comparison.html.j2")
    return template.render(
        base=base,
        sections=[_section(head, items, sort) for head, items in others],
        meaning=MEANING,
        symbols=words.SYMBOLS,
        metrics={name: metric.meaning for name, metric in METRICS.items()},
        width=WIDTH,
        left=LEFT,
        words=words,
        change=change,
    )


def _section(head: str, items: Sequence[Comparison], sort: str) -> Section:
    drawn, total = words.changes(items, sort, None if not isinstance(items, LargeComparison) else MOST)
    numbers = verdicts_of(items)
    counts = [(words.SYMBOLS[verdict], verdict, numbers[verdict]) for verdict in MEANING if numbers[verdict]]
    lines = words.by_estimator(items, words.is_changed, noun="changed", most=MOST).lines
    return Section(head, lines, counts, forest(drawn), drawn[:MOST], max(total - MOST, 0))

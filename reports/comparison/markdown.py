"""A comparison and a gate as Markdown, for a comment on a pull request or the summary of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...suites.comparison.gating import GateResult
from ...suites.comparison.groups import Group
from ...suites.comparison.verdicts import MEANING, Comparison
from ...suites.text import change
from . import words
from .terminal import headline

MOST = 100
"""Rows of a table, so that a comment has room for it."""


def comparison_page(base: str, others: Sequence[tuple[str, Sequence[Comparison]]], *, sort: str) -> str:
    """All candidates against the base."""
    parts = ["# Comparison", ""]
    for head, items in others:
        parts += [f"## {_text(head)} against {_text(base)}", "", words.tally(items) + ".", ""]
        changed, count = words.changes(items, sort, MOST, words.is_changed)
        lines = words.by_estimator(items, words.is_changed, noun="changed", most=MOST).lines
        parts += [*(f"- {_text(line)}" for line in lines), "", *_table(changed, count), ""] if changed else ["Nothing changed.", ""]
    parts += ["## Verdicts", "", *(f"- {words.SYMBOLS[verdict]} {verdict}: {meaning}" for verdict, meaning in MEANING.items()), ""]
    return "\n".join(parts)


def gate_page(result: GateResult) -> str:
    """What fails and what is open; the outcome first."""
    mark = {"passed": "✅", "failed": "❌"}.get(result.outcome, "⚠️")
    parts = [f"## {mark} structgrad {headline(result)}", "", f"Numbers: {words.tally(result.comparisons)}.", ""]
    for title, found in (("Fails", words.findings(result, "fail", MOST)), ("Open", words.findings(result, "warn", MOST))):
        if found.lines:
            parts += [f"### {title}", "", *(f"- {_text(line)}" for line in found.lines), ""]
        if found.details:
            parts += ["Other metrics:", "", *(f"- {_text(line)}" for line in found.details), ""]
        if found.left:
            parts += [f"and {found.left} more.", ""]
    return "\n".join(parts)


def _table(groups: Sequence[Group], count: int) -> Iterable[str]:
    yield "| verdict | estimator | problem, entropy level | metric | head / base | instances |"
    yield "|---|---|---|---|---|---|"
    for group in groups:
        key = group.key
        shown = change(group.change, group.scale) or group.reason
        cells = (
            f"{words.SYMBOLS[group.verdict]} {group.verdict}",
            f"`{key.estimator}`",
            f"{key.problem}, {key.stage}",
            words.quantity(key),
            shown,
            f"{group.sharing} of {group.instances}",
        )
        yield "| " + " | ".join(_text(cell) for cell in cells) + " |"
    if count > len(groups):
        yield f"\nand {count - len(groups)} more."


def _text(text: str) -> str:
    """No cell ends a table, and nothing becomes HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

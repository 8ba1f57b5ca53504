"""A comparison and a gate as text, Markdown, JSON, CSV and annotations of GitHub."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from ...suites.comparison import KEY, MEANING, GateResult
from ...suites.comparison.pairs import items_of
from . import findings
from .findings import CHANGED, SYMBOLS, tally

MAX_LINES, MAX_MARKDOWN_LINES, MAX_CHANGES = 20, 100, 200
"""Lines of a gate in a terminal and in Markdown, and of a comparison."""

_RECORD = [
    *KEY, "verdict", "base", "head", "scale", "change", "low", "high", "method", "p_value", "p_adjusted", "reason"
]  # fmt: skip

Heads = Sequence[tuple[str, pd.DataFrame]]
"""The name of each run, and its comparison with the base."""


def json_text(content: Any, indent: int | None = 1) -> str:
    """Strict JSON of nested values and a line feed: None for no number, a text for infinity."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, float | np.floating):
            return None if math.isnan(value) else float(value) if math.isfinite(value) else str(float(value))
        return value.item() if isinstance(value, np.generic) else value

    return json.dumps(plain(content), indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


# Comparisons.


def comparison_text(base: str, heads: Heads) -> str:
    """Counts, and lines on estimators that changed."""
    blocks = []
    for head, items in heads:
        lines = [f"{head} against {base}: {tally(items)}"]
        found = findings.by_estimator(items, CHANGED, "changed", MAX_CHANGES)
        if not found.lines:
            lines += ["nothing changed"]
        else:
            lines += ["", "By estimator (head / base, or difference, from the least to the largest):", *found.lines]
            lines += [f"and {found.left} more (--format csv lists all)"] if found.left else []
            there = set(items["verdict"])
            lines += ["", *(f"{SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in CHANGED if verdict in there)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\nexit code 0, whatever changed; `structgrad gate` decides\n"


def comparison_markdown(base: str, heads: Heads) -> str:
    """Lists of the changes in each run, for a comment on a pull request."""
    parts = ["# Comparison", ""]
    for head, items in heads:
        parts += [f"## {_cell(head)} against {_cell(base)}", "", tally(items) + ".", ""]
        parts += _lists("", findings.by_estimator(items, CHANGED, "changed", MAX_MARKDOWN_LINES)) or ["Nothing changed.", ""]
    return "\n".join([*parts, "## Verdicts", "", *(f"- {SYMBOLS[verdict]} {verdict}: {MEANING[verdict]}" for verdict in MEANING), ""])


def _lists(title: str, found: findings.Findings) -> list[str]:
    """Findings as lists in Markdown."""
    parts = [*([f"### {title}", ""] if title else []), *(f"- {_cell(line)}" for line in found.lines), ""] if found.lines else []
    return parts + ([f"and {found.left} more.", ""] if found.left else [])


def comparison_json(base: str, heads: Heads) -> str:
    """All comparisons in strict JSON."""
    records = [{"head": head, "comparisons": items[_RECORD].astype(object).to_dict("records")} for head, items in heads]
    return json_text({"base": base, "heads": records})


def comparison_csv(base: str, heads: Heads) -> str:
    """One line per number."""
    tables = [items[_RECORD].assign(compared_with=base, run=head)[["compared_with", "run", *_RECORD]] for head, items in heads]
    return str(pd.concat(tables).to_csv(index=False, lineterminator="\n"))


COMPARISONS = {"text": comparison_text, "md": comparison_markdown, "json": comparison_json, "csv": comparison_csv}

# Gates.


def headline(result: GateResult) -> str:
    """The outcome in one sentence."""
    checks = len(result.comparisons) + len(result.claims)
    return {
        "passed": "gate passed: nothing is worse",
        "failed": f"gate failed: {result.count('fail')} of {checks} checks fail",
        "undecided": f"gate passed, {result.count('warn')} open: neither worse nor the same is proven (--strict makes this exit code 4)",
        "nothing to compare": "gate not decided: the baseline and the run have no number in common; measure the plan of the baseline, or "
        "save a new baseline of this run",
    }[result.outcome]


def gate_text(result: GateResult) -> str:
    """Lines on estimators that fail or are open, the counts, and the outcome as the last line."""
    lines: list[str] = []
    for title, found in (
        ("fails", findings.gate_findings(result, "fail", MAX_LINES)),
        ("open", findings.gate_findings(result, "warn", MAX_LINES)),
    ):
        lines += [f"{title}: {line}" for line in found.lines]
        lines += [f"{title}: {found.left} more (--json lists all)"] if found.left else []
    lines += [f"numbers: {tally(result.comparisons)}"]
    if len(result.claims):
        lines += [f"claims to be unbiased: {len(result.claims)} checked, {result.claims['broken'].sum()} broken"]
    return "\n".join([*lines, headline(result)]) + "\n"


def gate_markdown(result: GateResult) -> str:
    """The outcome, and lists of the checks that fail or are open, for the summary of a job."""
    mark = {"passed": "✅", "failed": "❌"}.get(result.outcome, "⚠️")
    parts = [f"## {mark} structgrad {headline(result)}", "", f"Numbers: {tally(result.comparisons)}.", ""]
    parts += _lists("Fails", findings.gate_findings(result, "fail", MAX_MARKDOWN_LINES))
    return "\n".join([*parts, *_lists("Open", findings.gate_findings(result, "warn", MAX_MARKDOWN_LINES))])


def gate_json(result: GateResult, exit_code: int) -> str:
    """The whole gate in strict JSON."""
    checks = [("fail" if claim.broken else "pass", claim) for claim in items_of(result.claims)]
    checks += [(item.reaction, item) for item in items_of(result.comparisons)]
    return json_text(
        {
            "outcome": result.outcome,
            "exit_code": exit_code,
            "alpha": result.settings.alpha,
            "failures": [findings.sentence(check) for reaction, check in checks if reaction == "fail"],
            "warnings": [findings.sentence(check) for reaction, check in checks if reaction == "warn"],
            "comparisons": result.comparisons[_RECORD].astype(object).to_dict("records"),
            "claims": result.claims[[*KEY, "broken", "exact", "effect", "p_adjusted"]].astype(object).to_dict("records"),
            "idle_overrides": result.idle,
        }
    )


def github_lines(result: GateResult, most: int = 10) -> Iterable[str]:
    """Annotations of a job; GitHub keeps ten of each kind."""
    levels: tuple[tuple[str, Literal["fail", "warn"]], ...] = (("error", "fail"), ("warning", "warn"))
    for level, kind in levels:
        for line in findings.gate_findings(result, kind, most).lines:
            text = line.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
            yield f"::{level} title=structgrad gate::{text}"


def _cell(text: str) -> str:
    """A text that neither ends a cell of a table nor becomes HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

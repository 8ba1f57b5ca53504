"""The report as Markdown, short enough for a comment on a pull request: the answer first, everything else folded."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from ...suites.text import cells_line, plural
from ..analysis.answers import MAIN_BUDGET
from ..results import Manifest
from .cells import Table, TableCell
from .content import Report, report

COMMENT_LIMIT = 60_000
"""Characters that fit into a comment on a pull request."""


def to_markdown(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The tables of the page as Markdown, short enough for a comment; tables that do not fit are named."""
    return markdown_of(report(frame, manifest))


def markdown_of(found: Report) -> str:
    """The Markdown of a report."""
    left_out: list[str] = []
    text = ""
    for title, body in [_opening(found), *_folded_tables(found), *_closing(found)]:
        fits = len(text) + len(body) <= COMMENT_LIMIT
        text += body + "\n" if fits else ""
        left_out += [] if fits else [title]
    return text + (f"\nLeft out, since a comment has a limit: {', '.join(left_out)}.\n" if left_out else "")


def _opening(found: Report) -> tuple[str, str]:
    lines = [
        "## structgrad report",
        "",
        escaped(found.headline),
        "",
        f"{cells_line(found.counts)} {found.claims}",
        "",
        *(f"> **Contradicted claim:** {escaped(line)}" for line in found.contradictions),
        *(["> Quick preset: for a first look, not for conclusions.", ""] if found.quick else [""]),
        *([f"Which estimator is best {escaped(found.price)}, over all pairs of problem and entropy level:", ""] if found.minute else []),
        *(f"- **{escaped(question)}** → {escaped(answer)}" for question, answer in found.minute),
        "",
    ]
    return "answers", "\n".join(lines)


def _folded_tables(found: Report) -> Iterable[tuple[str, str]]:
    every = [
        _at_main_budget(found.answers),
        found.comparison,
        *found.overview,
        found.cost,
        found.skipped,
        *found.problems.values(),
        *found.further,
    ]
    for position, table in enumerate(every):
        if table.rows:
            opening = "<details open>" if position == 0 else "<details>"
            body = f"{opening}<summary>{safe(table.title)}</summary>\n\n{table.note}\n\n{markdown_table(table)}\n</details>\n"
            yield table.title, body
    if found.failures:
        lines = [f"- {one.status}: {escaped(one.reason)} — {escaped('; '.join(one.where))}" for one in found.failures]
        yield "failures", "<details><summary>Failures</summary>\n\n" + "\n".join(lines) + "\n\n</details>\n"


def _at_main_budget(table: Table) -> Table:
    """A comment has room for one budget."""
    return Table(table.title, table.columns, [row for row in table.rows if row[2].text == plural(MAIN_BUDGET, "estimate")], table.note)


def markdown_table(table: Table) -> str:
    """A table in GitHub's Markdown."""
    titles = [title for title, _ in table.columns]
    lines = [titles, ["---"] * len(titles), *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _cell(cell: TableCell) -> str:
    verdict = f" ({cell.verdict})" if cell.verdict and not cell.text.startswith(cell.verdict) else ""
    notes = "".join(f"<br>{escaped(note)}" for note in cell.notes)
    return escaped(cell.text) + verdict + (" ⚠ contradicts its claim" if cell.alarm else "") + notes


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    clean = safe(text).replace("\n", " ")
    return "".join("\\" + letter if letter in "|*_`[]" else letter for letter in clean)


def safe(text: str) -> str:
    """Text that is safe in HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _closing(found: Report) -> Iterable[tuple[str, str]]:
    words = [f"- `{name}`: {meaning}" for name, meaning in {**found.verdicts, **found.metrics}.items()]
    surroundings = [f"- {escaped(key)}: {escaped(value)}" for key, value in [*found.setup, *found.environment]]
    papers = [f"- {escaped(str(entry))} ({escaped(', '.join(names))})" for entry, names in found.references.items()]
    for title, lines in (("Glossary", words), ("Run settings and environment", surroundings), ("References", papers)):
        if lines:
            yield title.lower(), "\n".join([f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""])
    yield "command", f"Reproduce: `{found.command}`\n"

"""The report as Markdown, short enough for a comment on a pull request: the answer first, everything else folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pandas as pd

from ...suites.text import cells_line, plural
from ..analysis.answers import MAIN_BUDGET
from ..results import Manifest
from .cells import Table, TableCell
from .content import METRIC_MEANING, VERDICT_MEANING, Report, report

COMMENT_LIMIT = 60_000
"""Characters that fit into a comment on a pull request."""


def to_markdown(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The tables of the page as Markdown, short enough for a comment; parts that do not fit are named."""
    found = report(frame, manifest)
    text, last, left_out = "\n".join(_opening(found)) + "\n", f"Reproduce: `{found.command}`\n\n", list[str]()
    for title, body in _parts(found):
        fits = len(text) + len(body) + len(last) <= COMMENT_LIMIT
        text += body + "\n" if fits else ""
        left_out += [] if fits else [title]
    return text + last + (f"\nLeft out, since a comment has a limit: {', '.join(left_out)}.\n" if left_out else "")


def _opening(found: Report) -> Iterator[str]:
    yield from ("## structgrad report", "", escaped(found.headline), "", f"{cells_line(found.counts)} {found.claims}", "")
    yield from (f"> **Contradicted claim:** {escaped(line)}" for line in found.contradictions)
    yield from ("> Quick preset: for a first look, not for conclusions.", "") if found.quick else ("",)
    if found.minute:
        yield from (f"Which estimator is best {escaped(found.price)}, over all pairs of problem and entropy level:", "")
    yield from (f"- **{escaped(question)}** → {escaped(answer)}" for question, answer in found.minute)
    yield ""


def _parts(found: Report) -> Iterator[tuple[str, str]]:
    """Title and text of everything that is folded."""
    budget = plural(MAIN_BUDGET, "estimate")  # a comment has room for one
    every = [replace(found.answers, rows=[row for row in found.answers.rows if row[2].text == budget]), found.comparison, *found.overview]
    for position, table in enumerate([*every, *found.problems.values(), found.cost, found.skipped, *found.further]):
        if table.rows:
            yield _folded(table.title, f"{table.note}\n\n{markdown_table(table)}", opened=position == 0)
    lists: dict[str, Iterable[str]] = {
        "Failures": (f"{one.status}: {escaped(one.reason)} — {escaped('; '.join(one.where))}" for one in found.failures),
        "Glossary": (f"`{name}`: {meaning}" for name, meaning in {**VERDICT_MEANING, **METRIC_MEANING}.items()),
        "Run settings and environment": (f"{escaped(key)}: {escaped(value)}" for key, value in [*found.setup, *found.environment]),
        "References": (f"{escaped(str(entry))} ({escaped(', '.join(names))})" for entry, names in found.references.items()),
    }
    for title, lines in lists.items():
        if body := "".join(f"- {line}\n" for line in lines):
            yield _folded(title, body)


def _folded(title: str, body: str, *, opened: bool = False) -> tuple[str, str]:
    return title, f"<details{' open' * opened}><summary>{safe(title)}</summary>\n\n{body}\n</details>\n"


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

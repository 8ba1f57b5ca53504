"""Answers, tables and sentences of the page, as they were on 26 November 2026; scores are compared to seven digits.

``python -m tests.goldens.test_page`` writes them again, after a change on purpose. `page.parquet` is a part of a run of the package.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from structgrad.reports import page, results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import learning_page
from structgrad.reports.page.cells import Table, TableCell
from tests.reports import examples
from tests.suites.learning.planted import planted

FOLDER = Path(__file__).parent
STORED = FOLDER / "page.json"
LEARNERS = ("exact", "reinforce", "rloo", "ste", "imle", "sparsemap")


def shown(cell: TableCell) -> str:
    """The text of an entry with its notes and marks."""
    return " / ".join([cell.text + "*" * cell.best + "!" * cell.alarm, *filter(None, [cell.verdict]), *cell.notes])


def tables_in(value: Any) -> Iterator[Table]:
    """All tables in the fields of a report, in their order."""
    if isinstance(value, Table):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tables_in(getattr(value, field.name))
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tables_in(item)


def content(frame: Any, manifest: dict[str, Any]) -> dict[str, Any]:
    """The content of one page."""
    found = page.report(frame, manifest)
    return {
        "sentences": [found.title, found.headline, *found.contradictions, found.claims, found.price, *map(" → ".join, found.minute)],
        "counts": found.counts,
        "learning": found.learning.sentences if found.learning else [],
        "setup": [*found.setup, *found.environment],
        "tables": {
            table.title: [" | ".join(title for title, _ in table.columns), *(" | ".join(map(shown, row)) for row in table.rows)]
            for table in tables_in(vars(found))
            if table.rows
        },
        "answers": [
            " | ".join(
                f"{value:.7g}" if isinstance(value, float) else str(value)
                for value in (
                    *(one.problem, one.stage, one.question.name, one.budget, one.estimator, one.tied, one.outcome, one.why),
                    *(one.rivals, one.instances, one.timed, one.uncertain, one.score.value, one.score.low, one.score.high),
                )
            )
            for one in answers.answers(tables.by_loss(frame), manifest.get("catalogue", {}).get("values_only"))
        ],
    }


def pages(folder: Path) -> dict[str, Any]:
    """All that is frozen."""
    made = results.to_frame([*examples.rows(), *examples.swept_rows()])
    training = planted(("clusters", "matching"), LEARNERS, 2)
    results.write(training, folder / "training", {"command": "structgrad learn", "environment": {"commit": "abc"}})
    return {
        "made": content(made, examples.MANIFEST),
        "run": content(*results.read(FOLDER / "page.parquet")),
        "learning": content(results.to_frame(training), {}),
        "learning page": learning_page.write([folder / "training"], folder).read_text().splitlines(),
        "task pages": [line for path in sorted((folder / "learning").glob("*.md")) for line in path.read_text().splitlines()],
    }


def text_of(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=0, ensure_ascii=False) + "\n"


def test_pages_say_what_they_said(tmp_path: Path) -> None:
    assert text_of(pages(tmp_path)).splitlines() == STORED.read_text().splitlines()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        STORED.write_text(text_of(pages(Path(folder))))

"""The size of the page of a large run: what grows with problems, stages, estimators and lengths of names is cut where it is too much."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ....suites.text import plural
from ..cells import Table, TableCell
from ..content import Report

LARGEST = 5_000_000
"""Bytes that the page may have."""

LETTERS = 400
"""Of a name or sentence, where a page is cut at all; at every further try half of it, but never fewer than `FEWEST`."""

FEWEST = 25

_AIM = 0.8
"""Share of the largest size that a cut aims at."""

Matrix = tuple[str, str, list[str], dict[str, list[TableCell]]]
"""What a question asks, by what the best is found, the stages, and a row of answers for each problem."""


@dataclass(frozen=True)
class Cut:
    """How much of a page is shown.

    Attributes:
        rows: of a table or list at most, and columns of stages. ``letters``: of a name or sentence at most.
    """

    rows: int
    letters: int

    def words(self, text: str) -> str:
        """As much of a text as there is room for."""
        return text if len(text) <= self.letters else text[: self.letters - 1] + "…"

    def report(self, said: Report) -> Report:
        """Everything that a report says, cut."""
        return replace(
            said,
            contradictions=list(map(self.words, said.contradictions)),
            minute=[(question, self.words(answer)) for question, answer in said.minute],
            answers=self._table(said.answers),
            skipped=self._table(said.skipped),
            failures=[
                replace(one, where=tuple(map(self.words, one.where)), reason=self.words(one.reason), traceback=self.words(one.traceback))
                for one in said.failures
            ],
            setup=self._lines(said.setup),
            environment=self._lines(said.environment),
            command=self.words(said.command),
            references={paper: [*map(self.words, names[: self.rows])] for paper, names in said.references.items()},
        )

    def matrices(self, found: Iterable[Matrix]) -> list[Matrix]:
        """Answers by problem and stage, cut."""
        return [
            (asks, criterion, [*map(self.words, stages[: self.rows])], {name: self._cells(rows[name]) for name in list(rows)[: self.rows]})
            for asks, criterion, stages, rows in found
        ]

    def _table(self, table: Table) -> Table:
        return replace(table, rows=[self._cells(row) for row in table.rows[: self.rows]])

    def _cells(self, row: Sequence[TableCell]) -> list[TableCell]:
        return [
            replace(
                cell,
                text=self.words(cell.text),
                key=self.words(cell.key) if isinstance(cell.key, str) else cell.key,
                notes=tuple(map(self.words, cell.notes)),
            )
            for cell in row[: self.rows]
        ]

    def _lines(self, lines: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(self.words(name), self.words(value)) for name, value in lines[: self.rows]]


def fitted(rendered: Callable[[Cut | None], str], rows: int) -> str:
    """A page that is not too large: whole where it can be, else cut, each time more.

    Args:
        rendered: the page with a cut, or without one.
        rows: of its longest table.
    """
    text, letters = rendered(None), LETTERS
    while (size := len(text.encode())) > LARGEST and (rows > 1 or letters > FEWEST):
        rows = max(1, int(_AIM * rows * LARGEST / size))
        text = rendered(Cut(rows, letters))
        letters = max(FEWEST, letters // 2)
    return text


def told(cut: Cut, problems: int, structures: int, beside: str) -> str:
    """What is left out, and where it lies."""
    return (
        f"With {plural(problems, 'problem')} of {plural(structures, 'structure')} this page would have more than "
        f"{LARGEST // 1_000_000} MB: its tables show {plural(cut.rows, 'row')} at most, and names and sentences "
        f"{plural(cut.letters, 'letter')}. The folder {beside} has a complete page for each structure, and all medians."
    )

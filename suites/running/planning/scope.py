"""Scope of a run: which cells of a plan it goes through, and when it stops early."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..work import Cell

AGAIN_FAILED = "failed"
"""The word that asks for the cells that failed, or gave a number that is not finite."""


@dataclass(frozen=True)
class Scope:
    """How far a run goes; no number depends on it.

    Attributes:
        rerun: measure nothing but the cells that match this pattern (a suite, problem, stage or estimator, or a glob), or nothing but
            those that ``failed``, again; None measures what is not finished.
        budget: seconds after which no further cell is started.
        fail_fast: whether the first cell that fails ends the run.
        longest: seconds; a plan with a cell that is estimated to take longer is refused on the command line; None is the preset's limit.
        started: when the seconds began to count.
    """

    rerun: str | None = None
    budget: float | None = None
    fail_fast: bool = False
    longest: float | None = None
    started: float = field(default_factory=time.monotonic, compare=False)

    def checked(self) -> Scope:
        """The same scope, or ValueError with one sentence on what cannot be."""
        if self.budget is not None and not self.budget > 0:
            raise ValueError(f"the run got budget={self.budget:g}; expected a positive number of seconds")
        return self

    def check_names(self, cells: Iterable[Cell]) -> None:
        """ValueError where what is to be measured again is none of the cells of a plan."""
        if self.rerun not in (None, AGAIN_FAILED) and not any(map(self.asks_for, cells)):
            raise ValueError(
                f"--rerun got {self.rerun!r}, which no cell of this run has; expected failed, or one of its suites, problems, stages or "
                "estimators, or a glob"
            )

    def spent(self) -> bool:
        """Whether no further cell may be started."""
        return self.budget is not None and time.monotonic() - self.started >= self.budget

    def asks_for(self, cell: Cell) -> bool:
        """Whether a cell is to be measured again by its names."""
        names = (cell.suite, cell.problem, cell.stage, *cell.estimators, cell.label)
        return self.rerun is not None and any(name == self.rerun or fnmatch.fnmatchcase(name, self.rerun) for name in names)

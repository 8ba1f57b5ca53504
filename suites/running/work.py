"""Cells of a plan as values, without the code that measures them: enough to read results on disk."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import Row

if TYPE_CHECKING:
    from ..measures.suite import Suite


@dataclass(frozen=True)
class Cell:
    """The unit of work, storage and resumption: a suite on one problem at one stage, for one estimator or for all of them.

    Attributes:
        suite, problem, stage, estimators: names.
        instances: how many of the problem.
        identity: a hash of everything that the numbers depend on, and of nothing else.
    """

    suite: str
    problem: str
    stage: str
    estimators: tuple[str, ...]
    instances: int
    identity: str

    @property
    def label(self) -> str:
        """A text for people."""
        return f"{self.suite} {self.problem} {self.stage}" + ("" if _suites()[self.suite].together else f" {self.estimators[0]}")

    @property
    def scores(self) -> tuple[str, str]:
        """Problem and stage: cells that share them share exact gradients."""
        return self.problem, self.stage

    @property
    def exclusive(self) -> bool:
        """Whether no other cell may run at the same time."""
        return _suites()[self.suite].exclusive

    @property
    def phase(self) -> tuple[bool, int]:
        """Cells of a smaller phase are measured before others; exclusive ones come last."""
        return self.exclusive, _suites()[self.suite].order


@functools.cache
def _suites() -> Mapping[str, type[Suite]]:
    from ..measures import SUITES

    return SUITES


@dataclass(frozen=True)
class Limit:
    """Instances of a problem that a suite cannot measure, of those that the plan examined, with the reason of the first."""

    suite: str
    problem: str
    stage: str
    limited: int
    instances: int
    reason: str


@dataclass(frozen=True)
class Grid:
    """The cells of a plan in their order, skipped pairs as rows, and limits of suites.

    ``places`` are those of the cells in the whole plan, if this is a shard of it; else empty.
    """

    cells: tuple[Cell, ...]
    skips: tuple[Row, ...]
    limits: tuple[Limit, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def skipped_pairs(self) -> int:
        """The number of skipped pairs of estimator and problem."""
        return len({(row.problem, row.estimator) for row in self.skips})

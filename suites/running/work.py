"""The cells of a plan as values: what lies on disk can be read with them, without what measures."""

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
    """The unit of work, of storage and of resumption: a suite on one problem at one stage, for one estimator or for all side by side.

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
        """For people."""
        return f"{self.suite} {self.problem} {self.stage}" + ("" if self._kind.together else f" {self.estimators[0]}")

    @property
    def scores(self) -> tuple[str, str]:
        """Problem and stage: cells that share them share exact gradients."""
        return self.problem, self.stage

    @property
    def exclusive(self) -> bool:
        """Whether nothing else may run beside it."""
        return self._kind.exclusive

    @property
    def phase(self) -> tuple[bool, int]:
        """Cells of a smaller phase are measured before others: exclusive ones come last."""
        return self.exclusive, self._kind.order

    @property
    def _kind(self) -> type[Suite]:
        return _suites()[self.suite]


@functools.cache
def _suites() -> Mapping[str, type[Suite]]:
    """What measures, imported by the first cell that is asked: a cell is asked thousands of times a second."""
    from ..measures import SUITES

    return SUITES


@dataclass(frozen=True)
class Limit:
    """What a suite does not measure, or in part only: so many of the instances of a problem that a plan looks at, and why the first."""

    suite: str
    problem: str
    stage: str
    limited: int
    instances: int
    reason: str


@dataclass(frozen=True)
class Grid:
    """The cells of a plan, in the order of its table, the pairs that cannot be measured, as rows, and the limits of its suites.

    ``places`` are those of the cells in the whole plan, where this is a shard of it; empty where it is the whole.
    """

    cells: tuple[Cell, ...]
    skips: tuple[Row, ...]
    limits: tuple[Limit, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def skipped_pairs(self) -> int:
        """How many pairs of estimator and problem are skipped, at whatever stages and for whatever suites."""
        return len({(row.problem, row.estimator) for row in self.skips})

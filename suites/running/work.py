"""Cells of a plan, progress, and rows as JSON, without the code that measures them: enough to read results on disk."""

import json
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError, with_config

from ..base import FAILED, Row
from ..text import COMPILING, duration

if TYPE_CHECKING:
    from ..measures.suite import Suite


DONE, FAILED_KIND, NONFINITE = "done", "failed", "nonfinite"  # kinds of finished cells


@dataclass(frozen=True)
class Cell:
    """A suite on one problem at one stage, for one estimator or all; its identity hashes all that the numbers depend on, and no more."""

    suite: str
    problem: str
    stage: str
    estimators: tuple[str, ...]
    instances: int
    identity: str

    @property
    def kind(self) -> "type[Suite]":
        """The class of the suite, which is imported when it is needed."""
        from ..measures import SUITES

        return SUITES[self.suite]

    @property
    def label(self) -> str:
        """A text for people."""
        return f"{self.suite} {self.problem} {self.stage}" + ("" if self.kind.together else f" {self.estimators[0]}")

    @property
    def scores(self) -> tuple[str, str]:
        """Problem and stage: cells that share them share exact gradients."""
        return self.problem, self.stage

    @property
    def phase(self) -> tuple[bool, int]:
        """Cells of a smaller phase are measured before others; exclusive ones come last."""
        return self.kind.exclusive, self.kind.order


@dataclass(frozen=True)
class Grid:
    """The cells of a plan in their order, skipped pairs as rows, and the ``places`` of the cells if this is a shard of the plan."""

    cells: tuple[Cell, ...]
    skips: tuple[Row, ...]
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Busy:
    """A worker with its cell, and whether it compiles kernels or waits for them."""

    worker: str
    label: str
    seconds: float
    compiling: bool = False


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment: numbers of cells, the last finished one (empty between two), and the estimated seconds that are left."""

    finished: int
    total: int
    failed: int = 0
    label: str = ""
    left: float | None = None
    busy: tuple[Busy, ...] = ()


Progress = Callable[[Snapshot], None]  # called about once a second, and when a cell is finished


def progress_text(snapshot: Snapshot) -> str:
    """A text for finished cells and the time left.

    Example:
        >>> progress_text(Snapshot(3, 8, left=75.0)), progress_text(Snapshot(8, 8))
        ('3/8 cells, about 1 min 15 s left', '8/8 cells')
    """
    parts = [
        f"{snapshot.finished}/{snapshot.total} cells",
        *([f"{snapshot.failed} failed"] if snapshot.failed else []),
        *([f"about {duration(snapshot.left)} left"] if snapshot.left and snapshot.finished < snapshot.total else []),
        *([COMPILING] if any(busy.compiling for busy in snapshot.busy) else []),
    ]
    return ", ".join(parts)


_DEFAULTS = {field.name: field.default for field in fields(Row) if field.default is not MISSING}


@dataclass(frozen=True)
class StoredCell:
    """A finished cell with its rows."""

    seconds: float
    rows: list[Row]

    @property
    def kind(self) -> str:
        """The kind of the cell."""
        statuses = {row.status for row in self.rows}
        return DONE if statuses.isdisjoint((*FAILED, "nonfinite")) else NONFINITE if statuses.isdisjoint(FAILED) else FAILED_KIND


_STORED, ROW = (TypeAdapter[Any](with_config(extra="forbid")(kind)) for kind in (StoredCell, Row))


def encode(rows: Sequence[Row], seconds: float) -> str:
    """The rows of a cell as JSON, without default values; each row gets the seconds of its cell."""
    return as_json({"seconds": seconds, "rows": [{**packed(row), "seconds": seconds} for row in rows]})


def as_json(content: Any) -> str:
    """JSON that is valid UTF-8: names of files in error messages may hold other bytes."""
    return json.dumps(content, ensure_ascii=False).encode(errors="replace").decode()


def decode(text: str | bytes) -> StoredCell:
    """The rows of a cell, as `encode` writes them; ValueError for anything else."""
    try:
        return _STORED.validate_json(text)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise ValueError(f"no rows of a cell ({first_error(error)})") from None


def first_error(error: ValidationError) -> str:
    """The first error of a validation, with its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{first['msg']} at {'.'.join(map(str, first['loc']))}"[:100]


def packed(row: Row) -> dict[str, Any]:
    """The columns of a row that have other values than the defaults."""
    return {name: value for name, value in vars(row).items() if value != _DEFAULTS.get(name, MISSING)}

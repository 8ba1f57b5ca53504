"""Replay: a stored cell is found by its name, measured again, and compared with its stored rows."""

from __future__ import annotations

import difflib
import fnmatch
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError, with_config

from ...estimators import make_estimator
from ..base import SCHEMA_VERSION, Row
from ..measures import SUITES
from ..trust import json_of, text_of
from .cells import execute
from .planning.grid import first_skip
from .planning.plan import Plan
from .remote import MANIFEST
from .scores import load_problem
from .store import Store
from .work import Cell, decode, first_error

_KEY = ("estimator", "instance", "metric", "setting", "reference")
_COMPARED = [field.name for field in fields(Row) if field.name not in ("seconds", "traceback", "schema_version", "cell")]


@dataclass(frozen=True)
class Difference:
    """A column of a row whose measured value differs from the stored one.

    Attributes:
        row: estimator, instance, metric, setting, reference.
        column: the column of `Row`.
        stored, measured: None if only the other has the row.
        relative: distance of two numbers relative to the stored one; None for other values.
    """

    row: tuple[str, ...]
    column: str
    stored: Any
    measured: Any
    relative: float | None = None


@dataclass(frozen=True)
class ReplayedCell:
    """A measured cell, compared with its stored rows.

    Attributes:
        cell: the cell.
        rows: the number of compared rows.
        differences: empty if the rows are bit-identical.
        traceback: the traceback of the first failure; empty without one.
        seconds: the time of the cell.
    """

    cell: Cell
    rows: int
    differences: tuple[Difference, ...]
    traceback: str
    seconds: float

    @property
    def is_timed(self) -> bool:
        """Whether the cell measures seconds or memory, which differ each time."""
        return self.cell.exclusive


def plan_from(settings: Mapping[str, Any]) -> Plan:
    """The plan that ``run.json`` holds.

    Raises:
        ValueError: settings of another version of structgrad.

    Example:
        >>> import dataclasses
        >>> plan = Plan(suites=("bias",), seed=3)
        >>> plan_from(json.loads(json.dumps(dataclasses.asdict(plan)))) == plan
        True
    """
    unknown = sorted(set(settings) - {field.name for field in fields(Plan)}) if isinstance(settings, Mapping) else ()
    if unknown:
        raise ValueError(f"the run has the setting {unknown[0][:50]!r}, which this version does not know; use the structgrad that wrote it")
    if isinstance(settings, Mapping) and isinstance(effort := settings.get("effort"), Mapping):
        settings = {**settings, "effort": {name: value for name, value in effort.items() if name != "strict"}}  # of earlier runs
    try:
        return TypeAdapter(with_config(extra="forbid")(Plan)).validate_python(settings)
    except ValidationError as error:
        raise ValueError(f"the plan of the run cannot be read ({first_error(error)}); use the structgrad that wrote it") from None


def plan_of_run(directory: Path) -> Plan:
    """The plan of a folder.

    Raises:
        FileNotFoundError: it holds no run.
        ValueError: its ``run.json`` cannot be read, or is of another schema version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"found no {path}; expected the folder of a run")
    try:
        manifest = json_of(text_of(path))
        version = manifest["schema_version"]
        if version != SCHEMA_VERSION:
            raise ValueError(
                f"{path} has the schema version {str(version)[:50]}, and this version measures {SCHEMA_VERSION}; use the one that wrote it"
            )
        return plan_from(manifest["plan"])
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({type(error).__name__}: {error}); expected the {MANIFEST} of a run") from error


def find_cells(cells: Sequence[Cell], pattern: str) -> list[Cell]:
    """Cells by the beginning of an identity, or by a part or glob of their label (``bias subset_regimes h=0.95 rloo``).

    Raises:
        ValueError: nothing matches; the nearest labels are named.
    """
    by_identity = [cell for cell in cells if cell.identity.startswith(pattern.lower())]
    if by_identity:
        return by_identity
    found = [cell for cell in cells if pattern in cell.label or fnmatch.fnmatch(cell.label, pattern)]
    if found:
        return found
    near = difflib.get_close_matches(pattern, [cell.label for cell in cells] + [cell.identity for cell in cells], n=3, cutoff=0.3)
    hint = f"the nearest are {'; '.join(near)}" if near else "expected the beginning of an id, or a part of `suite problem stage estimator`"
    raise ValueError(f"`replay` got {pattern!r}, which is no cell of the run; {hint}")


def cells_of(directory: Path) -> tuple[Cell, ...]:
    """The cells of the latest run of a folder."""
    with Store(directory) as store:
        return store.planned().cells


def replay_cell(directory: Path, plan: Plan, cell: Cell) -> ReplayedCell:
    """Measure a stored cell in this process, and compare every column of every row but the seconds.

    Raises:
        ValueError: nothing is stored of the cell.
    """
    with Store(directory) as store:
        before = store.stored(cell.identity)
    if before is None:
        raise ValueError(f"`replay` found nothing stored of {cell.label}; finish the run first")
    after = decode(execute(plan, cell))
    traceback = next((row.traceback for row in after.rows if row.traceback), "")
    differences = tuple(_differences(before.rows, after.rows))
    return ReplayedCell(cell, max(len(before.rows), len(after.rows)), differences, traceback, after.seconds)


def raise_live(plan: Plan, cell: Cell) -> None:
    """Measure a cell without catching anything, for a debugger."""
    torch.set_num_threads(1)
    problem = load_problem(plan, cell.problem, cell.stage, cell.instances)
    estimators = {name: make_estimator(name) for name in cell.estimators}
    fitting = {name: estimator for name, estimator in estimators.items() if first_skip(estimator, problem) is None}
    for _ in SUITES[cell.suite]().findings(problem, fitting, plan.context()):
        pass


def _differences(before: Sequence[Row], after: Sequence[Row]) -> list[Difference]:
    stored, measured = _keyed(before), _keyed(after)
    found: list[Difference] = []
    for key in {**stored, **measured}:
        if key not in stored or key not in measured:
            found.append(Difference(key[:-1], "row", "there" if key in stored else None, "there" if key in measured else None))
            continue
        for name in _COMPARED:
            then, now = getattr(stored[key], name), getattr(measured[key], name)
            if then != now and not (then != then and now != now):  # noqa: PLR0124 - NaN
                found.append(Difference(key[:-1], name, then, now, _relative(then, now)))
    return found


def _keyed(rows: Sequence[Row]) -> dict[tuple[str, ...], Row]:
    """Rows by their names, and by their numbers among rows of one name."""
    counts: Counter[tuple[str, ...]] = Counter()
    keyed: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(str(getattr(row, name)) for name in _KEY)
        keyed[(*key, str(counts[key]))] = row
        counts[key] += 1
    return keyed


def _relative(then: Any, now: Any) -> float | None:
    if isinstance(then, tuple) and isinstance(now, tuple) and len(then) == len(now):
        return max((_relative(old, new) or 0.0 for old, new in zip(then, now, strict=True)), default=None)
    if not isinstance(then, int | float) or not isinstance(now, int | float) or not math.isfinite(then) or not math.isfinite(now):
        return None
    return abs(now - then) / abs(then) if then else math.inf

"""Measuring one cell, in any process; an error becomes rows with its reason."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles import plugins
from ..base import NonFiniteError, Row
from ..measures import SUITES
from ..measures.learning import chosen_for, option_finding
from ..measures.suite import Context
from ..problems import TaskProblem, is_task
from ..tasks.choosing import tunable
from .planning.grid import first_skip
from .planning.plan import Plan
from .rows import RowWriter, skip_rows
from .scores import load_problem, sample
from .work import Cell, encode

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "cannot allocate memory")
_TRACEBACK = 8000
"""Characters of a traceback that are kept, from its end."""


@dataclass(frozen=True)
class Failure:
    """Why a cell has no numbers, in columns of `Row`."""

    status: Literal["error", "timeout", "oom", "crash"]
    reason: str
    error_type: str = ""
    traceback: str = ""
    verdict: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """An exception of the measured code."""
        kind, text = type(error).__name__, " ".join(str(error).split())
        verdict = "broken" if isinstance(error, NonFiniteError) else ""
        no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and any(words in text.lower() for words in _NO_MEMORY)
        )
        return cls("oom" if no_memory else "error", f"{kind}: {text}", kind, traceback.format_exc()[-_TRACEBACK:], verdict)


@functools.cache
def load() -> None:
    """Import the libraries of suites, so that neither times nor memory limits include the import."""
    import scipy.optimize
    import scipy.stats  # noqa: F401


def execute(plan: Plan, cell: Cell, scratch: Path | None = None) -> str:
    """Measure a cell.

    Args:
        plan: the plan of the cell.
        cell: the suite, problem and estimators.
        scratch: a folder for checkpoints of this cell, which need not exist.

    Returns:
        Its rows, as `encode` writes them. An exception of the measured code becomes a row.
    """
    plan = plan.at(0)
    torch.set_num_threads(plan.threads)
    plugins.use(plan.plugins)
    load()
    start = time.perf_counter()
    try:
        with torch.cuda.device(plan.device) if plan.device.startswith("cuda:") else nullcontext():
            rows = _measured(plan, cell, replace(plan.context(), scratch=scratch))
    except Exception as error:  # user-supplied estimators may raise anything
        return failed(plan, cell, Failure.of(error), time.perf_counter() - start)
    return encode(rows, time.perf_counter() - start)


def failed(plan: Plan, cell: Cell, failure: Failure, seconds: float) -> str:
    """The encoded rows of a cell without numbers: one per estimator, with the reason."""
    writer = RowWriter(plan, sample(plan, *cell.scores), cell, plan.context())
    return encode([writer.failure(name, **vars(failure)) for name in cell.estimators], seconds)


def _measured(plan: Plan, cell: Cell, context: Context) -> list[Row]:
    """The rows of all estimators that fit every instance; the plan examined only a few instances."""
    problem = load_problem(plan, *cell.scores, cell.instances)
    estimators: dict[str, Estimator[Any]] = {name: make_estimator(name) for name in cell.estimators}
    reasons = {name: skip.reason for name, estimator in estimators.items() if (skip := first_skip(estimator, problem)) is not None}
    fitting = {name: estimator for name, estimator in estimators.items() if name not in reasons}
    writer, rows = RowWriter(plan, problem, cell, context), list[Row]()
    if isinstance(problem, TaskProblem) and not is_task(problem.name):
        # Along a run, estimators are measured with the options that validation chooses, as they are trained.
        for name in [name for name, estimator in fitting.items() if tunable(name, estimator)[1]]:
            choice = chosen_for(problem, name, fitting[name], context)
            fitting[name] = choice.estimator
            rows += [writer.row(found) for found in option_finding(name, choice)]
    skipped = (replace(row, cell=cell.identity) for row in skip_rows(plan, problem, estimators, reasons))
    return [*rows, *(_rows(writer, fitting) if fitting else ()), *skipped]


def _rows(writer: RowWriter, estimators: Mapping[str, Estimator[Any]]) -> list[Row]:
    """The rows before a failure, and the failure. Of several estimators, only those that fail alone are left out."""
    rows: list[Row] = []
    try:
        for finding in SUITES[writer.cell.suite]().findings(writer.problem, estimators, writer.context):
            rows.append(writer.row(finding))  # noqa: PERF401 - rows before an exception are kept
        return rows
    except Exception as error:  # user-supplied estimators may raise anything
        failure = Failure.of(error)
    failures = [writer.failure(name, **vars(failure)) for name in estimators]
    if len(estimators) == 1 or failure.status == "oom":
        return rows + failures
    alone = {name: [row for row in _rows(writer, {name: one}) if row.status == "error"] for name, one in estimators.items()}
    errors = [row for rows in alone.values() for row in rows]
    rest = {name: estimator for name, estimator in estimators.items() if not alone[name]}
    if len(rest) in (0, len(estimators)):
        return errors or failures
    return _rows(writer, rest) + errors


def healthy(text: str) -> bool:
    """Whether a process that wrote this may measure further cells: not if its memory ran out or a device failed."""
    return '"status": "oom"' not in text and "CUDA error" not in text

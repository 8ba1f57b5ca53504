"""Measuring one cell, in any process; an error becomes rows with its reason."""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles import plugins
from ..base import NonFiniteError, Problem, Row
from ..device_memory import remembering
from ..measures import SUITES
from ..measures.learning import chosen_for, option_finding
from ..measures.suite import Context
from ..problems import TaskProblem, is_task
from ..tasks.choosing import ValidatedChoice, tunable
from .planning.grid import first_skip
from .planning.plan import Plan
from .rows import RowWriter, skip_rows
from .scores import load_problem, sample
from .store import encode
from .work import Cell

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
        return cls("oom" if ran_out_of_memory(error) else "error", f"{kind}: {text}", kind, traceback.format_exc()[-_TRACEBACK:], verdict)


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, of Python, of torch, or of the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_MEMORY)


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
        Its rows, as `store.encode` writes them. An exception of the measured code becomes a row.
    """
    plan = plan.at(0)
    torch.set_num_threads(plan.threads)
    plugins.use(plan.plugins)
    load()
    start = time.perf_counter()
    try:
        with remembering(), _current(plan.device):
            rows = _measured(plan, cell, replace(plan.context(), scratch=scratch))
    except Exception as error:  # user-supplied estimators may raise anything
        rows = failed_rows(plan, cell, Failure.of(error))
    seconds = time.perf_counter() - start
    return encode(rows, seconds)


def _current(device: str) -> AbstractContextManager[object]:
    """Make ``cuda`` the device of the worker."""
    return torch.cuda.device(device) if device.startswith("cuda:") else nullcontext()


def failed(plan: Plan, cell: Cell, failure: Failure, seconds: float) -> str:
    """The encoded rows of a cell whose process has died."""
    return encode(failed_rows(plan, cell, failure), seconds)


def failed_rows(plan: Plan, cell: Cell, failure: Failure) -> list[Row]:
    """One row per estimator, with the reason."""
    writer = RowWriter(plan, sample(plan, cell.problem, cell.stage), cell.suite, cell.identity)
    return [writer.failure(name, **vars(failure)) for name in cell.estimators]


def _measured(plan: Plan, cell: Cell, context: Context) -> list[Row]:
    """The rows of all estimators that fit every instance; the plan examined only a few instances."""
    problem = load_problem(plan, cell.problem, cell.stage, cell.instances)
    estimators: dict[str, Estimator[Any]] = {name: make_estimator(name) for name in cell.estimators}
    skips = {name: skip.reason for name, estimator in estimators.items() if (skip := first_skip(estimator, problem)) is not None}
    fitting = {name: estimator for name, estimator in estimators.items() if name not in skips}
    run = _CellRun(RowWriter(plan, problem, cell.suite, cell.identity), context)
    run.writer.know(fitting)
    choices = _choices(problem, fitting, context)
    fitting |= {name: choice.estimator for name, choice in choices.items()}
    chosen = [run.writer.row(found, context) for name, choice in choices.items() for found in option_finding(name, choice)]
    skipped = [replace(row, cell=cell.identity) for row in skip_rows(plan, problem, estimators, skips)]
    return chosen + (run.rows(fitting) if fitting else []) + skipped


def _choices(problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> dict[str, ValidatedChoice]:
    """The options that validation chooses for estimators on a task, which are measured as they are trained."""
    if not isinstance(problem, TaskProblem) or is_task(problem.name):
        return {}
    named = {name: estimator for name, estimator in estimators.items() if tunable(name, estimator)[1]}
    return {name: chosen_for(problem, name, estimator, context) for name, estimator in named.items()}


@dataclass(frozen=True)
class _CellRun:
    """A suite at work on a problem."""

    writer: RowWriter
    context: Context

    def rows(self, estimators: Mapping[str, Estimator[Any]]) -> list[Row]:
        """The rows before a failure, and the failure. Of several estimators, only those that fail alone are left out."""
        rows: list[Row] = []
        try:
            findings = SUITES[self.writer.suite]().findings(self.writer.problem, estimators, self.context)
            for row in self.writer.rows(findings, self.context):
                rows.append(row)  # noqa: PERF402 - rows before an exception are kept
            return rows
        except Exception as error:  # user-supplied estimators may raise anything
            failure = Failure.of(error)
        if len(estimators) == 1 or failure.status == "oom":
            return rows + [self.writer.failure(name, **vars(failure)) for name in estimators]
        return self._survivors(estimators, failure)

    def _survivors(self, estimators: Mapping[str, Estimator[Any]], failure: Failure) -> list[Row]:
        """Each estimator alone, to know which of them fails; then the others together again."""
        alone = {name: [row for row in self.rows({name: estimator}) if row.status == "error"] for name, estimator in estimators.items()}
        rest = {name: estimator for name, estimator in estimators.items() if not alone[name]}
        if len(rest) in (0, len(estimators)):
            return [row for rows in alone.values() for row in rows] or [self.writer.failure(name, **vars(failure)) for name in estimators]
        return self.rows(rest) + [row for rows in alone.values() for row in rows]


def healthy(text: str) -> bool:
    """Whether a process that wrote this may measure further cells: not if its memory ran out or a device failed."""
    return '"status": "oom"' not in text and "CUDA error" not in text

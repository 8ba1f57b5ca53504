"""Measuring one cell, in any process; an error becomes rows with its reason."""

import functools
import math
import time
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles import plugins
from ...oracles.capabilities import MarginalOracle
from ..base import Instance, NonFiniteError, Problem, Row
from ..measures import SUITES
from ..measures.learning import chosen_for, option_finding
from ..measures.suite import Context, Finding
from ..metrics import unit_of
from ..problems import TaskProblem, is_task
from ..tasks.references import tunable
from .planning.grid import load_problem, loss_columns, misfit, pair_columns, sample, skip_rows
from .planning.plan import Plan
from .work import Cell, encode

_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc", "cannot allocate memory")
_TRACEBACK = 8000  # characters of a traceback that are kept, from its end


def failure_of(error: BaseException) -> dict[str, str]:
    """The columns of `Row` that say why an exception of the measured code left no numbers."""
    kind, text = type(error).__name__, " ".join(str(error).split())
    no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in text.lower() for words in _NO_MEMORY)
    )
    found = {"status": "oom" if no_memory else "error", "reason": f"{kind}: {text}", "error_type": kind}
    return found | {"traceback": traceback.format_exc()[-_TRACEBACK:], "verdict": "broken" if isinstance(error, NonFiniteError) else ""}


@functools.cache
def load() -> None:
    """Import the libraries of suites, so that neither times nor memory limits include the import."""
    import scipy.optimize
    import scipy.stats  # noqa: F401


def execute(plan: Plan, cell: Cell, scratch: Path | None = None) -> str:
    """Measure a cell, with a folder for checkpoints: rows as `encode` writes them. An exception of the measured code becomes a row."""
    torch.set_num_threads(plan.threads)
    plugins.use(plan.plugins)
    load()
    start = time.perf_counter()
    try:
        with torch.cuda.device(plan.device) if plan.device.startswith("cuda:") else nullcontext():
            rows = measured(plan, load_problem(plan, *cell.scores, cell.instances), cell, replace(plan.context(), scratch=scratch))
    except Exception as error:  # user-supplied estimators may raise anything
        return failed(plan, cell, failure_of(error), time.perf_counter() - start)
    return encode(rows, time.perf_counter() - start)


def failed(plan: Plan, cell: Cell, failure: dict[str, str], seconds: float) -> str:
    """The encoded rows of a cell without numbers: one per estimator, with the reason."""
    writer = RowWriter(plan, sample(plan, *cell.scores), cell, plan.context())
    return encode([writer.failure(name, **failure) for name in cell.estimators], seconds)


class RowWriter:
    """The rows of one cell: findings with the columns that follow from the plan, the cell and the instance."""

    def __init__(self, plan: Plan, problem: Problem, cell: Cell, context: Context) -> None:
        self.plan, self.problem, self.cell, self.context = plan, problem, cell, context
        self._instances = {instance.name: instance for instance in problem.instances}
        # Many rows share an estimator, or an instance.
        self._of_estimator = functools.cache(self._estimator_columns)
        self._of_instance = functools.cache(self._instance_columns)

    def row(self, finding: Finding) -> Row:
        """A finding with the columns of its cell, estimator and instance. A value that is not finite has a status of its own."""
        instance = self._of_instance(finding.instance, finding.reference == "expected")
        columns = self._of_estimator(finding.estimator)
        known = {**columns, **instance, "unit": unit_of(finding.metric), **vars(finding), "estimator": columns["estimator"]}
        if finding.value is not None and not math.isfinite(finding.value):
            reason = f"the value is {finding.value}"
            return Row(**{**known, "value": None, "low": None, "high": None, "status": "nonfinite", "reason": reason})
        bounds = {name: known[name] for name in ("low", "high")}  # each may be infinite, but not NaN
        return Row(**known | {name: None if bound is None or math.isnan(bound) else bound for name, bound in bounds.items()})

    def failure(self, estimator: str, **reason: Any) -> Row:
        """The row of an estimator whose measurement failed, with columns that say why."""
        return Row(**self._of_estimator(estimator), **reason)

    def _estimator_columns(self, name: str) -> dict[str, Any]:
        suite, columns = SUITES[self.cell.suite], pair_columns(self.plan, self.problem, name, make_estimator(name))
        columns["dtype"] = suite.dtype or columns["dtype"]
        return {"cell": self.cell.identity, "suite": self.cell.suite, "suite_version": suite.version, **columns}

    def _instance_columns(self, name: str, compared: bool) -> dict[str, Any]:
        """Facts about an instance, and about its exact gradient if the finding is compared with it."""
        if (instance := self._instances.get(name)) is None:
            return {}
        columns = {**_facts(self.problem, instance), **loss_columns(instance.loss)}
        if compared:
            truth = self.context.truth(self.problem, instance)
            columns |= {"truth_norm": float(truth.gradient.norm()), "truth_method": truth.method, "truth_error": truth.error}
        return columns


def measured(plan: Plan, problem: Problem, cell: Cell, context: Context) -> list[Row]:
    """The rows of all estimators that fit every instance; the plan examined only a few instances."""
    estimators: dict[str, Estimator[Any]] = {name: make_estimator(name) for name in cell.estimators}
    reasons = {name: reason for name, estimator in estimators.items() if (reason := misfit(estimator, problem)) is not None}
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
        failure = failure_of(error)
    failures = [writer.failure(name, **failure) for name in estimators]
    if len(estimators) == 1 or failure["status"] == "oom":
        return rows + failures
    alone = {name: [row for row in _rows(writer, {name: one}) if row.status == "error"] for name, one in estimators.items()}
    errors = [row for rows in alone.values() for row in rows]
    rest = {name: estimator for name, estimator in estimators.items() if not alone[name]}
    if len(rest) in (0, len(estimators)):
        return errors or failures
    return _rows(writer, rest) + errors


@functools.lru_cache(maxsize=1024)
def _facts(problem: Problem, instance: Instance) -> dict[str, Any]:
    """Size and entropy of an instance; None without sums in reach."""
    oracle, event = problem.oracle, tuple(instance.scores.shape)
    log_count = math.log(oracle.count(event))
    entropy = float(oracle.entropy(instance.scores)) if isinstance(oracle, MarginalOracle) and oracle.sums_in_reach(event) else None
    share = entropy / log_count if entropy is not None and log_count > 0 else None
    return {"log_count": log_count, "entropy": entropy, "normalised_entropy": share}


def healthy(text: str) -> bool:
    """Whether a process that wrote this may measure further cells: not if its memory ran out or a device failed."""
    return '"status": "oom"' not in text and "CUDA error" not in text

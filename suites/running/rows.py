"""Rows of findings, with the columns that follow from the plan, the cell and the instance."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles.capabilities import MarginalOracle
from ..base import Instance, Problem, ProblemLoss, Row, oracle_name
from ..measures import SUITES
from ..measures.suite import Context, Finding
from ..metrics import unit_of
from .planning.plan import Plan
from .work import Cell


def _pair_columns(plan: Plan, problem: Problem, name: str, estimator: Estimator[Any]) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "stage": problem.stage,
        "source": problem.source,
        "oracle": oracle_name(problem.oracle),
        "oracle_version": problem.oracle.version,
        "seed": plan.seed,
        "dtype": plan.dtype,
        "device": plan.device_kind,
        **_loss_columns(problem.instances[0].loss),
        "estimator": name,
        "estimator_version": estimator.version,
        "family": estimator.name,
        "objective": estimator.objective,
        "unbiased": estimator.unbiased,
        "deterministic": estimator.deterministic,
    }


def _loss_columns(loss: ProblemLoss) -> dict[str, Any]:
    return {"loss": loss.name, "vertex_degree": loss.vertex_degree, "extension": loss.extension, "offset": loss.offset}


def skip_rows(
    plan: Plan, problem: Problem, built: Mapping[str, Estimator[Any]], reasons: Mapping[str, str], suite: str = ""
) -> Iterator[Row]:
    """Rows of pairs that are not measured, with their reasons; ``suite`` is empty if no suite measures them."""
    count = math.log(problem.oracle.count(tuple(problem.instances[0].scores.shape))) if reasons else None
    for name, reason in reasons.items():
        pair = _pair_columns(plan, problem, name, built[name])
        yield Row(cell="", suite=suite, **pair, status="skipped", reason=reason, log_count=count)


class RowWriter:
    """Makes the rows of one cell.

    Args:
        plan: the plan of the cell.
        problem: its problem.
        cell: the cell.
        context: the settings of its suite.
    """

    def __init__(self, plan: Plan, problem: Problem, cell: Cell, context: Context) -> None:
        self.plan, self.problem, self.cell, self.context = plan, problem, cell, context
        self._instances = {instance.name: instance for instance in problem.instances}
        # Many rows share an estimator, or an instance.
        self._of_estimator = functools.cache(self._estimator_columns)
        self._of_instance = functools.cache(self._instance_columns)

    def row(self, finding: Finding) -> Row:
        """A finding with the columns of its cell, estimator and instance. A value that is not finite has a status of its own."""
        instance = self._of_instance(finding.instance, finding.reference == "expected")
        known = {**self._of_estimator(finding.estimator), **instance, "unit": unit_of(finding.metric), **vars(finding)}
        if finding.value is not None and not math.isfinite(finding.value):
            reason = f"the value is {finding.value}"
            return Row(**{**known, "value": None, "low": None, "high": None, "status": "nonfinite", "reason": reason})
        bounds = {name: known[name] for name in ("low", "high")}  # each may be infinite, but not NaN
        return Row(**known | {name: None if bound is None or math.isnan(bound) else bound for name, bound in bounds.items()})

    def failure(self, estimator: str, **reason: Any) -> Row:
        """The row of an estimator whose measurement failed, with columns that say why."""
        return Row(**self._of_estimator(estimator), **reason)

    def _estimator_columns(self, name: str) -> dict[str, Any]:
        suite, columns = SUITES[self.cell.suite], _pair_columns(self.plan, self.problem, name, make_estimator(name))
        columns["dtype"] = suite.dtype or columns["dtype"]
        return {"cell": self.cell.identity, "suite": self.cell.suite, "suite_version": suite.version, **columns}

    def _instance_columns(self, name: str, compared: bool) -> dict[str, Any]:
        """Facts about an instance, and about its exact gradient if the finding is compared with it."""
        if (instance := self._instances.get(name)) is None:
            return {}
        columns = {**_facts(self.problem, instance), **_loss_columns(instance.loss)}
        if compared:
            truth = self.context.truth(self.problem, instance)
            columns |= {"truth_norm": float(truth.gradient.norm()), "truth_method": truth.method, "truth_error": truth.error}
        return columns


@functools.lru_cache(maxsize=1024)
def _facts(problem: Problem, instance: Instance) -> dict[str, Any]:
    """Size and entropy of an instance; None without sums in reach."""
    oracle, event = problem.oracle, tuple(instance.scores.shape)
    log_count = math.log(oracle.count(event))
    entropy = float(oracle.entropy(instance.scores)) if isinstance(oracle, MarginalOracle) and oracle.sums_in_reach(event) else None
    share = entropy / log_count if entropy is not None and log_count > 0 else None
    return {"log_count": log_count, "entropy": entropy, "normalised_entropy": share}

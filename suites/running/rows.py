"""Rows of findings, with the columns that follow from the plan, the cell and the instance."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ..base import Instance, Problem, ProblemLoss, Row, oracle_name
from ..measures import SUITES
from ..measures.suite import Context, Finding
from ..metrics import unit_of
from ..problems import InstanceFacts, instance_facts
from .planning.plan import Plan


def _problem_columns(plan: Plan, problem: Problem) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "stage": problem.stage,
        "source": problem.source,
        "oracle": oracle_name(problem.oracle),
        "oracle_version": problem.oracle.version,
        "seed": plan.seed,
        "dtype": plan.dtype,
        "device": plan.device_kind,
        **loss_columns(problem.instances[0].loss),
    }


def _estimator_columns(name: str, estimator: Estimator[Any]) -> dict[str, Any]:
    return {
        "estimator": name,
        "estimator_version": estimator.version,
        "family": estimator.name,
        "objective": estimator.objective,
        "unbiased": estimator.unbiased,
        "deterministic": estimator.deterministic,
    }


def loss_columns(loss: ProblemLoss) -> dict[str, Any]:
    """The columns of a loss."""
    return {"loss": loss.name, "vertex_degree": loss.vertex_degree, "extension": loss.extension, "offset": loss.offset}


def skip_rows(
    plan: Plan, problem: Problem, built: Mapping[str, Estimator[Any]], reasons: Mapping[str, str], suite: str = ""
) -> Iterator[Row]:
    """Rows of pairs that are not measured, with their reasons; ``suite`` is empty if no suite measures them."""
    if not reasons:
        return
    count = math.log(problem.oracle.count(tuple(problem.instances[0].scores.shape)))
    shared = {"cell": "", "suite": suite, **_problem_columns(plan, problem), "status": "skipped", "log_count": count}
    for name, reason in reasons.items():
        yield Row(**shared, **_estimator_columns(name, built[name]), reason=reason)


@dataclass(frozen=True)
class RowWriter:
    """Makes the rows of one cell.

    Args:
        plan, problem: those of the cell.
        suite: the name of the suite.
        cell: the identity of the cell.
    """

    plan: Plan
    problem: Problem
    suite: str
    cell: str
    _pairs: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    _items: dict[tuple[str, bool], dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def know(self, estimators: Mapping[str, Estimator[Any]]) -> None:
        """Add estimators that are already built, by name."""
        self._pairs.update((name, self._columns(name, estimator)) for name, estimator in estimators.items())

    def rows(self, findings: Iterable[Finding], context: Context) -> Iterator[Row]:
        """One row per finding, as they come."""
        for finding in findings:
            yield self.row(finding, context)

    def row(self, finding: Finding, context: Context) -> Row:
        """A finding with the columns of its cell, estimator and instance."""
        values = dict(vars(finding))
        numbers = {name: values.pop(name) for name in ("value", "low", "high")}
        known = {**self._cell(values.pop("estimator")), **self._instance(finding, context), "unit": unit_of(finding.metric)}
        return Row(**{**known, **values, **_finite(numbers)})

    def failure(self, estimator: str, **what: Any) -> Row:
        """The row of an estimator whose measurement failed, with the reason."""
        return Row(**self._cell(estimator), **what)

    def _cell(self, estimator: str) -> dict[str, Any]:
        if estimator not in self._pairs:
            self._pairs[estimator] = self._columns(estimator, make_estimator(estimator))
        return self._pairs[estimator]

    def _columns(self, name: str, estimator: Estimator[Any]) -> dict[str, Any]:
        suite, columns = SUITES[self.suite], {**_problem_columns(self.plan, self.problem), **_estimator_columns(name, estimator)}
        columns["dtype"] = suite.dtype or columns["dtype"]
        return {"cell": self.cell, "suite": self.suite, "suite_version": suite.version, **columns}

    def _instance(self, finding: Finding, context: Context) -> dict[str, Any]:
        """Facts about the instance, and about its exact gradient if the finding is compared with it; the same in many rows."""
        key = finding.instance, finding.reference == "expected"
        if key not in self._items:
            instance = next((item for item in self.problem.instances if item.name == finding.instance), None)
            columns = {} if instance is None else {**instance_columns(self.problem, instance), **loss_columns(instance.loss)}
            if instance is not None and finding.reference == "expected":
                columns |= truth_columns(self.problem, instance, context)
            self._items[key] = columns
        return self._items[key]


@functools.lru_cache(maxsize=1024)
def _facts(problem: Problem, instance: Instance) -> InstanceFacts:
    return instance_facts(problem.oracle, instance)


def instance_columns(problem: Problem, instance: Instance) -> dict[str, Any]:
    """The number of structures of an instance, and the entropy of its scores."""
    facts = _facts(problem, instance)
    return {name: getattr(facts, name) for name in ("log_count", "entropy", "normalised_entropy")}


def truth_columns(problem: Problem, instance: Instance, context: Context) -> dict[str, Any]:
    """The norm of the exact gradient, the method that computed it, and a bound of its error."""
    truth = context.truth(problem, instance)
    return {"truth_norm": float(truth.gradient.norm()), "truth_method": truth.method, "truth_error": truth.error}


def _finite(numbers: dict[str, float | None]) -> dict[str, Any]:
    """Give a value that is not finite its own status. A bound may be infinite, but not NaN."""
    value = numbers["value"]
    bounds = {name: None if (bound := numbers[name]) is None or math.isnan(bound) else bound for name in ("low", "high")}
    if value is None or math.isfinite(value):
        return {"value": value, **bounds}
    return {"value": None, "low": None, "high": None, "status": "nonfinite", "reason": f"the value is {value}"}

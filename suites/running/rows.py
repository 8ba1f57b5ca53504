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


def pair_columns(plan: Plan, problem: Problem, name: str, estimator: Estimator[Any]) -> dict[str, Any]:
    """The columns that follow from the plan, a problem and an estimator, which is built of its name."""
    return {**_problem_columns(plan, problem), **_estimator_columns(name, estimator)}


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


def skip_row(plan: Plan, problem: Problem, name: str, estimator: Estimator[Any], reason: str) -> Row:
    """A pair that is not measured."""
    return next(skip_rows(plan, problem, {name: estimator}, {name: reason}))


def skip_rows(
    plan: Plan, problem: Problem, built: Mapping[str, Estimator[Any]], reasons: Mapping[str, str], suite: str = ""
) -> Iterator[Row]:
    """Pairs of a problem that are not measured, for a reason each; by a suite, or by none."""
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
        plan, problem: that the cell belongs to.
        suite: its name. ``cell``: identity.
    """

    plan: Plan
    problem: Problem
    suite: str
    cell: str
    _pairs: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    _items: dict[tuple[str, bool], dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)

    def know(self, estimators: Mapping[str, Estimator[Any]]) -> None:
        """Estimators that are built already, by name."""
        self._pairs.update((name, self._columns(name, estimator)) for name, estimator in estimators.items())

    def rows(self, findings: Iterable[Finding], context: Context) -> Iterator[Row]:
        """One row per finding, as they come."""
        for finding in findings:
            yield self.row(finding, context)

    def row(self, finding: Finding, context: Context) -> Row:
        """A finding with everything that is known of its cell, estimator and instance."""
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
        suite, columns = SUITES[self.suite], pair_columns(self.plan, self.problem, name, estimator)
        columns["dtype"] = suite.dtype or columns["dtype"]
        return {"cell": self.cell, "suite": self.suite, "suite_version": suite.version, **columns}

    def _instance(self, finding: Finding, context: Context) -> dict[str, Any]:
        """Facts on the item; those of its exact gradient only where that was compared with. They are the same in many rows."""
        key = finding.instance, finding.reference == "expected"
        if key not in self._items:
            self._items[key] = self._of_item(*key, context)
        return self._items[key]

    def _of_item(self, name: str, compared: bool, context: Context) -> dict[str, Any]:
        instance = next((item for item in self.problem.instances if item.name == name), None)
        if instance is None:
            return {}
        truth = truth_columns(self.problem, instance, context) if compared else {}
        return {**instance_columns(self.problem, instance), **loss_columns(instance.loss), **truth}


@functools.lru_cache(maxsize=1024)
def _facts(problem: Problem, instance: Instance) -> InstanceFacts:
    return instance_facts(problem.oracle, instance)


def instance_columns(problem: Problem, instance: Instance) -> dict[str, Any]:
    """The number of structures of an item, and the entropy of its scores."""
    facts = _facts(problem, instance)
    return {name: getattr(facts, name) for name in ("log_count", "entropy", "normalised_entropy")}


def truth_columns(problem: Problem, instance: Instance, context: Context) -> dict[str, Any]:
    """The exact gradient's norm, how it was found, and a bound of its error."""
    truth = context.truth(problem, instance)
    return {"truth_norm": float(truth.gradient.norm()), "truth_method": truth.method, "truth_error": truth.error}


def _finite(numbers: dict[str, float | None]) -> dict[str, Any]:
    """A value that is no number has a status of its own; a bound may be infinite, but not NaN."""
    value = numbers["value"]
    bounds = {name: None if (bound := numbers[name]) is None or math.isnan(bound) else bound for name in ("low", "high")}
    if value is None or math.isfinite(value):
        return {"value": value, **bounds}
    return {"value": None, "low": None, "high": None, "status": "nonfinite", "reason": f"the value is {value}"}

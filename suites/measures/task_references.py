"""References of a task, in cells of their own that run first: floor, ceiling, the reference run, exact gradients in parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ...estimators.base import Estimator
from ..base import Instance, Problem
from ..problems import TaskProblem, is_task
from ..tasks.references import bounds
from .learning import on_cpu
from .parameter_bias import ModelBatch
from .suite import Context, Finding, Suite


class TaskReferences(Suite):
    """Train and store the references of a task once, before other cells need them, so that those keep their time limits.

    Of a task: floor and ceiling of every seed. Of a task along a run: the model of every seed, and the norm of the exact gradient of its
    first batch. Results are stored in the user's cache, where the suites `learning` and `parameter_bias` find them.
    """

    name: ClassVar[str] = "references"
    summary: ClassVar[str] = "floor and ceiling of a task, and the exact gradients of its models, computed once and shared"
    measures: ClassVar[str] = "references"
    dtype: ClassVar[str] = "float64"
    order: ClassVar[int] = 0

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Findings of every seed, under the name of the reference estimator."""
        assert isinstance(problem, TaskProblem)
        [name] = estimators
        for seed in problem.seeds:
            if is_task(problem.name):
                floor, ceiling = bounds(problem.task, seed)
                values = {"floor_accuracy": floor["accuracy"], "ceiling_accuracy": ceiling["accuracy"]}
            else:
                values = {"parameter_truth_norm": float(ModelBatch.of(problem, seed, context).truth().gradient.norm())}
            for metric, value in values.items():
                yield Finding(name, metric, value, instance=f"seed={seed}")

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """A device."""
        return on_cpu(context)

"""Time of a step of training with every estimator, side by side in interleaved rounds on one thread."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ....estimators.base import Estimator
from ...base import Instance, Problem
from ...problems import TaskProblem
from ...tasks.training import Job, Training
from ...text import reason_of
from ..learning import on_cpu
from ..suite import Context, Finding, Suite
from .interleaving import interleave, median_interval
from .timing import single_thread


class StepTime(Suite):
    """Seconds of one step of training: data, scores, estimate, backward, clipping, Adam; of one seed, from its initial weights on.

    Estimators take turns in random order, so that seconds of training are steps times these, and not what the clock showed meanwhile.
    """

    name: ClassVar[str] = "step_time"
    summary: ClassVar[str] = "seconds of one step of training on a task, in interleaved rounds"
    exclusive: ClassVar[bool] = True
    together: ClassVar[bool] = True
    measures: ClassVar[str] = "tasks"
    dtype: ClassVar[str] = "float32"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Of all estimators, side by side; one that raises has a finding that says so."""
        assert isinstance(problem, TaskProblem)
        task, rate = problem.task, problem.task.rates[0]
        contenders, failures = {}, {}
        with single_thread():
            for name, estimator in estimators.items():
                try:
                    # Its curve begins before the clock does, and no run is so long that it would be evaluated again.
                    training = Training(task, estimator, [Job(0, rate)], steps=sys.maxsize, points=1)
                    training.run(until=1)
                    contenders[name] = functools.partial(_timed, training)
                except Exception as error:  # any user-supplied code may run here
                    failures[name] = reason_of(error)
            found = interleave(contenders, rounds=context.effort.rounds, budget=context.effort.seconds / 10)
        failures |= found.failures
        for name in estimators:
            if name in failures:
                yield Finding(name, "step_time", None, status="error", reason=failures[name])
                continue
            median = median_interval(found.seconds[name][:, 0])
            yield Finding(name, "step_time", median.value, median.low, median.high, "" if median.low is None else "order-statistic")

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """A device."""
        return on_cpu(context)


def _timed(training: Training) -> tuple[float]:
    start = time.perf_counter()
    training.run(until=training.step + 1)
    return (time.perf_counter() - start,)

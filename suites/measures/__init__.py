"""What is measured: one suite per question."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ...estimators.base import Estimator
from ..base import Instance, Problem
from ..statistics import seeds
from ..suite import Context, Finding, Suite
from .bias import Sampling, measure
from .memory import peak_memory
from .sparsity import forward_sparsity
from .wall_clock import measure_times, time_once, timing_batch

__all__ = ["SUITES", "Bias", "Memory", "Sparsity", "WallClock"]


class Bias(Suite):
    """Bias, variance and relatives against the exact gradient, with the verdict of a test for bias."""

    name: ClassVar[str] = "bias"
    summary: ClassVar[str] = "bias, variance and relatives against the exact gradient"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        for instance in problem.instances:
            truth, scores = context.truth(problem, instance), instance.scores.to(context.device)
            key = (problem.name, problem.stage, instance.name)
            tier: Any = context.tier
            sampling = Sampling(context.effort.replicates, context.seed, key, context.batch_size, tier, context.dtype)
            for name, estimator in estimators.items():
                found = measure(estimator, problem.oracle, instance.loss, scores, truth=truth, sampling=sampling)
                for metric, value in found.metrics.items():
                    tested = metric == "relative_bias"
                    yield Finding(
                        name, metric, value.value, value.low, value.high, "" if value.low is None else "jackknife", instance.name,
                        reference="expected", tier=found.tier, replicates=found.replicates,
                        sampling="" if found.replicates is None else "budget",
                        verdict=found.verdict if tested else "", p_value=found.p_value if tested else None,
                    )  # fmt: skip


class Sparsity(Suite):
    """Support and non-zeros of the forward pass."""

    name: ClassVar[str] = "sparsity"
    summary: ClassVar[str] = "how many structures and parts the forward pass touches"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        for instance in problem.instances:
            truth, scores = context.truth(problem, instance), instance.scores.to(context.device)
            for name, estimator in estimators.items():
                for metric, value in forward_sparsity(estimator, problem.oracle, scores, truth=truth).items():
                    yield Finding(name, metric, value, instance=instance.name)


class WallClock(Suite):
    """Seconds of forward and backward, the estimators taking turns."""

    name: ClassVar[str] = "wall_clock"
    summary: ClassVar[str] = "seconds of forward and backward, side by side"
    exclusive: ClassVar[bool] = True
    together: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        instance, scores = _batch(problem, context)
        for name, times in measure_times(estimators, problem.oracle, instance.loss, scores, rounds=context.effort.rounds).items():
            for metric, value in {"forward_time": times.forward, "backward_time": times.backward, "time_ratio": times.ratio}.items():
                if value.value is not None:
                    yield Finding(name, metric, value.value, value.low, value.high, "order-statistic")


class Memory(Suite):
    """Most bytes that torch held at one time, forward and backward."""

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "peak bytes of forward and backward"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        instance, scores = _batch(problem, context)
        for name, estimator in estimators.items():
            once = functools.partial(time_once, estimator, problem.oracle, instance.loss, scores)
            once()
            yield Finding(name, "peak_memory", float(peak_memory(once, device=context.device)))


def _batch(problem: Problem, context: Context) -> tuple[Instance, Any]:
    instance = max(problem.instances, key=lambda item: item.scores.numel())
    generator = seeds.generator(context.seed, "timing", device=context.device)
    return instance, timing_batch(instance.scores.to(context.device, context.dtype), generator=generator)


SUITES: dict[str, type[Suite]] = {"bias": Bias, "wall_clock": WallClock, "memory": Memory, "sparsity": Sparsity}
"""Every suite by its name."""

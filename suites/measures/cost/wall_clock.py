"""Seconds of estimators and of training steps, in interleaved rounds on one thread."""

import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....estimators import Estimator, Loss, Reinforce
from ....estimators.base import check_call
from ...base import REFERENCE, Problem, pairing
from ...problems import TaskProblem
from ...statistics import seeds
from ...statistics.intervals import Interval, median_interval
from ...statistics.selection import MAX_RATIO_ERROR
from ...tasks.training import Job, Training
from ...text import reason_of
from ..suite import Context, Finding, Suite
from .timer import PATIENCE, clock, interleave, probe, single_thread, time_once, timed, timing_batch

ROUNDS = 30  # timed calls of each estimator, unless its budget ends earlier
BUDGET = 0.5  # seconds of each contender, after which it makes the fewest rounds and no more
MAX_ROWS = 1024  # the largest launch of which `seconds_per_estimate` is taken
LAUNCH_SECONDS = 8e-3  # seconds that such a launch takes of most estimators, unless `BATCH` rows take more
SLOW_FACTOR = 8  # estimators that take so many times as long as most of the others are launched with fewer rows
MAX_RETRIES = 3  # the most retries of an uncertain `time_ratio`, each with as many rounds as at first


def measure_times(  # noqa: PLR0913
    estimators: Mapping[str, Estimator[Any] | str], oracle: Any, loss: Loss, scores: Tensor, *, rounds: int = ROUNDS, budget: float = BUDGET
) -> tuple[dict[str, dict[str, Interval]], dict[str, int], dict[str, str]]:
    """Interleaved timings on scores ``[*batch, *event]``, see `interleave`; ratios are empty without `REFERENCE` among the estimators.

    Returns medians with 95 % intervals by name and metric, rows of a launch by name, and the errors of estimators that raised. A ratio is
    of seconds per estimate, of launches with as many rows, paired within rounds.
    """
    made = dict[str, Estimator[Any]]()
    for name, given in estimators.items():
        made[name], loss, oracle, scores = check_call("measure_times", estimator=given, loss=loss, oracle=oracle, scores=scores)
    steps = {name: functools.partial(time_once, estimator, oracle, loss, scores) for name, estimator in made.items()}
    probes, failures = dict[str, float](), dict[str, str]()
    for name, step in steps.items():
        try:
            probes[name] = probe(step, PATIENCE * budget)
        except Exception as error:  # any user-supplied code may run here
            failures[name] = reason_of(error)
    # As many rows for all, so that all share the cost of a launch alike; fewer only for those that would take far longer.
    usual = statistics.median(probes.values()) if probes else 0.0
    rows = dict[str, int]()
    for name, took in probes.items():
        # The largest doubling of the rows that keeps a launch short.
        longest = LAUNCH_SECONDS / max(usual if took <= SLOW_FACTOR * usual else took, 1e-9)
        rows[name] = len(scores) << int(math.log2(max(min(MAX_ROWS / len(scores), longest), 1)))
    contenders = dict[tuple[str, str | int], Callable[[], tuple[float, ...]]]()
    for name in probes:
        contenders[name, "step"] = steps[name]
        # Distinct rows: every copy of the batch is shifted by a little.
        shifts = 1e-4 * torch.arange(rows[name] // len(scores), dtype=scores.dtype, device=scores.device)
        batch = (scores + shifts.reshape(-1, *[1] * scores.ndim)).flatten(0, 1)
        for one in (name, REFERENCE) if REFERENCE in probes else (name,):
            contenders[one, rows[name]] = functools.partial(_launch, made[one], oracle, loss, batch)
    seconds, failed = interleave(contenders, rounds=rounds, budget=budget, spent={key: probes[key[0]] for key in contenders})
    failures |= {name: reason for (name, _), reason in failed.items()}
    known = [name for name in probes if name not in failures]
    pairs = {name: [(seconds[name, rows[name]], seconds.get((REFERENCE, rows[name])))] for name in known}
    for _ in range(MAX_RETRIES):
        again = {(one, rows[name]) for name in known if uncertain(_ratio(pairs[name])) for one in (name, REFERENCE)}
        more, _ = interleave({key: contenders[key] for key in contenders if key in again}, rounds=rounds, budget=budget)
        for name in known:
            if (name, rows[name]) in more and (REFERENCE, rows[name]) in more:
                pairs[name].append((more[name, rows[name]], more[REFERENCE, rows[name]]))
    times = {
        name: {
            "forward_time": median_interval(seconds[name, "step"][:, 0]),
            "backward_time": median_interval(seconds[name, "step"][:, 1]),
            "time_ratio": _ratio(pairs[name]),
            "seconds_per_estimate": median_interval(np.concatenate([own[:, 0] for own, _ in pairs[name]]) / rows[name]),
        }
        for name in known
    }
    return times, rows, failures


def uncertain(ratio: Interval) -> bool:
    """Whether the 95 % interval of a ratio is wider than ± `MAX_RATIO_ERROR`; False without an interval."""
    return ratio.value is not None and ratio.half_width is not None and ratio.half_width > MAX_RATIO_ERROR * ratio.value


def _launch(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[float]:
    generator = torch.Generator(scores.device).manual_seed(0)
    # On a CPU the processor time of the thread: other programs lengthen it little.
    now = time.thread_time if scores.device.type == "cpu" else functools.partial(clock, scores.device)
    start = now()
    estimator.gradient(loss, oracle, scores, generator=generator)
    return (now() - start,)


def _ratio(pairs: list[tuple[Any, Any]]) -> Interval:
    """The ratio of launches of an estimator and of the reference, paired within rounds; empty without the reference."""
    found = [own[: len(base), 0] / base[: len(own), 0] for own, base in pairs if base is not None]
    return median_interval(np.concatenate(found)) if found else Interval(None)


class WallClock(Suite):
    """Time of one training step: forward, backward, and relative to `REFERENCE`.

    Steps are those of `BATCH` rows around the largest instance, costs of an estimate those of launches of more rows. `REFERENCE` is
    always timed too, so that ratios of different runs mean the same. Findings are about the whole problem.
    """

    name: ClassVar[str] = "wall_clock"
    summary: ClassVar[str] = "seconds of a training step, forward and backward, in interleaved rounds"
    exclusive = together = True
    version: ClassVar[int] = 3

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        instance = max(problem.instances, key=lambda item: item.scores.numel())
        stream = seeds.generator(context.seed, self.name, problem.name, instance.name, device=context.device)
        scores = timing_batch(instance.scores.to(context.device, context.dtype), generator=stream)
        contenders = dict(estimators)
        reference: Estimator[Any] = Reinforce()
        if REFERENCE not in contenders and pairing(reference, problem.oracle, instance.loss, tuple(instance.scores.shape)) is None:
            contenders[REFERENCE] = reference
        # A contender is a step or a launch: each has a share of an estimator's budget.
        budget = context.effort.seconds / 60
        with single_thread():
            threads = torch.get_num_threads()
            oracle, loss, rounds = problem.oracle, instance.loss, context.effort.rounds
            times, rows, failures = measure_times(contenders, oracle, loss, scores, rounds=rounds, budget=budget)
        for name in estimators:
            if name in failures:
                yield Finding(name, "forward_time", None, status="error", reason=failures[name])
                continue
            for metric, found in times[name].items():
                yield Finding.of(name, metric, found, size=float(rows[name]) if metric == "seconds_per_estimate" else None)
            yield Finding(name, "threads", float(threads))


class StepTime(Suite):
    """Seconds of one step of training: data, scores, estimate, backward, clipping, Adam; of one seed, from its initial weights on.

    Estimators take turns in random order. Seconds of training are steps times these, which do not depend on the load during training.
    """

    name: ClassVar[str] = "step_time"
    summary: ClassVar[str] = "seconds of one step of training on a task, in interleaved rounds"
    exclusive = together = True
    measures: ClassVar[str] = "tasks"
    dtype: ClassVar[str] = "float32"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        assert isinstance(problem, TaskProblem)
        task, rate = problem.task, problem.task.rates[0]
        contenders, failures = {}, {}
        with single_thread():
            for name, estimator in estimators.items():
                try:
                    # Its curve begins before the clock does, and no run is so long that it would be evaluated again.
                    training = Training(task, estimator, [Job(0, rate)], steps=sys.maxsize, points=1)
                    training.run(until=1)

                    def step(training: Training = training) -> None:
                        training.run(until=training.step + 1)

                    contenders[name] = functools.partial(timed, step, torch.device("cpu"))
                except Exception as error:  # any user-supplied code may run here
                    failures[name] = reason_of(error)
            seconds, failed = interleave(contenders, rounds=context.effort.rounds, budget=context.effort.seconds / 10)
        failures |= failed
        for name in estimators:
            if name in failures:
                yield Finding(name, "step_time", None, status="error", reason=failures[name])
                continue
            yield Finding.of(name, "step_time", median_interval(seconds[name][:, 0]))

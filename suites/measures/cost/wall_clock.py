"""Seconds of estimators and of training steps, in interleaved rounds on one thread."""

from __future__ import annotations

import functools
import inspect
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....estimators import Reinforce
from ....estimators.base import Estimator, Loss, check_call
from ....oracles.active_set.solution import SparseSolution
from ....oracles.capabilities import Oracle
from ...base import REFERENCE, Instance, Problem, pairing
from ...oracle_proxy import hooked
from ...problems import TaskProblem
from ...statistics import seeds
from ...statistics.budgets import MAX_RATIO_ERROR
from ...statistics.intervals import Interval, median_interval
from ...tasks.training import Job, Training
from ...text import reason_of
from ..learning import on_cpu
from ..suite import Context, Finding, Suite
from .timer import BATCH, PATIENCE, WARM_UP, clock, interleave, single_thread, time_once, timed, timing_batch

ROUNDS = 30
"""Timed calls of each estimator, unless its budget ends earlier."""

BUDGET = 0.5
"""Seconds of each contender, after which it makes the fewest rounds and no more."""

MAX_ROWS = 1024
"""The largest launch of which `seconds_per_estimate` is taken."""

LAUNCH_SECONDS = 8e-3
"""Seconds that such a launch takes of most estimators, unless `BATCH` rows take more."""

SLOW_FACTOR = 8
"""Estimators that take so many times as long as most of the others are launched with fewer rows."""

MAX_RETRIES = 3
"""The most retries of an uncertain `time_ratio`, each with as many rounds as at first."""


@dataclass(frozen=True)
class Times:
    """Times of one estimator on a batch of `BATCH` rows, with 95 % intervals of the medians; all empty if it failed.

    Attributes:
        forward, backward: seconds of one step.
        oracle_share: share of their sum that is spent inside the oracle.
        per_estimate: seconds per row of one launch of ``rows`` rows. On a CPU it is the processor time of the thread. Other programs
            lengthen it little, and waiting is not counted.
        ratio: the same relative to the reference, launched with as many rows, paired within rounds.
        failure: the error of an estimator that raised.
    """

    forward: Interval = Interval(None)
    backward: Interval = Interval(None)
    ratio: Interval = Interval(None)
    oracle_share: Interval = Interval(None)
    per_estimate: Interval = Interval(None)
    rows: int = BATCH
    failure: str = ""


def measure_times(  # noqa: PLR0913
    estimators: Mapping[str, Estimator[Any] | str], oracle: Any, loss: Loss, scores: Tensor, *, rounds: int = ROUNDS, budget: float = BUDGET
) -> dict[str, Times]:
    """Interleaved timings of estimators on the same batch.

    Args:
        estimators: by name, each an estimator or its name; with `REFERENCE` for ratios.
        oracle: an oracle or its name.
        loss: ``[..., *batch, *event] -> [..., *batch]``.
        scores: ``[*batch, *event]``, no shared rows.
        rounds: timed calls of each.
        budget: seconds of each contender, see `interleave`.

    Returns:
        Times by name; the ratio is empty if the reference was not among the estimators.

    Example:
        >>> from structgrad.oracles import Subset
        >>> batch = timing_batch(torch.zeros(6), generator=torch.Generator())
        >>> times = measure_times({"reinforce": Reinforce()}, Subset(2), lambda z: z.sum(-1), batch)["reinforce"]
        >>> times.ratio.value, times.backward.value > 0, 0 < times.oracle_share.value < 1
        (1.0, True, True)
    """
    made = dict[str, Estimator[Any]]()
    for name, given in estimators.items():
        made[name], loss, oracle, scores = check_call("measure_times", estimator=given, loss=loss, oracle=oracle, scores=scores)
    setting = _Setting(oracle, loss, scores, Stopwatch(scores.device))
    contenders, probes, failures = dict[_Key, _Call](), dict[str, float](), dict[str, str]()
    for name, estimator in made.items():
        try:
            probes[name] = _probe(estimator, setting, budget)
        except Exception as error:  # any user-supplied code may run here
            failures[name] = reason_of(error)
    # As many rows for all, so that all share the cost of a launch alike; fewer only for those that would take far longer.
    usual = statistics.median(probes.values()) if probes else 0.0
    rows = {name: _launch_rows(usual if probe <= SLOW_FACTOR * usual else probe, len(scores)) for name, probe in probes.items()}
    for name, probe in probes.items():
        contenders |= {(name, part): call for part, call in _calls(made[name], setting, probe, budget).items()}
        more_scores = _more_rows(scores, rows[name])
        for one in (name, REFERENCE):
            if one in probes:
                contenders[one, rows[name]] = functools.partial(_launch, made[one], setting, more_scores)
    found = interleave(contenders, rounds=rounds, budget=budget, spent={key: probes[key[0]] for key in contenders})
    failures |= {name: reason for (name, _), reason in found.failures.items()}
    seconds = found.seconds
    known = [name for name in probes if name not in failures]
    pairs = {name: [(seconds[name, rows[name]], seconds.get((REFERENCE, rows[name])))] for name in known}
    for _ in range(MAX_RETRIES):
        wide = [name for name in known if uncertain(_ratio(pairs[name]))]
        again = {(one, rows[name]): contenders[one, rows[name]] for name in wide for one in (name, REFERENCE)}
        more = interleave(again, rounds=rounds, budget=budget).seconds
        for name in wide:
            if {(name, rows[name]), (REFERENCE, rows[name])} <= more.keys():
                pairs[name].append((more[name, rows[name]], more[REFERENCE, rows[name]]))
    return {
        name: Times(failure=failures[name]) if name in failures else _times(seconds, name, rows[name], pairs[name]) for name in estimators
    }


def uncertain(ratio: Interval) -> bool:
    """Whether the 95 % interval of a ratio is wider than ± `MAX_RATIO_ERROR`; False without an interval.

    Example:
        >>> uncertain(Interval(2.0, 1.9, 2.2)), uncertain(Interval(2.0, 1.5, 2.5)), uncertain(Interval(2.0))
        (False, True, False)
    """
    return ratio.value is not None and ratio.half_width is not None and ratio.half_width > MAX_RATIO_ERROR * ratio.value


_Key = tuple[str, str | int]
"""An estimator, with ``step``, ``share`` or the number of rows of a launch."""

_Call = Callable[[], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class _Setting:
    """The oracle, loss, scores and stopwatch of all estimators."""

    oracle: Any
    loss: Loss
    scores: Tensor
    watch: Stopwatch


def _probe(estimator: Estimator[Any], setting: _Setting, budget: float) -> float:
    """Seconds of the fastest of a few steps; of two if they take long: the first may load or compile."""
    _step(estimator, setting)
    seconds = sum(_step(estimator, setting))
    again = WARM_UP if seconds <= PATIENCE * budget else 0
    return min([seconds, *(sum(_step(estimator, setting)) for _ in range(again))])


def _calls(estimator: Estimator[Any], setting: _Setting, probe: float, budget: float) -> dict[str, _Call]:
    """A step under the stopwatch, and one without unless the estimator is slow."""
    oracle, loss, scores, watch = setting.oracle, setting.loss, setting.scores, setting.watch
    calls: dict[str, _Call] = {"share": functools.partial(oracle_seconds, estimator, timed_oracle(oracle, watch), loss, scores, watch)}
    if probe <= PATIENCE * budget:
        calls["step"] = functools.partial(_step, estimator, setting)
    return calls


def _step(estimator: Estimator[Any], setting: _Setting) -> tuple[float, float]:
    return time_once(estimator, setting.oracle, setting.loss, setting.scores)


def _launch(estimator: Estimator[Any], setting: _Setting, scores: Tensor) -> tuple[float]:
    generator = torch.Generator(scores.device).manual_seed(0)
    now = time.thread_time if scores.device.type == "cpu" else functools.partial(clock, scores.device)
    start = now()
    estimator.gradient(setting.loss, setting.oracle, scores, generator=generator)
    return (now() - start,)


def _launch_rows(seconds: float, rows: int) -> int:
    """The largest doubling of the rows, which take ``seconds``, that keeps a launch short."""
    doublings = int(math.log2(max(min(MAX_ROWS / rows, LAUNCH_SECONDS / max(seconds, 1e-9)), 1)))
    return rows << doublings


def _more_rows(scores: Tensor, rows: int) -> Tensor:
    """Distinct rows: every copy of the batch is shifted by a little."""
    shifts = 1e-4 * torch.arange(rows // len(scores), dtype=scores.dtype, device=scores.device)
    return (scores + shifts.reshape(-1, *[1] * scores.ndim)).flatten(0, 1)


def _times(seconds: Mapping[_Key, Any], name: str, rows: int, pairs: list[tuple[Any, Any]]) -> Times:
    shares = seconds[name, "share"]
    steps = seconds.get((name, "step"), shares)
    return Times(
        forward=median_interval(steps[:, 0]),
        backward=median_interval(steps[:, 1]),
        ratio=_ratio(pairs),
        oracle_share=median_interval(shares[:, 2] / shares[:, :2].sum(-1)),
        per_estimate=median_interval(np.concatenate([own[:, 0] for own, _ in pairs]) / rows),
        rows=rows,
    )


def _ratio(pairs: list[tuple[Any, Any]]) -> Interval:
    """The ratio of launches of an estimator and of the reference, paired within rounds; empty without the reference."""
    found = [own[: len(base), 0] / base[: len(own), 0] for own, base in pairs if base is not None]
    return median_interval(np.concatenate(found)) if found else Interval(None)


@dataclass
class Stopwatch:
    """Seconds between starts and stops; a start while it runs has no effect."""

    device: torch.device
    seconds: float = 0.0
    depth: int = 0
    started: float | None = field(default=None)
    within: bool = False

    def start(self) -> None:
        """Begin, unless it runs already."""
        if self.started is None:
            self.started = clock(self.device)

    def stop(self) -> None:
        """End, and count; nothing if it does not run."""
        if self.started is not None and self.depth == 0:
            self.seconds += clock(self.device) - self.started
            self.started = None

    def __enter__(self) -> Stopwatch:
        # Within a backward pass that is timed, a call is a part of it and does not end it.
        self.within = self.within if self.depth else self.started is not None
        self.start()
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.within:
            self.stop()

    def reset(self) -> None:
        """Forget everything, a start without its stop too."""
        self.seconds, self.depth, self.started = 0.0, 0, None


def oracle_seconds(estimator: Estimator[Any], timed: Any, loss: Loss, scores: Tensor, watch: Stopwatch) -> tuple[float, float, float]:
    """Seconds of the forward and of the backward of one training step with an oracle of `timed_oracle`, and of both, inside the oracle."""
    watch.reset()
    forward, backward = time_once(estimator, timed, loss, scores)
    return forward, backward, min(watch.seconds, forward + backward)


def timed_oracle(oracle: Oracle, watch: Stopwatch) -> Any:
    """Copy an oracle so that its public operations run under a stopwatch, and their backward too.

    A hook on a result starts the stopwatch when the gradient arrives there, and a hook on the scores stops it when the gradient has come
    through. Autograd runs the nodes of one call without others in between.
    """
    kind = type(oracle)
    methods = [name for name, _ in inspect.getmembers_static(kind, inspect.isfunction) if not name.startswith("_")]

    def stopping(value: Any) -> Any:
        if not (isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()):
            return value
        entry = value.view_as(value)
        entry.register_hook(lambda _: watch.stop())
        return entry

    def starting(result: Any) -> Any:
        if isinstance(result, Tensor) and result.requires_grad:
            result.register_hook(lambda _: watch.start())
        return Timed(result) if isinstance(result, SparseSolution) else result

    class Timed:
        """A projection, which computes its attributes at their first use."""

        def __init__(self, solution: SparseSolution) -> None:
            self._solution = solution

        def __getattr__(self, name: str) -> Any:
            with watch:
                value = getattr(self._solution, name)
            return starting(value)

    def call(name: str, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if watch.depth:
            return operation(*args, **named)
        args, named = tuple(map(stopping, args)), {key: stopping(value) for key, value in named.items()}
        with watch:
            result = operation(*args, **named)
        return starting(result)

    return hooked(oracle, [name for name in methods if not isinstance(inspect.getattr_static(kind, name), staticmethod)], call)


class WallClock(Suite):
    """Time of one training step: forward, backward, inside the oracle, and relative to `REFERENCE`.

    Steps are those of `BATCH` rows around the largest instance, costs of an estimate those of launches of more rows. `REFERENCE` is
    always timed too, so that ratios of different runs mean the same. Findings are about the whole problem.
    """

    name: ClassVar[str] = "wall_clock"
    summary: ClassVar[str] = "seconds of a training step, forward, backward and inside the oracle, in interleaved rounds"
    exclusive: ClassVar[bool] = True
    together: ClassVar[bool] = True
    version: ClassVar[int] = 3

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Times of all estimators, interleaved; one that raises has a finding with status ``error``."""
        instance = max(problem.instances, key=lambda item: item.scores.numel())
        stream = seeds.generator(context.seed, self.name, problem.name, instance.name, device=context.device)
        scores = timing_batch(instance.scores.to(context.device, context.dtype), generator=stream)
        contenders = dict(estimators)
        reference: Estimator[Any] = Reinforce()
        if REFERENCE not in contenders and pairing(reference, problem.oracle, instance.loss, tuple(instance.scores.shape)) is None:
            contenders[REFERENCE] = reference
        # A contender is a step, a step under the stopwatch, or a launch: each has a share of an estimator's budget.
        budget = context.effort.seconds / 60
        with single_thread():
            threads = torch.get_num_threads()
            times = measure_times(contenders, problem.oracle, instance.loss, scores, rounds=context.effort.rounds, budget=budget)
        for name in estimators:
            yield from _found(name, times[name], threads)


def _found(name: str, times: Times, threads: int) -> Iterator[Finding]:
    if times.failure:
        yield Finding(name, "forward_time", None, status="error", reason=times.failure)
        return
    intervals = {
        "forward_time": times.forward,
        "backward_time": times.backward,
        "time_ratio": times.ratio,
        "oracle_share": times.oracle_share,
    }
    for metric, found in intervals.items():
        yield _finding(name, metric, found)
    yield _finding(name, "seconds_per_estimate", times.per_estimate, size=float(times.rows))
    yield Finding(name, "threads", float(threads))


def _finding(name: str, metric: str, found: Interval, *, size: float | None = None) -> Finding:
    kind = "" if found.low is None else "order-statistic"
    return Finding(name, metric, found.value, found.low, found.high, kind, size=size)


class StepTime(Suite):
    """Seconds of one step of training: data, scores, estimate, backward, clipping, Adam; of one seed, from its initial weights on.

    Estimators take turns in random order. Seconds of training are steps times these, which do not depend on the load during training.
    """

    name: ClassVar[str] = "step_time"
    summary: ClassVar[str] = "seconds of one step of training on a task, in interleaved rounds"
    exclusive: ClassVar[bool] = True
    together: ClassVar[bool] = True
    measures: ClassVar[str] = "tasks"
    dtype: ClassVar[str] = "float32"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Times of all estimators, interleaved; one that raises has a finding with status ``error``."""
        assert isinstance(problem, TaskProblem)
        task, rate = problem.task, problem.task.rates[0]
        contenders, failures = {}, {}
        with single_thread():
            for name, estimator in estimators.items():
                try:
                    # Its curve begins before the clock does, and no run is so long that it would be evaluated again.
                    training = Training(task, estimator, [Job(0, rate)], steps=sys.maxsize, points=1)
                    training.run(until=1)
                    contenders[name] = functools.partial(timed, functools.partial(_step_of, training), torch.device("cpu"))
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


def _step_of(training: Training) -> None:
    training.run(until=training.step + 1)

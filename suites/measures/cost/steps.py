"""Seconds and bytes of estimators and of training steps.

There is one timer: callables take turns in random order on one thread, round after round.

On a shared machine, two contenders that are timed one after the other do not compare: the load changes in between. In interleaved rounds,
ratios are taken within a round. The interval of a median needs no assumption on the noise.
"""

import functools
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ....estimators import Estimator, Loss, PathwiseEstimator, Reinforce
from ....estimators.base import check_call
from ....oracles import kernels
from ...base import REFERENCE, Problem, pairing
from ...problems import TaskProblem
from ...statistics import seeds
from ...statistics.intervals import Interval, median_interval
from ...statistics.selection import MAX_RATIO_ERROR
from ...tasks.training import Job, Training
from ...text import reason_of
from ..suite import Context, Finding, Suite

BATCH = 32  # rows of a timed step; every row has scores of its own
WARM_UP = 2  # untimed rounds
MIN_ROUNDS = 7  # rounds of a slow contender; a median of fewer than 6 has no 95 % interval
PATIENCE = 4  # a contender that has taken this many times its budget is timed once, and gets no interval
MIN_SECONDS = 1e-3  # seconds: a shorter call is repeated up to this, and counts as the mean
MAX_REPEATS = 64

Key = TypeVar("Key", bound=Hashable)


def interleave(
    contenders: Mapping[Key, Callable[[], tuple[float, ...]]], *, rounds: int, budget: float, spent: Mapping[Key, float] | None = None
) -> tuple[dict[Key, Any], dict[Key, str]]:
    """Time contenders in turns: seconds ``[rounds, columns]``, and the errors of those that raised, which have no seconds.

    Each call returns seconds, one number or several. After ``budget`` seconds a contender makes `MIN_ROUNDS` only, after `PATIENCE` times
    as many one round. A slow contender has fewer rows than others; row i is round i. ``spent`` are seconds that contenders have taken
    before: a slow one needs no further warm-up.
    """
    order, used = np.random.default_rng(0), {key: (spent or {}).get(key, 0.0) for key in contenders}
    timed: dict[Key, list[Any]] = {key: [] for key in contenders}
    fastest, failures = dict.fromkeys(contenders, math.inf), dict[Key, str]()

    def takes_part(key: Key, turn: int) -> bool:
        if used[key] > PATIENCE * budget:
            return turn >= WARM_UP and not timed[key]
        return turn < WARM_UP + (rounds if used[key] <= budget else MIN_ROUNDS)

    for turn in range(WARM_UP + max(rounds, MIN_ROUNDS)):
        willing = [key for key in contenders if key not in failures and takes_part(key, turn)]
        for key in (willing[i] for i in order.permutation(len(willing))):
            call, start = contenders[key], time.perf_counter()
            try:
                if turn < WARM_UP:  # the fastest of these calls is the one without compilation
                    fastest[key] = min(fastest[key], sum(call()))
                else:
                    repeats = max(1, min(MAX_REPEATS, math.ceil(MIN_SECONDS / max(fastest[key], 1e-9))))
                    rows = [call() for _ in range(repeats)]
                    timed[key].append(rows[0] if repeats == 1 else np.sum(rows, axis=0) / repeats)
            except Exception as error:  # any user-supplied code may run here
                failures[key] = reason_of(error)
            used[key] += time.perf_counter() - start
    return {key: np.array(values) for key, values in timed.items() if key not in failures}, failures


def probe(call: Callable[[], tuple[float, ...]], limit: float) -> float:
    """Seconds of the fastest of a few calls; of the second one if that exceeds a limit. The first may load or compile."""
    call()
    seconds = sum(call())
    return min([seconds, *(sum(call()) for _ in range(WARM_UP if seconds <= limit else 0))])


def clock(device: torch.device) -> float:
    """Read seconds when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed(call: Callable[[], Any], device: torch.device) -> tuple[float]:
    """Seconds of one call."""
    start = clock(device)
    call()
    return (clock(device) - start,)


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute on one thread: with two, a small step on a busy machine takes several times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def timing_batch(scores: Tensor, *, generator: torch.Generator) -> Tensor:
    """Make `BATCH` distinct rows around one score tensor: shared rows would hide costs of training."""
    return scores + 1e-3 * torch.randn((BATCH, *scores.shape), generator=generator, dtype=scores.dtype, device=scores.device)


def time_once(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[float, float]:
    """Seconds of one forward (of a layer and the loss if the estimator is a layer, else of the surrogate) and of its backward."""
    leaf = scores.detach().clone().requires_grad_()
    generator = torch.Generator(scores.device).manual_seed(0)
    start = clock(scores.device)
    if isinstance(estimator, PathwiseEstimator) and estimator.evaluations().losses == 1:
        value = loss(estimator.structure(oracle, leaf, generator=generator)).sum()
    else:
        value = estimator.surrogate(loss, oracle, leaf, generator=generator).sum()
    middle = clock(scores.device)
    torch.autograd.grad(value, leaf, allow_unused=True)
    return middle - start, clock(scores.device) - middle


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


def peak_memory(call: Callable[[], object], *, device: torch.device | str = "cpu") -> int:
    """The most bytes that a call took from torch and held at one time, without those held before; 0 for a call that allocates nothing.

    Tensors and the memory of kernels count, the interpreter and imported libraries do not. So small tensors are visible, unlike in the
    resident set of a process. On CUDA the caching allocator's own counter is read. On the CPU the profiler's record of every allocation and
    release is summed. Garbage collection is off: tensors in reference cycles are held until the call ends.

    Example:
        >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64))
        8000
    """
    place, collects = torch.device(device), gc.isenabled()
    gc.disable()  # it would release older memory during the call, sooner in one run and later in another
    try:
        if place.type == "cuda":
            torch.cuda.synchronize(place)
            torch.cuda.reset_peak_memory_stats(place)
            before = torch.cuda.memory_allocated(place)
            call()
            torch.cuda.synchronize(place)
            return torch.cuda.max_memory_allocated(place) - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded, kernels.shown_to_torch():
            call()
    finally:
        if collects:
            gc.enable()
    results = None if recorded.profiler is None else recorded.profiler.kineto_results
    if results is None:
        raise RuntimeError("`peak_memory` got no record from torch's profiler; expected a build of torch with the profiler (Kineto)")
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return int(max(accumulate((size for _, size in sorted(changes, key=lambda change: change[0])), initial=0)))


def load_kernels(call: Callable[[], object]) -> None:
    """Make a call as `peak_memory` does, before it measures that call: a first call loads kernels, whose code must not count."""
    with kernels.shown_to_torch():
        call()


def training_memory(estimator: Estimator[Any] | str, oracle: Any, loss: Loss, scores: Tensor) -> int:
    """Peak bytes of the second of two equal training steps on scores ``[*batch, *event]``: memory that is kept does not count."""
    made, loss, oracle, scores = check_call("training_memory", estimator=estimator, loss=loss, oracle=oracle, scores=scores)
    step = functools.partial(time_once, made, oracle, loss, scores)
    load_kernels(step)
    return peak_memory(step, device=scores.device)


class Memory(Suite):
    """Memory of one training step, forward and backward.

    The batch is that of `timing_batch` around the largest instance. On the CPU the numbers are exact counts: they repeat to the byte.
    """

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "peak bytes of a training step"
    version: ClassVar[int] = 2
    exclusive: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        instance = max(problem.instances, key=lambda item: item.scores.numel())
        stream = seeds.generator(context.seed, "wall_clock", problem.name, instance.name, device=context.device)
        scores = timing_batch(instance.scores.to(context.device, context.dtype), generator=stream)
        for name, estimator in estimators.items():
            with single_thread():
                yield Finding(name, "peak_memory", float(training_memory(estimator, problem.oracle, instance.loss, scores)))

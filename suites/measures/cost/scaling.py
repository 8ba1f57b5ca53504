"""Scaling of time and memory of estimators with the length of the structures, and of variance with the number of samples.

Small sizes cost as much as a call. So an exponent is fitted to the upper half of the sizes, at least three. It is the median of the slopes
of all pairs of points (Theil 1950, Sen 1968), which one disturbed point does not move.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.stats
import torch

from ....estimators.base import Estimator
from ....oracles.capabilities import Oracle
from ...base import Problem
from ...problems.losses import make_loss
from ...statistics import seeds
from ...statistics.interval import Interval
from ...statistics.intervals import median_interval
from ...statistics.moments import BATCHES
from ...text import reason_of
from ...truth.closed_form import UnknownTruthError
from ..bias import Sampling, measure
from ..suite import Context, Finding, Suite
from .steps import BATCH, MIN_ROUNDS, interleave, load_kernels, peak_memory, probe, single_thread, time_once, timed, timing_batch

LENGTHS = tuple(2**power for power in range(2, 11))  # sizes of an event, by the name that the oracle gives its length
SAMPLES = (1, 2, 4, 8, 16)

MAX_REPLICATES = 1024  # the most replicates of the variance at one number of samples
FEWEST_POINTS = 3  # two points fit any exponent
MAX_OVERRUN = 2.0  # the most time of a point, as a multiple of the rest of its budget: growth is measured, not known

Call = Callable[[], object]
Stop = tuple[int, str, Literal["skipped", "error"]]  # the first size that a contender did not reach, the reason, and the status


class UnfitError(Exception):
    """A size that an oracle or estimator does not support, with the reason."""


def exponent(sizes: Sequence[float], rounds: Any) -> Interval:
    """The e of ``value ∝ sizeᵉ``: the median over rounds ``[rounds, sizes]``, each fitted alone, with its order-statistic interval.

    A slow phase of the machine slows all sizes of a round down, and leaves the slope of the round. Without a value if fewer than
    `FEWEST_POINTS` sizes have positive values.
    """
    table = np.array(rounds, dtype=float).reshape(-1, max(len(sizes), 1))
    positive = (table > 0).all(0)
    if len(sizes) < FEWEST_POINTS or positive.sum() < FEWEST_POINTS or not len(table):
        return Interval(None)
    upper = max(FEWEST_POINTS, -(-int(positive.sum()) // 2))
    logs = np.log(np.vstack([sizes, table])[:, positive][:, -upper:])
    return median_interval([scipy.stats.theilslopes(row, logs[0]).slope for row in logs[1:]])


def reach(make: Callable[[int], Call], sizes: Sequence[int], limit: float, device: torch.device) -> tuple[dict[int, Call], Stop | None]:
    """Try calls of growing size while one of each takes up to ``limit`` seconds; ``make`` raises `UnfitError` for a size that is none."""
    calls, spent, last, growth = dict[int, Call](), 0.0, 0.0, 2.0
    stopped: Stop | None = None
    for size in sizes:
        expected = last * growth
        if spent + expected <= limit:
            try:
                call = make(size)
                expected = probe(functools.partial(timed, call, device), limit - spent)
            except UnfitError as error:
                stopped = size, str(error), "skipped"
                if last:
                    break
                continue
            except Exception as error:  # any user-supplied code may run here
                return calls, (size, reason_of(error), "error")
        if spent + expected > limit:
            stopped = size, f"would take about {expected:.1e} s, more than the effort allows", "skipped"
            break
        stopped, calls[size] = None, call
        growth = max(expected / last, 2.0) if last else 2.0
        spent, last = spent + expected, expected
    return calls, stopped


def event_of_length(oracle: Oracle, event: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The event shape of an oracle at a length, with everything else as in an event that it has."""
    for sizes in ({"length": length}, {"length": length, "tags": event[-1]}, {"rows": length, "columns": length}):
        try:
            shape = oracle.event_shape(**sizes)
        except ValueError:
            continue
        if oracle.count(shape) < 2:
            raise UnfitError(f"{oracle.name} has fewer than two structures of length {length}")
        return shape
    raise UnfitError(f"{oracle.name} names its sizes otherwise than length, tags, rows and columns")


class ScalingSuite(Suite):
    """Time and peak memory of a step of `BATCH` rows against length, with fitted exponents; relative variance and ρ against samples.

    Scores of the problem's oracle are random, with a quadratic loss that is tied to a random structure. An estimator that does not support
    a size stops there, with the reason. The effort limits the sizes, so a busy machine may reach fewer. Samples are varied on the problem's
    first instance.
    """

    name: ClassVar[str] = "scaling"
    summary: ClassVar[str] = "time and memory against length, with fitted exponents, and variance against samples"
    version: ClassVar[int] = 3
    exclusive = together = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        device, largest = torch.device(context.device), max(problem.instances, key=lambda item: item.scores.numel())

        def step(estimator: Estimator[Any], length: int) -> Call:
            event = event_of_length(problem.oracle, tuple(largest.scores.shape), length)
            if (reason := estimator.incompatibility(problem.oracle, event)) is not None:
                raise UnfitError(reason)
            costs, structures = estimator.evaluations(), problem.oracle.count(event) * BATCH
            if (costs.enumerations or costs.listings) and structures > context.effort.cap:
                allowed = f"the effort allows {context.effort.cap:.1e}"
                raise UnfitError(f"{estimator.name} would enumerate {structures:.1e} structures; {allowed}")
            stream = seeds.generator(context.seed, "scaling", problem.name, *map(str, event))
            scores, other = torch.randn((2, *event), generator=stream, dtype=torch.float64)
            seed = seeds.seed_sequence(context.seed, "scaling", "loss", *map(str, event))
            loss = make_loss("quadratic", problem.oracle.argmax(other), problem.oracle, seed=seed)
            rows = seeds.generator(context.seed, "scaling", "rows", device=device)
            batch = timing_batch(scores.to(device, context.dtype), generator=rows)
            return functools.partial(time_once, estimator, problem.oracle, loss, batch)

        rounds, budget = max(context.effort.rounds // 2, MIN_ROUNDS), context.effort.seconds / 30
        with single_thread():
            reached = {
                name: reach(functools.partial(step, estimator), LENGTHS, MAX_OVERRUN * budget / rounds, device)
                for name, estimator in estimators.items()
            }
            calls = {(name, size): call for name, (own, _) in reached.items() for size, call in own.items()}
            points = {point: functools.partial(timed, call, device) for point, call in calls.items()}
            timings, failures = interleave(points, rounds=rounds, budget=budget)
            stops: dict[str, Stop | None] = {name: (size, reason, "error") for (name, size), reason in failures.items()}
            for name, (own, stopped) in reached.items():
                seconds = {size: timings[name, size][:, 0] for size in own if (name, size) in timings}
                yield from _points(name, own, seconds, stops.get(name, stopped), device)
        for name, estimator in estimators.items():
            yield from _variances(name, estimator, problem, context)


def _points(
    name: str, calls: Mapping[int, Call], seconds: Mapping[int, Any], stopped: Stop | None, device: torch.device
) -> Iterator[Finding]:
    peaks = []
    for size, rounds in seconds.items():
        load_kernels(calls[size])
        peaks.append(float(peak_memory(calls[size], device=device)))
        at: dict[str, Any] = {"setting": f"length={size}", "size": float(size)}
        yield Finding.of(name, "total_time", median_interval(rounds), **at)
        yield Finding(name, "peak_memory", peaks[-1], **at)
    complete = list(zip(*seconds.values(), strict=False))  # rounds that all sizes have
    for metric, rows in (("time_exponent", complete), ("memory_exponent", [peaks])):
        fitted = exponent(list(seconds), rows)
        if fitted.value is None:
            reason = f"fewer than {FEWEST_POINTS} sizes were reached"
            yield Finding(name, metric, None, setting="axis=length", status="skipped", reason=reason)
        else:
            yield Finding.of(name, metric, fitted, setting="axis=length")
    if stopped is not None:
        size, reason, status = stopped
        yield Finding(name, "total_time", None, setting=f"length={size}", size=float(size), status=status, reason=reason)


def _variances(name: str, estimator: Any, problem: Problem, context: Context) -> Iterator[Finding]:
    """Relative variance and ρ of an estimate at every number of samples that the estimator takes; nothing if it takes none."""
    if "num_samples" not in getattr(estimator, "__dataclass_fields__", ()):
        return
    instance, replicates = problem.instances[0], max(min(context.effort.replicates, MAX_REPLICATES), 2 * BATCHES)
    key = ("scaling", problem.name, problem.stage, instance.name)
    sampling = Sampling(replicates, context.seed, key, context.batch_size, dtype=context.dtype)
    try:
        truth = context.truth(problem, instance)
    except UnknownTruthError as error:
        yield Finding(name, "relative_variance", None, setting="axis=samples", status="skipped", reason=str(error))
        return
    try:
        for samples in SAMPLES:
            try:
                changed = dataclasses.replace(estimator, num_samples=samples)
            except ValueError:  # such as one sample, of which no other one is a baseline
                continue
            scores = instance.scores.to(context.device)
            found = measure(changed, problem.oracle, instance.loss, scores, truth=truth, sampling=sampling)
            at: dict[str, Any] = {"setting": f"samples={samples}", "size": float(samples), "tier": found.tier, "instance": instance.name}
            for metric in ("relative_variance", "rho"):
                if metric in found.metrics:
                    yield Finding.of(name, metric, found.metrics[metric], replicates=found.replicates, **at)
    except Exception as error:  # any user-supplied code may run here
        yield Finding.failed(name, "relative_variance", error, setting="axis=samples")

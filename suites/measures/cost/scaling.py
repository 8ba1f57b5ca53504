"""Scaling of time, memory and variance of estimators with the length, the batch and the number of samples.

Small sizes cost as much as a call. So an exponent is fitted to the upper half of the sizes, at least three. It is the median of the slopes
of all pairs of points (Theil 1950, Sen 1968), which one disturbed point does not move.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ....estimators.base import Estimator, Loss
from ....oracles.capabilities import Oracle
from ...base import Problem
from ...problems.losses import make_loss
from ...statistics import seeds
from ...statistics.interval import Interval
from ...statistics.intervals import jackknife, median_interval
from ...statistics.metrics import leave_one_out, summarise
from ...statistics.moments import BATCHES, Moments
from ...text import reason_of
from ..draws import Draws, estimates
from ..memory import load_kernels, peak_memory
from ..suite import Context, Finding, Suite
from .timer import BATCH, interleave, probe, single_thread, time_once, timed, timing_batch

FEWEST_POINTS = 3
"""Two points fit any exponent."""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The e of ``value ∝ sizeᵉ``; None if fewer than `FEWEST_POINTS` sizes have a positive value.

    Example:
        >>> round(exponent([4, 8, 16, 32], [1.0, 4.0, 16.0, 64.0]), 9)
        2.0
    """
    upper = _upper(sizes, values)
    return (
        None if upper is None else float(np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(upper.tolist(), 2)]))
    )


def _upper(sizes: Sequence[float], values: Sequence[float]) -> Any:
    """Logarithms ``[points, 2]`` of the upper half of the sizes and their values, at least `FEWEST_POINTS`; None with fewer."""
    points = sorted((math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0)
    return None if len(points) < FEWEST_POINTS else np.array(points[-max(FEWEST_POINTS, -(-len(points) // 2)) :])


def exponent_of_rounds(sizes: Sequence[float], rounds: Any) -> Interval:
    """The median exponent of rounds ``[rounds, sizes]``, each fitted alone, with its order-statistic interval.

    A slow phase of the machine slows all sizes of a round down, and leaves the slope of the round.
    """
    fitted = [found for row in rounds if (found := exponent(sizes, row)) is not None]
    return median_interval(fitted) if fitted else Interval(None)


def exponent_of_counts(sizes: Sequence[float], values: Sequence[float]) -> Interval:
    """The exponent of values without noise; the interval is that of the slopes between neighbours, a point for a power."""
    upper = _upper(sizes, values)
    if upper is None:
        return Interval(None)
    slopes = np.diff(upper[:, 1]) / np.diff(upper[:, 0])
    return Interval(exponent(sizes, values), float(slopes.min()), float(slopes.max()), "fit")


def exponent_of_jackknife(sizes: Sequence[float], whole: Sequence[float], without: Any) -> Interval:
    """The exponent of noisy values, with the t-interval of a delete-one-batch jackknife ``[batches, sizes]``."""
    found, folds = exponent(sizes, whole), [fold for row in without if (fold := exponent(sizes, row)) is not None]
    return Interval(found) if found is None or len(folds) < 2 else jackknife(found, torch.tensor(folds, dtype=torch.float64))


Call = Callable[[], object]

MAX_OVERRUN = 2.0
"""The most time of a point, as a multiple of the rest of its budget: growth is measured, not known."""


class UnfitError(Exception):
    """A size that an oracle or estimator does not support, with the reason."""


@dataclass
class Sweep:
    """Seconds of contenders at the sizes that each reached.

    Attributes:
        seconds: by contender and size, one number per round. ``stopped``: by contender, the first size it did not reach, and why.
        failed: contenders that stopped because they raised.
        calls: by contender and size, the timed call.
    """

    seconds: dict[str, dict[int, Any]] = field(default_factory=dict)
    stopped: dict[str, tuple[int, str]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    calls: dict[str, dict[int, Call]] = field(default_factory=dict)

    def fail(self, name: str, size: int, reason: str) -> None:
        """Stop a contender that raised."""
        self.stopped[name] = (size, reason)
        self.failed.add(name)


def sweep(
    contenders: Mapping[str, Callable[[int], Call]], sizes: Sequence[int], *, rounds: int, budget: float, device: torch.device
) -> Sweep:
    """Time calls of growing size, interleaved over contenders and sizes.

    Sizes are tried in turn. A contender continues while all its timed rounds would stay within its budget, with the next size at the
    growth measured so far. Then every point takes part in every round.

    Args:
        contenders: return the call of a size, or raise `UnfitError` with a reason.
        sizes: increasing.
        rounds: timed calls of every point.
        budget: seconds of each contender.
        device: where the calls compute.
    """
    found, limit = Sweep(), MAX_OVERRUN * budget / rounds
    points: dict[tuple[str, int], Callable[[], tuple[float]]] = {}
    for name, make in contenders.items():
        found.calls[name], spent, last, growth = {}, 0.0, 0.0, 2.0
        for size in sizes:
            if spent + last * growth > limit:
                found.stopped[name] = (size, f"would take about {last * growth:.1e} s, more than the effort allows")
                break
            try:
                call = make(size)
                timing = functools.partial(timed, call, device)
                seconds = probe(timing, limit - spent)
            except UnfitError as error:
                found.stopped.setdefault(name, (size, str(error)))
                if last:
                    break
                continue  # the first sizes may be too small
            except Exception as error:  # any user-supplied code may run here
                found.fail(name, size, reason_of(error))
                break
            found.stopped.pop(name, None)
            if spent + seconds > limit:
                found.stopped[name] = (size, f"takes about {seconds:.1e} s, more than the effort allows")
                break
            growth = max(seconds / last, 2.0) if last else 2.0
            spent, last = spent + seconds, seconds
            found.calls[name][size], points[name, size] = call, timing
    timings = interleave(points, rounds=rounds, budget=budget)
    for (name, size), reason in timings.failures.items():
        found.fail(name, size, reason)
    for (name, size), rows in timings.seconds.items():
        found.seconds.setdefault(name, {})[size] = rows[:, 0]
    return found


def doublings(first: int, last: int) -> list[int]:
    """Sizes from the first, doubled, up to the last.

    Example:
        >>> doublings(3, 30)
        [3, 6, 12, 24]
    """
    sizes = [first]
    while 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    return sizes


LENGTHS = doublings(4, 1024)
"""Sizes of an event, by the name that the oracle gives its length."""

ROWS = (8, 32, 128, 512, 2048)

SAMPLES = doublings(1, 64)

MAX_REPLICATES = 1024
"""The most replicates of the variance at one number of samples."""

MAX_SAMPLES = 16
"""The largest number whose variance is estimated."""


def event_of_length(oracle: Oracle, event: tuple[int, ...], length: int) -> tuple[int, ...]:
    """The event shape of an oracle at a length: everything else as in an event that it has.

    Raises:
        UnfitError: an oracle whose sizes have other names, or that has no two structures of such a length.

    Example:
        >>> from structgrad.oracles import Alignment, LinearChain
        >>> event_of_length(LinearChain(), (6, 5, 5), 40), event_of_length(Alignment(), (3, 4), 40)
        ((40, 5, 5), (40, 40))
    """
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
    """Time and peak memory against length, batch and samples, and variance against samples; points, and fitted exponents.

    Lengths are of random scores of the problem's oracle, with a quadratic loss that is tied to a random structure; `BATCH` rows. Batch and
    samples are of the problem's largest instance. An estimator that does not support a size stops there, with the reason. The effort limits
    the sizes, so a busy machine may reach fewer.
    """

    name: ClassVar[str] = "scaling"
    summary: ClassVar[str] = "time and memory against length, batch and samples, variance against samples, with fitted exponents"
    version: ClassVar[int] = 2
    exclusive: ClassVar[bool] = True
    together: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Points of all sweeps, and their exponents."""
        device, largest = torch.device(context.device), max(problem.instances, key=lambda item: item.scores.numel())

        def call(estimator: Estimator[Any], loss: Loss, scores: Tensor, rows: int = BATCH) -> Call:
            event = tuple(scores.shape)
            if (reason := estimator.incompatibility(problem.oracle, event)) is not None:
                raise UnfitError(reason)
            costs, structures = estimator.evaluations(), problem.oracle.count(event) * rows
            if (costs.enumerations or costs.listings) and structures > context.effort.cap:
                allowed = f"the effort allows {context.effort.cap:.1e}"
                raise UnfitError(f"{estimator.name} would enumerate {structures:.1e} structures; {allowed}")
            stream = seeds.generator(context.seed, "scaling", "rows", device=device)
            batch = timing_batch(scores.to(device, context.dtype), generator=stream, rows=rows)
            return functools.partial(time_once, estimator, problem.oracle, loss, batch)

        def at_length(estimator: Estimator[Any], length: int) -> Call:
            event = event_of_length(problem.oracle, tuple(largest.scores.shape), length)
            stream = seeds.generator(context.seed, "scaling", problem.name, *map(str, event))
            scores, other = torch.randn((2, *event), generator=stream, dtype=torch.float64)
            seed = seeds.seed_sequence(context.seed, "scaling", "loss", *map(str, event))
            return call(estimator, make_loss("quadratic", problem.oracle.argmax(other), problem.oracle, seed=seed), scores)

        def at_batch(estimator: Estimator[Any], rows: int) -> Call:
            return call(estimator, largest.loss, largest.scores, rows)

        def at_samples(estimator: Estimator[Any], samples: int) -> Call:
            return call(with_samples(estimator, samples), largest.loss, largest.scores)

        sampling = {
            name: estimator
            for name, estimator in estimators.items()
            if dataclasses.is_dataclass(estimator) and any(field.name == "num_samples" for field in dataclasses.fields(estimator))
        }
        for axis, sizes, make, chosen in (
            ("length", LENGTHS, at_length, estimators),
            ("batch", ROWS, at_batch, estimators),
            ("samples", SAMPLES, at_samples, sampling),
        ):
            makers = {name: functools.partial(make, estimator) for name, estimator in chosen.items()}
            rounds, budget = max(context.effort.rounds // 2, 7), context.effort.seconds / 30
            with single_thread():
                yield from _points(axis, sweep(makers, sizes, rounds=rounds, budget=budget, device=device), device)
        for name, estimator in sampling.items():
            yield from _variances(name, estimator, problem, context)


def with_samples(estimator: Estimator[Any], samples: int) -> Estimator[Any]:
    """Copy an estimator with another ``num_samples``.

    Raises:
        UnfitError: a number that the estimator refuses.
    """
    try:
        changed: Estimator[Any] = dataclasses.replace(estimator, num_samples=samples)  # type: ignore[type-var]
    except ValueError as error:
        raise UnfitError(str(error)) from error
    return changed


def _points(axis: str, found: Sweep, device: torch.device) -> Iterator[Finding]:
    for name, calls in found.calls.items():
        timed_at, bytes_at = found.seconds.get(name, {}), list[float]()
        for size, seconds in timed_at.items():
            load_kernels(calls[size])
            bytes_at.append(float(peak_memory(calls[size], device=device)))
            at: dict[str, Any] = {"setting": f"{axis}={size}", "size": float(size)}
            yield Finding.of(name, "total_time", median_interval(seconds), **at)
            yield Finding(name, "peak_memory", bytes_at[-1], **at)
        sizes, rounds = [float(size) for size in timed_at], zip(*timed_at.values(), strict=False)  # rounds that all sizes have
        yield _exponent(name, "time_exponent", exponent_of_rounds(sizes, rounds), axis)
        yield _exponent(name, "memory_exponent", exponent_of_counts(sizes, bytes_at), axis)
        if name in found.stopped:
            size, reason = found.stopped[name]
            status: Any = "error" if name in found.failed else "skipped"
            yield Finding(name, "total_time", None, setting=f"{axis}={size}", size=float(size), status=status, reason=reason)


def _exponent(name: str, metric: str, found: Interval, axis: str) -> Finding:
    if found.value is None:
        reason = f"fewer than {FEWEST_POINTS} sizes were reached"
        return Finding(name, metric, None, setting=f"axis={axis}", status="skipped", reason=reason)
    return Finding.of(name, metric, found, setting=f"axis={axis}")


def _variances(name: str, estimator: Estimator[Any], problem: Problem, context: Context) -> Iterator[Finding]:
    """The variance of an estimate at every number of samples, with common random numbers, and its exponent."""
    instance, number = problem.instances[0], max(min(context.effort.replicates, MAX_REPLICATES), 2 * BATCHES)
    scores = instance.scores.to(context.device, context.dtype)
    draws = Draws(problem.oracle, instance.loss, scores, context, ("scaling", problem.name, problem.stage, instance.name))
    sizes, wholes, folds = [], [], []
    try:
        square = float(context.truth(problem, instance).gradient.square().sum()) or math.nan
        for samples in doublings(1, MAX_SAMPLES):
            try:
                changed = with_samples(estimator, samples)
            except UnfitError:
                continue
            whole, without = traces(estimates(draws.warmed(changed), draws, number))
            sizes.append(float(samples))
            wholes.append(whole / square)
            folds.append(without / square)
            at: dict[str, Any] = {"setting": f"samples={samples}", "size": float(samples), "tier": "mc", "replicates": number}
            yield Finding(name, "relative_variance", wholes[-1], instance=instance.name, **at)
    except Exception as error:  # any user-supplied code may run here; no truth, no scale
        yield Finding.failed(name, "variance_exponent", error, setting="axis=samples")
        return
    yield _exponent(name, "variance_exponent", exponent_of_jackknife(sizes, wholes, torch.stack(folds, 1).tolist()), "samples")


def traces(found: Tensor) -> tuple[float, Tensor]:
    """The trace of the covariance of estimates ``[n, parts]``, and without each of `BATCHES` batches ``[batches]``."""
    moments, sizes = Moments.empty(found[0]), [len(part) for part in found.tensor_split(BATCHES)]
    moments.add_blocks(
        found, [(end - size, end, batch) for batch, (size, end) in enumerate(zip(sizes, itertools.accumulate(sizes), strict=True))]
    )
    return float(summarise(moments).trace), leave_one_out(moments).trace

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
import scipy
import torch
from torch import Tensor

from ....estimators.base import Estimator, Loss
from ....oracles.capabilities import Oracle
from ...base import Instance, Problem
from ...problems.losses import make_loss
from ...statistics import seeds
from ...statistics.intervals import LEVEL, Interval, median_interval
from ...statistics.moments import BATCHES
from ...text import reason_of
from ..draws import Draws, estimates
from ..memory import load_kernels, peak_memory
from ..suite import Context, Finding, Suite
from .timer import BATCH, interleave, single_thread, time_once, timed, timing_batch

FEWEST_POINTS = 3
"""Two points fit any exponent."""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """The e of ``value ∝ sizeᵉ``; None if fewer than `FEWEST_POINTS` sizes have a positive value.

    Example:
        >>> round(exponent([4, 8, 16, 32], [1.0, 4.0, 16.0, 64.0]), 9)
        2.0
    """
    points = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0]
    if len(points) < FEWEST_POINTS:
        return None
    upper = sorted(points)[-max(FEWEST_POINTS, -(-len(points) // 2)) :]
    return float(np.median([(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(upper, 2)]))


def exponent_of_rounds(sizes: Sequence[float], rounds: Any) -> Interval:
    """The median exponent of rounds ``[rounds, sizes]``, each fitted alone, with its order-statistic interval.

    A slow phase of the machine slows all sizes of a round down, and leaves the slope of the round.
    """
    fitted = [found for row in rounds if (found := exponent(sizes, row)) is not None]
    return median_interval(fitted) if fitted else Interval(None)


def exponent_of_counts(sizes: Sequence[float], values: Sequence[float]) -> Interval:
    """The exponent of values without noise; the interval is that of the slopes between neighbours, a point for a power."""
    found = exponent(sizes, values)
    if found is None:
        return Interval(None)
    points = sorted((size, value) for size, value in zip(sizes, values, strict=True) if size > 0 and value > 0)
    upper = points[-max(FEWEST_POINTS, -(-len(points) // 2)) :]
    slopes = [math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in itertools.pairwise(upper)]
    return Interval(found, min(slopes), max(slopes))


def exponent_of_jackknife(sizes: Sequence[float], whole: Sequence[float], without: Any) -> Interval:
    """The exponent of noisy values, with the t-interval of a delete-one-batch jackknife ``[batches, sizes]``."""
    found, folds = exponent(sizes, whole), [exponent(sizes, row) for row in without]
    fitted = np.array([fold for fold in folds if fold is not None])
    if found is None or len(fitted) < 2:
        return Interval(found)
    number = len(fitted)
    error = math.sqrt((number - 1) / number * float(((fitted - fitted.mean()) ** 2).sum()))
    half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, number - 1)) * error
    return Interval(found, found - half, found + half)


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

    def table(self, name: str) -> tuple[list[float], Any]:
        """Sizes, and seconds ``[rounds, sizes]`` over the rounds that all sizes have."""
        found = self.seconds.get(name, {})
        rounds = min((len(row) for row in found.values()), default=0)
        return [float(size) for size in found], np.array([row[:rounds] for row in found.values()]).T


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
    found = Sweep()
    for name, make in contenders.items():
        found.calls[name] = {}
        for size, call in _grown(make, sizes, budget / rounds, device, functools.partial(_stop, found, name)):
            found.calls[name][size] = call
            if found.stopped.get(name, (size,))[0] < size:
                del found.stopped[name]
    points = {(name, size): functools.partial(timed, call, device) for name, calls in found.calls.items() for size, call in calls.items()}
    found_rounds = interleave(points, rounds=rounds, budget=budget)
    for (name, size), reason in found_rounds.failures.items():
        _stop(found, name, size, reason, failed=True)
    for (name, size), rows in found_rounds.seconds.items():
        found.seconds.setdefault(name, {})[size] = rows[:, 0]
    return found


def _stop(found: Sweep, name: str, size: int, reason: str, failed: bool = False) -> None:
    found.stopped[name] = (size, reason)
    if failed:
        found.failed.add(name)


def _grown(
    make: Callable[[int], Call], sizes: Sequence[int], budget: float, device: torch.device, stop: Callable[..., None]
) -> Iterator[tuple[int, Call]]:
    """The sizes that one round within a budget can hold, with their calls; the first may be too small for the contender."""
    spent, last, growth = 0.0, 0.0, 2.0
    for size in sizes:
        expected = last * growth
        if spent + expected > MAX_OVERRUN * budget:
            return stop(size, f"would take about {expected:.1e} s, more than the effort allows")
        try:
            call = make(size)
            seconds = _probed(call, MAX_OVERRUN * budget - spent, device)
        except UnfitError as reason:
            stop(size, str(reason))
            if last:
                return None
            continue
        except Exception as error:  # any user-supplied code may run here
            return stop(size, reason_of(error), failed=True)
        if spent + seconds > MAX_OVERRUN * budget:
            return stop(size, f"takes about {seconds:.1e} s, more than the effort allows")
        growth = max(seconds / last, 2.0) if last else 2.0
        spent, last = spent + seconds, seconds
        yield size, call
    return None


def _probed(call: Call, limit: float, device: torch.device) -> float:
    """Seconds of the fastest of a few calls, the first of which may compile; of one, if it takes longer than any compilation."""
    seconds = timed(call, device)[0]
    again = 3 if seconds <= max(10 * limit, 0.5) else 0
    return min([seconds, *(timed(call, device)[0] for _ in range(again))])


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
        places = _Places(problem, context)
        axes: dict[str, tuple[Sequence[int], Callable[[Estimator[Any], int], Call]]] = {
            "length": (places.lengths(), places.at_length),
            "batch": (ROWS, places.at_batch),
            "samples": (SAMPLES, places.at_samples),
        }
        for axis, (sizes, make) in axes.items():
            makers = {name: functools.partial(make, estimator) for name, estimator in estimators.items()}
            if axis == "samples":
                makers = {name: maker for name, maker in makers.items() if _takes_samples(estimators[name])}
            with single_thread():
                found = sweep(
                    makers, sizes, rounds=max(context.effort.rounds // 2, 7), budget=context.effort.seconds / 30, device=places.device
                )
                yield from _points(axis, found, places.device)
        for name, estimator in estimators.items():
            if _takes_samples(estimator):
                yield from _variances(name, estimator, problem, context)


@dataclass(frozen=True, eq=False)
class _Places:
    """The settings in which estimators are timed."""

    problem: Problem
    context: Context

    @property
    def device(self) -> torch.device:
        return torch.device(self.context.device)

    @property
    def largest(self) -> Instance:
        return max(self.problem.instances, key=lambda item: item.scores.numel())

    def lengths(self) -> list[int]:
        """Lengths with at least two structures; all, if lengths have no meaning: `at_length` gives the reason."""
        event = tuple(self.largest.scores.shape)

        def fits(length: int) -> bool:
            try:
                return bool(event_of_length(self.problem.oracle, event, length))
            except UnfitError:
                return False

        first = next((index for index, length in enumerate(LENGTHS) if fits(length)), 0)
        return LENGTHS[first:]

    def at_length(self, estimator: Estimator[Any], length: int) -> Call:
        event = event_of_length(self.problem.oracle, tuple(self.largest.scores.shape), length)
        scores, loss = self._synthetic(event)
        return self._call(estimator, loss, self._batch(scores, BATCH))

    def at_batch(self, estimator: Estimator[Any], rows: int) -> Call:
        return self._call(estimator, self.largest.loss, self._batch(self.largest.scores, rows))

    def at_samples(self, estimator: Estimator[Any], samples: int) -> Call:
        return self._call(with_samples(estimator, samples), self.largest.loss, self._batch(self.largest.scores, BATCH))

    @functools.lru_cache(maxsize=16)  # noqa: B019 - the places of one call of the suite
    def _synthetic(self, event: tuple[int, ...]) -> tuple[Tensor, Loss]:
        stream = seeds.generator(self.context.seed, "scaling", self.problem.name, *map(str, event))
        scores, other = torch.randn((2, *event), generator=stream, dtype=torch.float64)
        seed = seeds.seed_sequence(self.context.seed, "scaling", "loss", *map(str, event))
        return scores, make_loss("quadratic", self.problem.oracle.argmax(other), self.problem.oracle, seed=seed)

    def _batch(self, scores: Tensor, rows: int) -> Tensor:
        stream = seeds.generator(self.context.seed, "scaling", "rows", device=self.device)
        return timing_batch(scores.to(self.device, self.context.dtype), generator=stream, rows=rows)

    def _call(self, estimator: Estimator[Any], loss: Loss, scores: Tensor) -> Call:
        event = tuple(scores.shape[1:])
        reason = estimator.incompatibility(self.problem.oracle, event)
        if reason is not None:
            raise UnfitError(reason)
        costs = estimator.evaluations()
        structures = self.problem.oracle.count(event) * len(scores)
        if (costs.enumerations or costs.listings) and structures > self.context.effort.cap:
            raise UnfitError(
                f"{estimator.name} would enumerate {structures:.1e} structures; the effort allows {self.context.effort.cap:.1e}"
            )
        return functools.partial(time_once, estimator, self.problem.oracle, loss, scores)


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


def _takes_samples(estimator: Estimator[Any]) -> bool:
    return dataclasses.is_dataclass(estimator) and any(field.name == "num_samples" for field in dataclasses.fields(estimator))


def _points(axis: str, found: Sweep, device: torch.device) -> Iterator[Finding]:
    for name in found.calls:
        sizes, rounds = found.table(name)
        bytes_at: list[float] = []
        for size, seconds in found.seconds.get(name, {}).items():
            load_kernels(found.calls[name][size])
            bytes_at.append(float(peak_memory(found.calls[name][size], device=device)))
            yield _finding(name, "total_time", median_interval(seconds), "order-statistic", f"{axis}={size}", size)
            yield _finding(name, "peak_memory", Interval(bytes_at[-1]), "", f"{axis}={size}", size)
        yield _exponent(name, "time_exponent", exponent_of_rounds(sizes, rounds), "order-statistic", axis)
        yield _exponent(name, "memory_exponent", exponent_of_counts(sizes, bytes_at), "fit", axis)
        if name in found.stopped:
            size, reason = found.stopped[name]
            status: Any = "error" if name in found.failed else "skipped"
            yield Finding(name, "total_time", None, setting=f"{axis}={size}", size=float(size), status=status, reason=reason)


def _finding(name: str, metric: str, found: Interval, kind: str, setting: str, size: int | None = None) -> Finding:  # noqa: PLR0913, PLR0917
    interval = kind if found.low is not None else ""
    return Finding(name, metric, found.value, found.low, found.high, interval, setting=setting, size=None if size is None else float(size))


def _exponent(name: str, metric: str, found: Interval, kind: str, axis: str) -> Finding:
    if found.value is None:
        reason = f"fewer than {FEWEST_POINTS} sizes were reached"
        return Finding(name, metric, None, setting=f"axis={axis}", status="skipped", reason=reason)
    return _finding(name, metric, found, kind, f"axis={axis}")


def _variances(name: str, estimator: Estimator[Any], problem: Problem, context: Context) -> Iterator[Finding]:
    """The variance of an estimate at every number of samples, with common random numbers, and its exponent."""
    instance, number = problem.instances[0], max(min(context.effort.replicates, MAX_REPLICATES), 2 * BATCHES)
    scores = instance.scores.to(context.device, context.dtype)
    draws = Draws(problem.oracle, instance.loss, scores, context, ("scaling", problem.name, problem.stage, instance.name))
    sizes, wholes, folds = [], [], []
    try:
        square = float(context.truth(problem, instance).gradient.square().sum())
        for samples in doublings(1, MAX_SAMPLES):
            try:
                changed = with_samples(estimator, samples)
            except UnfitError:
                continue
            whole, without = traces(estimates(draws.warmed(changed), draws, number))
            sizes.append(float(samples))
            wholes.append(whole / square if square else math.nan)
            folds.append(without / square if square else without)
            common = {"instance": instance.name, "tier": "mc", "replicates": number}
            yield Finding(name, "relative_variance", wholes[-1], setting=f"samples={samples}", size=float(samples), **common)  # type: ignore[arg-type]
    except Exception as error:  # any user-supplied code may run here; no truth, no scale
        yield Finding.failed(name, "variance_exponent", error, setting="axis=samples")
        return
    fitted = exponent_of_jackknife(sizes, wholes, torch.stack(folds, 1).tolist())
    yield _exponent(name, "variance_exponent", fitted, "jackknife", "samples")


def traces(found: Tensor) -> tuple[float, Tensor]:
    """The trace of the covariance of estimates ``[n, parts]``, and without each of `BATCHES` batches ``[batches]``."""
    centred = found - found.mean(0)
    parts = centred.tensor_split(BATCHES)
    count = torch.tensor([len(part) for part in parts], dtype=torch.float64, device=found.device)
    total, square = torch.stack([part.sum(0) for part in parts]), torch.stack([part.square().sum() for part in parts])
    kept = count.sum() - count
    without = (square.sum() - square - (total.sum(0) - total).square().sum(-1) / kept) / (kept - 1)
    return float(square.sum() / (len(found) - 1)), without

"""Intervals of 95 %: pure functions of moments.

Smooth functions of means have delete-one-batch jackknives. At a boundary these are wrong: the squared norm of a bias that is 0 is a
degenerate statistic, and so is a cosine of 1. There the interval is a *profile*: all values β of the squared norm that the U-statistic does
not contradict. Its variance is ``4λβ/N + 2 tr(S²)/N²`` with ``λ = b'Sb/‖b‖²``, and depends on β. Shares of independent replicates have
Wilson's interval.

Replicates are added until intervals are narrow enough, or the budget is used up. Looks are at N = n₀, 2n₀, 4n₀, ... replicates. The width
of an interval says little about the value it holds, so stopping on widths keeps its coverage; stopping on values would not. The number of
looks depends on the replicates alone, and these on seeds alone. The seconds are the one exception: they are counted between looks, and a
run that they end may differ on a faster machine.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import scipy
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..metrics import METRICS
from ..trust import write_state
from .interval import BATCHES, EVENTS, LEVEL as LEVEL, NO_MEAN, RARE, RARE_ORTHOGONAL, Interval as Interval
from .moments import Moments
from .seeds import BLOCK

COMMON = 8  # with few replicates one event in this many is enough: then the events are not rare
NO_VARIANCE = 1e-14  # a trace below this share of the squared mean is rounding

UNRESOLVED, NO_ANGLE, UNDIRECTED_MEAN = (Interval(None, method=method) for method in (RARE, RARE_ORTHOGONAL, NO_MEAN))


def events(squares: Tensor, count: Tensor) -> float:
    """Number of replicates that carry a spread: the number of equal, rare events whose sums over batches vary as much.

    The sums of squares of batches vary little if every replicate adds to them, and much if few do. Events that fall into B batches
    at random, E in all, give these sums the squared coefficient of variation B/E. Of a heavy tail it is about replicates / kurtosis.
    It is 0 without a spread, and infinite with fewer than two batches, which have no interval.
    """
    means = (squares / (count - 1))[count > 1]
    if len(means) < 2:
        return math.inf
    mean = float(means.mean())
    return len(means) / max(float((means / mean).var()), 1e-300) if mean > 0 else 0.0


def has_spread(moments: Moments, rounding: float = 0.0) -> bool:
    """Whether replicates differ by more than rounding, which is a norm."""
    return moments.trace > max(NO_VARIANCE * float((moments.total_mean + moments.gradient).square().sum()), rounding**2)


def is_resolved(moments: Moments, rounding: float = 0.0) -> bool:
    """Whether enough replicates carry the spread for intervals, see `EVENTS`."""
    return enough_events(moments.square.sum(-1), moments.count) and has_spread(moments, rounding)


def enough_events(squares: Tensor, count: Tensor, share: float = 1.0) -> bool:
    """Whether a share of the `events` is enough for an interval."""
    return share * events(squares, count) >= min(EVENTS, float(count.sum()) / COMMON)


def resolves_direction(moments: Moments) -> bool:
    """Whether enough replicates carry the spread orthogonal to the gradient, on which the direction of the mean depends."""
    everything, count = moments.square.sum(-1), moments.count
    orthogonal = (everything - moments.along).clamp(min=0)
    # A structure too rare to be drawn adds as much as one event of the whole: a share of the spread that is worth fewer is not known.
    share = float(orthogonal.sum()) / max(float(everything.sum()), 1e-300)
    return enough_events(everything, count, share) and enough_events(orthogonal, count)


@dataclass(frozen=True, eq=False)
class Errors:
    """The mean error of replicates and their covariance S, or their projection on a subspace."""

    mean: Tensor  # [p]
    replicates: float
    trace: float  # of S
    covariance: Tensor | None  # S [p, p]; None if only batches are known
    batches: Tensor  # [batches, p], centred batch means, times the square root of their counts

    @classmethod
    def of(cls, moments: Moments) -> Self:
        """The errors of all batches together."""
        mean, number, comoment = moments.total_mean, moments.total, moments.comoment
        covariance = None if comoment is None else comoment / max(number - 1, 1)
        return cls(mean, float(number), moments.trace, covariance, (moments.mean - mean) * moments.count.sqrt().unsqueeze(-1))

    def within(self, basis: Tensor) -> Self:
        """Projected on the subspace that an orthonormal basis [p, r] spans.

        Its noise comes from the batches. A projection of the covariance has rounding errors: for errors outside the subspace, their roots
        look like a bias of 1e-8.
        """
        batches = self.batches @ basis
        trace = float(batches.square().sum()) / (BATCHES - 1)
        return replace(self, mean=self.mean @ basis, trace=trace, covariance=None, batches=batches)

    def without(self, unit: Tensor) -> Self:
        """Remove the part along a unit vector [p]."""
        covariance, trace = self.covariance, max(self.trace - self.along(unit), 0.0)
        if covariance is not None:
            product = covariance @ unit
            covariance = covariance - torch.outer(unit, product) - torch.outer(product, unit)
            covariance = covariance + (unit @ product) * torch.outer(unit, unit)
        batches = self.batches - torch.outer(self.batches @ unit, unit)
        return replace(self, mean=self.mean - (self.mean @ unit) * unit, trace=trace, covariance=covariance, batches=batches)

    def along(self, unit: Tensor) -> float:
        """``u'Su``: from the whole covariance, or from the spread of the batch means."""
        if self.covariance is not None:
            return float(unit @ self.covariance @ unit)
        return float((self.batches @ unit).square().sum()) / (BATCHES - 1)

    @functools.cached_property
    def along_mean(self) -> float:
        """``u'Su`` in the direction of the mean error, which several intervals of a look need."""
        return self.along(self.mean / self.mean.norm().clamp(min=1e-300))

    @functools.cached_property
    def trace_of_square(self) -> float:
        """``tr(S²)``, corrected for the noise of the estimate of S."""
        if self.covariance is not None:
            degrees, square, trace = max(self.replicates - 1, 2.0), float(self.covariance.square().sum()), float(self.covariance.trace())
        else:
            gram = self.batches @ self.batches.mT / (BATCHES - 1)
            degrees, square, trace = float(BATCHES - 1), float(gram.square().sum()), float(gram.trace())
        return max(degrees**2 / ((degrees - 1) * (degrees + 2)) * (square - trace**2 / degrees), 0.0)

    def square_norm(self) -> float:
        """``‖b‖²``, estimated without bias: a U-statistic, which may be negative."""
        return float(self.mean.square().sum()) - self.trace / self.replicates


def profile(errors: Errors, *, level: float = LEVEL, noise: float = 0.0) -> tuple[float, float]:
    """Interval of ``‖b‖²``: the β that the U-statistic does not contradict.

    ``noise`` is the trace of the covariance of the reference's own mean, 0 for an exact one. Its spread over directions is not known, so
    all of it counts as if it lay in the direction of the bias. The interval is conservative.
    """
    estimate = errors.square_norm() - noise
    n, scale = errors.replicates, quantile(level) ** 2
    half = 2 * (errors.along_mean / n + noise) * scale
    flat = 2 * scale * (errors.trace_of_square / n**2 + noise**2)
    root = math.sqrt(max((estimate + half) ** 2 - estimate**2 + flat, 0.0))
    return max(estimate + half - root, 0.0), max(estimate + half + root, 0.0)


def jackknives(values: Mapping[str, float], without: Mapping[str, Tensor]) -> dict[str, Interval]:
    """Intervals of statistics by name, from their values with one batch left out, [batches]; without bounds if one is not defined."""
    table = torch.stack([without[name] for name in values])
    folds = table.shape[1]
    defined = table.isfinite().all(-1).tolist()
    squares = (table - table.mean(-1, keepdim=True)).square().sum(-1).tolist()
    found = {}
    for (name, value), known, square in zip(values.items(), defined, squares, strict=True):
        half = quantile(degrees=folds - 1) * math.sqrt((folds - 1) / folds * square)
        bounded = Interval(value, value - half, value + half, "jackknife") if known else Interval(value)
        found[name] = bounded if math.isfinite(value) else Interval(None)
    return found


def wilson(share: float, n: float, *, z: float = float(scipy.special.ndtri((1 + LEVEL) / 2))) -> Interval:
    """Wilson's interval of a share of ``n`` independent replicates: never empty, never beyond 0 and 1.

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    if not math.isfinite(share) or not n > 0:
        return Interval(None)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return Interval(share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share), "wilson")


def clustered_wilson(interval: Interval, n: float) -> Interval:
    """Wilson's interval of a share of dependent trials, as many as the jackknife's error tells; ``n`` if it has no error."""
    if interval.value is None or interval.half_width is None:
        return interval
    z, spread = quantile(), interval.value * (1 - interval.value)
    error = interval.half_width / z
    trials = spread / error**2 if spread > 0 and error > 0 else n
    return wilson(interval.value, max(trials, 1.0), z=z)


def median_interval(values: ArrayLike) -> Interval:
    """Median with its order-statistic interval, which needs at least 6 values."""
    ordered = np.sort(np.asarray(values, dtype=float))
    middle, rank = float(np.median(ordered)), int(scipy.stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5))
    return Interval(middle, float(ordered[rank - 1]), float(ordered[-rank]), "order-statistic") if rank else Interval(middle)


@functools.cache
def quantile(level: float = LEVEL, degrees: int = BATCHES - 1) -> float:
    """Student's quantile, two-sided at a level; of means over batches by default."""
    return float(scipy.stats.t.ppf((1 + level) / 2, degrees))


WIDTHS = {name: metric.width for name, metric in METRICS.items() if metric.width is not None}
"""The metrics that a cell is sampled for. Without the absolute widths, a rho of 0 would never be known well enough."""


def is_narrow(interval: Interval, relative: float, absolute: float) -> bool:
    """Whether half of an interval is at most a share of its value, or a number; without an interval, unless events are rare."""
    if interval.value is None or interval.half_width is None:
        return interval.method != RARE
    return interval.half_width <= max(relative * abs(interval.value), absolute)


def looks(first: int, most: int) -> Iterator[int]:
    """N of every look: whole blocks, so that the next look continues where this one ended."""
    look, most = (-(-size // BLOCK) * BLOCK for size in (first, max(first, most)))
    while look < most:
        yield look
        look *= 2
    yield most


def sample_until(  # noqa: PLR0913 - two functions, and what they are called with
    moments: Moments,
    extend: Callable[[Moments, int], None],
    metrics: Callable[[Moments], Mapping[str, Interval]],
    sizes: Iterable[int],
    *,
    seconds: float = float("inf"),
    checkpoint: Path | None = None,
) -> tuple[Moments, Literal["converged", "budget"]]:
    """Look at every number of replicates of ``sizes``, until every interval of `WIDTHS` is narrow enough or the seconds are over.

    ``extend`` adds replicates to the empty ``moments``, up to a number of them. A run that finds the ``checkpoint``, a file with the
    moments of the last look, continues from there, to the same result. Returns the moments at the last look, and why it was the last one.
    """
    spent = 0.0
    if checkpoint is not None and checkpoint.exists():
        state, spent = torch.load(checkpoint, weights_only=True, map_location=moments.gradient.device)
        moments = Moments(**state, information=moments.information)
    started = time.monotonic() - spent
    for look in sizes:
        if look < moments.total:
            continue
        if look > moments.total:
            extend(moments, look)
            if checkpoint is not None:
                write_state(checkpoint, (moments.state(), time.monotonic() - started))
        found = metrics(moments)
        if all(is_narrow(found[name], *width) for name, width in WIDTHS.items() if name in found):
            return moments, "converged"
        # The next look takes as long as all looks so far.
        if 2 * (time.monotonic() - started) > seconds:
            break
    return moments, "budget"

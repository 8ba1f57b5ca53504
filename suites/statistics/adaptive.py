"""Sampling until the intervals are narrow enough, or the budget is used up.

Looks are at N = n₀, 2n₀, 4n₀, ... replicates. The width of an interval says little about the value it holds, so stopping on widths keeps
its coverage; stopping on values would not. The number of looks depends on the replicates alone, and these on seeds
alone. The seconds are the one exception: they are counted between looks, and a run that they end may differ on a faster machine.
"""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch

from ..metrics import METRICS
from ..trust import write_whole
from .interval import RARE
from .intervals import Interval
from .moments import Moments
from .seeds import BLOCK

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


def write_state(path: Path, state: object) -> None:
    """Write a state by torch; an interrupted write leaves the file as it was."""
    stream = io.BytesIO()  # a full disk is an OSError then; torch would raise RuntimeError
    torch.save(state, stream)
    write_whole(path, stream.getvalue())


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

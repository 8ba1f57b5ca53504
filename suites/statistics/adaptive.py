"""Sampling until the intervals are narrow enough, or the budget is used up.

Looks are at N = n₀, 2n₀, 4n₀, ... replicates. The width of an interval says little about the value it holds, so stopping on widths keeps
its coverage; stopping on values would not. The number of looks depends on the replicates alone, and these on seeds
alone. The seconds are the one exception: they are counted between looks, and a run that they end may differ on a faster machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..metrics import METRICS
from .interval import RARE
from .intervals import Interval
from .moments import Moments
from .seeds import BLOCK

WIDTHS = {name: metric.width for name, metric in METRICS.items() if metric.width is not None}
"""The metrics that a cell is sampled for. Without the absolute widths, a rho of 0 would never be known well enough."""


def is_narrow(interval: Interval, relative: float, absolute: float) -> bool:
    """Whether half of an interval is at most a share of its value, or an absolute number if that is more.

    A missing interval counts as narrow, except one that is missing because of rare events.
    """
    if interval.value is None or interval.half_width is None:
        return interval.method != RARE
    return interval.half_width <= max(relative * abs(interval.value), absolute)


@dataclass(frozen=True)
class Budget:
    """Replicates of the first look, the most of them, and the seconds after which no further look begins."""

    first: int
    most: int
    seconds: float = float("inf")

    def looks(self) -> Iterator[int]:
        """N of every look: whole blocks, so that the next look continues where this one ended."""
        look, most = (-(-size // BLOCK) * BLOCK for size in (self.first, max(self.first, self.most)))
        while look < most:
            yield look
            look *= 2
        yield most


@dataclass(frozen=True)
class Sampled:
    """The moments at the last look, and why it was the last one."""

    moments: Moments
    status: Literal["converged", "budget"]


@dataclass(frozen=True)
class Checkpoint:
    """The moments of the last look on disk, for a run that was killed.

    Args:
        folder: of the cell; made if it is missing.
        identity: of the replicates: estimator, scores, seeds. Another identity is another file.
    """

    folder: Path
    identity: str

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / f"moments-{hashlib.blake2b(self.identity.encode(), digest_size=12).hexdigest()}.pt"

    def load(self, gradient: Tensor, information: Tensor | None) -> tuple[Moments, float] | None:
        """The moments and the seconds that they took; None without a file."""
        if not self.path.exists():
            return None
        state, seconds = torch.load(self.path, weights_only=True, map_location=gradient.device)
        return Moments.from_state(state, gradient, information), seconds

    def save(self, moments: Moments, seconds: float) -> None:
        """Write the file atomically: it is complete, or as it was."""
        write_whole(self.path, (moments.state(), seconds))


def write_whole(path: Path, state: object) -> None:
    """Write a state by torch; an interrupted write leaves the file as it was.

    Raises:
        OSError: the disk is full, or the folder cannot be written; torch would raise RuntimeError.
    """
    stream = io.BytesIO()
    torch.save(state, stream)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
        with (temporary := Path(folder, path.name)).open("wb") as file:
            file.write(stream.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def sample_until(
    moments: Moments,
    extend: Callable[[Moments, int], None],
    metrics: Callable[[Moments], Mapping[str, Interval]],
    *,
    budget: Budget,
    checkpoint: Checkpoint | None = None,
) -> Sampled:
    """Look, and double the replicates, until every interval of `WIDTHS` is narrow enough or the budget is used up.

    Args:
        moments: of no replicates.
        extend: adds replicates to moments, up to a number of them.
        metrics: of moments.
        budget: of replicates and seconds.
        checkpoint: where moments are kept after each look. A run that finds some continues from them, to the same result.
    """
    kept = None if checkpoint is None else checkpoint.load(moments.gradient, moments.information)
    moments, spent = kept or (moments, 0.0)
    started = time.monotonic() - spent
    for look in budget.looks():
        if look < moments.total:
            continue
        if look > moments.total:
            extend(moments, look)
            if checkpoint is not None:
                checkpoint.save(moments, time.monotonic() - started)
        found = metrics(moments)
        if all(is_narrow(found[name], *width) for name, width in WIDTHS.items() if name in found):
            return Sampled(moments, "converged")
        # The next look takes as long as all looks so far.
        if 2 * (time.monotonic() - started) > budget.seconds:
            break
    return Sampled(moments, "budget")

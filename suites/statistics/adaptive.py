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

import numpy as np
from torch import Tensor

from ..metrics import METRICS
from .interval import RARE
from .intervals import Interval
from .moments import Moments
from .seeds import BLOCK


@dataclass(frozen=True)
class Width:
    """The half-width that an interval must not exceed: a share of its value, or an absolute number if that is more."""

    relative: float = 0.0
    absolute: float = 0.0

    def met(self, interval: Interval) -> bool:
        """Whether an interval is narrow enough; a missing interval is, except one that is missing because of rare events."""
        if interval.method == RARE:
            return False
        if interval.value is None or interval.half_width is None:
            return True
        return interval.half_width <= max(self.relative * abs(interval.value), self.absolute)


WIDTHS = {name: Width(*metric.width) for name, metric in METRICS.items() if metric.width is not None}
"""The metrics that a cell is sampled for. Without the absolute widths, a rho of 0 would never be known well enough."""


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
        return self.folder / f"moments-{hashlib.blake2b(self.identity.encode(), digest_size=12).hexdigest()}.npz"

    def load(self, gradient: Tensor, information: Tensor | None) -> tuple[Moments, float] | None:
        """The moments and the seconds that they took; None without a file."""
        if not self.path.exists():
            return None
        with np.load(self.path, allow_pickle=False) as stored:
            moments = Moments.from_state(stored["state"].tobytes(), gradient, information)
            return moments, float(stored["seconds"])

    def save(self, moments: Moments, seconds: float) -> None:
        """Write the file atomically: it is complete, or as it was."""
        stream = io.BytesIO()
        np.savez(stream, state=np.frombuffer(moments.state(), dtype=np.uint8), seconds=seconds)
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".moments-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(stream.getvalue())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


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
        if all(width.met(found[name]) for name, width in WIDTHS.items() if name in found):
            return Sampled(moments, "converged")
        # The next look takes as long as all looks so far.
        if 2 * (time.monotonic() - started) > budget.seconds:
            break
    return Sampled(moments, "budget")

"""A quantity at sizes that double until time is up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...text import reason_of
from .interleaving import interleave
from .timing import clock

Call = Callable[[], object]

SHORT = 2.0
"""A point may take this many times what was left for it by the growth so far, at most: growth is measured, not known."""


class UnfitError(Exception):
    """A size that cannot be served, with the reason."""


@dataclass
class Sweep:
    """What contenders took at the sizes that each reached.

    Attributes:
        seconds: by contender and size, one number per round. ``stopped``: by contender, the first size it did not reach, and why.
        failed: contenders that stopped because they raised.
        calls: by contender and size, what was timed.
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

    Sizes are tried in turn; a contender goes on to the next as long as all its timed rounds, with the next size at the growth measured
    so far, would stay within its budget. Then every point takes part in every round.

    Args:
        contenders: give the call of a size, or raise `UnfitError` with the reason why there is none.
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
    points = {(name, size): functools.partial(_timed, call, device) for name, calls in found.calls.items() for size, call in calls.items()}
    timed = interleave(points, rounds=rounds, budget=budget)
    for (name, size), reason in timed.failures.items():
        _stop(found, name, size, reason, failed=True)
    for (name, size), rows in timed.seconds.items():
        found.seconds.setdefault(name, {})[size] = rows[:, 0]
    return found


def _stop(found: Sweep, name: str, size: int, reason: str, failed: bool = False) -> None:
    found.stopped[name] = (size, reason)
    if failed:
        found.failed.add(name)


def _grown(
    make: Callable[[int], Call], sizes: Sequence[int], budget: float, device: torch.device, stop: Callable[..., None]
) -> Iterator[tuple[int, Call]]:
    """The sizes that one round within a budget can hold, with their calls; the first may be too small to be served."""
    spent, last, growth = 0.0, 0.0, 2.0
    for size in sizes:
        expected = last * growth
        if spent + expected > SHORT * budget:
            return stop(size, f"would take about {expected:.1e} s, more than the effort allows")
        try:
            call = make(size)
            seconds = _probed(call, SHORT * budget - spent, device)
        except UnfitError as reason:
            stop(size, str(reason))
            if last:
                return None
            continue
        except Exception as error:  # any user-supplied code may run here
            return stop(size, reason_of(error), failed=True)
        if spent + seconds > SHORT * budget:
            return stop(size, f"takes about {seconds:.1e} s, more than the effort allows")
        growth = max(seconds / last, 2.0) if last else 2.0
        spent, last = spent + seconds, seconds
        yield size, call
    return None


def _probed(call: Call, limit: float, device: torch.device) -> float:
    """Seconds of the fastest of a few calls, the first of which may compile; of one, where that takes long beyond all compilation."""
    seconds = _timed(call, device)[0]
    again = 3 if seconds <= max(10 * limit, 0.5) else 0
    return min([seconds, *(_timed(call, device)[0] for _ in range(again))])


def _timed(call: Call, device: torch.device) -> tuple[float]:
    start = clock(device)
    call()
    return (clock(device) - start,)


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

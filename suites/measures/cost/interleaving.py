"""Contenders take turns in random order, round after round.

On a shared machine one contender after the other is no comparison: the machine's mood changes in between. Of interleaved rounds, medians
are compared, and ratios *within* a round; the interval is that of order statistics, which needs no assumption on the noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import scipy

from ...statistics.metrics import LEVEL, Interval
from ...text import reason_of

WARM_UP = 2
"""Untimed rounds."""

FEWEST_ROUNDS = 7
"""Below 6 calls the order statistics give no 95 % interval."""

PATIENCE = 4
"""A contender that has taken this many times its budget is timed once, and gets no interval."""

SHORTEST = 1e-3
"""Seconds: a call that takes less is repeated until it does not, and counts as their mean."""

MOST_REPEATS = 64

Key = TypeVar("Key", bound=Hashable)


@dataclass
class Rounds(Generic[Key]):
    """What the contenders took.

    Attributes:
        seconds: by contender, ``[rounds, columns]``. Row i is round i; a slow contender has fewer rows than others.
        failures: by contender that raised, the error; it has no seconds.
    """

    seconds: dict[Key, Any] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)


def interleave(
    contenders: Mapping[Key, Callable[[], tuple[float, ...]]], *, rounds: int, budget: float, spent: Mapping[Key, float] | None = None
) -> Rounds[Key]:
    """Let contenders take turns; one that raises is out, and the others go on.

    Args:
        contenders: each call gives seconds, one number or several.
        rounds: timed calls of each.
        budget: seconds of each contender, after which it makes `FEWEST_ROUNDS` and no more; after `PATIENCE` times as many, only one.
        spent: seconds that contenders have taken before: a slow one needs no further warm-up.

    Example:
        >>> rounds = interleave({"a": lambda: (1.0,), "b": lambda: (2.0,)}, rounds=10, budget=1.0)
        >>> rounds.seconds["b"].shape, rounds.failures
        ((10, 1), {})
    """
    order, failures = np.random.default_rng(0), dict[Key, str]()
    turns = {key: _Turns(call, rounds, budget, (spent or {}).get(key, 0.0)) for key, call in contenders.items()}
    for turn in range(WARM_UP + max(rounds, FEWEST_ROUNDS)):
        willing = [key for key in contenders if key not in failures and turns[key].goes_on(turn)]
        for key in (willing[i] for i in order.permutation(len(willing))):
            try:
                turns[key].take(turn)
            except Exception as error:  # any user-supplied code may run here
                failures[key] = reason_of(error)
    return Rounds({key: np.array(taken.timed) for key, taken in turns.items() if key not in failures}, failures)


class _Turns:
    """The turns of one contender."""

    def __init__(self, call: Callable[[], tuple[float, ...]], rounds: int, budget: float, spent: float) -> None:
        self.call, self.rounds, self.budget = call, rounds, budget
        self.timed: list[tuple[float, ...]] = []
        self.spent, self.fastest = spent, math.inf

    def goes_on(self, turn: int) -> bool:
        if self.spent > PATIENCE * self.budget:
            return turn >= WARM_UP and not self.timed
        return turn < WARM_UP + (self.rounds if self.spent <= self.budget else FEWEST_ROUNDS)

    def take(self, turn: int) -> None:
        start = time.perf_counter()
        if turn < WARM_UP:
            # The fastest warm-up call is the one without compilation.
            self.fastest = min(self.fastest, sum(self.call()))
        else:
            self.timed.append(_mean(self.call, max(1, min(MOST_REPEATS, math.ceil(SHORTEST / max(self.fastest, 1e-9))))))
        self.spent += time.perf_counter() - start


def median_interval(values: Any) -> Interval:
    """The median with its order-statistic interval, which fewer than 6 values do not give.

    Example:
        >>> median_interval(np.arange(1.0, 32.0))
        Interval(value=16.0, low=10.0, high=22.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    rank = int(scipy.stats.binom.ppf((1 - LEVEL) / 2, len(ordered), 0.5))
    if rank == 0:
        return Interval(float(np.median(ordered)))
    return Interval(float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[len(ordered) - rank]))


def _mean(call: Callable[[], tuple[float, ...]], repeats: int) -> tuple[float, ...]:
    rows = [call() for _ in range(repeats)]
    return rows[0] if repeats == 1 else tuple(float(total) / repeats for total in np.sum(rows, axis=0))

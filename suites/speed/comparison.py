"""Time our operations and those of peers side by side: interleaved, in CPU time of one process, by medians.

Run it with ``python -m structgrad.suites.speed``; the figures mean something as ratios within one run alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .cases import OPERATIONS, Case, operations
from .floor import MachineLimits, floor
from .peers import PEERS

TOLERANCE = 1e-3
"""Results that differ by more, relative to their scale, are another law's: the peer is timed, and marked."""

ROUNDS = 7
SHORTEST = 2e-3
"""Seconds that one timing takes at least: calls are repeated up to this."""

LONGEST = 10.0
"""Seconds of one call from which on a contender is timed once."""


@dataclass(frozen=True)
class SpeedComparison:
    """One operation on one case at one batch size.

    Attributes:
        seconds: median CPU time of one call, by contender; ours is ``structgrad``.
        floor: see `floor`.
        disagreements: peers whose result is not ours, with the largest difference relative to the scale of ours: timed, and marked.
        failures: peers that raised an error, with its first line.
    """

    case: str
    operation: str
    batch: int
    seconds: dict[str, float]
    floor: float
    disagreements: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def fastest_peer(self) -> str | None:
        """The fastest contender but ours."""
        others = {name: value for name, value in self.seconds.items() if name != "structgrad"}
        return min(others, key=others.__getitem__) if others else None

    @property
    def ratio(self) -> float:
        """How many times longer the fastest peer takes; NaN without one."""
        peer = self.fastest_peer
        return math.nan if peer is None else self.seconds[peer] / self.seconds["structgrad"]


def compare(cases: list[Case], batches: list[int], machine: MachineLimits, chosen: list[str] | None = None) -> Iterator[SpeedComparison]:
    """Every operation of every case at every batch size, one after the other."""
    for case in cases:
        for operation in operations(case):
            if chosen is None or operation in chosen:
                for batch in batches:
                    yield compare_one(case, operation, batch, machine)


def compare_one(case: Case, operation: str, batch: int, machine: MachineLimits) -> SpeedComparison:
    """Time one operation against every peer that offers it."""
    scores, generator = case.scores(batch), torch.Generator().manual_seed(0)
    calls: dict[str, Callable[[], Any]] = {"structgrad": lambda: OPERATIONS[operation](case.oracle, scores, generator)}
    ours = calls["structgrad"]()
    disagreements, failures = {}, {}
    for peer in PEERS:
        call = peer.prepare(case, operation, scores) if peer.installed else None
        if call is not None:
            try:
                difference = _difference(_statistic(case, operation, call()), _statistic(case, operation, ours))
            except Exception as error:
                failures[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            calls[peer.name] = call
            if difference > TOLERANCE:
                disagreements[peer.name] = difference
    least = floor(case, operation, batch, machine)
    return SpeedComparison(case.name, operation, batch, interleaved(calls), least, disagreements, failures)


def _statistic(case: Case, operation: str, result: Any) -> np.ndarray | None:
    """What can be compared whatever the layout: log-partitions, and the sum of squares of marginals and projections of the same parts."""
    other_parts = case.structure in {"linear_chain", "tied_chain", "ctc"}
    if operation not in {"log_partition", "marginals", "project"} or (operation != "log_partition" and other_parts):
        return None
    values = np.asarray(result.detach() if isinstance(result, torch.Tensor) else result, dtype=np.float64)
    return values if operation == "log_partition" else np.asarray(np.square(values).sum())


def _difference(theirs: np.ndarray | None, ours: np.ndarray | None) -> float:
    """The largest, relative to the scale of ours; 0 where nothing can be compared."""
    return 0.0 if theirs is None or ours is None else float(np.abs(theirs - ours).max() / np.abs(ours).max())


def interleaved(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median CPU seconds of one call of each, timed in turns so that what else the machine does hits all alike.

    Short calls are timed in a loop that has begun: what their contenders left in the caches would weigh more than they do.
    """
    repeats, once = {}, {}
    for name, call in calls.items():
        once[name] = _timed(call, 1)
        if once[name] < LONGEST:
            once[name] = min(_timed(call, 1) for _ in range(3))
        repeats[name] = max(1, min(1000, math.ceil(SHORTEST / max(once[name], 1e-7))))
    timings: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            if once[name] < LONGEST or not timings[name]:
                if repeats[name] > 1:
                    call()
                timings[name].append(_timed(call, repeats[name]))
    return {name: statistics.median(values) for name, values in timings.items()}


def _timed(call: Callable[[], Any], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def geometric_mean(ratios: list[float]) -> float:
    """Of the ratios that are numbers; NaN for none."""
    known = [math.log(ratio) for ratio in ratios if not math.isnan(ratio)]
    return math.exp(statistics.fmean(known)) if known else math.nan


def single_thread() -> None:
    """One thread against one thread."""
    torch.set_num_threads(1)

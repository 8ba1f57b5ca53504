"""Ways to time a call: again and again, between steps of a training, or the first after a pause that something else has used.

``hot`` finds every cache warm, and is what loops of benchmarks tell. ``training`` times single calls, each after a step of a small network:
forward, backward, optimiser. ``pause`` times single calls, each after 10 ms of other work on more memory than the caches hold.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

ROUNDS = {"hot": 7, "training": 31, "pause": 15}
"""Timings of each contender, by way: those of ``training`` and ``pause`` are single calls."""

SHORTEST = 2e-3
"""Seconds that one timing of ``hot`` takes at least: calls are repeated up to this."""

BUDGET = 3.0
"""Seconds of one contender in one way after which it gets no more rounds."""

PAUSE = 10e-3
"""Seconds of other work."""

TOUCHED = 2**25
"""Bytes that the other work goes through."""

LOOK = 5e-4
"""Seconds of sleep in which a process at rest takes next to no CPU time."""

RESTING = 2
"""Such looks in a row: on a busy machine a thread that spins may miss one."""

PATIENCE = 0.2
"""Seconds after which a process is taken as it is."""


def settle() -> None:
    """Wait until nothing else in this process runs.

    Threads of libraries go on spinning after a call, and the CPU time of the process charges whoever is timed next with that.
    """
    end, resting = time.perf_counter() + PATIENCE, 0
    while resting < RESTING and time.perf_counter() < end:
        before = time.process_time()
        time.sleep(LOOK)
        resting = resting + 1 if time.process_time() - before < LOOK / 4 else 0


class TrainingStep:
    """A step of a small network: forward, backward and optimiser, some 300 microseconds on one thread.

    Example:
        >>> step = TrainingStep()
        >>> before = step.network[0].weight.detach().clone()
        >>> step()
        >>> bool((step.network[0].weight != before).any())
        True
    """

    def __init__(self) -> None:
        stream = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(32, 64, generator=stream)
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        with torch.enable_grad():
            self.network(self.inputs).square().mean().backward()
        self.optimizer.step()


class OtherWork:
    """10 ms of additions to memory of its own."""

    def __init__(self) -> None:
        self.memory = np.zeros(TOUCHED // 8)

    def __call__(self) -> None:
        end = time.perf_counter() + PAUSE
        while time.perf_counter() < end:
            for part in np.split(self.memory, 16):
                part += 1.0


BETWEEN: dict[str, Callable[[], Callable[[], None]]] = {"training": TrainingStep, "pause": OtherWork}
"""What is done before every single call, by way; ``hot`` has none."""

WAYS = tuple(ROUNDS)


def interleaved(calls: dict[str, Callable[[], Any]], way: str = "hot") -> dict[str, float]:
    """Median CPU seconds of one call of each, timed in turns so that what else the machine does hits all alike.

    Before each timing the process comes to rest. Short calls of ``hot`` are timed in a loop that has begun: what their contenders left in
    the caches would weigh more than they do.

    Args:
        calls: by contender.
        way: one of `WAYS`.
    """
    between = BETWEEN[way]() if way in BETWEEN else None
    once = {name: _first(call) for name, call in calls.items()}
    repeats = {name: 1 if between else max(1, min(1000, math.ceil(SHORTEST / seconds))) for name, seconds in once.items()}
    rounds = {name: max(1, min(ROUNDS[way], math.floor(BUDGET / seconds))) for name, seconds in once.items()}
    timings: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(max(rounds.values())):
        for name, call in calls.items():
            if turn < rounds[name]:
                settle()
                if between:
                    between()
                elif repeats[name] > 1:
                    call()
                timings[name].append(_timed(call, repeats[name]))
    return {name: statistics.median(values) for name, values in timings.items()}


def _first(call: Callable[[], Any]) -> float:
    """About what a call takes: the least of four, or the first where that is long; never 0."""
    settle()
    least = _timed(call, 1)
    return max(1e-7, least if least > BUDGET / 10 else min(least, *(_timed(call, 1) for _ in range(3))))


def _timed(call: Callable[[], Any], repeats: int) -> float:
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats

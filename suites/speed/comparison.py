"""Time our operations and those of peers side by side: interleaved, in CPU time of one process, by medians, in several ways.

Run it with ``python -m structgrad.suites.speed``; the figures mean something as ratios within one run alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .cases import CASES, OPERATIONS, Case
from .peers import PEERS
from .ways import interleaved

TOLERANCE = 1e-3
"""Results that differ by more, relative to their scale, are another law's: the peer is timed, and marked."""


@dataclass(frozen=True)
class SpeedComparison:
    """One operation on one case at one batch size, timed in one way.

    Attributes:
        way: see `structgrad.suites.speed.ways`.
        seconds: median CPU time of one call, by contender; ours is ``structgrad``.
        floor: see `floor`.
        disagreements: peers whose result is not ours, with the largest difference relative to the scale of ours: timed, and marked.
        failures: contenders that raised an error or ended their process, with what was said first.
    """

    case: str
    operation: str
    batch: int
    way: str
    seconds: dict[str, float]
    floor: float = math.nan
    disagreements: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def fastest_peer(self) -> str | None:
        """The fastest contender but ours."""
        others = {name: value for name, value in self.seconds.items() if name != "structgrad"}
        return min(others, key=others.__getitem__) if others else None

    @property
    def ratio(self) -> float:
        """How many times longer the fastest peer takes; NaN without one, or without ours."""
        peer = self.fastest_peer
        return math.nan if peer is None or "structgrad" not in self.seconds else self.seconds[peer] / self.seconds["structgrad"]


def compare_one(case: Case, operation: str, batch: int, ways: Sequence[str], peers: Sequence[str] | None = None) -> list[SpeedComparison]:
    """Time one operation against every peer that offers it, or those named, in each way; floors are not known here."""
    scores, generator = case.scores(batch), torch.Generator().manual_seed(0)
    calls: dict[str, Callable[[], Any]] = {"structgrad": lambda: OPERATIONS[operation](case.oracle, scores, generator)}
    ours = _statistic(case, operation, calls["structgrad"]())
    disagreements, failures = {}, {}
    for peer in PEERS:
        if not peer.installed or (peers is not None and peer.name not in peers):
            continue
        try:
            call = peer.prepare(case, operation, scores)
            if call is None:
                continue
            difference = _difference(_statistic(case, operation, call()), ours)
        except Exception as error:
            failures[peer.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        calls[peer.name] = call
        if difference > TOLERANCE:
            disagreements[peer.name] = difference
    return [
        SpeedComparison(case.name, operation, batch, way, interleaved(calls, way), disagreements=disagreements, failures=failures)
        for way in ways
    ]


def compare_named(row: dict[str, Any], peers: list[str], memory: float) -> dict[str, Any]:
    """As `compare_one`, of what JSON can hold, in a process that gets no more than so many bytes: see `structgrad.suites.speed.grid`."""
    single_thread()
    limit_memory(memory)
    found = compare_one(CASES[row["case"]], row["operation"], row["batch"], row["ways"], peers)
    return {result.way: {"seconds": result.seconds, "disagreements": result.disagreements, "failures": result.failures} for result in found}


def limit_memory(limit: float) -> None:
    """Let this process have so many bytes of memory of its own and no more: what asks for more fails, instead of the machine."""
    import resource  # which Windows lacks

    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _statistic(case: Case, operation: str, result: Any) -> np.ndarray | None:
    """What can be compared whatever the layout: log-partitions, and the sum of squares of marginals and projections of the same parts."""
    other_parts = case.structure in {"linear_chain", "tied_chain", "tied_semi_markov", "ctc"}
    if operation not in {"log_partition", "marginals", "project"} or (operation != "log_partition" and other_parts):
        return None
    values = np.asarray(result.detach() if isinstance(result, torch.Tensor) else result, dtype=np.float64)
    return values if operation == "log_partition" else np.asarray(np.square(values).sum())


def _difference(theirs: np.ndarray | None, ours: np.ndarray | None) -> float:
    """The largest, relative to the scale of ours; 0 where nothing can be compared."""
    return 0.0 if theirs is None or ours is None else float(np.abs(theirs - ours).max() / np.abs(ours).max())


def geometric_mean(ratios: list[float]) -> float:
    """Of the ratios that are numbers; NaN for none."""
    known = [math.log(ratio) for ratio in ratios if not math.isnan(ratio)]
    return math.exp(statistics.fmean(known)) if known else math.nan


def single_thread() -> None:
    """One thread against one thread."""
    torch.set_num_threads(1)

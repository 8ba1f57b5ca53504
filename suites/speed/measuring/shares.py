"""Shares of the loss, the oracle, the noise and the estimator in the time of a cell of the suite `bias`; what is left is measuring itself.

The loss and the oracle include their part of a backward pass. The estimator is what `Estimator.gradient` takes beyond these: its own
arithmetic, and the autograd engine. Measuring is everything else: moments, metrics with their intervals, tests, findings. What a process
computes once for all estimators of an instance, its exact gradient, its Fisher information and the look at its loss, is there before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ....estimators import make_estimator
from ....estimators.base import Estimator
from ....estimators.noise import Noise
from ....oracles.random_streams import SeedBlocks
from ...base import Problem
from ...measures.bias import Bias
from ...measures.cost.oracle_share import Stopwatch, operations, timed, timed_oracle, timed_twin
from ...measures.suite import Context
from ...truth.replay_oracle import ReplayOracle

KINDS = ("loss", "oracle", "noise", "estimator")

GIVEN = KINDS[:3]
"""What neither an estimator nor a measurement can save."""


@dataclass
class ExclusiveStopwatch(Stopwatch):
    """CPU seconds of one kind of work; what another one begins meanwhile is a part of what runs.

    Attributes:
        others: that may not run beside it.
    """

    others: list[Stopwatch] = field(default_factory=list)

    def start(self) -> None:
        if self.started is None and all(other.started is None for other in self.others):
            self.started = time.process_time()

    def stop(self) -> None:
        if self.started is not None and self.depth == 0:
            self.seconds += time.process_time() - self.started
            self.started = None


@dataclass(frozen=True)
class CellShare:
    """Where the time of a cell goes.

    Attributes:
        case: the name of the estimator.
        tier: ``exact`` or ``mc``, how it was measured.
        replicates: behind it; None for the exact tier.
        total: CPU seconds of the cell. ``seconds``: of these, by kind of work.
    """

    case: str
    tier: str
    replicates: int | None
    total: float
    seconds: dict[str, float]

    @property
    def rest(self) -> float:
        """The share of what is neither loss nor oracle nor noise: the estimator and measuring."""
        return 1 - sum(self.seconds[kind] for kind in GIVEN) / self.total

    @property
    def measuring(self) -> float:
        """The share of what is not the estimator either."""
        return 1 - sum(self.seconds.values()) / self.total


def cell_share(name: str, problem: Problem, context: Context, rounds: int = 3) -> CellShare:
    """The shares of a cell of one estimator on one problem: of several rounds, that of the median total.

    Example:
        >>> from structgrad.suites.measures.suite import Effort
        >>> from structgrad.suites.problems import load
        >>> problem = load("subset[n=6,k=3]", "h=0.7", instances=1, data=None)
        >>> found = cell_share("rloo", problem, Context(effort=Effort(most_replicates=4096)), rounds=1)
        >>> found.tier, 0 < found.seconds["oracle"] < found.total
        ('exact', True)
    """
    watches = exclusive_watches()
    measured = timed_problem(problem, watches)
    estimators = {name: make_estimator(name)}
    list(Bias().findings(measured, estimators, context))  # what is computed once, and what is compiled
    found = []
    with _timed_in_place(watches):
        for _ in range(rounds):
            for watch in watches.values():
                watch.reset()
            start = time.process_time()
            rows = list(Bias().findings(measured, estimators, context))
            total = time.process_time() - start
            row = next(row for row in rows if row.tier)
            found.append(CellShare(name, row.tier, row.replicates, total, {kind: watch.seconds for kind, watch in watches.items()}))
    return sorted(found, key=lambda each: each.total)[len(found) // 2]


def exclusive_watches() -> dict[str, ExclusiveStopwatch]:
    """One for each of `KINDS`; of those of what is `GIVEN`, one runs at a time."""
    watches = {kind: ExclusiveStopwatch(torch.device("cpu")) for kind in KINDS}
    for kind in GIVEN:
        watches[kind].others = [watches[name] for name in GIVEN if name != kind]
    return watches


def _estimating(gradient: Callable[..., Tensor], watches: dict[str, ExclusiveStopwatch]) -> Callable[..., Tensor]:
    """The same function, the time of which, less that of what is given, goes to the estimator; of calls within calls, once."""
    own = watches["estimator"]

    @functools.wraps(gradient)
    def run(*args: Any, **named: Any) -> Tensor:
        if own.depth:
            return gradient(*args, **named)
        before, start = sum(watches[kind].seconds for kind in GIVEN), time.process_time()
        own.depth += 1
        try:
            return gradient(*args, **named)
        finally:
            own.depth -= 1
            own.seconds += time.process_time() - start - (sum(watches[kind].seconds for kind in GIVEN) - before)

    return run


def timed_problem(problem: Problem, watches: dict[str, ExclusiveStopwatch]) -> Problem:
    """The same problem, whose oracle and losses run under their stopwatches."""
    instances = [replace(instance, loss=timed_twin(instance.loss, ["__call__"], watches["loss"])) for instance in problem.instances]
    return replace(problem, oracle=timed_oracle(problem.oracle, watches["oracle"]), instances=tuple(instances))


@contextmanager
def _timed_in_place(watches: dict[str, ExclusiveStopwatch]) -> Iterator[None]:
    """Noise, random numbers, and the oracle that deals samples, which a measurement makes for itself, run under the stopwatches."""
    places = [(Noise, "draw", "noise"), (Noise, "perturb", "noise"), (SeedBlocks, "uniforms", "noise")]
    places += [(ReplayOracle, name, "oracle") for name in operations(ReplayOracle)]
    own = [(kind, name, vars(kind).get(name)) for kind, name, _ in places]
    own.append((Estimator, "gradient", vars(Estimator)["gradient"]))
    for kind, name, watch in places:
        setattr(kind, name, timed(getattr(kind, name), watches[watch]))
    Estimator.gradient = _estimating(Estimator.gradient, watches)  # type: ignore[misc, method-assign]
    try:
        yield
    finally:
        for kind, name, before in own:
            if before is None:
                delattr(kind, name)
            else:
                setattr(kind, name, before)

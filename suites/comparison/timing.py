"""Two installations take turns: the only comparison of times between two versions of the code.

Absolute times of another day or another machine tell nothing: on a busy machine, one version after the other has an error of 15 %, and an
interval that covers the truth in two of three cases. Here two processes, one per installation, take turns in random order on the same cell,
on one thread each; within a pair, the machine's mood is the same for both. The interval of the median ratio is that of order statistics,
which assumes nothing of the noise.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import scipy

from ..statistics.interval import Interval
from ..statistics.testing.multiplicity import holm
from .settings import Timing

WORKER = Path(__file__).with_name("timing_worker.py")
SHORTEST = 1e-3
"""Seconds: a call that takes less is repeated until it does not."""

AGAIN = 4
"""So many times as many pairs decide where the first do not."""

LOOKS = 2
"""How often the same cell may be tested; each look has its share of the level."""


class TimedCell(NamedTuple):
    """What is timed: 32 rows around the first instance of a problem."""

    problem: str
    stage: str
    estimator: str


@dataclass(frozen=True)
class TimeComparison:
    """The verdict on one cell.

    Attributes:
        cell: what was timed.
        verdict: ``regressed``, ``improved``, ``equivalent``, ``inconclusive`` or ``broken``.
        change: median of ``head / base`` over pairs, with its order-statistic interval of confidence 1 − alpha.
        pairs: behind it. ``p_value``: that the head is slower by more than the margin; ``p_adjusted``: over all cells.
        reason: of a failure.
    """

    cell: TimedCell
    verdict: str
    change: Interval = Interval(None)
    pairs: int = 0
    p_value: float | None = None
    p_adjusted: float | None = None
    reason: str = ""


class Side:
    """A worker process with one installation.

    Args:
        interpreter: a Python, or an executable that behaves as one, in which that structgrad is installed.
        isolated: whether ``PYTHONPATH`` is kept from it, which would show it the other installation.
    """

    def __init__(self, interpreter: str, *, isolated: bool) -> None:
        variables = _without_path(dict(os.environ)) if isolated else dict(os.environ)
        self.interpreter = interpreter
        try:
            self.process = subprocess.Popen(
                [interpreter, "-P", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=variables,
                encoding="utf-8",
                errors="replace",
                cwd=WORKER.parent,
            )
        except OSError as error:
            raise ValueError(f"--timing-base got {interpreter!r}, which cannot be run ({error.strerror}); expected a Python") from error

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            RuntimeError: the worker could not do it, or is gone.
        """
        if self.process.stdin is None or self.process.stdout is None:
            raise AssertionError("both ends are pipes")
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the empty answer says so
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"{self.interpreter} ended without an answer"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def seconds(self, repeats: int) -> float:
        """Mean seconds of some calls."""
        return float(self.ask({"repeats": repeats})["seconds"])

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()


def _without_path(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name != "PYTHONPATH"}


def compare_times(  # noqa: PLR0913
    base: str, cells: Iterable[TimedCell], *, head: str = sys.executable, settings: Timing | None = None, alpha: float = 0.01, seed: int = 0
) -> list[TimeComparison]:
    """Time cells with two installations in turns.

    Args:
        base: the interpreter of the baseline.
        cells: what is timed.
        head: the interpreter of the run.
        settings: number of pairs and margins.
        alpha: chance of any false alarm over all cells.
        seed: of scores and order.

    Raises:
        ValueError: an interpreter that cannot be run.
    """
    settings = settings or Timing()
    order = np.random.default_rng(seed)
    with Side(base, isolated=base != head) as old, Side(head, isolated=False) as new:
        found = [_compared(cell, (old, new), settings, alpha, order) for cell in cells]
    return adjusted(found, alpha)


def adjusted(found: Sequence[TimeComparison], alpha: float) -> list[TimeComparison]:
    """The same with Holm's correction over cells: what is no longer proven is inconclusive."""
    corrected = holm({item.cell: item.p_value for item in found if item.p_value is not None})
    return [_corrected(item, corrected.get(item.cell), alpha) for item in found]


def _corrected(item: TimeComparison, p_adjusted: float | None, alpha: float) -> TimeComparison:
    if p_adjusted is None:
        return item
    overruled = item.verdict == "regressed" and p_adjusted >= alpha
    return replace(item, p_adjusted=p_adjusted, verdict="inconclusive" if overruled else item.verdict)


def _compared(cell: TimedCell, sides: tuple[Side, Side], settings: Timing, alpha: float, order: np.random.Generator) -> TimeComparison:
    try:
        seconds = [float(side.ask({"prepare": {**cell._asdict(), "seed": 0}})["seconds"]) for side in sides]
        repeats = max(1, math.ceil(SHORTEST / max(min(seconds), 1e-9)))
        draw = lambda pairs: log_ratios(sides, repeats, pairs, order)  # noqa: E731
        return judged(cell, draw, settings, alpha)
    except RuntimeError as error:
        return TimeComparison(cell, "broken", reason=str(error))


def log_ratios(sides: tuple[Side, Side], repeats: int, pairs: int, order: np.random.Generator) -> list[float]:
    """``log(head / base)`` of pairs of calls, of which a coin says who goes first."""
    found = []
    for first in order.integers(2, size=pairs):
        seconds = {int(side): sides[side].seconds(repeats) for side in (first, 1 - first)}
        found.append(math.log(seconds[1] / seconds[0]))
    return found


def judged(cell: TimedCell, draw: Callable[[int], list[float]], settings: Timing, alpha: float) -> TimeComparison:
    """The verdict on log-ratios that are drawn as they are needed: once, and again where the first do not decide."""
    first = verdict_on(cell, draw(settings.pairs), settings, alpha / LOOKS)
    if first.verdict != "inconclusive":
        return first
    return verdict_on(cell, draw(AGAIN * settings.pairs), settings, alpha / LOOKS)


def verdict_on(cell: TimedCell, ratios: Sequence[float], settings: Timing, alpha: float) -> TimeComparison:
    """The verdict on log-ratios: the interval of their median against the margins.

    Example:
        >>> cell = TimedCell("toy", "init", "ste")
        >>> [verdict_on(cell, [math.log(ratio)] * 40, Timing(), 0.01).verdict for ratio in (1.3, 1.0, 0.8)]
        ['regressed', 'equivalent', 'improved']
    """
    value, low, high = median_bounds(ratios, alpha)
    slower, harmless = math.log1p(settings.minimum_change), math.log1p(settings.equivalence)
    verdict = "inconclusive"
    if low > slower:
        verdict = "regressed"
    elif high < harmless:
        verdict = "improved" if high < -slower else "equivalent"
    above = sum(ratio > slower for ratio in ratios)
    p_value = min(1.0, LOOKS * float(scipy.stats.binom.sf(above - 1, len(ratios), 0.5)))
    change = Interval(math.exp(value), math.exp(low), math.exp(high), "order-statistic")
    return TimeComparison(cell, verdict, change, len(ratios), p_value)


def median_bounds(values: Sequence[float], alpha: float) -> tuple[float, float, float]:
    """The median with its order-statistic interval of confidence 1 − alpha.

    Example:
        >>> median_bounds([float(number) for number in range(1, 41)], 0.01)
        (20.5, 12.0, 29.0)
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    rank = int(scipy.stats.binom.ppf(alpha / 2, len(ordered), 0.5))
    if rank == 0:
        raise ValueError(f"`median_bounds` got {len(ordered)} values; expected more for an interval of confidence {1 - alpha:g}")
    return float(np.median(ordered)), float(ordered[rank - 1]), float(ordered[len(ordered) - rank])

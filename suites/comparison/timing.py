"""Times of two installations, measured in turns on the same machine.

Times of another day or machine cannot be compared: on a busy machine, a ratio of two medians has an error of 15 %. Here one process per
installation, with one thread each, times the same cell. In each pair of calls, a coin decides which process goes first, and both see the
same load. The interval of the median ratio is that of order statistics, which assumes nothing of the noise.
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
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from ..statistics.interval import Interval
from ..statistics.multiplicity import holm
from .settings import Timing

WORKER = Path(__file__).with_name("timing_worker.py")
MIN_SECONDS = 1e-3
"""A shorter call is repeated until it takes so long."""

LOOKS = (1, 4)
"""Numbers of pairs of the tests of one cell, as multiples of `Timing.pairs`. Later tests run if the earlier ones are inconclusive, and each
has its share of the level."""


class TimedCell(NamedTuple):
    """An estimator on 32 rows around the first instance of a problem."""

    problem: str
    stage: str
    estimator: str


@dataclass(frozen=True)
class TimeComparison:
    """The verdict on one cell.

    Attributes:
        cell: the cell.
        verdict: ``regressed``, ``improved``, ``equivalent``, ``inconclusive`` or ``broken``.
        change: median of ``head / base`` over pairs, with its order-statistic interval of confidence 1 − alpha.
        pairs: number of pairs. ``p_value``: of "the head is not slower by more than the margin"; ``p_adjusted``: over all cells.
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
        interpreter: a Python, or an executable that behaves as one, in which structgrad is installed.
        isolated: whether to drop ``PYTHONPATH``, which may name the other installation.
    """

    def __init__(self, interpreter: str, *, isolated: bool) -> None:
        self.interpreter = interpreter
        variables = {name: value for name, value in os.environ.items() if not (isolated and name == "PYTHONPATH")}
        command, pipe = [interpreter, "-P", str(WORKER)], subprocess.PIPE
        try:
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, env=variables, encoding="utf-8", errors="replace", cwd=WORKER.parent
            )
        except OSError as error:
            raise ValueError(f"--timing-base got {interpreter!r}, which cannot be run ({error.strerror}); expected a Python") from error

    def ask(self, **request: Any) -> float:
        """The seconds that a request took; raises RuntimeError if the worker failed or ended."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None, "both ends are pipes"
        assert stdout is not None, "both ends are pipes"
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # the empty answer is the error
        line = stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"{self.interpreter} ended without an answer"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return float(answer["seconds"])

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def compare_times(  # noqa: PLR0913
    base: str, cells: Iterable[TimedCell], *, head: str = sys.executable, settings: Timing | None = None, alpha: float = 0.01, seed: int = 0
) -> list[TimeComparison]:
    """Time cells with two installations in turns.

    Args:
        base: the interpreter of the baseline.
        cells: the cells to time.
        head: the interpreter of the run.
        settings: number of pairs and margins.
        alpha: chance of any false alarm over all cells.
        seed: of scores and order.

    Raises:
        ValueError: an interpreter that cannot be run.
    """
    settings, order, found = settings or Timing(), np.random.default_rng(seed), []
    with Side(base, isolated=base != head) as old, Side(head, isolated=False) as new:
        for cell in cells:
            try:
                first = min(side.ask(prepare={**cell._asdict(), "seed": 0}) for side in (old, new))
                repeats = max(1, math.ceil(MIN_SECONDS / max(first, 1e-9)))

                def draw(pairs: int, repeats: int = repeats) -> list[float]:
                    ratios = []
                    for turn in order.integers(2, size=pairs):
                        seconds = {side: (old, new)[side].ask(repeats=repeats) for side in (int(turn), 1 - int(turn))}
                        ratios.append(math.log(seconds[1] / seconds[0]))
                    return ratios

                found.append(judged(cell, draw, settings, alpha))
            except RuntimeError as error:
                found.append(TimeComparison(cell, "broken", reason=str(error)))
    return adjusted(found, alpha)


def adjusted(found: Sequence[TimeComparison], alpha: float) -> list[TimeComparison]:
    """The comparisons with Holm's correction over cells: a slowdown that is no longer proven is inconclusive."""
    corrected = holm({item.cell: item.p_value for item in found if item.p_value is not None})
    items = [replace(item, p_adjusted=corrected.get(item.cell)) for item in found]
    return [
        replace(item, verdict="inconclusive")
        if item.verdict == "regressed" and item.p_adjusted is not None and item.p_adjusted >= alpha
        else item
        for item in items
    ]


def judged(cell: TimedCell, draw: Callable[[int], Sequence[float]], settings: Timing, alpha: float) -> TimeComparison:
    """The verdict on log-ratios ``log(head / base)``: the interval of their median against the margins.

    Args:
        cell: the cell.
        draw: returns so many log-ratios.
        settings: number of pairs and margins.
        alpha: the level of all looks together.

    Example:
        >>> cell = TimedCell("toy", "init", "ste")
        >>> [judged(cell, lambda pairs: [math.log(ratio)] * pairs, Timing(), 0.01).verdict for ratio in (1.3, 1.0, 0.8)]
        ['regressed', 'equivalent', 'improved']
    """
    slower, harmless = math.log1p(settings.minimum_change), math.log1p(settings.equivalence)
    for look in LOOKS:
        ratios = np.asarray(draw(look * settings.pairs))
        low, high = stats.quantile_test(ratios).confidence_interval(1 - alpha / len(LOOKS))
        verdict = "regressed" if low > slower else "inconclusive"
        if high < harmless:
            verdict = "improved" if high < -slower else "equivalent"
        if verdict != "inconclusive":
            break
    p_value = min(1.0, len(LOOKS) * float(stats.binom.sf((ratios > slower).sum() - 1, len(ratios), 0.5)))
    change = Interval(math.exp(np.median(ratios)), math.exp(low), math.exp(high), "order-statistic")
    return TimeComparison(cell, verdict, change, len(ratios), p_value)

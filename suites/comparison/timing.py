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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from .settings import Timing
from .verdicts import holm_with

WORKER = Path(__file__).with_name("timing_worker.py")
MIN_SECONDS = 1e-3
"""A shorter call is repeated until it takes so long."""

LOOKS = (1, 4)
"""Numbers of pairs of the tests of one cell, as multiples of `Timing.pairs`. Later tests run if the earlier ones are inconclusive, and each
has its share of the level."""

COLUMNS = ["problem", "stage", "estimator", "verdict", "change", "low", "high", "pairs", "p_value", "p_adjusted", "reason"]


@contextmanager
def worker(interpreter: str, *, isolated: bool) -> Iterator[Callable[..., float]]:
    """A process with one installation, as a function that returns the seconds that a request took.

    The function raises RuntimeError if the process failed or ended.

    Args:
        interpreter: a Python, or an executable that behaves as one, in which structgrad is installed.
        isolated: whether to drop ``PYTHONPATH``, which may name the other installation.
    """
    variables = {name: value for name, value in os.environ.items() if not (isolated and name == "PYTHONPATH")}
    command, pipe = [interpreter, "-P", str(WORKER)], subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=variables, encoding="utf-8", errors="replace", cwd=WORKER.parent)
    except OSError as error:
        raise ValueError(f"--timing-base got {interpreter!r}, which cannot be run ({error.strerror}); expected a Python") from error

    def ask(**request: Any) -> float:
        assert process.stdin is not None, "both ends are pipes"
        assert process.stdout is not None, "both ends are pipes"
        with suppress(BrokenPipeError):  # the empty answer is the error
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"{interpreter} ended without an answer"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return float(answer["seconds"])

    try:
        yield ask
    finally:
        process.kill()
        process.communicate()


def compare_times(  # noqa: PLR0913
    base: str,
    cells: Iterable[tuple[str, str, str]],
    *,
    head: str = sys.executable,
    settings: Timing | None = None,
    alpha: float = 0.01,
    seed: int = 0,
) -> pd.DataFrame:
    """Time cells with two installations in turns.

    Args:
        base: the interpreter of the baseline.
        cells: problem, entropy level and estimator of each cell, which is timed on 32 rows around the first instance.
        head: the interpreter of the run.
        settings: number of pairs and margins.
        alpha: chance of any false alarm over all cells.
        seed: of scores and order.

    Returns:
        A row for each cell: its names, and the columns

        - ``verdict``: ``regressed``, ``improved``, ``equivalent``, ``inconclusive`` or ``broken``; ``reason``: of a failure.
        - ``change, low, high``: median of ``head / base`` over pairs, with its order-statistic interval of confidence 1 − alpha.
        - ``pairs``: number of pairs. ``p_value``: of "the head is not slower by more than the margin"; ``p_adjusted``: over all cells.

    Raises:
        ValueError: an interpreter that cannot be run.
    """
    settings, order, found = settings or Timing(), np.random.default_rng(seed), []
    with worker(base, isolated=base != head) as old, worker(head, isolated=False) as new:
        for cell in cells:
            names = dict(zip(COLUMNS[:3], cell, strict=True))
            try:
                first = min(side(prepare={**names, "seed": 0}) for side in (old, new))
                repeats = max(1, math.ceil(MIN_SECONDS / max(first, 1e-9)))

                def draw(pairs: int, repeats: int = repeats) -> list[float]:
                    ratios = []
                    for turn in order.integers(2, size=pairs):
                        seconds = {side: (old, new)[side](repeats=repeats) for side in (int(turn), 1 - int(turn))}
                        ratios.append(math.log(seconds[1] / seconds[0]))
                    return ratios

                found.append({**names, **judged(draw, settings, alpha), "reason": ""})
            except RuntimeError as error:
                found.append({**names, "verdict": "broken", "pairs": 0, "reason": str(error)})
    return adjusted(found, alpha)


def adjusted(found: Iterable[dict[str, Any]], alpha: float) -> pd.DataFrame:
    """The table of all cells with Holm's correction over them: a slowdown that is no longer proven is inconclusive."""
    table = pd.DataFrame(found, columns=COLUMNS)
    table["p_adjusted"] = holm_with(table["p_value"].to_numpy(float))
    unproven = table["verdict"].eq("regressed") & table["p_adjusted"].ge(alpha)
    return table.assign(verdict=table["verdict"].mask(unproven, "inconclusive"))


def judged(draw: Callable[[int], Sequence[float]], settings: Timing, alpha: float) -> dict[str, Any]:
    """The verdict on log-ratios ``log(head / base)``: the interval of their median against the margins.

    Args:
        draw: returns so many log-ratios.
        settings: number of pairs and margins.
        alpha: the level of all looks together.

    Example:
        >>> [judged(lambda pairs: [math.log(ratio)] * pairs, Timing(), 0.01)["verdict"] for ratio in (1.3, 1.0, 0.8)]
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
    ends = dict(zip(("change", "low", "high"), map(math.exp, (np.median(ratios), low, high)), strict=True))
    return {"verdict": verdict, **ends, "pairs": len(ratios), "p_value": p_value}

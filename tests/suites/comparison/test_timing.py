"""Times of two installations in turns."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from structgrad.reports.comparison import formats
from structgrad.suites.comparison import gate
from structgrad.suites.comparison.settings import Timing
from structgrad.suites.comparison.timing import adjusted, compare_times, judged
from tests.suites.comparison.rows import exact

CELL = ("categorical_regimes", "h=0.95")

# Behaves as a Python in which `rloo` takes longer. Both installations sleep, so that a busy machine hides no difference.
INTERPRETER = """#!{python}
import sys, time
sys.path[:0] = {path!r}
from structgrad.estimators import LeaveOneOut, StraightThrough
def slow(kind, pause):
    original = kind.surrogate
    def slower(self, *arguments, **options):
        time.sleep(pause)
        return original(self, *arguments, **options)
    kind.surrogate = slower
slow(LeaveOneOut, {pause})
slow(StraightThrough, 0.01)
with open(sys.argv[-1]) as file:
    exec(compile(file.read(), sys.argv[-1], "exec"), {{"__name__": "__main__"}})
"""


@pytest.mark.parametrize(
    ("factor", "noise", "verdict", "looks"),
    [
        (1.3, 0.03, "regressed", [40]),
        (1.0, 0.03, "equivalent", [40]),
        (0.8, 0.03, "improved", [40]),
        (1.035, 0.2, "inconclusive", [40, 160]),
    ],
)
def test_the_interval_of_the_median_decides_or_more_pairs(factor: float, noise: float, verdict: str, looks: list[int]) -> None:
    asked: list[int] = []

    def draw(count: int) -> list[float]:
        asked.append(count)
        return list(math.log(factor) + noise * np.random.default_rng(0).standard_normal(count))

    found = judged(draw, Timing(), 0.01)
    assert (found["verdict"], asked) == (verdict, looks)
    assert found["low"] < factor * 1.03
    assert found["high"] > factor * 0.97


def test_false_alarms_are_rare_and_the_interval_covers() -> None:
    """Two looks at a ratio of exactly the margin, 1000 times, in noise of a heavy tail."""
    random, margin = np.random.default_rng(0), Timing()
    center = math.log1p(margin.minimum_change)
    found = [judged(lambda count: list(center + 0.02 * random.standard_t(2, count)), margin, 0.01) for _ in range(1000)]
    assert sum(item["verdict"] == "regressed" for item in found) <= 20
    assert sum(item["low"] <= math.exp(center) <= item["high"] for item in found) >= 980


def test_many_cells_share_one_level_and_are_checks_of_a_gate() -> None:
    about = {"problem": "p", "stage": "init", "estimator": "rloo", "change": 1.05, "low": 1.03, "high": 1.07, "pairs": 40, "reason": ""}
    slow = {**about, "verdict": "regressed", "p_value": 0.002}
    others = [{**about, "problem": f"p{number}", "verdict": "equivalent", "p_value": 1.0} for number in range(99)]
    for found, outcome in (([slow], "failed"), ([slow, *others], "undecided")):
        result = gate([exact()], [exact()], timings=adjusted(found, 0.01))
        assert (result.outcome, result.timings["verdict"][0]) == (outcome, "regressed" if outcome == "failed" else "inconclusive")
        line = f"{'✗ regressed' if outcome == 'failed' else '? inconclusive'}: time of rloo on p, init: ×1.05 [1.03, 1.07]"
        assert line in formats.gate_text(result)
        assert line in formats.gate_json(result, 1)


def interpreter(folder: Path, name: str, pause: float) -> str:
    path = folder / name
    path.write_text(INTERPRETER.format(python=sys.executable, path=[one for one in sys.path if one], pause=pause))
    path.chmod(0o755)
    return str(path)


@pytest.mark.xdist_group("timed interpreters")
def test_a_slept_slowdown_of_30_percent_is_found_and_only_that(tmp_path: Path) -> None:
    base, head = interpreter(tmp_path, "base", 0.030), interpreter(tmp_path, "head", 0.040)
    slowed, other, absent = compare_times(base, [(*CELL, name) for name in ("rloo", "ste", "no_such")], head=head).itertuples()
    assert slowed.verdict == "regressed", slowed
    assert 1.1 < slowed.change < 1.6
    assert other.verdict in ("equivalent", "improved", "inconclusive"), other
    assert (absent.verdict, "no_such" in absent.reason) == ("broken", True)


def test_a_process_that_ends_is_a_broken_cell_and_one_that_cannot_begin_is_refused(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.write_text("#!/bin/sh\nexit 3\n")
    dead.chmod(0o755)
    (found,) = compare_times(str(dead), [(*CELL, "rloo")], head=str(dead)).itertuples()
    assert (found.verdict, "ended without an answer" in found.reason) == ("broken", True)
    with pytest.raises(ValueError, match=r"cannot be run .*expected a Python"):
        compare_times(os.fspath(tmp_path / "none"), [(*CELL, "rloo")])

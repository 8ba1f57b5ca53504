from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from structgrad.suites.comparison.settings import Timing
from structgrad.suites.comparison.timing import TimeComparison, TimedCell, adjusted, compare_times, judged, median_bounds, verdict_on
from structgrad.suites.statistics.intervals import Interval

CELL = TimedCell("categorical_regimes", "h=0.95", "rloo")

# Behaves as a Python in which `rloo` takes longer. What sleeps is told apart, and told to be the same, on a busy machine too.
INTERPRETER = """#!{python}
import sys, time
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


def ratios(factor: float, count: int, seed: int = 0, noise: float = 0.03) -> list[float]:
    return list(math.log(factor) + noise * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize(("factor", "expected"), [(1.3, "regressed"), (1.0, "equivalent"), (0.8, "improved")])
def test_a_change_is_told_from_none(factor: float, expected: str) -> None:
    found = verdict_on(CELL, ratios(factor, 40), Timing(), 0.01)
    assert found.verdict == expected
    assert (found.change.low or 0) < factor * 1.03
    assert (found.change.high or 0) > factor * 0.97


def test_what_the_first_pairs_do_not_decide_is_drawn_again_with_four_times_as_many() -> None:
    asked: list[int] = []

    def draw(count: int) -> Iterator[float]:
        asked.append(count)
        return ratios(1.035, count, noise=0.2)

    assert judged(CELL, draw, Timing(), 0.01).verdict == "inconclusive"
    assert asked == [40, 160]
    asked.clear()
    assert judged(CELL, lambda count: draw(count) and ratios(1.3, count), Timing(), 0.01).verdict == "regressed"
    assert asked == [40]


def test_false_alarms_are_rare() -> None:
    """Two looks at a ratio of exactly the margin, 1000 times, in noise of a heavy tail."""
    random = np.random.default_rng(0)
    margin = Timing()
    alarms = sum(
        judged(CELL, lambda count: list(math.log1p(margin.minimum_change) + 0.02 * random.standard_t(2, count)), margin, 0.01).verdict
        == "regressed"
        for _ in range(1000)
    )
    assert alarms <= 20


def test_the_interval_is_that_of_order_statistics_and_covers() -> None:
    random = np.random.default_rng(1)
    inside = 0
    for _ in range(1000):
        _, low, high = median_bounds(list(random.standard_t(2, 40)), 0.01)
        inside += low <= 0 <= high
    assert inside >= 980
    with pytest.raises(ValueError, match="got 5 values; expected more"):
        median_bounds([1.0] * 5, 0.01)


def test_many_cells_share_one_level() -> None:
    cells = [CELL._replace(problem=f"p{number}") for number in range(100)]
    change = Interval(1.05, 1.03, 1.07)
    found = [TimeComparison(cell, "regressed" if number == 0 else "equivalent", change, 40, 0.002 if number == 0 else 1.0)
             for number, cell in enumerate(cells)]  # fmt: skip
    assert adjusted(found[:1], 0.01)[0].verdict == "regressed"
    assert adjusted(found, 0.01)[0].verdict == "inconclusive"


def interpreter(folder: Path, name: str, pause: float) -> str:
    path = folder / name
    path.write_text(INTERPRETER.format(python=sys.executable, pause=pause))
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> list[TimeComparison]:
    """Three cells in one pair of processes: `rloo`, which sleeps longer, one of which nothing changed, and one that there is not."""
    folder = tmp_path_factory.mktemp("interpreters")
    base, head = interpreter(folder, "base", 0.030), interpreter(folder, "head", 0.040)
    with pytest.MonkeyPatch.context() as patched:
        # Both sides find the structgrad that is tested, however it is installed.
        patched.setattr("structgrad.suites.comparison.timing._without_path", lambda variables: variables)
        return compare_times(base, [CELL._replace(estimator=name) for name in ("rloo", "ste", "no_such")], head=head)


@pytest.mark.xdist_group("timed interpreters")
def test_a_slept_slowdown_of_30_percent_is_found_and_only_that(timed: list[TimeComparison]) -> None:
    slowed, other, _ = timed
    assert slowed.verdict == "regressed", slowed
    assert 1.1 < (slowed.change.value or 0) < 1.6
    assert other.verdict in ("equivalent", "improved", "inconclusive"), other


@pytest.mark.xdist_group("timed interpreters")
def test_a_cell_that_cannot_be_timed_is_broken(timed: list[TimeComparison]) -> None:
    found = timed[-1]
    assert found.verdict == "broken"
    assert "no_such" in found.reason


def test_a_process_that_dies_is_a_broken_cell(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    dead.write_text("#!/bin/sh\nexit 3\n")
    dead.chmod(0o755)
    (found,) = compare_times(str(dead), [CELL], head=str(dead))
    assert (found.verdict, "ended without an answer" in found.reason) == ("broken", True)


def test_an_interpreter_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot be run .*expected a Python"):
        compare_times(os.fspath(tmp_path / "none"), [CELL])

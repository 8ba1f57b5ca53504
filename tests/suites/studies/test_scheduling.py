"""The simulation of a run on workers that fail."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from structgrad.suites.studies import scheduling
from structgrad.suites.studies.scheduling import HOUR, ORDERS, CellCosts, Order, line, simulated

COSTS = CellCosts(np.array([3.0, 3.0, 3.0, 1.0, 1.0, 7.0]), np.array([3.0, 3.0, 3.0, 1.0, 1.0, 6.0]))


@pytest.mark.parametrize(("order", "makespan"), [("first in", 12.0), ("longest by the model", 9.0), ("longest", 9.0)])
def test_a_long_cell_that_comes_last_is_waited_for(order: Order, makespan: float) -> None:
    """Two workers, and 18 seconds of work in all."""
    assert simulated(COSTS, 2, order, np.inf).makespan == makespan


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mean_life", [np.inf, 40.0])
def test_every_cell_is_finished_once_and_no_worker_has_two_at_a_time(order: Order, mean_life: float) -> None:
    costs = CellCosts(*np.random.default_rng(0).exponential(5.0, (2, 300)))
    found = simulated(costs, 7, order, mean_life, seed=1)
    assert (found.finished > 0).all()
    assert found.makespan >= costs.seconds.sum() / 7
    assert (found.failures > 0) == np.isfinite(mean_life)
    assert (found.lost > 0) == np.isfinite(mean_life)
    running = [
        ((found.finished - costs.seconds < at - 1e-9) & (at < found.finished - 1e-9)).sum() for at in np.linspace(0, found.makespan, 50)
    ]
    assert max(running) <= 7


def test_work_that_is_lost_is_done_again() -> None:
    calm, rough = (simulated(COSTS, 1, "first in", mean_life, seed=3) for mean_life in (np.inf, 10.0))
    assert calm.makespan == COSTS.seconds.sum()
    assert rough.makespan >= calm.makespan + rough.lost + scheduling.BACK * (rough.lost > 0)


def test_a_table_tells_what_the_store_bears(tmp_path: Path) -> None:
    found = line(COSTS, 2, "longest", HOUR, 1e6)
    assert (found["bound [s]"], found["makespan [s]"], found["in the busiest second"]) == (9, 9, 2)
    assert found["MB a second in it"] == 2.0

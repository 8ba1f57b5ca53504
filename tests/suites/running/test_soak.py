"""The soak of the store in short: a few faults, and a run that ends the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.suites.running.soak import soak


@pytest.mark.skipif(not hasattr(os, "fork") or not Path("/proc/self/task").is_dir(), reason="forks drivers, finds workers in /proc")
@pytest.mark.parametrize("most", [pytest.param(100, marks=pytest.mark.sweep), 5])
def test_a_run_that_is_disturbed_ends_as_if_it_had_not_been(tmp_path: Path, most: int) -> None:
    found, same = soak(tmp_path, seconds=600.0, cells=80, most=most)
    assert same
    assert found.wrong == []
    assert found.faults.total() >= most


def test_a_cell_that_is_lost_is_noticed(tmp_path: Path) -> None:
    found, _ = soak(tmp_path, seconds=0.0, cells=80)
    found.kept = {found.work.cells[0].identity}
    found.check()
    assert found.wrong == [f"{found.work.cells[0].identity} was kept, and is lost"]

from __future__ import annotations

import pytest

from tests.suites.comparison import planted_changes
from tests.suites.comparison.planted_changes import Change, simulate


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted_changes, "PROBLEMS", planted_changes.PROBLEMS[:1])
    monkeypatch.setattr(planted_changes, "ESTIMATORS", ("rloo", "st_gumbel"))
    planted_changes.run_of.cache_clear()


def test_a_planted_change_is_found_with_the_same_random_numbers_and_nothing_else() -> None:
    for change in (Change(scale=0.98), Change(spread=1.2)):
        found = simulate(change, gates=2, replicates=256, paired=True)
        assert (found.gates, found.found, found.others) == (2, 2, 0)


def test_unchanged_code_does_not_fail() -> None:
    assert simulate(Change(), gates=3, replicates=256, paired=False).failed == 0
    assert simulate(Change(), gates=1, replicates=256, paired=True).failed == 0

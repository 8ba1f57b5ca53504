from __future__ import annotations

import pytest

from structgrad.suites.studies import gate_simulations
from structgrad.suites.studies.gate_simulations import Change, main, simulate


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_simulations, "PROBLEMS", gate_simulations.PROBLEMS[:1])
    monkeypatch.setattr(gate_simulations, "ESTIMATORS", ("rloo", "st_gumbel"))
    gate_simulations.run_of.cache_clear()


def test_a_planted_change_is_found_with_the_same_random_numbers_and_nothing_else() -> None:
    for change in (Change(scale=0.98), Change(spread=1.2)):
        found = simulate(change, gates=2, replicates=256, paired=True)
        assert (found.gates, found.found, found.others) == (2, 2, 0)


def test_unchanged_code_does_not_fail() -> None:
    assert simulate(Change(), gates=3, replicates=256, paired=False).failed == 0
    assert simulate(Change(), gates=1, replicates=256, paired=True).failed == 0


def test_the_table_names_every_change(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gate_simulations, "CHANGES", (Change(), Change(spread=1.5)))
    assert main(["--gates", "1", "--powered", "1", "--replicates", "256"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:3] for line in lines[4:]] == [
        ["| nothing", "fresh", "1"],
        ["| variance × 1.5", "fresh", "1"],
        ["| variance × 1.5", "the same", "1"],
    ]

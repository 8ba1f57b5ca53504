"""What measuring costs: where the time of a cell goes, and the table of it; figures are not held to anything here."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from rich.console import Console

from structgrad.estimators.base import Estimator
from structgrad.estimators.noise import Noise
from structgrad.oracles import Subset
from structgrad.oracles.random_streams import SeedBlocks
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.problems import load
from structgrad.suites.speed.measuring import rates, shares, table
from structgrad.suites.speed.measuring.rates import Rate, enumeration_rate, interleaved, replicate_rate
from structgrad.suites.speed.measuring.shares import CellShare, cell_share, exclusive_watches
from structgrad.suites.truth.replay_oracle import ReplayOracle
from tests.suites.speed.test_speed import command

CONTEXT = Context(effort=Effort(replicates=256, most_replicates=256))


def small() -> shares.Problem:
    return load("subset[n=6,k=3]", "h=0.7", instances=1, data=None)


def test_one_stopwatch_runs_at_a_time() -> None:
    """What the oracle does while a loss runs is a part of the loss."""
    watches = exclusive_watches()
    with watches["loss"]:
        began = watches["loss"].started
        with watches["oracle"]:
            assert watches["oracle"].started is None
        assert watches["loss"].started == began
    assert watches["loss"].seconds > 0
    assert watches["oracle"].seconds == 0
    with watches["oracle"]:
        pass
    assert watches["oracle"].seconds > 0


@pytest.mark.parametrize(
    ("name", "busy"), [("reinforce", {"loss", "oracle", "estimator"}), ("st_gumbel", {"loss", "oracle", "noise", "estimator"})]
)
def test_the_time_of_a_cell_goes_to_what_takes_it(name: str, busy: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that takes long has nearly all of it; what is timed in place is as it was afterwards."""
    kinds = (Noise, SeedBlocks, ReplayOracle, Estimator)
    before = [dict(vars(kind)) for kind in kinds]
    problem = small()
    plain = cell_share(name, problem, CONTEXT, rounds=1)
    assert {kind for kind, seconds in plain.seconds.items() if seconds > 0} == busy
    assert 0 < plain.measuring < plain.rest < 1
    kind = type(problem.instances[0].loss)
    quick = kind.__call__

    def slow(self: object, structure: torch.Tensor) -> torch.Tensor:
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
        return quick(self, structure)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "__call__", slow)
    long = cell_share(name, small(), CONTEXT, rounds=1)
    assert long.seconds["loss"] > 0.5 * long.total > plain.seconds["loss"]
    assert [dict(vars(kind)) for kind in kinds] == before


def test_rates_count_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "CHAIN", (rates.LinearChain(), (2, 2, 2)))
    monkeypatch.setattr(rates, "SPACES", {"small": (Subset(6), (12,))})
    for found in (replicate_rate("rloo", 128, rounds=1), enumeration_rate("small", chunks=1, rounds=1)):
        assert found.seconds > 0
        assert found.floor > 0
    assert Rate("case", 3.0, 2.0).ratio == 1.5


def test_calls_are_timed_in_turns_but_for_the_first_of_each() -> None:
    told, clock = list[str](), iter(range(100))
    seconds = interleaved([lambda: told.append("a"), lambda: told.append("b")], 3, lambda: float(next(clock)))
    assert told == ["a", "b"] * 4
    assert seconds == [1.0, 1.0]


def test_the_table_is_printed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    share = CellShare("rloo", "mc", 4096, 2.0, {"loss": 1.0, "oracle": 0.5, "noise": 0.25, "estimator": 0.125})
    results = [("share", share), ("replicate", Rate("rloo", 5e-6, 2e-6))]
    monkeypatch.setattr(table, "measuring", lambda: iter(results))
    target = tmp_path / "measuring.csv"
    assert command(monkeypatch, "--measuring", "--csv", target) == 0
    shown = capsys.readouterr().out
    assert "rest  12% of 2e+03 ms (4,096 replicates): loss 50%, oracle 25%, noise 12%, estimator 6%, measuring 6%" in shown
    assert "5 s for 10⁶ replicates, 2.50 floors" in shown
    frame = pd.read_csv(target)
    assert frame[frame.operation == "share"].seconds.tolist() == [1.0, 0.5, 0.25, 0.125, 0.125, 0.25]
    table.show(Console(quiet=True), None)


def test_the_table_has_every_estimator_of_the_core_and_every_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "cell_share", lambda name, *_: CellShare(name, "mc", 1, 1.0, {}))
    monkeypatch.setattr(table, "replicate_rate", lambda name, _: Rate(name, 1.0, 1.0))
    monkeypatch.setattr(table, "enumeration_rate", lambda name: Rate(name, 1.0, 1.0))
    found = [(kind, result.case) for kind, result in table.measuring()]
    assert [case for kind, case in found if kind == "share"] == list(table.CORE)
    assert {"rloo", "exact"} < set(table.CORE)
    assert [case for kind, case in found if kind == "structure"] == list(rates.SPACES)


def test_the_command_refuses_to_choose_rows_of_another_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "--measuring", "--case", "subset 20") == 2
    assert "got --measuring with --case; expected it alone or with --csv" in " ".join(capsys.readouterr().err.replace("│", "").split())

import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from structgrad.reports import page, results, terminal
from structgrad.reports.analysis import answers
from structgrad.reports.verbs.run import launch
from structgrad.suites.measures.suite import EFFORTS
from structgrad.suites.running import runner
from structgrad.suites.running.planning.grid import Grid
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.work import Snapshot
from structgrad.suites.statistics.interval import Interval
from tests.reports import examples
from tests.reports.calling import FEW, SMALL, call, without_page

BOTH = [*SMALL[:2], "sparsity", *SMALL[2:], *FEW]

Measured = list[tuple[Plan, Machine]]


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Measured]:
    """Puts an outcome in the place of the runner, and keeps the plans and machines that it gets."""

    def install(outcome: Any) -> Measured:
        measured: Measured = []

        def measure(plan: Plan, folder: Path, work: Grid, machine: Machine, *, progress: Any, **_: Any) -> None:
            measured.append((plan, machine))
            progress(Snapshot(1, 1, 0, "only cell"))
            if isinstance(outcome, BaseException):
                raise outcome

        monkeypatch.setattr(runner, "measure", measure)
        monkeypatch.setattr(runner, "collect", lambda directory: outcome)
        monkeypatch.setattr(launch, "grid", lambda plan: Grid((), ()))
        without_page(monkeypatch)
        return measured

    return install


def test_a_run_writes_results_and_report_and_resumes(tmp_path: Path) -> None:
    words = [*BOTH, "-e", "exact", "-e", "rloo", "-e", "spigot", "--seed", "3", "-o", tmp_path / "out"]
    first = call(*words)
    assert first.exit_code == 0, first.output
    frame, manifest = results.read(tmp_path / "out")
    assert list(frame["estimator"].unique()) == ["exact", "rloo", "spigot"]
    assert manifest["seed"] == 3
    assert manifest["status"] == "finished"
    assert manifest["command"].startswith("structgrad run bias sparsity --preset quick -e exact -e rloo")
    assert "6 cells ok, 0 failed, 0 skipped." in first.stdout
    assert "preset quick: a first look, not for conclusions" in first.stdout
    assert str(tmp_path / "out" / "report.html") in first.stdout
    assert "6/6 cells" in first.stderr
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!DOCTYPE html>")
    again = call(*words)
    assert "6/6 cells resumed" in again.stderr
    pd.testing.assert_frame_equal(results.read(tmp_path / "out")[0], frame)
    assert "resumed" not in call(*words, "--fresh").stderr


def test_options_reach_the_plan_and_the_command_that_repeats_it(tmp_path: Path, fake_run: Any) -> None:
    measured = fake_run(examples.rows()[:4])
    (tmp_path / "categorical_fsdd.npz").touch()
    words = "bias spa* -e ste -e imle[lambda=2.5] -p a -p b --stage init --loss f1 --instances 7 --replicates 99 --batch-size 5 --seed 4"
    more = "--max-replicates 990 --seconds 3.5 --dtype float32 --device cuda --tier mc --offset 10"
    machine = "-j 2 --timeout 9.5 --memory-limit 4 --engine ray --address here:1 --gpus-per-cell 0.5"
    given = [*words.split(), *more.split(), *machine.split()]
    assert call("run", *given, "--preset", "standard", "--data", tmp_path, "-o", tmp_path / "a b").exit_code == 0
    expected = Plan(
        suites=("bias", "spa*"),
        problems=("a", "b"),
        stages=("init",),
        estimators=("ste", "imle[lambda=2.5]"),
        data=str(tmp_path),
        losses=("f1",),
        offset=10.0,
        instances=7,
        effort=dataclasses.replace(EFFORTS["standard"], replicates=99, most_replicates=990, seconds=3.5),
        batch_size=5,
        seed=4,
        tier="mc",
        dtype="float32",
        device="cuda",
    )
    repeated = results.manifest_of(tmp_path / "a b")["command"]
    assert call(*shlex.split(repeated)[1:]).exit_code == 0
    assert measured == [(expected, Machine(2, 9.5, 4.0, "ray", "here:1", 0.5))] * 2
    assert results.manifest_of(tmp_path / "a b")["command"] == repeated


def test_a_failed_cell_gives_exit_code_3(tmp_path: Path, fake_run: Any) -> None:
    fake_run(examples.rows())
    result = call("run", "--builtin", "-o", tmp_path)
    assert result.exit_code == 3
    assert "9 cells ok, 1 failed, 1 skipped." in result.stdout
    assert "error: spigot on toy, final: RuntimeError" in result.stdout
    assert f"again, failed cells only: structgrad run --preset quick --builtin --out {tmp_path}" in result.stdout
    assert "! rloo[num_samples=2] declares itself unbiased, and is found biased on toy, init" in result.stdout


def test_plain_progress_waits_longer_while_nothing_changes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = terminal.plain_progress()
    for step, finished in enumerate([0] * 60 + [1] * 40):
        monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda step=step: 2.0 * step))
        told(Snapshot(finished, 2))
    assert capsys.readouterr().err == "0/2 cells\n" * 3 + "1/2 cells\n" * 3


def test_plain_progress_is_quiet_between_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    told = terminal.plain_progress(quiet=3600)
    for finished in range(6):
        told(Snapshot(finished, 5, 1, "cell" if finished else "", left=75.0))
    told(Snapshot(5, 5))
    assert capsys.readouterr().err == "0/5 cells, 1 failed, about 1 min 15 s left\n5/5 cells, 1 failed cell\n"


@pytest.mark.parametrize(
    ("low", "rivals", "tied", "text"),
    [
        (0.8, 8, (), "rloo 0.900"),
        (0.8, 8, ("ste", "imle"), "rloo or ste or imle 0.900"),
        (0.8, 8, ("ste", "imle", "simple"), "rloo or 3 others 0.900"),
        (0.8, 4, ("ste", "imle"), "none clearly best (rloo, ste, imle tied)"),
        (0.8, 5, ("ste", "imle", "simple"), "none clearly best (4 of 6 tied)"),
        (-0.1, 8, (), "none useful"),
        (None, 8, (), "none clearly best (2 instances)"),
    ],
)
def test_at_most_three_estimators_are_named_as_the_best(low: float | None, rivals: int, tied: tuple[str, ...], text: str) -> None:
    scores = {"rloo": Interval(0.9, low, 1.0), **{f"other {number}": Interval(0.5) for number in range(rivals)}}
    found = answers.Answer("toy", "init", "mlp", answers.QUESTIONS[0], 16, scores, tied, "", "", 2, True, (), ())
    assert terminal.leader(found)[0] == text


def test_few_problems_are_shown_with_the_bias_of_every_estimator() -> None:
    best, table = terminal.summary(results.to_frame(examples.rows()))
    assert best["title"] == "Best estimator for the loss quadratic, by ρ with the run time of 16 REINFORCE estimates"
    shown = [row[1][0] for row in table["rows"]]
    assert [text.split("|")[0].split() for text in shown] == [["0", "="], ["0", "≈"], ["0.100", "!"], ["0.700", "≠"]]


@pytest.mark.parametrize("verdict", ["unresolved: rare events", "broken"])
def test_the_page_shows_a_verdict_without_numbers(verdict: str) -> None:
    """Verdicts are shown even for a problem without any number."""
    absent = [dataclasses.replace(row, value=None, low=None, high=None, problem="other") for row in examples.rows()]
    rows = [dataclasses.replace(row, verdict=verdict) if row.metric == "relative_bias" else row for row in absent]
    frame = results.to_frame([*examples.rows(), *rows])
    assert verdict in str(page.report(frame, {}))

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from structgrad.estimators import ESTIMATORS
from structgrad.reports import page, results, terminal
from structgrad.reports.analysis import answers
from structgrad.reports.cli import app
from structgrad.reports.page import paper
from structgrad.reports.verbs.catalogue import KINDS
from structgrad.reports.verbs.options import RunOptions, command
from structgrad.reports.verbs.run import launch
from structgrad.suites.measures.suite import EFFORTS
from structgrad.suites.problems.score_files import Convention
from structgrad.suites.running import runner
from structgrad.suites.running.planning.grid import Grid
from structgrad.suites.running.planning.plan import CORES, Machine, Plan, Scope
from structgrad.suites.running.planning.presets import plan_of
from structgrad.suites.running.progress import Busy, Snapshot
from structgrad.suites.statistics.interval import Interval
from tests.reports import examples
from tests.reports.calling import without_page

SMALL = [
    "run",
    "bias",
    "sparsity",
    "--builtin",
    "-j",
    "0",
    "-p",
    "categorical_regimes",
    "--stage",
    "init",
    "--loss",
    "own",
    "--instances",
    "1",
    "--replicates",
    "64",
    "--max-replicates",
    "64",
]


MACHINES: list[Machine] = []
"""Those that `fake_run` got."""

SCOPES: list[Scope] = []
"""The same."""


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> str:
    """The one line on standard error of a call that is refused."""
    result = call(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 1
    return result.stderr


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Plan]]:
    """Puts something else in the place of the runner, and keeps the plans that it gets."""

    def install(outcome: Any) -> list[Plan]:
        plans: list[Plan] = []

        def measure(plan: Plan, directory: Path, *, machine: Machine, progress: Any, scope: Scope, work: Grid, mirror: None) -> Any:
            plans.append(plan)
            MACHINES.append(machine)
            SCOPES.append(scope)
            progress(Snapshot(1, 1, 0, "only cell"))
            if isinstance(outcome, BaseException):
                raise outcome
            return work

        monkeypatch.setattr(runner, "measure", measure)
        monkeypatch.setattr(runner, "collect", lambda directory: outcome)
        monkeypatch.setattr(launch, "grid", lambda plan: Grid((), ()))
        without_page(monkeypatch)
        return plans

    return install


def test_version() -> None:
    assert call("--version").stdout.startswith("structgrad ")


def test_list_as_json_and_by_pattern() -> None:
    found = json.loads(call("list", "estimators", "reinforce*", "--json").stdout)
    assert [record["name"] for record in found] == [name for name in ESTIMATORS if name.startswith("reinforce")]
    assert found[0]["unbiased"] is True
    assert set(json.loads(call("list", "--json").stdout)) == set(KINDS)


def test_a_run_writes_results_and_report_and_resumes(tmp_path: Path) -> None:
    words = [*SMALL, "-e", "exact", "-e", "rloo", "-e", "spigot", "--seed", "3", "-o", str(tmp_path / "out")]
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
    assert "categorical_regimes: relative bias | relative MSE" in first.stdout
    assert "6/6 cells" in first.stderr
    assert (tmp_path / "out" / "report.html").read_text().startswith("<!DOCTYPE html>")
    again = call(*words)
    assert "6/6 cells resumed" in again.stderr
    pd.testing.assert_frame_equal(results.read(tmp_path / "out")[0], frame)
    assert "resumed" not in call(*words, "--fresh").stderr


def test_the_default_folder_is_named_after_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_run: Any) -> None:
    monkeypatch.chdir(tmp_path)
    fake_run(examples.rows()[:4])
    for words in (["--seed", "1"], ["--seed", "1", "-j", "2"], ["--seed", "2"]):
        assert call("run", "--builtin", *words).exit_code == 0
    names = [path.name for path in (tmp_path / "structgrad-results").iterdir()]
    assert len(names) == 2
    assert {len(name) for name in names} == {8}


def test_options_reach_the_plan(tmp_path: Path, fake_run: Any) -> None:
    plans = fake_run(examples.rows()[:4])
    (tmp_path / "categorical_fsdd.npz").touch()
    words = "bias spa* -e ste -e imle[lambda=2.5] -p a -p b --stage init --loss f1 --instances 7 --replicates 99 --batch-size 5 --seed 4"
    more = "--max-replicates 990 --seconds 3.5 --dtype float32 --device cuda --tier mc --offset 10"
    machine = "-j 2 --timeout 9.5 --memory-limit 4 --engine ray --address here:1 --gpus-per-cell 0.5"
    given = [*words.split(), *more.split(), *machine.split()]
    assert call("run", *given, "--preset", "standard", "--data", str(tmp_path), "-o", str(tmp_path)).exit_code == 0
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
    assert plans == [expected]
    assert MACHINES[-1] == Machine(2, 9.5, 4.0, "ray", "here:1", 0.5)


def test_a_device_has_one_process_unless_more_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_run: Any) -> None:
    plans = fake_run(examples.rows()[:4])
    monkeypatch.setattr("structgrad.suites.running.planning.plan.check_device", lambda name: None)
    asked = {("cuda",): 1, ("cuda:1",): 1, ("cuda:0,cuda:2",): 2, ("cuda", "-j", "5"): 5, ("cpu",): CORES}
    for words, jobs in asked.items():
        assert call("run", "--builtin", "--device", *words, "-o", str(tmp_path)).exit_code == 0
        assert (plans[-1].device, MACHINES[-1].jobs) == (words[0], jobs)
        assert f"--device {words[0]}" in results.read(tmp_path)[1]["command"] or words[0] == "cpu"


def test_the_preset_is_quick_unless_told_otherwise(tmp_path: Path, fake_run: Any) -> None:
    plans = fake_run(examples.rows()[:4])
    for words in ([], ["--quick"], ["--preset", "quick"]):
        assert call("run", "--builtin", *words, "--replicates", "256", "-o", str(tmp_path)).exit_code == 0
        assert results.read(tmp_path)[1]["preset"] == "quick"
    assert plans == [plan_of("quick", effort=dataclasses.replace(EFFORTS["quick"], replicates=256))] * 3
    assert call("run", "--builtin", "--preset", "standard", "-o", str(tmp_path)).exit_code == 0
    assert plans[-1] == plan_of("standard")
    assert "--preset standard" in results.read(tmp_path)[1]["command"]


@pytest.mark.parametrize(
    ("words", "suites"),
    [
        ([], {"bias", "sparsity"}),
        (["--preset", "standard", "-e", "rloo"], {"bias", "sparsity", "descent"}),
        (["--preset", "standard", "-e", "ste"], {"bias", "sparsity", "descent"}),
        (["--preset", "standard", "-p", "task:clusters"], {"references", "learning"}),
        (["bias", "wall_clock"], {"bias"}),
    ],
)
def test_without_times_no_suite_takes_the_machine_alone(words: list[str], suites: set[str]) -> None:
    problem = [] if "-p" in words else ["-p", "subset_regimes"]
    result = call("run", "--no-timing", "--builtin", "--dry-run", "--json", *problem, *words)
    assert result.exit_code == 0, result.output
    assert set(json.loads(result.stdout)["suites"]) - {"simulated"} == suites  # a suite of other tests in this process


def test_a_dry_run_shows_the_plan_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--builtin", "--dry-run", "-p", "subset*", "--stage", "init", "--loss", "own"]
    result = call("run", "bias", *words, "-e", "ste", "-e", "arm", "--instances", "3")
    assert result.exit_code == 0
    assert "bias: 1 cells, 3 instances" in result.stdout
    assert "1 cells, 1 pairs skipped; about" in result.stdout
    assert "structures to enumerate: about 660" in result.stdout
    assert not any(tmp_path.iterdir())


def test_real_scores_are_used_where_they_are_found_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_run: Any
) -> None:
    monkeypatch.setattr("structgrad.suites.problems.default_data", lambda: "found")
    plans = fake_run(examples.rows()[:4])
    call("run", "-o", str(tmp_path))
    call("run", "--builtin", "-o", str(tmp_path))
    (tmp_path / "categorical_fsdd.npz").touch()
    call("run", "--data", str(tmp_path), "-o", str(tmp_path))
    assert [plan.data for plan in plans] == ["found", None, str(tmp_path)]


def test_an_own_score_file_reaches_the_plan(tmp_path: Path, fake_run: Any) -> None:
    plans = fake_run(examples.rows()[:4])
    fields = ["--field", "gold=labels", "--field", "meaning=cost", "--field", "temperature=2"]
    assert call("run", "--file", "my.npz", "--oracle", "subset[k=3]", *fields, "--loss", "f1", "-o", str(tmp_path)).exit_code == 0
    file = plans[0].file
    assert file is not None
    assert (file.path, file.oracle, file.gold, plans[0].losses) == ("my.npz", "subset[k=3]", "labels", ("f1",))
    assert file.convention == Convention("cost", 2.0)
    repeated = results.read(tmp_path)[1]["command"]
    assert "--file my.npz --oracle 'subset[k=3]' --field gold=labels --field meaning=cost --field temperature=2" in repeated
    assert "all instances each" in call("run", "--file", "my.npz", "--oracle", "subset[k=3]", "-o", str(tmp_path)).stdout


def test_the_command_repeats_the_plan(fake_run: Any, tmp_path: Path) -> None:
    plans = fake_run(examples.rows()[:4])
    (tmp_path / "categorical_fsdd.npz").touch()
    options = RunOptions(
        suite=("bias",),
        preset="standard",
        problem=("a b",),
        stage=("final",),
        estimator=("reinforce*",),
        data=tmp_path,
        offset=3.0,
        instances=9,
        replicates=77,
        seconds=2.5,
        jobs=3,
        timeout=4.0,
        memory_limit=1.5,
        out=str(tmp_path / "out"),
    )
    done = call(*shlex.split(command(options))[1:])
    assert done.exit_code == 0, done.output
    assert results.manifest_of(tmp_path / "out")["command"] == command(options)
    effort = dataclasses.replace(EFFORTS["standard"], replicates=77, seconds=2.5)
    own = {"data": str(tmp_path), "instances": 9, "offset": 3.0, "effort": effort, "suites": ("bias",), "stages": ("final",)}
    assert plans == [plan_of("standard", problems=("a b",), estimators=("reinforce*",), **own)]
    assert MACHINES[-1] == Machine(3, 4.0, 1.5)


def test_a_failed_cell_gives_exit_code_3(tmp_path: Path, fake_run: Any) -> None:
    fake_run(examples.rows())
    result = call("run", "--builtin", "-o", str(tmp_path))
    assert result.exit_code == 3
    assert "9 cells ok, 1 failed, 1 skipped." in result.stdout
    assert "error: spigot on toy, final: RuntimeError" in result.stdout
    assert f"again, failed cells only: structgrad run --preset quick --builtin --out {tmp_path}" in result.stdout
    assert "! rloo[num_samples=2] declares itself unbiased, and is found biased on toy, init" in result.stdout


def test_an_interrupted_run_tells_how_to_go_on(tmp_path: Path, fake_run: Any) -> None:
    fake_run(KeyboardInterrupt())
    result = call("run", "--builtin", "-o", str(tmp_path))
    assert result.exit_code == 130
    assert f"finished cells are kept, continue with: structgrad run --preset quick --builtin --out {tmp_path}\n" in result.stderr


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path, fake_run: Any) -> None:
    (tmp_path / "file").write_text("")
    plans = fake_run([])
    message = refused("run", "--builtin", "-o", str(tmp_path / "file" / "out"))
    assert message.endswith("file/out (Not a directory); choose another folder with --out\n")
    assert plans == []


def test_report_writes_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "draw", lambda frame, known: [])
    results.write(examples.rows(), tmp_path, examples.MANIFEST)
    assert call("report", str(tmp_path)).stdout == f"report: {tmp_path / 'report.html'}\n"
    assert call("report", str(tmp_path / results.TABLE), "--format", "md").exit_code == 0
    assert (tmp_path / "report.md").read_text().startswith("## structgrad report")
    assert call("report", str(tmp_path), "-o", str(tmp_path / "new" / "numbers.csv")).exit_code == 0
    assert list(pd.read_csv(tmp_path / "new" / "numbers.csv").columns)[-6:] == ["median", "lower", "upper", "low", "high", "instances"]
    assert call("report", str(tmp_path), "--format", "md", "-o", "-").stdout == (tmp_path / "report.md").read_text()


def test_report_refuses_what_it_cannot_read_or_write(tmp_path: Path) -> None:
    assert "found no run at" in refused("report", str(tmp_path))
    results.write(examples.rows(), tmp_path, examples.MANIFEST)
    assert refused("report", str(tmp_path), "--format", "htm") == "error: `report` got the format 'htm'; did you mean html?\n"
    message = refused("report", str(tmp_path), "-o", str(tmp_path / results.TABLE / "x.md"))
    assert "`report` cannot write" in message
    assert "name another file with --output" in message


def test_plain_progress_is_quiet_between_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    told = terminal.plain_progress(quiet=3600)
    for finished in range(6):
        told(Snapshot(finished, 5, 1, "cell" if finished else "", left=75.0))
    told(Snapshot(5, 5))
    assert capsys.readouterr().err == "0/5 cells, 1 failed, about 1 min 15 s left\n5/5 cells, 1 failed cell\n"


def test_compiling_is_said_when_it_begins_and_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    idle, compiling = Busy("worker 1", "bias a", 3.2), Busy("worker 1", "bias a", 4.2, compiling=True)
    told = terminal.plain_progress(quiet=3600)
    for busy in (idle, compiling, compiling, idle, compiling):
        told(Snapshot(0, 2, busy=(busy,)))
    assert capsys.readouterr().err == "0/2 cells\n0/2 cells, compiling kernels (once per machine)\n"
    console = Console(width=100, file=io.StringIO())
    console.print(terminal.display(Snapshot(0, 2, busy=(compiling,))))
    assert console.file.getvalue().splitlines()[1].split(maxsplit=4)[4].rstrip() == "bias a: compiling kernels (once per machine)"


def test_a_terminal_gets_a_bar_and_a_line_per_worker(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    busy = (Busy("worker 1", "bias a [cell]", 3.2), Busy("worker 2", "idle", 0.0))
    snapshot = Snapshot(1, 2, 0, "a [cell]", 61.0, busy)
    console = Console(width=100, file=io.StringIO())
    console.print(terminal.display(snapshot))
    lines = console.file.getvalue().splitlines()
    assert "1/2 cells, about 1 min 1 s left" in lines[0]
    assert [line.split() for line in lines[1:]] == [["worker", "1", "3.2", "s", "bias", "a", "[cell]"], ["worker", "2", "0", "s", "idle"]]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with terminal.Verbosity().progress() as told:
        told(snapshot)
    assert os.linesep not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("low", "rivals", "tied", "text"),
    [
        (0.8, 8, (), "rloo 0.900"),
        (0.8, 8, ("ste", "imle"), "rloo or ste or imle 0.900"),
        (0.8, 8, ("ste", "imle", "simple"), "rloo or 3 others 0.900"),
        (0.8, 4, ("ste", "imle"), "none clearly best (3 of 5 tied)"),
        (-0.1, 8, (), "none useful"),
        (None, 8, (), "none clearly best (2 instances)"),
    ],
)
def test_at_most_three_estimators_are_named_as_the_best(low: float | None, rivals: int, tied: tuple[str, ...], text: str) -> None:
    scores = {"rloo": Interval(0.9, low, 1.0), **{f"other {number}": Interval(0.5) for number in range(rivals)}}
    found = answers.Answer("toy", "init", "mlp", answers.QUESTIONS[0], 16, scores, tied, "", "", 2, True, (), ())
    assert terminal.leader(found)[0] == text


def test_one_problem_at_one_entropy_level_has_an_answer() -> None:
    frame = results.to_frame([row for row in examples.rows() if row.stage != "final"])
    best = terminal.summary(frame)[0]
    assert [row[0] for row in best["rows"]] == ["toy"]
    assert best["rows"][0][1][0] == "none clearly best (3 instances)"


@pytest.mark.parametrize(
    ("rival", "sentence"),
    [
        ("rloo", "./mine.py:Mine has a higher ρ than rloo in 2 of 2 cases (problem and entropy level) and a lower one in 0."),
        ("sampled", "./mine.py:Mine was not compared with rloo: add -e rloo to measure both."),
    ],
)
def test_an_own_estimator_is_compared_with_rloo(rival: str, sentence: str) -> None:
    names = {"imle[lambda=2.5]": "./mine.py:Mine", "rloo[num_samples=2]": rival}
    rows = [dataclasses.replace(row, estimator=names.get(row.estimator, row.estimator)) for row in examples.rows()]
    if rival == "rloo":
        assert "in 0 of 2 cases" in terminal.compared(results.to_frame(rows))[0]  # 3 instances give no interval
    rows += [dataclasses.replace(row, instance="item3") for row in rows if row.instance == "item2"]
    better = [
        dataclasses.replace(row, value=0.01 * int(row.instance[-1]))
        if (row.metric, row.estimator) == ("relative_bias_squared", "./mine.py:Mine")
        else row
        for row in rows
    ]
    (found,) = terminal.compared(results.to_frame(better))
    assert found.startswith(sentence)


def test_summary_marks_medians_of_fewer_instances() -> None:
    rows = [row for row in examples.rows() if (row.metric, row.instance) != ("relative_mse", "item0")]
    table = terminal.summary(results.to_frame(rows))[-1]
    assert all(row[1][0].endswith("*") for row in table["rows"])
    assert "*" in terminal.LEGEND


def test_summary_marks_every_verdict() -> None:
    best, table = terminal.summary(results.to_frame(examples.rows()))
    assert (best["title"], best["stages"]) == (
        "Best estimator for the loss quadratic, by ρ with the run time of 16 REINFORCE estimates",
        ["init", "final"],
    )
    shown = [row[1][0] for row in table["rows"]]
    assert [text.split("|")[0].split() for text in shown] == [["0", "="], ["0", "≈"], ["0.100", "!"], ["0.700", "≠"]]


@pytest.mark.parametrize(("verdict", "mark"), [("unresolved: rare events", "?"), ("broken", "!")])
def test_summary_and_page_show_a_verdict_without_numbers(verdict: str, mark: str) -> None:
    """Verdicts are shown even for a problem without any number."""
    absent = [dataclasses.replace(row, value=None, low=None, high=None, problem="other") for row in examples.rows()]
    rows = [dataclasses.replace(row, verdict=verdict) if row.metric == "relative_bias" else row for row in absent]
    frame = results.to_frame([*examples.rows(), *rows])
    other = next(table for table in terminal.summary(frame) if table["title"].startswith("other"))
    assert {tuple(row[1][0].split()) for row in other["rows"]} == {("–", mark, "|", "–")}
    assert verdict in str(page.report(frame, {}))

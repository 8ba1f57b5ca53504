import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from structgrad.oracles import plugins
from structgrad.reports import results
from structgrad.reports.verbs.options import seconds_of
from tests.reports.calling import FEW, SMALL, call, refused
from tests.suites.running_cases import cells_of, kept

FAILING = "tests.suites.broken_estimators:Failing"
MINE = """
from dataclasses import dataclass
from typing import ClassVar
from structgrad.estimators import Reinforce

@dataclass(frozen=True)
class Mine(Reinforce):
    '''One of my own.'''
    name: ClassVar[str] = "mine"
    version: ClassVar[int] = 1
"""


# Files of options.


def planned(*words: object) -> dict[str, Any]:
    """A plan without its estimate of time, which depends on the load of the machine."""
    result = call("run", "--dry-run", "--json", *words)
    assert result.exit_code == 0, result.stderr
    return {name: value for name, value in json.loads(result.stdout).items() if name != "seconds"}


FILE = """
suite = ["bias"]
problem = ["subset_regimes"]
estimator = ["rloo", "imle[lambda=2.5]"]
stage = "init"
instances = 3
max-replicates = 512
replicates = "128"
seconds = "2m"
builtin = true
timing = false
jobs = 1
seed = 7
"""


def test_a_file_says_the_same_as_options(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    options = ["bias", "-p", "subset_regimes", "-e", "rloo", "-e", "imle[lambda=2.5]", "--stage", "init", "--instances", "3"]
    more = ["--max-replicates", "512", "--replicates", "128", "--seconds", "120", "--builtin", "--no-timing", "-j", "1", "--seed", "7"]
    assert planned("--config", path) == planned(*options, *more)
    other = planned("--config", path, "--seed", "8", "-e", "ste")
    assert other == planned(*options[:3], *options[7:], *more[:-2], "--seed", "8", "-e", "ste")


# Durations, budgets, threads.


def test_a_duration_has_a_positive_number_and_units() -> None:
    for text in ("", "0", "-3s", "2 parsecs", "1h 30", "s", "inf", "nan", "3s5"):
        with pytest.raises(typer.BadParameter, match="expected a positive duration such as 90s, 2m or 1h30m"):
            seconds_of(text)


def test_a_spent_budget_starts_no_cell_and_says_what_is_left(tmp_path: Path) -> None:
    words = [*SMALL, *FEW, "-e", "rloo", "-e", "ste", "-o", tmp_path]
    result = call(*words, "--budget", "1ms")
    assert result.exit_code == 0, result.stderr
    assert "0 cells ok, 0 failed, 0 skipped." in result.stdout
    assert "2 cells left, continue with: structgrad run bias" in result.stdout
    assert results.read(tmp_path)[1]["status"] == "stopped"
    assert "2 cells ok" in call(*words, "--seconds", "0.05").stdout


# Classes and structures of one's own.


@pytest.fixture(scope="module")
def by_workers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder with a user's file whose classes a worker has measured before a failure ended the run; and the output."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "my estimators.py").write_text(MINE)
    words = [*SMALL, *FEW, "--plugin", "my estimators.py", *OWN, "-e", FAILING, "-e", "rloo", "-o", folder / "out"]
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        yield folder, call(*words, "-j", "1", "--fail-fast")
    plugins.use(())


OWN = ("-e", "./my estimators.py:Mine[num_samples=2]", "-e", "mine")


def test_the_class_of_a_file_is_measured_by_workers(by_workers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = by_workers
    monkeypatch.chdir(folder)
    frame, manifest = results.read(folder / "out")
    measured = frame[frame["status"] == "ok"]
    assert manifest["plan"]["plugins"] == ["my estimators.py"]
    assert "--plugin 'my estimators.py'" in manifest["command"]
    assert set(measured["estimator"]) == {"./my estimators.py:Mine[num_samples=2]", "mine"}
    assert set(measured["family"]) == {"mine"}
    before = kept(folder / "out")
    (folder / "my estimators.py").write_text(MINE.replace("version: ClassVar[int] = 1", "version: ClassVar[int] = 2"))
    for name in [name for name in sys.modules if name.startswith("structgrad_file_my estimators")]:
        del sys.modules[name]
    assert call(*SMALL, *FEW, "--plugin", "my estimators.py", *OWN, "-o", "out").exit_code == 0
    after = kept(folder / "out")
    assert len(after) == 2
    assert before.keys().isdisjoint(after)


# What is measured again, and when a run ends early.


def test_cells_are_measured_again_by_name(tmp_path: Path) -> None:
    words = [*SMALL, *FEW, "-e", "rloo", "-e", "ste", "-o", tmp_path]
    assert call(*words).exit_code == 0
    before = kept(tmp_path)
    assert call(*words, "--rerun", "rl*").exit_code == 0
    changed = [identity for identity, seconds in kept(tmp_path).items() if seconds != before[identity]]
    assert [cell.estimators for cell in cells_of(tmp_path) if cell.identity in changed] == [("rloo",)]
    before = kept(tmp_path)
    assert "--rerun got 'rlo', which no cell of this run has; expected failed, or one of" in refused(*words, "--rerun", "rlo")
    assert call(*words, "--rerun", "failed").exit_code == 0
    assert kept(tmp_path) == before


def test_the_first_failure_of_a_worker_ends_a_run_that_is_to_fail_fast(by_workers: Any) -> None:
    _, result = by_workers
    assert result.exit_code == 3, result.output
    assert "2 cells ok, 1 failed, 0 skipped." in result.stdout
    assert "1 cells left, continue with: structgrad run bias" in result.stdout

"""The verbs list and describe, with plugins."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import ORACLES, plugins
from structgrad.reports.verbs.catalogue import KINDS
from structgrad.reports.verbs.describe import facts
from structgrad.suites.measures import SUITES
from structgrad.suites.metrics import METRICS
from structgrad.suites.problems import BUILT_IN_PROBLEMS, LOSSES
from structgrad.suites.running.planning.presets import PRESETS
from structgrad.suites.tasks import TASKS
from tests.covering import sampled
from tests.reports.calling import call, refused

GOOD = "from structgrad.estimators import Reinforce\nclass Mine(Reinforce):\n    'An estimator of a package.'\n    name = 'mine'\n"

Installer = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Installs a package of one module that offers estimators."""

    def installed(source: str, points: str) -> None:
        (tmp_path / "offered_estimators.py").write_text(source)
        information = tmp_path / "offered-1.2.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.2\n")
        (information / "entry_points.txt").write_text(f"[structgrad.estimators]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(__import__("sys").modules, "offered_estimators", raising=False)
        plugins.entry_points.cache_clear()

    yield installed
    plugins.entry_points.cache_clear()


def test_every_kind_is_listed() -> None:
    found = json.loads(call("list", "--json").stdout)
    assert set(found) == set(KINDS)
    assert [record["name"] for record in found["presets"]] == ["quick", "standard", "thorough"]
    assert {record["name"] for record in found["engines"]} == {"local", "ray"}
    assert all(record["description"] for kind, records in found.items() if kind != "plugins" for record in records)
    assert "no plugins" in call("list", "plugins").stdout


def test_the_estimator_of_a_package_is_an_estimator_like_others(install: Installer) -> None:
    install(GOOD, "mine = offered_estimators:Mine")
    assert make_estimator("mine[num_samples=3]").num_samples == 3
    assert "An estimator of a package" in call("list", "estimators", "mine").stdout
    assert "estimator of offered 1.2" in call("list", "plugins").stdout
    assert "class: offered_estimators.Mine" in call("describe", "mine").stdout
    assert "did you mean mine" in refused("describe", "mien")


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ("mine = no_such_module:Mine", "the plugin 'mine' of offered is broken: ModuleNotFoundError: No module named 'no_such_module'"),
        ("mine = offered_estimators:Yours", "the plugin 'mine' of offered is broken: AttributeError"),
        ("mine = offered_estimators:GOOD", "the plugin 'mine' is 'no class'; expected a subclass of Estimator"),
        ("rloo = offered_estimators:Mine", "the plugin 'rloo' is not used: a built-in estimator has this name"),
    ],
)
def test_a_broken_plugin_is_one_line_of_warning(install: Installer, points: str, problem: str) -> None:
    install(GOOD + "GOOD = 'no class'\n", points)
    result = call("list", "estimators")
    assert result.exit_code == 0
    assert [line.startswith(f"warning: {problem}") for line in result.stderr.splitlines()] == [True]
    assert "reinforce" in result.stdout
    (record,) = json.loads(call("list", "plugins", "--json").stdout)
    assert record["broken"]
    assert record["description"].startswith(problem)


def test_a_broken_plugin_that_is_asked_for_is_one_sentence(install: Installer) -> None:
    install("raise RuntimeError('half installed')", "mine = offered_estimators:Mine")
    expected = "error: the plugin 'mine' of offered is broken: RuntimeError: half installed\n"
    assert refused("describe", "mine") == expected
    assert refused("run", "--builtin", "-e", "mine", "--dry-run") == expected


EVERYTHING = [*ESTIMATORS, *ORACLES, *BUILT_IN_PROBLEMS, *TASKS, "task:clusters", "learnt:clusters", *SUITES, *METRICS, *LOSSES, *PRESETS]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_call_in_python_runs(name: str) -> None:
    (found,) = (one for one in facts(name) if one["kind"] == "estimator")
    estimate = eval(found["in_python"], {"make_estimator": make_estimator, "torch": torch})
    assert estimate.isfinite().all()


def test_everything_that_has_a_name_is_described() -> None:
    for name in sampled(EVERYTHING, 60):
        for record in facts(name):
            assert record["kind"]
            assert record["name"] == name
            json.dumps(record, allow_nan=False)

"""What is asked for most often comes at once: help and completion load neither torch nor what makes tables and figures."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import ORACLES
from structgrad.reports.catalogue import listing, names
from structgrad.suites.base import METRICS
from structgrad.suites.measures import SUITES
from structgrad.suites.problems import LOSSES, PROBLEMS, stages_of
from structgrad.suites.running.engines import ENGINES
from structgrad.suites.running.presets import PRESETS
from tests.reports.calling import call

HEAVY = {"torch", "numpy", "pandas", "pyarrow", "scipy", "numba", "matplotlib", "jinja2", "structgrad.oracles", "structgrad.suites"}
SPY = "import sys; from structgrad.reports.cli import main\ntry: main()\nexcept SystemExit: pass\nprint('\\nLOADED', *sys.modules)"


def loaded(*words: str, **variables: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it loads."""
    path = os.pathsep.join([os.getcwd(), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", SPY, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    output, _, modules = done.stdout.partition("\nLOADED ")
    return output, set(modules.split())


@pytest.mark.parametrize("words", [("--help",), ("run", "--help"), ("list", "-h"), ("doctor", "--help"), ("--version",)])
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    output, modules = loaded(*words)
    assert output
    assert not modules & HEAVY


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("structgrad des", {"describe"}),
        ("structgrad run -e reinf", {name for name in ESTIMATORS if name.startswith("reinf")}),
        ("structgrad run --oracle sub", {"subset"}),
        ("structgrad run -p chain", {"chain_regimes"}),
        ("structgrad run un", {"unbiasedness"}),
        ("structgrad run --preset st", {"standard"}),
        ("structgrad list pr", {"problems", "presets"}),
        ("structgrad describe relative_m", {"relative_mse"}),
    ],
)
def test_names_are_completed_without_loading_anything_heavy(typed: str, offered: set[str]) -> None:
    variables = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_STRUCTGRAD_COMPLETE": "complete_bash"}
    code = SPY.replace("main()", "sys.argv[0] = 'structgrad'; main()", 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), **variables},
    )
    output, _, modules = done.stdout.partition("\nLOADED ")
    assert set(output.split()) == offered
    assert not set(modules.split()) & HEAVY


def test_the_completion_of_a_shell_can_be_shown() -> None:
    output, _ = loaded("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default -F" in output


@pytest.mark.parametrize(
    ("kind", "registry"),
    [
        ("estimators", ESTIMATORS),
        ("oracles", ORACLES),
        ("problems", PROBLEMS),
        ("losses", LOSSES),
        ("suites", SUITES),
        ("metrics", METRICS),
        ("engines", ENGINES),
        ("presets", PRESETS),
    ],
)
def test_the_names_that_are_read_are_those_of_the_registries(kind: str, registry: dict[str, object]) -> None:
    assert sorted(names.names(kind)) == sorted(registry)


def test_every_kind_can_be_listed_and_the_stages_are_those_of_the_problems() -> None:
    assert set(listing.SOURCES) == set(names.KINDS)
    assert stages_of("chain_regimes") == names.STAGES


def test_a_misspelt_verb_is_answered_with_the_nearest_one() -> None:
    result = call("descrbe", "rloo")
    assert result.exit_code == 2
    assert "Did you mean 'describe'?" in result.stderr

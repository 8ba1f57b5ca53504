"""What is asked for most often comes at once: help and completion load neither torch nor what makes tables and figures."""

from __future__ import annotations

import json
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

SPY = """
import contextlib, io, json, os, sys
from structgrad.reports.cli import main
outputs = []
for words, variables in json.loads(sys.argv.pop()):
    os.environ |= variables
    sys.argv = ["structgrad", *words]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main()
    outputs.append(shown.getvalue())
print(json.dumps([outputs, [name for name in sys.modules]]))
"""
"""Calls of the command line, one after the other in a fresh interpreter: what each of them prints, and the modules that they load."""

Call = tuple[tuple[str, ...], dict[str, str]]


def spied(*calls: Call) -> tuple[list[str], set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps(calls)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    outputs, modules = json.loads(done.stdout)
    return outputs, set(modules)


def test_help_loads_nothing_heavy() -> None:
    asked = [("--help",), ("run", "--help"), ("list", "-h"), ("doctor", "--help"), ("--version",)]
    outputs, modules = spied(*((words, {}) for words in asked))
    assert not modules & HEAVY
    for words, output in zip(asked, outputs, strict=True):
        assert "structgrad" in output, words


COMPLETED = {
    "structgrad des": {"describe"},
    "structgrad run -e reinf": {name for name in ESTIMATORS if name.startswith("reinf")},
    "structgrad run --oracle sub": {"subset"},
    "structgrad run -p chain": {"chain_regimes"},
    "structgrad run un": {"unbiasedness"},
    "structgrad run --preset st": {"standard"},
    "structgrad list pr": {"problems", "presets"},
    "structgrad describe relative_m": {"relative_mse"},
}


def test_names_are_completed_without_loading_anything_heavy() -> None:
    def completing(typed: str) -> Call:
        return (), {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1), "_STRUCTGRAD_COMPLETE": "complete_bash"}

    outputs, modules = spied(*map(completing, COMPLETED))
    assert {typed: set(output.split()) for typed, output in zip(COMPLETED, outputs, strict=True)} == COMPLETED
    assert not modules & HEAVY


def test_the_completion_of_a_shell_can_be_shown() -> None:
    (output,), _ = spied((("--show-completion", "bash"), {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}))
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

"""Fast starts: help and completion load neither torch nor the libraries of tables and figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from structgrad.estimators import ESTIMATORS
from structgrad.reports.cli import app
from tests.reports.calling import FEW, SMALL, call

HEAVY = {"torch", "numpy", "pandas", "pyarrow", "scipy", "scipy.stats", "numba", "matplotlib", "jinja2"}
HEAVY |= {"structgrad.oracles", "structgrad.estimators", "structgrad.suites.measures"}

TABLES = {"numpy", "pandas", "pyarrow"}

LOADS: dict[str, set[str]] = {
    "--help": set(),
    "run --help": set(),
    "list": set(),
    "init NEW": set(),
    "status RUN": set(),
    "export RUN -o NEW/rows.csv": TABLES,
    "report RUN": {*TABLES, "scipy", "jinja2", "torch", "structgrad.oracles", "structgrad.estimators"},
    "compare RUN RUN": {*TABLES, "scipy"},
}
"""What each command may load of all that takes long. RUN is a finished run, NEW is a new folder."""

SPY = """
import sys
from structgrad.reports.cli import main
sys.argv[0] = 'structgrad'
try: main()
except SystemExit: pass
print('\\nLOADED', *sys.modules)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}


def ran(code: str, *words: str, **variables: str) -> str:
    """The output of Python code in a process of its own."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env={**ENVIRONMENT, **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout


def spied(*words: str, **variables: str) -> tuple[str, set[str]]:
    """The output of a command, and the modules that it loads."""
    output, _, modules = ran(SPY, *words, **variables).partition("\nLOADED ")
    return output, set(modules.split())


FORKS = """
import json, os, sys
from structgrad.reports.cli import app
for words in json.loads(sys.argv[1]):
    if os.fork() == 0:
        out, code = os.dup(1), 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try: app(words, prog_name='structgrad')
        except SystemExit as end: code = end.code or 0
        finally: os.write(out, json.dumps([code, list(sys.modules)]).encode() + b'\\n'); os._exit(0)
    os.wait()
"""
"""Runs commands, each in a process of its own that begins with the command line imported; prints exit codes and modules."""


def test_a_command_loads_what_it_needs_and_no_more(tmp_path: Path) -> None:
    """At its second call."""
    options = [*SMALL, *FEW, "-e", "ste", "-e", "rloo", "--out", str(tmp_path / "run")]

    def words(line: str) -> list[str]:
        return [word.replace("NEW", str(tmp_path / "new")).replace("RUN", str(tmp_path / "run")) for word in line.split()]

    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for first in (options, ["list"], ["init", str(tmp_path / "new")]):
        assert CliRunner().invoke(app, first, env=cache).exit_code == 0
    answers = [json.loads(line) for line in ran(FORKS, json.dumps(list(map(words, LOADS))), **cache).splitlines()]
    assert [code for code, _ in answers] == [0] * len(LOADS)
    assert {line: HEAVY & set(modules) for line, (_, modules) in zip(LOADS, answers, strict=True)} == LOADS


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("structgrad des", {"describe"}),
        ("structgrad run -e reinf", {name for name in ESTIMATORS if name.startswith("reinf")}),
        ("structgrad run -p chain", {"chain_regimes"}),
        ("structgrad describe relative_m", {"relative_mse"}),
    ],
)
def test_names_are_completed_without_loading_anything_heavy(typed: str, offered: set[str]) -> None:
    assert call("list", "presets").exit_code == 0  # the first completion after a change of the code reads the registries
    output, modules = spied(COMP_WORDS=typed, COMP_CWORD=str(len(typed.split()) - 1), _STRUCTGRAD_COMPLETE="complete_bash")
    assert set(output.split()) == offered
    assert not modules & HEAVY

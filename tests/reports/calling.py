"""Calling the command line in this process."""

import pytest
from typer.testing import CliRunner, Result

from structgrad.reports import page
from structgrad.reports.cli import app

SMALL = ["run", "bias", "--builtin", "-j", "0", "-p", "categorical_regimes", "--stage", "init", "--loss", "own", "--instances", "1"]
FEW = ["--replicates", "64", "--max-replicates", "64"]
"""A run of a moment."""


def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write next to nothing in the place of their page, which takes longer than a small measurement."""
    monkeypatch.setattr(page, "to_html", lambda frame, manifest: "<!DOCTYPE html>")


def call(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def refused(*words: object, code: int = 2) -> str:
    """The one line on standard error of a call that is refused."""
    result = call(*words)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert result.stderr.count("\n") == 1, result.stderr
    return str(result.stderr)

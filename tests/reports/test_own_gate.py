"""The gate of this repository on itself: its baseline covers every estimator, and one estimator of it is measured again here."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.oracles import Categorical
from structgrad.reports.analysis.loading import Loaded, load
from structgrad.suites.base import Row
from structgrad.suites.comparison import GateResult, gate
from structgrad.suites.comparison.settings import load_settings
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
from tests.suites.comparison.rows import Change, failing

FOLDER = Path(__file__).parents[2] / ".ci"
RENEW = "python .ci/measure.py /tmp/own && structgrad baseline save baseline /tmp/own --dir .ci --replace"
NAMES = ("rloo", "ste", "arsm", "sparsemap_marginalisation")


@pytest.fixture(scope="module")
def baseline() -> Loaded:
    return load(str(FOLDER / "baseline.parquet"))


def test_every_estimator_has_bias_variance_and_sparsity_in_the_baseline(baseline: Loaded) -> None:
    for metric in ("relative_bias", "gain", "relative_variance", "support", "gradient_nonzeros"):
        found = set(baseline.frame.loc[baseline.frame["metric"].eq(metric) & baseline.frame["status"].eq("ok"), "family"])
        assert found == set(ESTIMATORS), f"{metric}: renew the baseline with {RENEW}"


def test_the_baseline_is_small_and_free_of_broken_claims(baseline: Loaded) -> None:
    assert (FOLDER / "baseline.parquet").stat().st_size < 1_000_000
    assert gate(baseline.frame, baseline.frame, settings=load_settings(FOLDER / "gate.toml")).outcome == "passed"


def measured(folder: Path) -> list[Row]:
    """A few estimators on the first problem, exactly as `.ci/measure.py` does it."""
    spec = importlib.util.spec_from_file_location("measure", FOLDER / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plan = dataclasses.replace(module.SMALL, problems=("categorical_regimes",), estimators=NAMES)
    return run(plan, folder, machine=Machine(jobs=0))


def judged(baseline: Loaded, rows: list[Row]) -> GateResult:
    frame = baseline.frame
    part = frame[frame["estimator"].isin(NAMES) & frame["problem"].eq("categorical_regimes")]
    return gate(part, rows, (baseline.machine, baseline.machine), load_settings(FOLDER / "gate.toml"))


def test_the_code_still_gives_the_numbers_of_the_baseline(baseline: Loaded, tmp_path: Path) -> None:
    result = judged(baseline, measured(tmp_path))
    assert failing(result) == set(), f"if the numbers were meant to change: {RENEW}"
    assert result.outcome == "passed"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"rloo": Change(scale=0.98), "ste": Change(scale=0.98), "arsm": Change(spread=1.2)}, {"rloo", "ste", "arsm"})],
)
def test_an_injected_change_fails(
    changes: Mapping[str, Change], expected: set[str], baseline: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, change in changes.items():
        monkeypatch.setitem(ESTIMATORS, name, lambda kind=ESTIMATORS[name], change=change: change.planted(kind(), Categorical()))
    result = judged(baseline, measured(tmp_path))
    assert result.outcome == "failed"
    assert {estimator for estimator, _ in failing(result)} == expected

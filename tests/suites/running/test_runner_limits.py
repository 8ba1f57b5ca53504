"""A problem too large to enumerate: nothing fails, what is skipped is foretold, and the rest is measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from structgrad.suites.measures.bias import Bias
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.problems.losses import LOSSES
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running.planning.estimates import enumeration_seconds
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.runner import run
from structgrad.suites.truth.closed_form import law_alone
from tests.suites.running_cases import HERE

LARGE = {"spanning_tree": (13, 13), "assignment": (25, 25), "subset[k=40]": (80,), "linear_chain": (20, 4, 4)}
SUITES = ("bias", "unbiasedness", "sparsity", "descent")
FORMED = {"linear", "squared_distance", "squared_distance_linear", "quadratic", "hamming", "exact_match", "f1", "f1_multilinear"}
"""Losses whose exact gradient has a closed form on trees."""


def plan(folder: Path, oracle: str, loss: str, estimators: tuple[str, ...], suites: tuple[str, ...] = SUITES) -> Plan:
    path = folder / "large.npz"
    np.savez(path, scores=np.random.default_rng(0).normal(size=(1, *LARGE[oracle])))
    effort = Effort(replicates=64, most_replicates=64, seconds=0.2, cap=1000, rounds=3)
    return Plan(suites=suites, file=ScoreFile(str(path), oracle, loss=loss), estimators=estimators, effort=effort)


@pytest.mark.parametrize("loss", [name for name in LOSSES if name != "downstream"])
def test_every_loss_on_large_trees(loss: str, tmp_path: Path) -> None:
    large = plan(tmp_path, "spanning_tree", loss, ("exact", "reinforce"))
    foretold = grid(large)
    assert {row.estimator for row in foretold.skips if not row.suite} == {"exact"}
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}
    skipped = {row.suite for row in rows if row.status == "skipped" and row.estimator == "reinforce"}
    assert skipped == {limit.suite for limit in foretold.limits}
    assert skipped == {"descent"} | (set() if loss in FORMED else {"bias", "unbiasedness"})
    metrics = {row.metric for row in rows if row.suite == "bias" and row.value is not None}
    assert ("relative_bias" if loss in FORMED else "absolute_variance") in metrics
    assert {"support", "gradient_nonzeros"} <= {row.metric for row in rows if row.suite == "sparsity" and row.value is not None}


@pytest.mark.parametrize(("oracle", "loss"), [("assignment", "hamming"), ("subset[k=40]", "mlp"), ("linear_chain", "black_box")])
def test_other_structures(oracle: str, loss: str, tmp_path: Path) -> None:
    large = plan(tmp_path, oracle, loss, ("exact", "reinforce", "perturb_and_map", "imle", "ste"))
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}, {row.reason for row in rows if row.status not in ("ok", "skipped")}
    assert any(row.metric == "absolute_variance" and row.value is not None for row in rows)


def test_the_strict_mode_bets_on_nothing_that_it_would_have_to_enumerate(tmp_path: Path) -> None:
    large = plan(tmp_path, "subset[k=40]", "linear", ("reinforce",), ("unbiasedness",))
    rows = run(dataclasses.replace(large, effort=dataclasses.replace(large.effort, strict=True)), tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} == {"ok"}
    assert "bias_p_value" in {row.metric for row in rows}
    assert "bias_e_value" not in {row.metric for row in rows}


def test_times_are_taken_of_what_has_no_exact_gradient(tmp_path: Path) -> None:
    large = plan(tmp_path, "spanning_tree", "mlp", ("exact", "reinforce"), ("wall_clock",))
    rows = run(dataclasses.replace(large, batch_size=128), tmp_path / "out", machine=HERE)
    assert {row.status for row in rows if row.estimator == "reinforce"} == {"ok"}


def test_the_variance_is_that_of_replicates_against_a_known_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same estimates, with and without a truth to compare with."""
    known = plan(tmp_path, "subset[k=40]", "linear", ("reinforce",), ("bias",))
    found = {row.metric: row.value for row in run(known, tmp_path / "known", machine=HERE) if row.status == "ok" and not row.setting}
    monkeypatch.setattr(Bias, "limitation", lambda *unused: "not asked")
    monkeypatch.setattr(Context, "law", lambda self, problem, instance: law_alone(problem.oracle, instance.scores))
    bare = {row.metric: row.value for row in run(known, tmp_path / "bare", machine=HERE) if row.status == "ok" and not row.setting}
    assert bare["absolute_variance"] == pytest.approx(found["relative_variance"] * found["truth_norm"] ** 2, rel=1e-9)
    assert bare["snr"] == pytest.approx(found["snr"], rel=1e-9)
    assert "relative_bias" not in bare


@pytest.mark.parametrize("name", ["unordered_set", "importance_weighted_set", "sum_and_sample"])
@pytest.mark.parametrize("oracle", ["linear_chain", "spanning_tree", "subset[k=40]"])
def test_sets_that_an_oracle_draws_are_not_planned_as_passes_over_all_structures(name: str, oracle: str, tmp_path: Path) -> None:
    large = plan(tmp_path, oracle, "linear", (name,), ("bias",))
    (cell,) = grid(large).cells
    assert enumeration_seconds(large, cell) == 0

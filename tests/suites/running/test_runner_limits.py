"""A problem too large to enumerate: nothing fails, the plan lists skipped pairs, and the rest is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from structgrad.suites.measures.suite import Effort
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE

LARGE = {"spanning_tree": (13, 13), "assignment": (25, 25), "subset[k=40]": (80,), "linear_chain": (20, 4, 4)}
SUITES = ("bias", "sparsity", "descent")


def plan(folder: Path, oracle: str, loss: str, estimators: tuple[str, ...], suites: tuple[str, ...] = SUITES) -> Plan:
    path = folder / "large.npz"
    np.savez(path, scores=np.random.default_rng(0).normal(size=(1, *LARGE[oracle])))
    effort = Effort(replicates=64, most_replicates=64, seconds=0.2, cap=1000, rounds=3)
    return Plan(suites=suites, file=ScoreFile(str(path), oracle, loss=loss), estimators=estimators, effort=effort)


@pytest.mark.parametrize("loss", ["squared_distance", "mlp"])
def test_every_loss_on_large_trees(loss: str, tmp_path: Path) -> None:
    large = plan(tmp_path, "spanning_tree", loss, ("exact", "reinforce"))
    foretold = grid(large)
    assert {row.estimator for row in foretold.skips if not row.suite} == {"exact"}
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}
    skipped = {row.suite for row in rows if row.status == "skipped" and row.estimator == "reinforce"}
    assert skipped == {"descent"} | (set() if loss == "squared_distance" else {"bias"})
    metrics = {row.metric for row in rows if row.suite == "bias" and row.value is not None}
    assert ("relative_bias" if loss == "squared_distance" else "absolute_variance") in metrics
    assert {"support", "gradient_nonzeros"} <= {row.metric for row in rows if row.suite == "sparsity" and row.value is not None}


@pytest.mark.parametrize(("oracle", "loss"), [("assignment", "hamming"), ("subset[k=40]", "mlp"), ("linear_chain", "black_box")])
def test_other_structures(oracle: str, loss: str, tmp_path: Path) -> None:
    large = plan(tmp_path, oracle, loss, ("exact", "reinforce", "perturb_and_map", "imle", "ste"))
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}, {row.reason for row in rows if row.status not in ("ok", "skipped")}
    assert any(row.metric == "absolute_variance" and row.value is not None for row in rows)

"""Plans, cells and the runner: what is measured, kept, resumed and refused."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import Reinforce
from structgrad.oracles import Subset, make_oracle
from structgrad.suites.base import Row
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running import cells, plan, runner
from structgrad.suites.running.plan import Plan, estimator_names, grid
from structgrad.suites.running.runner import run

SMALL = Plan(
    problems=("categorical_regimes",),
    stages=("init",),
    estimators=("reinforce", "imle", "sparsemap"),
    instances=2,
    replicates=256,
    jobs=0,
    timing=False,
)


class Failing(Reinforce):
    """An estimator with a mistake in it."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        raise RuntimeError("a mistake")


class Hanging(Reinforce):
    """An estimator that never comes back."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        time.sleep(600)
        return scores


class Dying(Reinforce):
    """An estimator that takes its process with it."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        os._exit(7)


def test_rows_cover_the_grid(tmp_path):
    rows = run(SMALL, tmp_path)
    assert {(row.estimator, row.instance) for row in rows} == {(name, item) for name in SMALL.estimators for item in instances(rows)}
    assert len(instances(rows)) == 2
    assert all(row.status == "ok" and row.value is not None for row in rows)
    verdicts = {(row.estimator, row.verdict) for row in rows if row.metric == "relative_bias"}
    assert verdicts >= {("reinforce", "unbiased-exact"), ("sparsemap", "biased")}


def instances(rows: list[Row]) -> set[str]:
    return {row.instance for row in rows}


def test_timings_are_rows_of_the_whole_problem(tmp_path):
    rows = [row for row in run(dataclasses.replace(SMALL, timing=True), tmp_path) if row.kind == "timing"]
    assert {row.metric for row in rows} == {"forward_time", "backward_time", "time_ratio", "peak_memory"}
    assert {row.estimator for row in rows} == set(SMALL.estimators)
    assert all(row.instance == "" and row.value > 0 for row in rows)
    assert {row.unit for row in rows if row.metric.endswith("_time")} == {"s"}
    batch = 32 * 10 * 8
    assert all(batch < row.value < 1000 * batch and row.unit == "B" for row in rows if row.metric == "peak_memory")


def comparable(rows: list[Row]) -> list[Row]:
    return [dataclasses.replace(row, cell="") for row in rows if row.kind != "timing"]


def test_twice_is_identical(tmp_path):
    assert comparable(run(SMALL, tmp_path / "a")) == comparable(run(SMALL, tmp_path / "b"))


def test_workers_change_no_number(tmp_path):
    here = run(SMALL, tmp_path / "a")
    workers = run(dataclasses.replace(SMALL, jobs=2), tmp_path / "b")
    assert comparable(here) == comparable(workers)


def test_batch_size_changes_no_number_and_no_identity(tmp_path):
    rows = run(SMALL, tmp_path / "a")
    other = run(dataclasses.replace(SMALL, batch_size=128), tmp_path / "b")
    assert [row.cell for row in rows] == [row.cell for row in other]
    for one, two in zip(rows, other, strict=True):
        assert one.value == pytest.approx(two.value, rel=1e-12, abs=1e-14)


def test_finished_cells_are_not_measured_again(tmp_path, monkeypatch):
    first = run(SMALL, tmp_path)
    monkeypatch.setattr(runner, "execute", lambda *rest: pytest.fail("measured again"))
    seen = []
    assert run(SMALL, tmp_path, progress=lambda done, total, label: seen.append((done, total))) == first
    assert seen == [(3, 3)]


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    real, done = cells.execute, []

    def killed_after_two(plan, cell, directory):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(cell.identity)
        real(plan, cell, directory)

    monkeypatch.setattr(runner, "execute", killed_after_two)
    with pytest.raises(KeyboardInterrupt):
        run(SMALL, tmp_path)
    left = []
    monkeypatch.setattr(runner, "execute", lambda plan, cell, directory: (left.append(cell.identity), real(plan, cell, directory)))
    resumed = run(SMALL, tmp_path)
    assert len(left) == 1
    assert left[0] not in done
    monkeypatch.undo()
    assert comparable(resumed) == comparable(run(SMALL, tmp_path / "whole"))


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"replicates": 512}, {"instances": 3}, {"loss": "linear"}, {"dtype": "float32"}, {"tier": "mc"}]
)
def test_what_moves_numbers_moves_the_identity(change):
    before, after = ({cell.identity for cell in grid(p).cells} for p in (SMALL, dataclasses.replace(SMALL, **change)))
    assert before.isdisjoint(after)


def test_an_error_becomes_a_row(tmp_path):
    rows = run(dataclasses.replace(SMALL, estimators=(f"{__name__}:Failing", "reinforce")), tmp_path)
    failed = [row for row in rows if row.status != "ok"]
    assert [(row.status, row.reason) for row in failed] == [("error", "RuntimeError: a mistake")]
    assert any(row.estimator == "reinforce" and row.status == "ok" for row in rows)


def test_a_failed_cell_is_measured_again(tmp_path):
    broken = dataclasses.replace(SMALL, estimators=(f"{__name__}:Failing",))
    run(broken, tmp_path)
    assert cells.finished_rows(tmp_path, grid(broken).cells[0]) is None


@pytest.mark.parametrize(("name", "status", "reason"), [("Hanging", "timeout", "longer than 6 s"), ("Dying", "error", "exit code 7")])
def test_a_worker_that_hangs_or_dies_costs_its_cell_alone(tmp_path, monkeypatch, name, status, reason):
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    rows = run(dataclasses.replace(SMALL, estimators=(f"tests.suites.test_runner:{name}", "sparsemap"), jobs=1, timeout=6.0), tmp_path)
    failed = [row for row in rows if row.status != "ok"]
    assert [row.status for row in failed] == [status]
    assert reason in failed[0].reason
    assert any(row.estimator == "sparsemap" for row in rows)


def test_pairs_that_do_not_fit_are_rows_with_their_reason(tmp_path):
    rows = run(dataclasses.replace(SMALL, estimators=("reinforce", "ste"), loss="black_box"), tmp_path)
    skips = [row for row in rows if row.kind == "skip"]
    assert [(row.estimator, row.status) for row in skips] == [("ste", "skipped")]
    assert skips[0].reason == "ste needs gradients of the loss, and the loss black_box gives values only"


def test_cells_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    cells.write_atomically(tmp_path / "cell.json", "old")
    monkeypatch.setattr(os, "replace", lambda *rest: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        cells.write_atomically(tmp_path / "cell.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["cell.json"]
    assert (tmp_path / "cell.json").read_text() == "old"


def test_a_cell_file_says_what_it_is(tmp_path):
    run(SMALL, tmp_path)
    stored = json.loads(next((tmp_path / "cells").glob("*.json")).read_text())
    assert stored["cell"]["kind"] == "moments"
    assert stored["rows"][0]["schema_version"] == 1


def test_a_shape_that_is_out_of_reach_is_a_skip():
    found = grid(Plan(problems=("categorical_regimes",), stages=("init",), estimators=("arm", "arsm"), timing=False))
    assert [cell.estimators for cell in found.cells] == [("arsm",)]
    assert [row.reason for row in found.skips] == ["arm needs bits, which are categories of two parts, and these have 10"]


def test_patterns_and_options():
    assert estimator_names(("spigot*", "imle[lambda=2.5]")) == ("spigot", "spigot_steps", "spigot_ce", "spigot_eg", "imle[lambda=2.5]")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimators": ("reinforse",)}, r"unknown estimator 'reinforse'; did you mean reinforce"),
        ({"estimators": ("zzz*",)}, r"unknown estimator 'zzz\*'; expected one of exact"),
        ({"problems": ("taging_coarse5",)}, r"unknown problem 'taging_coarse5'; did you mean tagging_coarse5"),
        ({"stages": ("finale",)}, r"unknown stage 'finale'; did you mean final"),
        ({"loss": "quadratik"}, r"unknown loss 'quadratik'; did you mean quadratic"),
        ({"dtype": "float16x"}, r"unknown dtype 'float16x'; did you mean"),
        ({"device": "warp"}, r"device='warp', which is not at hand"),
        ({"instances": 0}, r"instances=0; expected at least 1"),
        ({"replicates": 3}, r"replicates=3; expected at least 64"),
        ({"jobs": -1}, r"jobs=-1, timeout=300.0; expected jobs >= 0"),
    ],
)
def test_refuses_what_cannot_be_measured(change, message):
    with pytest.raises(ValueError, match=message):
        grid(dataclasses.replace(SMALL, **change))


def test_refuses_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot write results to .*file.* choose another folder with --out"):
        run(SMALL, tmp_path / "file" / "below")


def test_a_user_s_own_score_file(tmp_path):
    scores = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0)).numpy()
    np.savez(tmp_path / "mine.npz", unary=scores, transition=np.zeros((3, 3)))
    own = dataclasses.replace(SMALL, problems=(), file=ScoreFile(str(tmp_path / "mine.npz"), scores="unary", transition="transition"))
    rows = run(own, tmp_path / "out")
    assert {(row.problem, row.stage, row.oracle) for row in rows} == {("mine", "file", "linear_chain")}
    assert len(instances(rows)) == 3


def test_oracle_names_read_back():
    assert plan.oracle_name(Subset(3)) == "subset[k=3]"
    assert make_oracle(plan.oracle_name(Subset(3))) == Subset(3)

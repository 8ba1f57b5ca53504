"""Cells and the runner: devices, large problems, derived rows, resuming, and refusals."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from structgrad.reports import results
from structgrad.suites.base import Row
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.suite import Effort
from structgrad.suites.problems.score_files import ScoreFile
from structgrad.suites.running import runner
from structgrad.suites.running.engines import local
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.runner import WORK, adjusted, run, work_rows
from tests.suites.running_cases import HERE, SMALL


def test_suites_that_measure_side_by_side_share_a_cell(tmp_path):
    rows = run(dataclasses.replace(SMALL, suites=("wall_clock", "memory")), tmp_path, machine=HERE)
    times = [row for row in rows if row.suite == "wall_clock"]
    assert len({row.cell for row in times}) == 1
    assert len({row.cell for row in rows if row.suite == "memory"}) == 3
    assert {row.metric for row in times} >= {"forward_time", "backward_time", "time_ratio"}
    assert {row.estimator for row in times} == set(SMALL.estimators)
    assert {row.unit for row in times if row.metric.endswith("_time")} == {"s"}
    assert all(row.value > 0 for row in times)


def test_batch_size_changes_no_number_and_no_identity(tmp_path):
    rows = run(SMALL, tmp_path / "a", machine=HERE)
    other = run(dataclasses.replace(SMALL, batch_size=128), tmp_path / "b", machine=HERE)
    assert [row.cell for row in rows] == [row.cell for row in other]
    for one, two in zip(rows, other, strict=True):
        assert one.value is two.value or one.value == pytest.approx(two.value, rel=1e-12, abs=1e-14)


def test_finished_cells_are_not_measured_again(tmp_path, monkeypatch):
    first = run(SMALL, tmp_path, machine=HERE)
    monkeypatch.setattr(runner, "execute", lambda *rest: pytest.fail("measured again"))
    seen = []
    assert run(SMALL, tmp_path, machine=HERE, progress=seen.append) == first
    assert [(snapshot.finished, snapshot.total, snapshot.label) for snapshot in seen] == [(3, 3, "resumed")]


def test_a_suite_gets_a_scratch_folder_that_is_gone_when_its_cell_is_done(tmp_path, monkeypatch):
    seen = []

    class Watched(SUITES["sparsity"]):
        def findings(self, problem, estimators, context):
            context.scratch.mkdir(parents=True)
            (context.scratch / "checkpoint").touch()
            seen.append(context.scratch)
            yield from super().findings(problem, estimators, context)

    monkeypatch.setitem(SUITES, "sparsity", Watched)
    run(dataclasses.replace(SMALL, suites=("sparsity",), estimators=("ste", "rloo")), tmp_path, machine=HERE)
    assert len(set(seen)) == 2
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine(engine="ray", gpus=math.nan), "gpus=nan; expected a share above 0 and at most 1: a cell computes on one GPU"),
        (Machine(engine="ray", gpus=0.5), "gpus=0.5 and device='cpu', which takes no GPU; choose --device cuda, or leave it out"),
        (Machine(jobs=-1), r"jobs=-1, timeout=None; expected 0 to 4,096 jobs"),
        (Machine(timeout=0.0), r"timeout=0.0; expected 0 to 4,096 jobs and positive seconds"),
    ],
)
def test_refuses_a_machine_that_cannot_be(tmp_path, machine, message):
    with pytest.raises(ValueError, match=message):
        run(SMALL, tmp_path, machine=machine)
    assert not any(tmp_path.iterdir())


LARGE = {"spanning_tree": (13, 13), "assignment": (25, 25), "subset[k=40]": (80,), "linear_chain": (20, 4, 4)}
LIMITED = ("bias", "sparsity", "descent")


def large_plan(folder: Path, oracle: str, loss: str, estimators: tuple[str, ...], suites: tuple[str, ...] = LIMITED) -> Plan:
    path = folder / "large.npz"
    np.savez(path, scores=np.random.default_rng(0).normal(size=(1, *LARGE[oracle])))
    effort = Effort(replicates=64, most_replicates=64, seconds=0.2, cap=1000, rounds=3)
    return Plan(suites=suites, file=ScoreFile(str(path), oracle, loss=loss), estimators=estimators, effort=effort)


@pytest.mark.parametrize("loss", ["squared_distance", "mlp"])
def test_every_loss_on_large_trees(loss: str, tmp_path: Path) -> None:
    large = large_plan(tmp_path, "spanning_tree", loss, ("exact", "reinforce"))
    planned = grid(large)
    assert {row.estimator for row in planned.skips if not row.suite} == {"exact"}
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}
    skipped = {row.suite for row in rows if row.status == "skipped" and row.estimator == "reinforce"}
    assert skipped == {"descent"} | (set() if loss == "squared_distance" else {"bias"})
    metrics = {row.metric for row in rows if row.suite == "bias" and row.value is not None}
    assert ("relative_bias" if loss == "squared_distance" else "absolute_variance") in metrics
    assert {"support", "gradient_nonzeros"} <= {row.metric for row in rows if row.suite == "sparsity" and row.value is not None}


@pytest.mark.parametrize(("oracle", "loss"), [("assignment", "hamming"), ("subset[k=40]", "mlp"), ("linear_chain", "black_box")])
def test_other_structures(oracle: str, loss: str, tmp_path: Path) -> None:
    large = large_plan(tmp_path, oracle, loss, ("exact", "reinforce", "perturb_and_map", "imle", "ste"))
    rows = run(large, tmp_path / "out", machine=HERE)
    assert {row.status for row in rows} <= {"ok", "skipped"}, {row.reason for row in rows if row.status not in ("ok", "skipped")}
    assert any(row.metric == "absolute_variance" and row.value is not None for row in rows)


BLANK = Row("cell", "bias", "p", "s", "", "o", "l", "reinforce", "reinforce", instance="i", reference="expected", log_count=3.0)


ROWS = [
    dataclasses.replace(BLANK, estimator=name, metric=metric, value=1.0)
    for name in ("reinforce", "ste_marginals")
    for metric in ("gain", "rho")
]


def test_p_values_are_adjusted_over_the_tests_of_a_suite_and_one_test_counts_once():
    tests = [dataclasses.replace(BLANK, cell=str(i), p_value=p, metric="relative_bias") for i, p in enumerate((0.01, 0.04, 0.03))]
    again = dataclasses.replace(tests[0], metric="gain")
    other = dataclasses.replace(tests[0], suite="sparsity", p_value=0.02)
    found = adjusted([*tests, again, other, BLANK])
    assert [row.p_adjusted for row in found] == [pytest.approx(p) for p in (0.03, 0.06, 0.06, 0.03, 0.02)] + [None]
    assert [row.p_value for row in found[:3]] == [0.01, 0.04, 0.03]


def test_a_structure_and_the_gradient_of_its_loss_count_as_three_evaluations():
    rows = list(work_rows(ROWS))
    assert [(row.estimator, row.metric, row.value) for row in rows] == [
        ("reinforce", "loss_evaluations", 1),
        ("ste_marginals", "loss_evaluations", 3),
    ]
    assert {(row.suite, row.cell, row.instance, row.stage) for row in rows} == {(WORK, "", "i", "s")}


CUDA = dataclasses.replace(SMALL, device="cuda:1")


def test_the_number_of_a_device_changes_no_identity_and_workers_share_its_memory() -> None:
    plans = [dataclasses.replace(SMALL, device=name) for name in ("cuda", "cuda:1", "cpu")]
    assert [cell.identity for cell in grid(plans[0]).cells] == [cell.identity for cell in grid(plans[1]).cells]
    hashes = [results.plan_hash(dataclasses.asdict(plan)) for plan in plans]
    assert hashes[0] == hashes[1] != hashes[2]
    worker = local.LocalEngine(CUDA, Machine(jobs=3), Path("unused"), lambda cell: 60.0).start_worker(0)
    assert (worker.config.name, worker.config.sharing) == ("worker 1", 3)  # type: ignore[attr-defined]

"""Cells and the runner: measuring, storing, resuming and refusing."""

from __future__ import annotations

import dataclasses
import math

import pytest

from structgrad.suites.measures import SUITES
from structgrad.suites.running import runner
from structgrad.suites.running.planning.plan import Machine
from structgrad.suites.running.runner import run
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

"""Numbers of workers on a device, and their shares of its memory."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from structgrad.reports import results
from structgrad.reports.verbs.run.launch import lines, outline
from structgrad.suites.running import cells
from structgrad.suites.running.engines import local
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import CORES, Machine, Plan, default_jobs
from tests.suites.running_cases import SMALL

CUDA = dataclasses.replace(SMALL, device="cuda:1")


def test_the_number_of_a_device_changes_no_identity_and_workers_share_its_memory() -> None:
    plans = [dataclasses.replace(SMALL, device=name) for name in ("cuda", "cuda:1", "cpu")]
    assert [cell.identity for cell in grid(plans[0]).cells] == [cell.identity for cell in grid(plans[1]).cells]
    hashes = [results.plan_hash(dataclasses.asdict(plan)) for plan in plans]
    assert hashes[0] == hashes[1] != hashes[2]
    worker = local.LocalEngine(CUDA, Machine(jobs=3), Path("unused"), lambda cell: 60.0).start_worker(0)
    assert (worker.config.name, worker.config.sharing) == ("worker 1", 3)  # type: ignore[attr-defined]


def test_what_a_cell_calls_cuda_is_the_device_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda name: (entered.append(name), nullcontext())[1])
    monkeypatch.setattr(cells, "_measured", lambda plan, cell, context: [plan.device, context.device])
    monkeypatch.setattr(cells, "encode", lambda rows, seconds: rows)
    for name in ("cuda:1", "cuda", "cpu"):
        assert cells.execute(dataclasses.replace(SMALL, device=name), grid(SMALL).cells[0]) == [name, name]
    assert entered == ["cuda:1"]


def test_a_device_has_one_worker_unless_more_are_asked_for() -> None:
    assert default_jobs(SMALL) == CORES
    assert default_jobs(dataclasses.replace(SMALL, threads=2 * CORES)) == default_jobs(CUDA) == 1


@pytest.mark.parametrize(
    ("plan", "machine", "said"),
    [
        (SMALL, Machine(jobs=2), "2 workers"),
        (CUDA, Machine(jobs=3), "3 workers on one device"),
        (CUDA, Machine(jobs=0), "this process alone on one device"),
        (dataclasses.replace(SMALL, device="cuda"), Machine(jobs=3, engine="ray"), "3 workers"),
    ],
)
def test_the_plan_says_how_many_workers_compute_where(plan: Plan, machine: Machine, said: str) -> None:
    told = list(lines(outline(plan, grid(SMALL), machine, "quick", ""), plan, machine, skips=False))
    assert any(f"with {said}, " in line for line in told)
    assert any(line.endswith(f"float64 on {plan.device}") for line in told)
    # A device has a memory of its own for launches.
    large = outline(dataclasses.replace(plan, batch_size=10**9), grid(SMALL), machine, "quick", "")["bytes"]
    assert large > 1e12 if plan.device == "cpu" else large < 2e9

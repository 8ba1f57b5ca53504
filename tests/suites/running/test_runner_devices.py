"""Cells are distributed over the devices of a plan, and results do not depend on the device; ``cpu:1`` is the CPU in torch."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from structgrad.reports import results
from structgrad.reports.verbs.run.dry_run import lines, outline
from structgrad.suites.running import cells
from structgrad.suites.running.engines import local
from structgrad.suites.running.planning import plan as planning
from structgrad.suites.running.planning.grid import grid
from structgrad.suites.running.planning.plan import CORES, Machine, Plan, default_jobs
from structgrad.suites.running.progress import Snapshot
from structgrad.suites.running.runner import run
from tests.suites.running_cases import HERE, SMALL, comparable

CUDA = dataclasses.replace(SMALL, device="cuda:0,cuda:1")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan for two devices, which are both the CPU."""
    monkeypatch.setattr(planning, "_ONE", r"cpu(:\d+)?")
    monkeypatch.setattr(planning, "_OF_SEVERAL", r"cpu:\d+")
    return dataclasses.replace(SMALL, device="cpu:0,cpu:1")


def test_two_devices_give_the_numbers_of_one(pretended: Plan, tmp_path: Path) -> None:
    seen: list[Snapshot] = []
    there = run(pretended, tmp_path / "there", machine=Machine(jobs=2), progress=seen.append)
    here = run(SMALL, tmp_path / "here", machine=HERE)
    assert comparable(there) == comparable(here)
    workers = {busy.worker for snapshot in seen for busy in snapshot.busy}
    assert workers == {"worker 1 on cpu:0", "worker 2 on cpu:1"}


def test_what_was_measured_on_one_device_is_not_measured_again_on_two(pretended: Plan, tmp_path: Path) -> None:
    assert [cell.identity for cell in grid(pretended).cells] == [cell.identity for cell in grid(SMALL).cells]
    run(SMALL, tmp_path, machine=HERE)
    seen: list[Snapshot] = []
    run(pretended, tmp_path, machine=Machine(jobs=2), progress=seen.append)
    assert [(snapshot.finished, snapshot.total) for snapshot in seen] == [(3, 3)]
    settings = [{"device": device, "seed": 0} for device in ("cuda", "cuda:1", "cuda:0,cuda:1", "cpu")]
    assert len({results.plan_hash(plan) for plan in settings[:3]}) == 1
    assert results.plan_hash(settings[3]) != results.plan_hash(settings[0])


def test_every_worker_has_one_device_and_shares_its_memory_with_its_neighbours() -> None:
    engine = local.LocalEngine(CUDA, Machine(jobs=3), Path("unused"), lambda cell: 60.0)
    configs = [engine.start_worker(place).config for place in range(3)]  # type: ignore[attr-defined]
    assert [(config.plan.device, config.sharing) for config in configs] == [("cuda:0", 2), ("cuda:1", 1), ("cuda:0", 2)]
    alone = local.LocalEngine(SMALL, Machine(jobs=1), Path("unused"), lambda cell: 60.0).start_worker(0)
    assert (alone.config.name, alone.config.plan) == ("worker 1", SMALL)  # type: ignore[attr-defined]


def test_what_a_cell_calls_cuda_is_the_device_of_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    monkeypatch.setattr(torch.cuda, "device", lambda name: (entered.append(name), nullcontext())[1])
    monkeypatch.setattr(cells, "_measured", lambda plan, cell, context: [plan.device, context.device])
    monkeypatch.setattr(cells, "replace", lambda row, **changes: row if isinstance(row, str) else dataclasses.replace(row, **changes))
    monkeypatch.setattr(cells, "encode", lambda rows, seconds: rows)
    found = [cells.execute(dataclasses.replace(SMALL, device=name), grid(SMALL).cells[0]) for name in ("cuda:1,cuda:0", "cuda", "cpu")]
    assert found == [["cuda:1"] * 2, ["cuda"] * 2, ["cpu"] * 2]
    assert entered == ["cuda:1"]


def test_a_device_has_one_worker_unless_more_are_asked_for() -> None:
    assert default_jobs(SMALL) == CORES
    assert default_jobs(dataclasses.replace(SMALL, threads=2 * CORES)) == 1
    assert [default_jobs(dataclasses.replace(SMALL, device=name)) for name in ("cuda", "cuda:1", "cuda:0,cuda:1")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("plan", "machine", "said"),
    [
        (SMALL, Machine(jobs=2), "2 workers"),
        (dataclasses.replace(SMALL, device="cuda"), Machine(jobs=1), "1 worker on one device"),
        (dataclasses.replace(SMALL, device="cuda"), Machine(jobs=3), "3 workers on one device"),
        (dataclasses.replace(SMALL, device="cuda"), Machine(jobs=0), "this process alone on one device"),
        (CUDA, Machine(jobs=2), "2 workers on 2 devices"),
        (dataclasses.replace(SMALL, device="cuda"), Machine(jobs=3, engine="ray"), "3 workers"),
    ],
)
def test_the_plan_says_how_many_workers_compute_where(plan: Plan, machine: Machine, said: str) -> None:
    told = list(lines(outline(plan, grid(SMALL), machine, "quick", ""), plan, machine, skips=False))
    assert f"with {said}, " in told[-1]
    assert any(line.endswith(f"float64 on {plan.device}") for line in told)
    # A device has a memory of its own for launches.
    large = outline(dataclasses.replace(plan, batch_size=10**9), grid(SMALL), machine, "quick", "")["bytes"]
    assert large > 1e12 if plan.device == "cpu" else large < 2e9


def test_a_run_names_its_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: f"card {name}")
    assert results.environment("cuda:0,cuda:1")["device_name"] == "card cuda:0, card cuda:1"
    assert results.environment("cpu")["device_name"] is None

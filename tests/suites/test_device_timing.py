from __future__ import annotations

import math
import time

import pytest
import torch

from structgrad.oracles import ORACLES, Assignment, SpanningTree, kernels
from structgrad.suites.speed import device as timing
from structgrad.suites.speed.cases import Case
from structgrad.suites.speed.device import (
    DeviceTiming,
    determinant,
    interleaved,
    measure_device,
    popping,
    serves,
    time_on_device,
    time_task,
)
from structgrad.suites.speed.floor import Machine
from structgrad.suites.speed.targets import TARGETS, Target, Task, tasks

CPU = torch.device("cpu")
TREE = Task(Case("spanning_tree 4", SpanningTree(), (5, 5), multiply_adds=20), "marginals", 3)


def test_every_oracle_and_every_target_is_timed() -> None:
    found = tasks()
    assert {task.case.structure for task in found} == set(ORACLES)
    held = {(task.case.name, task.operation): task.target for task in found if task.target is not None}
    assert held == TARGETS
    assert [task.target is not None for task in found] == sorted((task.target is not None for task in found), reverse=True)
    assert len({(task.case.name, task.operation) for task in found}) == len(found)


def test_a_choice_and_a_smaller_batch() -> None:
    assert {task.operation for task in tasks("spanning_tree 40 sample")} == {"sample", "sample64"}
    assert max(task.batch for task in tasks(most=2)) == 2
    assert tasks("nothing of the kind") == []


@pytest.mark.parametrize("gradient", [False, True])
def test_the_determinant_is_the_log_partition(gradient: bool) -> None:
    scores = torch.randn(3, 6, 6, dtype=torch.float64)
    expected = SpanningTree().marginals(scores) if gradient else SpanningTree().log_partition(scores)
    torch.testing.assert_close(determinant(scores, gradient=gradient), expected)


def test_all_contenders_of_a_task() -> None:
    found = time_task(TREE, CPU, measure_device(CPU, repeats=1))
    assert {"structgrad", "torch", "lu64"} <= set(found.seconds)
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.difference is not None
    assert found.difference < 1e-4
    assert found.floor > 0
    assert found.replay is None
    assert not found.kernel


def test_scipy_is_called_item_by_item() -> None:
    found = time_task(Task(Case("assignment 5", Assignment(), (5, 5)), "argmax", 4), CPU, Machine(1e9, 1e9))
    assert found.seconds["scipy"] > 0
    assert found.difference == 0


def test_the_slower_contender_is_found() -> None:
    failures: dict[str, str] = {}
    seconds = interleaved({"structgrad": lambda: time.sleep(1e-3), "torch": lambda: time.sleep(4e-3)}, CPU, failures)
    assert 2 < seconds["torch"] / seconds["structgrad"] < 6
    assert failures == {}


def test_a_contender_that_fails_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> object:
        def call() -> None:
            raise RuntimeError("no such thing\nat all")

        return call

    monkeypatch.setattr(timing, "torch_struct", broken)
    found = time_task(TREE, CPU, Machine(1e9, 1e9))
    assert found.failures == {"torch-struct": "RuntimeError: no such thing"}
    assert "torch-struct" not in found.seconds
    assert found.seconds["torch"] > 0


def test_a_wrong_kernel_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = timing._without_kernels
    monkeypatch.setattr(timing, "_without_kernels", lambda call: plain(lambda: call() + 0.5))
    found = time_task(TREE, CPU, Machine(1e9, 1e9))
    assert found.difference is not None
    assert found.difference > 0.1


@pytest.mark.parametrize(
    ("target", "seconds", "met"),
    [
        (Target("torch", 10), {"structgrad": 1.0, "torch": 10.5}, True),
        (Target("torch", 10), {"structgrad": 1.0, "torch": 9.5}, False),
        (Target("lu64", 0.5), {"structgrad": 1.0, "lu64": 0.6}, True),
        (Target("lu64", 0.5), {"structgrad": 1.0, "lu64": 0.4}, False),
        (Target("lu64", 0.5), {"structgrad": 1.0}, None),
        (Target("torch", 10), {"torch": 1.0}, None),
        (None, {"structgrad": 1.0, "torch": 2.0}, None),
    ],
)
def test_targets(target: Target | None, seconds: dict[str, float], met: bool | None) -> None:
    assert DeviceTiming(Task(TREE.case, "argmax", 1, target), seconds, False, None, 0.0, 0, None).met is met


def test_no_task_begins_after_the_deadline() -> None:
    assert list(time_on_device([TREE, TREE], CPU, time.monotonic() - 1)) == []
    assert len(list(time_on_device([TREE], CPU, math.inf))) == 1


def test_what_serves_an_operation(gpu_kernels: torch.device) -> None:
    scores = torch.zeros(2, 5, device=gpu_kernels)
    subset = next(task for task in tasks("subset 1000/10 project") if task.operation == "project")
    assert serves(subset, scores)
    with kernels.disabled():
        assert not serves(subset, scores)


@pytest.mark.parametrize("single_root", [True, False])
def test_cycles_are_popped_to_compare_samplers(single_root: bool, gpu_kernels: torch.device) -> None:
    trees = popping(SpanningTree(single_root), torch.randn(2, 4, 4, device=gpu_kernels), 3)
    assert trees.shape == (2, 3, 4, 4)
    assert bool((trees.sum(-2)[..., 1:] == 1).all())
    assert bool((trees[..., 0, :].sum(-1) >= 1).all())
    if single_root:
        assert bool((trees[..., 0, :].sum(-1) == 1).all())

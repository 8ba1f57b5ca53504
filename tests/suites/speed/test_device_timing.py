from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ORACLES, Assignment, SpanningTree, Subset, kernels
from structgrad.suites.speed import device as timing
from structgrad.suites.speed import device_rows
from structgrad.suites.speed.cases import OPERATIONS, Case
from structgrad.suites.speed.device import (
    SMALL,
    compiled,
    contender,
    determinant,
    interleaved,
    look,
    measure,
    measure_device,
    measure_task,
    popping,
    relative,
    serves,
)
from structgrad.suites.speed.device_rows import DeviceRow, by_case, call, key, key_of, rows, steps
from structgrad.suites.speed.floor import MachineLimits
from structgrad.suites.speed.targets import TARGETS, DeviceTask, SpeedTarget, tasks

CPU = torch.device("cpu")
TREE = DeviceTask(Case("spanning_tree 4", SpanningTree(), (5, 5), multiply_adds=20), "marginals", 3)
SOLVER = DeviceTask(Case("assignment 5", Assignment(), (5, 5)), "argmax", 4)


def test_every_oracle_and_every_target_is_timed() -> None:
    found = tasks()
    assert {task.case.structure for task in found} == set(ORACLES) == set(SMALL)
    held = {(task.case.name, task.operation): task.target for task in found if task.target is not None}
    assert held == TARGETS
    assert [task.target is not None for task in found] == sorted((task.target is not None for task in found), reverse=True)
    assert len({(task.case.name, task.operation) for task in found}) == len(found)


def test_a_choice_and_a_smaller_batch() -> None:
    assert {task.operation for task in tasks("spanning_tree 40 sample")} == {"sample", "sample64"}
    assert max(task.batch for task in tasks(most=2)) == 2
    assert tasks("nothing of the kind") == []
    assert not any(task.target for task in tasks(held=False))


def test_what_torch_says_of_its_watch_is_no_error() -> None:
    """`torch.cuda.set_sync_debug_mode` says it once per process."""
    warnings.warn("Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations", stacklevel=1)
    with pytest.raises(UserWarning, match="anything else"):
        warnings.warn("anything else", stacklevel=1)


@pytest.mark.parametrize("gradient", [False, True])
def test_the_determinant_is_the_log_partition(gradient: bool) -> None:
    scores = torch.randn(3, 6, 6, dtype=torch.float64)
    expected = SpanningTree().marginals(scores) if gradient else SpanningTree().log_partition(scores)
    torch.testing.assert_close(determinant(scores, gradient=gradient), expected)


# Right.


@pytest.mark.parametrize("operation", ["argmax", "log_partition", "sample", "project_backward"])
def test_what_is_right(operation: str) -> None:
    found = measure_task("right", DeviceTask(TREE.case, operation, 3), CPU)
    assert set(found["off"]) == {"float32", "float64", "small float32", "small float64"}
    assert DeviceRow(TREE, {"right": found}).verdict == "right"
    assert found["first"] > 0


def spoilt(monkeypatch: pytest.MonkeyPatch, operation: str, spoil: Callable[[Tensor], Tensor]) -> None:
    """Ours gives something else; plain torch, and the CPU in its place, do not."""
    plain, right = timing._without_kernels, OPERATIONS[operation]
    honest = [False]

    def without_kernels(asked: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            honest[0] = True
            try:
                return plain(asked)()
            finally:
                honest[0] = False

        return run

    def operated(oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        result = right(oracle, scores, generator)
        return result if honest[0] else spoil(result)

    monkeypatch.setattr(timing, "_without_kernels", without_kernels)
    monkeypatch.setitem(OPERATIONS, operation, operated)


@pytest.mark.parametrize(
    ("operation", "spoil", "said"),
    [
        ("marginals", lambda result: result + 0.5, "float32: "),
        ("marginals", lambda result: result * math.nan, "float32: not a number"),
        ("argmax", lambda result: result.roll(1, -1), "float64: "),
        ("sample", lambda result: result.flip(-1), "small float64: 1.0e+00 off"),
    ],
)
def test_wrong_results_are_named(operation: str, spoil: Callable[[Tensor], Tensor], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoilt(monkeypatch, operation, spoil)
    row = DeviceRow(TREE, {"right": measure_task("right", DeviceTask(TREE.case, operation, 3), CPU)})
    assert row.verdict == "wrong"
    assert any(reason.startswith(said) for reason in row.wrong), row.wrong


def test_of_two_structures_of_one_score_either_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of 0: every assignment is a best one."""
    task = DeviceTask(Case("assignment 5", Assignment(), (5, 5)), "argmax", 4)
    monkeypatch.setattr(Case, "scores", lambda case, batch: torch.zeros(batch, *case.event))
    spoilt(monkeypatch, "argmax", lambda result: result.roll(1, -1))
    assert DeviceRow(task, {"right": measure_task("right", task, CPU)}).verdict == "right"


def test_without_the_compiler_of_the_cpu_small_problems_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "find_spec", lambda name: None)
    assert set(measure_task("right", SOLVER, CPU)["off"]) == {"small float32", "small float64"}


def test_a_difference_is_relative_and_may_be_no_number() -> None:
    assert relative(torch.tensor([9.0, 1.0]), torch.tensor([10.0, 1.0])) == pytest.approx(0.1)
    assert math.isnan(relative(torch.tensor([math.nan]), torch.tensor([1.0])))


# Fast.


def test_ours() -> None:
    found = measure_task("structgrad", TREE, CPU)
    assert found["seconds"] > 0
    assert (found["repeats"], found["finite"], found["kernel"], found["memory"]) == (True, True, True, 0)
    assert found["alone"] < 1e-6
    assert DeviceRow(TREE, {"right": {}, "structgrad": found}).wrong == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda result: result + torch.rand(()), "the same input gave other bits"),
        (lambda result: result / 0, "not finite in a batch of 3"),
        (lambda result: result + len(result), "rows in a batch of 3 are not what they are alone"),
    ],
)
def test_what_is_wrong_with_a_batch(spoil: Callable[[Tensor], Tensor], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "FEW", 2)
    spoilt(monkeypatch, "marginals", spoil)
    assert said in DeviceRow(TREE, {"structgrad": measure_task("structgrad", TREE, CPU)}).wrong


@pytest.mark.parametrize("name", ["torch", "cpu", "lu64"])
def test_contenders_take_turns_with_ours(name: str) -> None:
    found = measure_task(name, TREE, CPU)
    assert found["seconds"] > 0
    assert found["ours"] > 0


def test_scipy_is_called_item_by_item() -> None:
    solve = contender("scipy", SOLVER, SOLVER.case.scores(4))
    assert solve is not None
    assert len(solve()) == 4


def test_the_compiler_of_torch_gets_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiler(function, backend="eager", **options))
    case = Case("subset 4/2", Subset(2), (4,))
    scores = case.scores(2)
    for operation in ("argmax", "marginals"):
        made = compiled(DeviceTask(case, operation, 2), scores)
        assert made is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = made()
        torch.testing.assert_close(found, OPERATIONS[operation](case.oracle, scores, torch.Generator()), rtol=1e-4, atol=1e-5)
    assert compiled(DeviceTask(case, "sample", 2), scores) is None
    torch._dynamo.reset()


def test_the_compiler_of_torch_must_give_our_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "compiled", lambda task, scores: lambda: scores + 1)
    assert measure_task("compiled", TREE, CPU) == {"failure": "other numbers than ours"}


def test_what_a_contender_does_not_offer_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "contender", lambda *given: None)
    assert measure_task("torch-struct", SOLVER, CPU) == {}


def test_a_contender_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such thing\nat all")

    monkeypatch.setattr(timing, "contender", lambda *given: broken)
    assert measure_task("torch-struct", TREE, CPU) == {"failure": "RuntimeError: no such thing"}


def test_the_slower_contender_is_found() -> None:
    failures: dict[str, str] = {}
    seconds = interleaved({"structgrad": lambda: time.sleep(1e-3), "torch": lambda: time.sleep(4e-3)}, CPU, failures)
    assert 2 < seconds["torch"] / seconds["structgrad"] < 6
    assert failures == {}


@pytest.mark.parametrize("later", [0.001, 10.0])
def test_the_first_call_is_in_no_figure(later: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It compiles for a minute; later calls take a moment, or longer than is repeated."""
    now = [0.0]
    monkeypatch.setattr(timing, "clock", lambda device: now[0])
    called: list[float] = []

    def compiling() -> None:
        called.append(now[0])
        now[0] += 60.0 if len(called) == 1 else later

    assert interleaved({"cpu": compiling}, CPU, {}) == {"cpu": pytest.approx(later)}


def test_warming_compiles_for_a_batch_and_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setitem(OPERATIONS, "marginals", lambda oracle, scores, generator: seen.append(len(scores)))
    assert measure_task("warm", TREE, CPU) == {}
    assert seen == [3, 1]


def test_what_serves_an_operation(gpu_kernels: torch.device) -> None:
    scores = torch.zeros(2, 5, device=gpu_kernels)
    subset = next(task for task in tasks("subset 1000/10 project") if task.operation == "project")
    assert serves(subset, scores)
    with kernels.disabled():
        assert not serves(subset, scores)
    by_derivations = {task.operation: task for task in tasks("ctc 64x16")}
    scores = torch.zeros(2, 3, 3, 3, device=gpu_kernels)
    assert serves(by_derivations["marginals_backward"], scores)
    assert not serves(by_derivations["project"], scores)


@pytest.mark.parametrize("single_root", [True, False])
def test_cycles_are_popped_to_compare_samplers(single_root: bool, gpu_kernels: torch.device) -> None:
    trees = popping(SpanningTree(single_root), torch.randn(2, 4, 4, device=gpu_kernels), 3)
    assert trees.shape == (2, 3, 4, 4)
    assert bool((trees.sum(-2)[..., 1:] == 1).all())
    assert bool((trees[..., 0, :].sum(-1) >= 1).all())
    if single_root:
        assert bool((trees[..., 0, :].sum(-1) == 1).all())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("operation", ["marginals", "sample"])
def test_a_graph_gives_the_same_numbers(operation: str) -> None:
    found = measure_task("graph", DeviceTask(TREE.case, operation, 64), torch.device("cuda"))
    assert found["same"]
    assert found["seconds"] > 0


# Rows.


def test_what_a_process_is_asked_is_what_its_answer_is_found_by() -> None:
    task = tasks("categorical 1000 argmax", 2)[0]
    asked = call(task, "structgrad@1", "cpu")
    assert key_of(asked) == key(task, "structgrad@1") == ("categorical 1000", "argmax", 2, "structgrad@1")
    assert measure(**asked.arguments)["seconds"] > 0


def test_what_the_package_warns_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = type("KernelWarning", (UserWarning,), {"__module__": "structgrad.oracles"})

    def warned(*given: Any) -> dict[str, Any]:
        warnings.warn("the kernel does not serve", ours, stacklevel=1)
        warnings.warn("something of a library", UserWarning, stacklevel=1)
        return {"seconds": 1.0}

    monkeypatch.setattr(timing, "measure_task", warned)
    found = measure("structgrad", "categorical 1000", "argmax", 2, "cpu")
    assert found == {"seconds": 1.0, "said": ["the kernel does not serve"]}
    assert DeviceRow(TREE, {"structgrad": found}).said == ["the kernel does not serve"]


def test_a_target_is_given_more_time_than_what_nobody_waits_for() -> None:
    (task,) = tasks("spanning_tree 40 argmax")
    assert call(task, "cpu", "cuda").limit > call(task, "torch", "cuda").limit


def test_the_most_telling_steps_come_first() -> None:
    (task,) = tasks("spanning_tree 40 argmax")
    found = steps(task, cuda=True)
    assert found[:2] == ["structgrad", "cpu"]
    assert {"torch", "graph", "cpu@1"} <= set(found)
    assert len(set(found)) == len(found)
    assert "cpu" not in steps(tasks("spanning_tree 40 argmax", held=False)[0], cuda=False)
    assert "popping" in steps(DeviceTask(TREE.case, "sample", 3), cuda=True)
    assert "lu64" in steps(TREE, cuda=True)
    assert "scipy" in steps(SOLVER, cuda=True)


def test_without_numba_the_cpu_is_asked_for_a_target_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rows, "find_spec", lambda name: None)
    (task,) = tasks("spanning_tree 40 argmax")
    assert "cpu@1" not in steps(task, cuda=True)
    assert "cpu" in steps(task, cuda=True)
    assert "cpu" not in steps(TREE, cuda=True)


def test_cases_get_a_process_each() -> None:
    groups = list(by_case(tasks("assignment 1")))
    assert [{task.case.name for task in group} for group in groups] == [{"assignment 1000"}, {"assignment 16"}]


@pytest.mark.parametrize(
    ("target", "seconds", "met"),
    [
        (SpeedTarget("torch", 10), {"torch": 10.5}, True),
        (SpeedTarget("torch", 10), {"torch": 9.5}, False),
        (SpeedTarget("lu64", 0.5), {"lu64": 0.6}, True),
        (SpeedTarget("lu64", 0.5), {"lu64": 0.4}, False),
        (SpeedTarget("lu64", 0.5), {}, None),
        (None, {"torch": 2.0}, None),
    ],
)
def test_targets(target: SpeedTarget | None, seconds: dict[str, float], met: bool | None) -> None:
    answers: dict[str, dict[str, Any]] = {name: {"seconds": value, "ours": 1.0} for name, value in seconds.items()}
    assert DeviceRow(DeviceTask(TREE.case, "argmax", 1, target), answers).met is met


def test_a_row_of_what_is_there() -> None:
    empty, full = rows([TREE, SOLVER], {key(SOLVER, "right"): {"failure": "ended by SIGKILL"}}, MachineLimits(1e9, 1e9))
    assert (empty.verdict, empty.met, empty.share, empty.ratio("torch")) == ("not checked", None, None, None)
    assert full.wrong == ["did not run where it was to be compared: ended by SIGKILL"]
    timed = DeviceRow(
        TREE, {"structgrad": {"seconds": 1e-3}, "torch": {"failure": "it hung"}, "graph": {"same": False}}, MachineLimits(1e9, 1e9)
    )
    assert timed.share is not None
    assert 0 < timed.share < 1
    assert timed.failures == {"torch": "it hung"}
    assert timed.wrong == ["its CUDA graph gives other numbers"]


def test_a_look_at_the_device() -> None:
    found = look("cpu")
    assert found["environment"]["torch"] == torch.__version__
    assert MachineLimits(*found["machine"]).bytes_per_second > 0
    assert "expected cpu" in look("nonsense")["refused"]
    assert measure_device(CPU, repeats=1).multiply_adds_per_second > 0

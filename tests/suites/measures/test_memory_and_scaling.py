"""Peaks of memory, and growth with the size: what is planted is found, and an unsupported size stops no other estimator."""

import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from structgrad.estimators import Reinforce, StraightThrough, make_estimator
from structgrad.oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ShiftReduce, SpanningTree, Subset, kernels
from structgrad.suites.measures.cost import scaling
from structgrad.suites.measures.cost.scaling import LENGTHS, ScalingSuite, UnfitError, event_of_length, exponent, reach
from structgrad.suites.measures.cost.steps import Memory, peak_memory, training_memory
from structgrad.suites.measures.suite import Finding
from structgrad.suites.problems.losses import make_loss
from tests.estimator_cases import a_case_for, numbers
from tests.helpers import structures
from tests.suites.planted import CONTEXT, QUICK, Failing, Hungry, Sleeping, problem, take_no_time_to_sleep

KILOBYTES = 1000


def block(kilobytes: int = 1000) -> torch.Tensor:
    return torch.empty(kilobytes * KILOBYTES, dtype=torch.uint8)


HELD = block()


@pytest.mark.parametrize(
    ("call", "kilobytes"),
    [
        (lambda: torch.empty(250 * KILOBYTES, dtype=torch.float32), 1000),
        (lambda: [block() is None for _ in range(5)], 1000),
        (lambda: [block() for _ in range(5)], 5000),
        (lambda: HELD.zero_(), 0),
    ],
    ids=["one allocation", "released memory", "memory held at once", "memory of before"],
)
def test_bytes_that_are_held_at_once_count(call: Callable[[], object], kilobytes: int) -> None:
    assert peak_memory(call) == kilobytes * KILOBYTES


@contextmanager
def eager_collector() -> Iterator[None]:
    """Garbage is collected at every turn."""
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def test_what_kernels_take_counts() -> None:
    """Their workspace while they run, and their results."""

    def kernel(rows: np.ndarray) -> None:
        rows += np.ones(100 * KILOBYTES).sum()

    rows = torch.zeros(8, dtype=torch.float64)
    workspace = peak_memory(lambda: kernels.launch(kernel, (rows,), (), 1))
    assert 800 * KILOBYTES <= workspace <= 802 * KILOBYTES
    scores = torch.zeros(8, 1000)
    Subset(2).argmax(scores)
    assert 32 * KILOBYTES <= peak_memory(lambda: Subset(2).argmax(scores)) <= 42 * KILOBYTES
    assert rows.tolist() == [100 * KILOBYTES] * 8


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_counts_its_own_allocator() -> None:
    peak = peak_memory(lambda: torch.empty(1024 * KILOBYTES, dtype=torch.uint8, device="cuda"), device="cuda")
    assert peak == 1024 * KILOBYTES


def test_a_planted_cost_is_found() -> None:
    """Pairs of 200 parts in float64, and the other tensors of a step."""
    found, pairs = training_memory(Hungry(), Subset(2), lambda z: z.sum(-1), torch.zeros(32, 200, dtype=torch.float64)), 8 * 200**2
    assert 32 * pairs <= found <= 32 * 1.02 * pairs


def test_the_suite_repeats_to_the_byte() -> None:
    first, second = (list(Memory().findings(problem(), {"reinforce": Reinforce(), "hungry": Hungry()}, CONTEXT)) for _ in range(2))
    assert first == second
    assert [finding.metric for finding in first] == ["peak_memory"] * 2
    assert all(finding.value is not None and finding.value > 0 for finding in first)


@pytest.mark.parametrize("name", ["rloo", "sparsemap", "imle", "relax", "structured_attention"])
def test_an_estimator_takes_the_same_whenever_garbage_is_collected(name: str) -> None:
    case, estimator = a_case_for(name), make_estimator(name)
    loss = make_loss("mlp" if estimator.evaluations().loss_gradients else "black_box", structures(case)[0].double(), case.oracle, seed=0)
    scores = numbers(16, *case.event)
    first = training_memory(estimator, case.oracle, loss, scores)
    with eager_collector():
        second = training_memory(estimator, case.oracle, loss, scores)
    assert first == second > 0


CPU, SIZES = torch.device("cpu"), [4, 8, 16, 32, 64]


def test_an_exponent_of_the_upper_part() -> None:
    """A cost per call hides the growth of small sizes, and one disturbed point moves nothing."""
    assert exponent(LENGTHS, [[100 + size**3 for size in LENGTHS]]).value == pytest.approx(3, abs=0.05)
    assert exponent(SIZES, [[0.0, 0.0, 16.0, 32.0, 64.0]]).value == pytest.approx(1)
    assert exponent(SIZES[:4], [[1.0, 2.0, 4.0, 800.0]]).value < 8
    for sizes, rounds in ((SIZES[:2], [[1.0, 2.0]]), (SIZES, [[0.0] * 5]), (SIZES, []), ([], [[]])):
        assert exponent(sizes, rounds).value is None


def sleeping(power: float) -> Callable[[int], Any]:
    return lambda size: lambda: time.sleep(2e-3 * size**power)


def test_sizes_grow_until_time_is_up() -> None:
    flat, steep = (reach(sleeping(power), SIZES, 0.1, CPU) for power in (0.0, 2.0))
    (calls, stopped), (few, stop) = flat, steep
    assert (list(calls), stopped, list(few)) == (SIZES, None, [4])
    assert stop is not None
    assert stop[0] == 8
    assert "more than the effort allows" in stop[1]


def test_a_small_size_is_passed_over_and_a_large_one_ends_the_sweep() -> None:
    def picky(size: int) -> Any:
        if not 8 <= size <= 16:
            raise UnfitError(f"no {size}")
        return lambda: None

    calls, stopped = reach(picky, SIZES, 1.0, CPU)
    assert (list(calls), stopped) == ([8, 16], (32, "no 32", "skipped"))
    assert reach(lambda size: picky(0), SIZES, 1.0, CPU) == ({}, (64, "no 0", "skipped"))


@pytest.mark.parametrize(
    ("oracle", "event", "found"),
    [
        (Categorical(), (10,), (40,)),
        (Subset(3), (12,), (40,)),
        (LinearChain(), (6, 5, 5), (40, 5, 5)),
        (Alignment(), (3, 4), (40, 40)),
        (SpanningTree(), (4, 4), (41, 41)),
        (Constituency(), (4, 4), (40, 40)),
        (ShiftReduce(), (4, 4, 2), (41, 41, 2)),
        (Assignment(), (4, 4), (40, 40)),
    ],
)
def test_every_oracle_has_a_length(oracle: Any, event: tuple[int, ...], found: tuple[int, ...]) -> None:
    assert event_of_length(oracle, event, 40) == found


def table(estimators: dict[str, Any], **settings: Any) -> list[Finding]:
    return list(ScalingSuite().findings(problem(), estimators, dataclasses.replace(CONTEXT, **settings)))


def test_planted_growth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_no_time_to_sleep(monkeypatch)
    estimators = {"sleeping": Sleeping(0.0005, 1.0), "hungry": Hungry(), "broken": Failing(), "ste": StraightThrough()}
    found = table(estimators, effort=dataclasses.replace(QUICK, seconds=5.0))
    fitted = {(f.estimator, f.metric): f.value for f in found if f.setting == "axis=length"}
    assert fitted["sleeping", "time_exponent"] == pytest.approx(1, abs=0.35)
    assert fitted["hungry", "memory_exponent"] == pytest.approx(2, abs=0.25)
    (failed,) = [f for f in found if f.estimator == "broken" and f.metric == "total_time"]
    assert (failed.status, failed.reason, failed.setting) == ("error", "RuntimeError: planted", "length=4")
    skipped = {f.reason for f in found if f.estimator == "broken" and f.metric != "total_time"}
    assert skipped == {"fewer than 3 sizes were reached"}
    points = {f.setting: f for f in found if f.estimator == "ste" and f.metric == "total_time" and f.status == "ok"}
    assert points["length=4"].size == 4
    assert points["length=4"].value > 0


def test_kernels_are_loaded_before_memory_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first size of a process holds the code of its kernels: 231 kB, not 16."""
    loaded: list[Any] = []
    monkeypatch.setattr(scaling, "load_kernels", loaded.append)
    monkeypatch.setattr(scaling, "peak_memory", lambda call, *, device: loaded.count(call))
    peaks = [finding.value for finding in table({"reinforce": Reinforce()}) if finding.metric == "peak_memory"]
    assert peaks == [1] * len(loaded)
    assert peaks


def test_an_enumeration_stops_before_it_fills_the_memory() -> None:
    """Length 32 has 496 structures, for each of 32 rows."""
    found = table({"exact": make_estimator("exact")}, effort=dataclasses.replace(QUICK, cap=10_000))
    (stopped,) = [f for f in found if f.status == "skipped" and f.setting.startswith("length=")]
    assert stopped.size <= 32
    assert "the effort allows" in stopped.reason

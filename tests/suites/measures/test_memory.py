from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from structgrad.estimators import ESTIMATORS, Reinforce, make_estimator
from structgrad.oracles import Subset, kernels
from structgrad.suites.measures.memory import Memory, peak_memory, training_memory
from structgrad.suites.problems.losses import make_loss
from tests.estimator_cases import a_case_for, numbers
from tests.helpers import structures
from tests.suites.planted import CONTEXT, Hungry, problem

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


def test_what_hangs_in_a_cycle_is_held_until_the_call_ends() -> None:
    """And not until the interpreter likes to collect it."""

    def call() -> None:
        cycle: list[object] = [block()]
        cycle.append(cycle)
        del cycle
        with eager_collector():
            [[] for _ in range(1000)]
            block(600)

    assert peak_memory(call) == 1600 * KILOBYTES


def test_what_kernels_take_counts() -> None:
    """Their workspace while they run, and results of any size."""

    def kernel(rows: np.ndarray) -> None:
        rows += np.ones(100 * KILOBYTES).sum()

    rows, large = torch.zeros(8, dtype=torch.float64), (kernels.HUGE // 8 + 1,)
    workspace = peak_memory(lambda: kernels.launch(kernel, (rows,), (), 1))
    assert 800 * KILOBYTES <= workspace <= 802 * KILOBYTES
    assert peak_memory(lambda: kernels.zeros(large, torch.float64)) == 8 * large[0]
    assert rows.tolist() == [100 * KILOBYTES] * 8


def test_the_backward_pass_counts() -> None:
    scores = torch.zeros(250 * KILOBYTES, requires_grad=True)
    forward = peak_memory(lambda: scores.exp().sum())
    both = peak_memory(lambda: torch.autograd.grad(scores.exp().sum(), scores))
    assert forward >= 1000 * KILOBYTES
    assert both >= forward + 900 * KILOBYTES


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


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_takes_the_same_whenever_garbage_is_collected(name: str) -> None:
    case, estimator = a_case_for(name), make_estimator(name)
    loss = make_loss("mlp" if estimator.evaluations().loss_gradients else "black_box", structures(case)[0].double(), case.oracle, seed=0)
    scores = numbers(16, *case.event)
    first = training_memory(estimator, case.oracle, loss, scores)
    with eager_collector():
        second = training_memory(estimator, case.oracle, loss, scores)
    assert first == second > 0


def test_the_step_before_the_measured_one_runs_the_same_kernels() -> None:
    """Kernels that are loaded in the measured step would add their code to its memory."""
    shown: list[bool] = []

    def loss(structures: torch.Tensor) -> torch.Tensor:
        shown.append(kernels._observer.get() is not None)
        return structures.sum(-1)

    training_memory("reinforce", Subset(2), loss, torch.zeros(4, 5, dtype=torch.float64))
    assert len(shown) >= 2
    assert all(shown)

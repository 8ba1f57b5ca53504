from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from structgrad.estimators import Reinforce
from structgrad.oracles import Subset
from structgrad.suites.measures import memory
from structgrad.suites.measures.memory import Memory, peak_memory, training_memory
from tests.suites.planted import CONTEXT, Hungry, problem

KILOBYTES = 1000


def test_one_allocation_counts_its_bytes() -> None:
    assert peak_memory(lambda: torch.empty(250 * KILOBYTES, dtype=torch.float32)) == 1000 * KILOBYTES


def test_released_memory_does_not_add_up() -> None:
    def one_after_the_other() -> None:
        for _ in range(5):
            torch.empty(1000 * KILOBYTES, dtype=torch.uint8)

    assert peak_memory(one_after_the_other) == 1000 * KILOBYTES


def test_memory_held_at_once_adds_up() -> None:
    assert peak_memory(lambda: [torch.empty(1000 * KILOBYTES, dtype=torch.uint8) for _ in range(5)]) == 5000 * KILOBYTES


def test_memory_of_before_does_not_count() -> None:
    held = torch.empty(1000 * KILOBYTES, dtype=torch.uint8)
    assert peak_memory(lambda: held.zero_()) == 0


def test_the_backward_pass_counts() -> None:
    scores = torch.zeros(250 * KILOBYTES, requires_grad=True)
    forward = peak_memory(lambda: scores.exp().sum())
    both = peak_memory(lambda: torch.autograd.grad(scores.exp().sum(), scores))
    assert forward >= 1000 * KILOBYTES
    assert both >= forward + 900 * KILOBYTES


def test_a_build_without_the_profiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def __init__(self, **_: object) -> None:
            self.profiler = SimpleNamespace(kineto_results=None)

        def __enter__(self) -> Silent:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(memory, "profile", Silent)
    with pytest.raises(RuntimeError, match=r"`peak_memory` got no record from torch's profiler; expected a build of torch"):
        peak_memory(lambda: None)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_counts_its_own_allocator() -> None:
    peak = peak_memory(lambda: torch.empty(1024 * KILOBYTES, dtype=torch.uint8, device="cuda"), device="cuda")
    assert peak == 1024 * KILOBYTES


def test_a_planted_cost_is_found_per_row_and_growing() -> None:
    """Pairs of 200 parts in float64, and what a step holds besides."""
    scores = torch.zeros(32, 200, dtype=torch.float64)
    found = training_memory(Hungry(), Subset(2), lambda z: z.sum(-1), scores)
    pairs = 8 * 200**2
    assert pairs <= found["memory_per_row"] <= 1.02 * pairs
    assert 32 * pairs <= found["forward_memory"] <= found["peak_memory"] <= 32 * 1.02 * pairs


def test_the_suite_repeats_to_the_byte() -> None:
    first, second = (list(Memory().findings(problem(), {"reinforce": Reinforce(), "hungry": Hungry()}, CONTEXT)) for _ in range(2))
    assert first == second
    assert [finding.metric for finding in first] == ["forward_memory", "peak_memory", "memory_per_row"] * 2
    assert all(finding.value is not None and finding.value > 0 for finding in first)

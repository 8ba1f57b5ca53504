"""The exact gradient by enumeration: structures a second and thread, by structure and loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Assignment,
    Constituency,
    IndependentCategoricals,
    LinearChain,
    ShiftReduce,
    SpanningTree,
    Subset,
)
from structgrad.suites.benchmarks.tasks import structure
from structgrad.suites.truth.space import Space

pytestmark = pytest.mark.benchmark

SPACES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "categories (10, 5)": (IndependentCategoricals(), (10, 5)),
    "linear_chain (10, 5)": (LinearChain(), (10, 5, 5)),
    "spanning_tree 8, any roots": (SpanningTree(single_root=False), (9, 9)),
    "spanning_tree 9": (SpanningTree(), (10, 10)),
    "projective_tree 10": structure("projective_tree 10"),
    "constituency 16": (Constituency(), (16, 16)),
    "shift_reduce 16": (ShiftReduce(), (17, 17, 2)),
    "alignment (10, 10)": (Alignment(), (10, 10)),
    "assignment 10": (Assignment(), (10, 10)),
    "subset 12 of 24": (Subset(12), (24,)),
}
ROUNDS = 40


def linear(costs: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: z.flatten(1) @ costs[0]


def network(costs: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: torch.tanh(z.flatten(1) @ costs.T).sum(-1)


@pytest.mark.parametrize("name", SPACES)
def test_structures_a_second(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    oracle, event = SPACES[name]
    scores, costs = (torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) for shape in (event, (64, *event)))
    costs = costs.flatten(1)
    spaces = [Space(loss(costs), oracle, scores) for loss in (linear, network)]
    first = spaces[0].count // 3
    stop = first + spaces[0].chunk

    def rate(call: Callable[[], Any]) -> float:
        return (stop - first) / min(seconds(call) for _ in range(ROUNDS)) / 1e6

    rates = [
        rate(lambda: oracle.enumerate(event, first, stop, dtype=torch.uint8)),
        *(rate(lambda space=space: space.sums(first, stop)) for space in spaces),  # type: ignore[misc]
    ]
    with capsys.disabled():
        shown = "  ".join(f"{what} {value:5.2f}" for what, value in zip(("listed", "linear", "network"), rates, strict=True))
        print(f"\n{name:28} {spaces[0].count:12,}  {shown}  M/s")  # noqa: T201
    assert rates[1] > 0.05


def seconds(call: Callable[[], Any]) -> float:
    """Of this process alone: a neighbour on the machine does not count."""
    start = time.process_time()
    call()
    return time.process_time() - start

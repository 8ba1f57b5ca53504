"""What an item gets does not depend on how many items are in the batch, on what they hold, nor on the number of threads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import SeedBlocks, kernels
from tests.helpers import GENERIC_CASES, OracleCase, make_scores

OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "entropy": lambda oracle, scores: oracle.entropy(scores),
    "sample": lambda oracle, scores: oracle.sample(scores, 5, generator=streams(len(scores))).movedim(0, 1),
    "projection": lambda oracle, scores: oracle.project(scores).mean,
}
ROUNDING = {"entropy": 1e-12, "projection": 1e-12}
"""Absolute tolerance of what is a small difference of large numbers."""

PLACES = {1: (0,), 3: (1,), 64: (0, 31, 63)}
"""By batch size: where the item stands."""


def streams(rows: int) -> SeedBlocks:
    """One stream per row, equal at every place where the item may stand."""
    places = {place for each in PLACES.values() for place in each}
    return SeedBlocks(tuple(7 if row in places else 100 + row for row in range(rows)), 1)


@pytest.fixture(params=[True, False], ids=["compiled", "reference"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels that take every thread they may have, and their references."""
    monkeypatch.setattr(kernels, "GRAIN", 1)
    with contextlib.nullcontext() if request.param else kernels.disabled():
        yield


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def neighbours(case: OracleCase, rows: int) -> Tensor:
    """Peaked rows, masked ones, an infeasible one, and scores of every scale."""
    regimes: tuple[float | str, ...] = (1000.0, "masked", 0.05, "ties", 50.0)
    mixed = torch.stack([make_scores(case, regime, rows=-(-rows // 5), seed=1) for regime in regimes], 1)
    return mixed.flatten(0, 1)[:rows]


def surrounded(case: OracleCase, item: Tensor, rows: int) -> Tensor:
    scores = neighbours(case, rows)
    scores[list(PLACES[rows])] = item
    return scores


@pytest.mark.usefixtures("_both_ways", "_threads")
@pytest.mark.parametrize("regime", [1.0, 50.0, "masked"], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_an_item_is_alone_in_any_company(case: OracleCase, operation: str, regime: float | str) -> None:
    for item in make_scores(case, regime, rows=4)[2:]:
        torch.set_num_threads(1)
        alone = OPERATIONS[operation](case.oracle, item.unsqueeze(0))[0]
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for rows, places in PLACES.items():
                found = OPERATIONS[operation](case.oracle, surrounded(case, item, rows))
                for place in places:
                    torch.testing.assert_close(found[place], alone, rtol=1e-12, atol=ROUNDING.get(operation, 1e-14))


@pytest.mark.usefixtures("_both_ways", "_threads")
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_gradients_are_those_of_the_item_alone(case: OracleCase) -> None:
    def gradient(scores: Tensor) -> Tensor:
        leaf = scores.clone().requires_grad_()
        loss = case.oracle.entropy(leaf).sin() + case.oracle.marginals(leaf).square().flatten(1).sum(-1)
        return torch.autograd.grad(loss.sum(), leaf)[0]

    item = make_scores(case, 1.0, rows=1)[0]
    torch.set_num_threads(1)
    alone = gradient(item.unsqueeze(0))[0]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for rows, places in PLACES.items():
            found = gradient(surrounded(case, item, rows))
            for place in places:
                torch.testing.assert_close(found[place], alone, rtol=1e-11, atol=1e-13)

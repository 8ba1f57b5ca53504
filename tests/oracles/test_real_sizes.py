"""Kernels against plain torch at sizes that people have: odd ones around vectors and blocks, many items, any scale of scores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    CTC,
    Alignment,
    Assignment,
    Categorical,
    Constituency,
    EditAlignment,
    IndependentCategoricals,
    LabelledConstituency,
    LinearChain,
    ProjectiveTree,
    SecondOrderChain,
    SemiMarkov,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    TiedSemiMarkov,
    kernels,
)
from tests.helpers import seeded

CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Categorical(), (37,)),
    (Categorical(), (5000,)),
    (IndependentCategoricals(), (3, 17)),
    (IndependentCategoricals(), (300, 2)),
    (Subset(5), (20,)),
    (Subset(33), (33,)),
    (Subset(40), (60,)),
    (Subset(1), (100,)),
    (Subset(5), (300,)),
    *((LinearChain(), (length, tags, tags)) for length, tags in ((6, 9), (4, 17), (40, 5), (7, 33), (3, 40))),
    *((TiedChain(), (length + tags, tags)) for length, tags in ((3, 8), (6, 9), (4, 17), (40, 5), (7, 33), (3, 40))),
    *((Alignment(), shape) for shape in ((1, 6), (3, 7), (9, 20), (20, 9), (17, 16))),
    *((Constituency(), (size, size)) for size in (9, 20, 40)),
    *((ProjectiveTree(single), (size, size)) for single in (True, False) for size in (10, 22)),
    *((SpanningTree(single), (size, size)) for single in (True, False) for size in (4, 7, 8, 14, 17, 21)),
    *((ShiftReduce(), (size, size, 2)) for size in (6, 22)),
    (ShiftReduce("local"), (8, 8, 2)),
    *((Assignment(), (size, size)) for size in (3, 6, 9)),
    (SemiMarkov(), (9, 4, 9, 9)),
    (TiedSemiMarkov(), (23, 4, 9)),
    (SecondOrderChain(), (6, 5, 5, 5)),
    (LabelledConstituency(), (9, 9, 3)),
    (CTC(), (20, 13, 3)),
    (EditAlignment(), (9, 8, 5)),
)
SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
ROWS = 19
"""Items: full vectors of them, and some more."""

cases = pytest.mark.parametrize(("oracle", "event"), CASES, ids=str)
scales = pytest.mark.parametrize("scale", SCALES)
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def scores_of(oracle: Any, event: tuple[int, ...], scale: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """A third plain, a third with ties, a third with ever more forbidden parts, the last without a structure; NaN in what is not read."""
    scores = scale * torch.randn(ROWS, *event, generator=seeded(len(event)), dtype=torch.float64)
    scores[6:12] = scale * (scores[6:12] / scale).round()
    share = torch.linspace(0.02, 0.5, ROWS - 12).reshape(-1, *[1] * len(event))
    forbidden = torch.rand(scores[12:].shape, generator=seeded(1)) < share
    forbidden[:-2] &= oracle.argmax(scores[12:-2]) == 0
    scores[12:] = scores[12:].masked_fill(forbidden, -math.inf)
    scores[-1] = -math.inf
    return torch.where(oracle.read_mask(event), scores, math.nan).to(dtype)


def sums_of(oracle: Any, scores: Tensor) -> dict[str, Tensor]:
    leaf = scores.clone().requires_grad_()
    marginals = oracle.marginals(leaf)
    direction = torch.randn(scores.shape[-oracle.event_ndim :], generator=seeded(2), dtype=torch.float64).to(scores.dtype)
    (product,) = torch.autograd.grad(marginals, leaf, direction.expand(scores.shape))
    return {"log_partition": oracle.log_partition(scores), "marginals": marginals.detach(), "covariance_product": product}


@dtypes
@scales
@cases
def test_sums_equal_those_of_plain_torch(oracle: Any, event: tuple[int, ...], scale: float, dtype: torch.dtype) -> None:
    scores = scores_of(oracle, event, scale, dtype)
    found = sums_of(oracle, scores)
    with kernels.disabled():  # of the very numbers that the kernels read
        expected = sums_of(oracle, scores.double())
    for name, (relative, absolute) in {
        "log_partition": (1e-12, 1e-12),
        "marginals": (1e-9, 1e-11),
        "covariance_product": (1e-7, 1e-10),
    }.items():
        tolerance = {"rtol": relative, "atol": absolute} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 5e-6}
        torch.testing.assert_close(found[name].double(), expected[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@scales
@cases
def test_structures_equal_those_of_plain_torch(oracle: Any, event: tuple[int, ...], scale: float) -> None:
    scores = scores_of(oracle, event, scale)

    def found() -> list[Tensor]:
        best, listed = oracle.argmax(scores), oracle.kbest(scores, min(3, oracle.count(event)))
        drawn = oracle.sample(scores, 5, generator=seeded())
        return [drawn, *(oracle.score(z, scores) for z in (best, *listed))]

    compiled, best = found(), oracle.argmax(scores)
    with kernels.disabled():
        drawn, *totals = found()
        if scale == 1.0 and not isinstance(oracle, Assignment | SpanningTree):  # whole scores, which tie
            assert torch.equal(best[6:12], oracle.argmax(scores)[6:12])
    assert torch.equal(compiled[0], drawn)
    for ours, theirs in zip(compiled[1:], totals, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-12)


@cases
def test_a_product_is_linear_in_its_direction(oracle: Any, event: tuple[int, ...]) -> None:
    """Of any size; and nothing moves along what is forbidden or not read."""
    scores = scores_of(oracle, event, 1.0)[11:].requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(3), dtype=torch.float64)
    read = scores > -math.inf

    def product(along: Tensor) -> Tensor:
        return torch.autograd.grad(oracle.marginals(scores), scores, along)[0]

    expected = product(direction)
    assert expected.any()
    assert not product(torch.zeros_like(direction)).any()
    for size in (1e-200, 1e200):
        torch.testing.assert_close(product(size * direction) / size, expected, rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(product(torch.where(read, direction, size)), expected, rtol=1e-12, atol=1e-14)


@cases
def test_an_item_does_not_depend_on_its_neighbours(oracle: Any, event: tuple[int, ...]) -> None:
    """Not on wild or infeasible ones either, which leave something behind in a workspace."""
    tame, wild = scores_of(oracle, event, 1.0), scores_of(oracle, event, 3000.0)
    mixed = torch.stack([tame, wild], 1).flatten(0, 1)
    together, beside = sums_of(oracle, tame), sums_of(oracle, mixed)
    for name, values in together.items():
        torch.testing.assert_close(beside[name][::2], values, rtol=1e-11, atol=1e-13)
    for row in (0, 7, 13):
        for name, alone in sums_of(oracle, tame[row]).items():
            torch.testing.assert_close(alone, together[name][row], rtol=1e-11, atol=1e-13)
    assert torch.equal(oracle.argmax(mixed)[::2], oracle.argmax(tame))


@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("operation", ["log_partition", "marginals", "sample"])
@pytest.mark.parametrize(
    ("oracle", "event"),
    [
        *((oracle, event) for oracle, event in CASES if oracle.kernel != "softmax" and oracle != ShiftReduce("local")),
        (Alignment(), (128, 128)),
        (Constituency(), (80, 80)),
        (SpanningTree(), (41, 41)),
        (LinearChain(), (128, 32, 32)),
    ],
    ids=str,
)
def test_the_range_suffices(oracle: Any, event: tuple[int, ...], operation: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or plain torch would serve, a hundred times as slow, and be compared with itself."""
    scores = torch.where(oracle.read_mask(event), scale * torch.randn(2, *event, generator=seeded(), dtype=torch.float64), math.nan)
    computed = kernels.Kernel.computed
    monkeypatch.setattr(kernels.Kernel, "computed", lambda kernel, inputs, outputs, _: computed(kernel, inputs, outputs, pytest.fail))
    with kernels.recorded() as functions:
        oracle.sample(scores, generator=seeded()) if operation == "sample" else getattr(oracle, operation)(scores)
    assert functions

"""Compiled kernels compute what plain torch does, at sizes that people have and at any scale, and they are what runs on the CPU."""

import itertools
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
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, seeded

CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((Categorical(), (37,)), (Categorical(), (5000,)), (IndependentCategoricals(), (3, 17)), (IndependentCategoricals(), (300, 2))),
    *((Subset(5), (20,)), (Subset(33), (33,)), (Subset(40), (60,)), (Subset(1), (100,)), (Subset(5), (300,))),
    *((LinearChain(), (length, tags, tags)) for length, tags in ((6, 9), (4, 17), (40, 5))),
    *((TiedChain(), (length + tags, tags)) for length, tags in ((3, 8), (7, 33))),
    *((Alignment(), shape) for shape in ((1, 6), (9, 20), (17, 16))),
    *((Constituency(), (size, size)) for size in (9, 20)),
    *((ProjectiveTree(single), (size, size)) for single, size in ((True, 22), (False, 10))),
    *((SpanningTree(single), (size, size)) for single in (True, False) for size in (4, 7, 8, 14, 17, 21)),
    *((ShiftReduce(), (22, 22, 2)), (ShiftReduce("local"), (8, 8, 2)), (Assignment(), (3, 3)), (Assignment(), (9, 9))),
    *((SemiMarkov(), (9, 4, 9, 9)), (TiedSemiMarkov(), (23, 4, 9)), (SecondOrderChain(), (6, 5, 5, 5))),
    *((LabelledConstituency(), (9, 9, 3)), (CTC(), (20, 13, 3)), (EditAlignment(), (9, 8, 5))),
    *((case.oracle, case.event) for case in GENERIC_CASES),
)
"""Odd sizes around vectors and blocks, many items, and the small events of other laws."""

SCALES = (0.05, 1.0, 10.0, 50.0, 300.0, 1000.0)
ROWS = 19
"""Items: full vectors of them, and some more."""

cases = pytest.mark.parametrize(("oracle", "event"), CASES, ids=str)


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


def results(oracle: Any, scores: Tensor) -> dict[str, Tensor]:
    """Sums and samples."""
    leaf = scores.clone().requires_grad_()
    marginals = oracle.marginals(leaf)
    direction = torch.randn(scores.shape[-oracle.event_ndim :], generator=seeded(2), dtype=torch.float64).to(scores.dtype)
    (product,) = torch.autograd.grad(marginals, leaf, direction.expand(scores.shape))
    return {
        "log_partition": oracle.log_partition(scores),
        "marginals": marginals.detach(),
        "covariance_product": product,
        "entropy": oracle.entropy(scores),
        "samples": oracle.sample(scores, 5, generator=seeded()),
    }


@cases
def test_results_equal_those_of_plain_torch(oracle: Any, event: tuple[int, ...]) -> None:
    for scale, dtype in sampled([*itertools.product(SCALES, (torch.float64, torch.float32))], 2):
        scores = scores_of(oracle, event, scale, dtype)
        with kernels.recorded() as functions:
            found = results(oracle, scores)
        assert functions, "the compiled path was not taken"
        with kernels.recorded() as functions, kernels.disabled():  # of the very numbers that the kernels read
            expected = results(oracle, scores.double())
        assert not functions, "the reference runs compiled code"
        best = oracle.argmax(scores)
        found["best"] = oracle.score(best, scores)
        with kernels.disabled():  # searches for trees and matchings are compiled all the same
            other = oracle.argmax(scores)
            expected["best"] = oracle.score(other, scores.double())
        if scale == 1 and dtype == torch.float64 and not isinstance(oracle, Assignment | SpanningTree):  # whole scores, which tie
            assert torch.equal(best[6:12], other[6:12])
        # The entropy is a difference of the log-partition and the expected score.
        finite = scores[scores > -math.inf].abs()
        size = float(finite.max()) * scores[0].numel()
        for name, (relative, absolute) in {
            "log_partition": (1e-12, 1e-12),
            "marginals": (1e-9, 1e-11),
            "covariance_product": (1e-7, 1e-10),
            "entropy": (1e-10, 1e-12 * size),
            "best": (1e-13, 1e-12),
            "samples": (0.0, 0.0),
        }.items():
            rough = {"rtol": 2e-5, "atol": 1e-5 * max(1.0, size) if name == "entropy" else 5e-6}
            tolerance = {"rtol": relative, "atol": absolute} if dtype == torch.float64 else rough
            if name == "samples" and dtype == torch.float32:
                continue  # rounding may turn a choice
            assert found[name].dtype == dtype
            torch.testing.assert_close(found[name].double(), expected[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@cases
def test_a_product_is_linear_in_its_direction(oracle: Any, event: tuple[int, ...]) -> None:
    """Directions may have any size, and forbidden or ignored entries do not count."""
    scores = scores_of(oracle, event, 1.0)[11:].requires_grad_()
    direction = torch.randn(scores.shape, generator=seeded(3), dtype=torch.float64)
    read = scores > -math.inf

    def product(along: Tensor) -> Tensor:
        return torch.autograd.grad(oracle.marginals(scores), scores, along)[0]

    expected = product(direction)
    assert not product(torch.zeros_like(direction)).any()
    for size in (1e-200, 1e200):
        torch.testing.assert_close(product(size * direction) / size, expected, rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(product(torch.where(read, direction, size)), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("oracle", "event"),
    [
        *((oracle, event) for oracle, event in CASES if oracle.kernel != "softmax" and oracle != ShiftReduce("local")),
        *((Alignment(), (128, 128)), (Constituency(), (80, 80)), (SpanningTree(), (41, 41)), (LinearChain(), (128, 32, 32))),
    ],
    ids=str,
)
def test_the_range_suffices(oracle: Any, event: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Or plain torch would serve, a hundred times as slow, and be compared with itself."""
    computed = kernels.Kernel.computed
    monkeypatch.setattr(
        kernels.Kernel, "computed", lambda kernel, inputs, outputs, _, **given: computed(kernel, inputs, outputs, pytest.fail, **given)
    )
    for scale, operation in sampled([*itertools.product((0.0, 1.0, 10.0), ("log_partition", "marginals", "sample"))], 3):
        scores = torch.where(oracle.read_mask(event), scale * torch.randn(2, *event, generator=seeded(), dtype=torch.float64), math.nan)
        with kernels.recorded() as functions:
            oracle.sample(scores, generator=seeded()) if operation == "sample" else getattr(oracle, operation)(scores)
        assert functions

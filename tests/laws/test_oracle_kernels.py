"""Compiled kernels compute what plain torch does, at sizes that people have and at any scale, and they are what runs on the CPU."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
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
from structgrad.suites.problems.named import BUILT_IN_PROBLEMS
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, seeded

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


def sums_of(oracle: Any, scores: Tensor) -> dict[str, Tensor]:
    leaf = scores.clone().requires_grad_()
    marginals = oracle.marginals(leaf)
    direction = torch.randn(scores.shape[-oracle.event_ndim :], generator=seeded(2), dtype=torch.float64).to(scores.dtype)
    (product,) = torch.autograd.grad(marginals, leaf, direction.expand(scores.shape))
    entropy = oracle.entropy(scores)
    return {
        "log_partition": oracle.log_partition(scores),
        "marginals": marginals.detach(),
        "covariance_product": product,
        "entropy": entropy,
    }


def greatest(scores: Tensor) -> float:
    """The largest sum of scores that a structure may have, roughly."""
    return float(scores[scores > -math.inf].abs().max()) * scores[0].numel()


@cases
def test_sums_equal_those_of_plain_torch(oracle: Any, event: tuple[int, ...]) -> None:
    for scale, dtype in sampled([*itertools.product(SCALES, (torch.float64, torch.float32))], 3):
        scores = scores_of(oracle, event, scale, dtype)
        with kernels.recorded() as functions:
            found = sums_of(oracle, scores)
        assert functions, "the compiled path was not taken"
        with kernels.recorded() as functions, kernels.disabled():  # of the very numbers that the kernels read
            expected = sums_of(oracle, scores.double())
        assert not functions, "the reference runs compiled code"
        # The entropy is a difference of the log-partition and the expected score.
        size = greatest(scores.nan_to_num(neginf=-math.inf))
        for name, (relative, absolute) in {
            "log_partition": (1e-12, 1e-12),
            "marginals": (1e-9, 1e-11),
            "covariance_product": (1e-7, 1e-10),
            "entropy": (1e-10, 1e-12 * size),
        }.items():
            rough = {"rtol": 2e-5, "atol": 1e-5 * max(1.0, size) if name == "entropy" else 5e-6}
            tolerance = {"rtol": relative, "atol": absolute} if dtype == torch.float64 else rough
            assert found[name].dtype == dtype
            torch.testing.assert_close(found[name].double(), expected[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")


@cases
def test_structures_equal_those_of_plain_torch(oracle: Any, event: tuple[int, ...]) -> None:
    for scale in sampled(SCALES, 1):
        scores = scores_of(oracle, event, scale)

        def found(scores: Tensor = scores) -> list[Tensor]:
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
        (Alignment(), (128, 128)),
        (Constituency(), (80, 80)),
        (SpanningTree(), (41, 41)),
        (LinearChain(), (128, 32, 32)),
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


# Processes.


@pytest.mark.sweep
def test_every_structure_is_measured_alike_cold_and_warm(tmp_path: Path) -> None:
    """What is computed does not depend on which kernels the process compiled, which it loaded from the cache, and in what order.

    The small form is in `tests/oracles/test_compilation.py`: one kernel of which copies differ.
    """

    def in_a_process(names: list[str]) -> dict[str, str]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fresh_process", *names]
        environment, root = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, Path(__file__).parents[2]
        found = subprocess.run(command, check=True, timeout=3600, env=environment, cwd=root, capture_output=True, text=True)
        result: dict[str, str] = json.loads(found.stdout)
        return result

    names = list(BUILT_IN_PROBLEMS)
    compiled, loaded, reversed_ = (in_a_process(order) for order in (names, names, names[::-1]))
    assert {name.partition(" ")[0] for name in compiled} == set(names)
    assert [name for name in compiled if loaded[name] != compiled[name]] == []
    assert [name for name in compiled if reversed_[name] != compiled[name]] == []

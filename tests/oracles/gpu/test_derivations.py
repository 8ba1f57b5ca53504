"""The executor of derivations on the GPU, against all structures one by one and against plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import DerivedOracle, kernels, make_oracle
from structgrad.oracles.derivations import DEAD, UNIT, Builder, Derivations, device, walked
from structgrad.oracles.kernels import gpu, notices
from structgrad.oracles.kernels.notices import KernelWarning
from tests.derived_cases import DERIVED_CASES

WIDE = 70


def odd(builder: Builder) -> Derivations:
    """Unlike any structure: a wide node, a root that joins, nodes that are dead, unused, or of one edge without a part."""
    none = builder.parts
    wide = builder.add(torch.full((1, WIDE), UNIT), torch.arange(WIDE).unsqueeze(0))
    dead = builder.add(torch.tensor([[DEAD, DEAD]]), torch.tensor([[0]]))
    leaves = builder.add(torch.tensor([[UNIT], [UNIT], [UNIT]]), torch.tensor([[WIDE], [WIDE + 1], [none]]))
    builder.add(torch.tensor([[UNIT, int(wide)]]))  # of which nothing is made
    one, two, three = leaves.tolist()
    pairs = builder.add(
        torch.tensor([[int(dead), DEAD, one], [two, one, DEAD]]),
        torch.tensor([[WIDE + 2], [WIDE + 3]]),
        torch.tensor([[one, UNIT, two], [three, UNIT, UNIT]]),
    )
    either = builder.add(torch.stack([pairs[0], pairs[1], leaves[2]]).unsqueeze(0), torch.tensor([[none, WIDE + 4, WIDE + 5]]))
    return builder.finish(
        builder.add(torch.tensor([[DEAD, int(either)]]), torch.tensor([[WIDE + 7, WIDE + 7]]), torch.tensor([[UNIT, int(wide)]]))
    )


def alone(builder: Builder) -> Derivations:
    """One structure of one part."""
    return builder.finish(builder.add(torch.tensor([[UNIT]]), torch.tensor([[0]])))


@dataclass(frozen=True)
class Stated(DerivedOracle):
    """A line of parts, derived as a function says."""

    rules: Callable[[Builder], Derivations]

    name = "stated"
    axes = ("size",)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        return self.rules(Builder(event_shape[0]))


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    **{row.oracle.name: (row.oracle, row.paired) for row in DERIVED_CASES},
    "linear_chain": (make_oracle("linear_chain"), (3, 2, 2)),
    "alignment": (make_oracle("alignment"), (3, 4)),
    "constituency": (make_oracle("constituency"), (4, 4)),
    "projective_tree": (make_oracle("projective_tree"), (4, 4)),
    "projective_tree of several roots": (make_oracle("projective_tree[single_root=False]"), (4, 4)),
    "shift_reduce": (make_oracle("shift_reduce"), (4, 4, 2)),
    "odd": (Stated(odd), (WIDE + 9,)),
    "alone": (Stated(alone), (1,)),
}
each_case = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(case, dtype, marks=() if (dtype == torch.float64) == (place % 3 > 0) else pytest.mark.sweep)
        for place, case in enumerate(CASES)
        for dtype in (torch.float64, torch.float32)
    ],
    ids=str,
)
"""By default every third one in float32, the others in float64."""


def rows_of(case: str, dtype: torch.dtype, on: torch.device) -> Tensor:
    """Of all scales; with forbidden parts, with ties, and without a feasible structure."""
    event, generator = CASES[case][1], torch.Generator().manual_seed(3)
    rows = torch.randn(4, *event, generator=generator, dtype=torch.float64) * torch.tensor([0.05, 50, 1, 1]).reshape(-1, *[1] * len(event))
    rows[2] = rows[2].round().masked_fill(torch.rand(event, generator=generator) < 0.15, -math.inf)
    rows[3] = -math.inf
    return rows.to(dtype).to(on)


def found_by(oracle: Any, operation: str, inputs: tuple[Tensor, ...], *results: Tensor) -> tuple[Tensor, ...]:
    """What a kernel writes over NaN."""
    kernel = oracle._kernel(operation, inputs[0])
    assert isinstance(kernel, gpu.DeviceKernel)
    for result in results:
        result.fill_(math.nan)
    kernel(*inputs, *results)
    return results


def sums_by_listing(oracle: Any, rows: Tensor, along: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-partitions, marginals and covariance products, float64, from all structures."""
    listed = walked(oracle.derivations(tuple(rows.shape[1:])))
    taken = torch.zeros(len(listed), rows[0].numel(), dtype=torch.float64)
    for place, parts in enumerate(listed):
        np.add.at(taken[place].numpy(), list(parts), 1)
    flat, moved = rows.flatten(1).double().cpu(), torch.where(rows > -math.inf, along, 0).flatten(1).double().cpu()
    scores = (torch.where(taken > 0, flat.unsqueeze(1), 0) * taken).sum(2)
    chances = scores.softmax(1).nan_to_num(0)
    marginals = chances @ taken
    slopes = moved @ taken.mT
    products = (chances * (slopes - (chances * slopes).sum(1, keepdim=True))) @ taken
    return scores.logsumexp(1), marginals.reshape(rows.shape), products.reshape(rows.shape)


@each_case
def test_sums_are_those_of_all_structures(case: str, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    oracle, rows = CASES[case][0], rows_of(case, dtype, gpu_kernels)
    along = torch.randn(rows.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(rows)
    # What is forbidden does not move, and what is the same for all parts costs no digits where their number is.
    along[rows == -math.inf] = math.inf
    totals = rows.new_empty(len(rows), dtype=torch.float64)
    marginals, log_partition = found_by(oracle, "marginals", (rows,), torch.empty_like(rows), totals)
    (without,) = found_by(oracle, "log_partition", (rows,), torch.empty_like(totals))
    (product,) = found_by(oracle, "covariance_product", (rows, along), torch.empty_like(rows))
    expected = sums_by_listing(oracle, rows, along)
    assert torch.equal(without, log_partition)
    rounding = 1e-12 if dtype == torch.float64 else 2e-6
    for found, right in zip((log_partition, marginals, product), expected, strict=True):
        torch.testing.assert_close(found.cpu().double(), right, rtol=rounding, atol=rounding)


@each_case
def test_structures_are_those_of_plain_torch(case: str, dtype: torch.dtype, gpu_kernels: torch.device) -> None:
    oracle, rows = CASES[case][0], rows_of(case, dtype, gpu_kernels)
    if not bool(oracle.binary_mask(CASES[case][1]).all()):
        assert oracle._kernel("argmax", rows) is oracle._kernel("sample", rows) is None  # walks of the kernels take parts, and count none
        return
    uniforms = torch.rand(len(rows), 5, oracle._noise_size(rows.shape[1:]), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    uniforms[:, 1], uniforms[:, 2], uniforms[:, 3] = 0.0, 0.5, 1 - 2**-53
    uniforms = uniforms.to(gpu_kernels)
    (best,) = found_by(oracle, "argmax", (rows,), torch.empty_like(rows))
    with kernels.disabled():
        assert torch.equal(oracle._feasible_or_zero(best, rows), oracle._best(rows).to(dtype))
    if case != "linear_chain":  # which takes uniforms in another order, and draws in plain torch
        (drawn,) = found_by(oracle, "sample", (rows, uniforms), rows.new_empty(len(rows), 5, *rows.shape[1:]))
        with kernels.disabled():
            assert torch.equal(drawn, oracle._draw(rows, uniforms).to(dtype))


@pytest.mark.parametrize("operation", device.OPERATIONS)
def test_no_result_depends_on_what_is_looked_at_side_by_side(operation: str, gpu_kernels: torch.device) -> None:
    """Nodes, edges and parts by twos, so that every loop runs more than once."""
    from structgrad.oracles.derivations import gpu as executor

    oracle, event = CASES["labelled_constituency"]
    rows = rows_of("labelled_constituency", torch.float64, gpu_kernels)[:2]
    graph = device.graph_of(oracle, event, gpu_kernels)
    assert graph is not None
    inputs: tuple[Tensor, ...] = (rows,)
    if operation == "covariance_product":
        inputs = (rows, torch.randn_like(rows))
    if operation == "sample":
        inputs = (rows, torch.rand(len(rows), 3, oracle._noise_size(event), dtype=torch.float64, device=gpu_kernels))
    results = [rows.new_empty(len(rows), *[3] * (operation == "sample"), *event)] * (operation != "log_partition")
    results += [rows.new_empty(len(rows))] * (operation in ("log_partition", "marginals"))
    others = [torch.full_like(result, math.nan) for result in results]
    function = getattr(executor, operation)
    function(*inputs, *results, graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "WALKED", 2)
        patch.setattr(executor, "GROUP", 2)
        function(*inputs, *others, replace(graph, edge_tile=(2, 2), above_tile=(2, 2), part_tile=(2, 2)))
    for first, second in zip(results, others, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-13, atol=1e-14)


def test_derivations_that_are_too_large_are_told_and_left_to_torch(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, scores = make_oracle("ctc"), torch.zeros(2, 3, 3, 3, device=gpu_kernels)
    device.graph_of.cache_clear()
    notices._said.clear()
    monkeypatch.setattr(device, "MOST", 20)
    with pytest.warns(KernelWarning, match=r"the derivations of ctc \(3, 3, 3\) have \d+ nodes and edges, and go on in plain torch"):
        assert oracle._kernel("argmax", scores) is None
    assert oracle._kernel("marginals", scores) is None  # and no second warning, which would be an error
    device.graph_of.cache_clear()


# Workspaces do not grow with the batch: it is taken in parts.


def test_parts_are_as_large_as_the_budget_allows_and_fill_a_device(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgrad.oracles.kernels.gpu import launching

    rows = torch.empty(100, device=gpu_kernels)

    def sizes(numbers: int) -> list[int]:
        parts = list(launching.launches(rows, (numbers, torch.float64), (numbers, torch.float32)))
        assert [(len(first), len(second)) for _, (first, second) in parts] == [(part.stop - part.start,) * 2 for part, _ in parts]
        assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
        return [part.stop - part.start for part, _ in parts]

    monkeypatch.setattr(launching, "SCRATCH", 12 * 1000)
    monkeypatch.setattr(launching, "MOST_SCRATCH", 12 * 3000)
    monkeypatch.setattr(launching, "FILLING", 20)
    assert sizes(5) == [100]
    assert sizes(20) == [48, 48, 4]  # 50 fit; parts begin at multiples of 16 rows
    assert sizes(100) == [16] * 6 + [4]  # 10 fit, 20 fill a device
    assert sizes(500) == [6] * 16 + [4]  # so many are the most
    assert sizes(10_000) == [1] * 100
    assert list(launching.launches(rows[:0], (5, torch.float64))) == []


@pytest.mark.parametrize("case", ["linear_chain", "ctc"])
def test_a_batch_in_parts_gives_the_same_bits(case: str, gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgrad.oracles.kernels.gpu import launching

    oracle, rows = CASES[case][0], rows_of(case, torch.float64, gpu_kernels)[:2]

    def found() -> list[Tensor]:
        marginals = oracle.marginals(leaf := rows.clone().requires_grad_())
        return [oracle.argmax(rows), oracle.log_partition(rows), marginals, *torch.autograd.grad(marginals.square().sum(), leaf)]

    expected = found()
    monkeypatch.setattr(launching, "FILLING", 1)
    monkeypatch.setattr(launching, "SCRATCH", 1)
    assert all(map(torch.equal, found(), expected))

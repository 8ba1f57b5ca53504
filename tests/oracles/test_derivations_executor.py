"""The compiled executor of derivations, against plain passes item by item and against the oracles' own kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset, kernels
from structgrad.oracles.capabilities.base import FORBIDDEN
from structgrad.oracles.derivations import DEAD, UNIT, Builder, Derivations, algorithms, cpu, cpu_kbest, executor
from structgrad.oracles.derivations.packing import SEVERAL, Packed, pack
from structgrad.oracles.derivations.tables import tables_of
from structgrad.suites.truth.laws import derivations_of, gibbs_law
from tests.helpers import refused_rows

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "subset": (Subset(3), (9,)),
    "linear chain": (LinearChain(), (5, 3, 3)),
    "alignment": (Alignment(), (4, 6)),
    "constituency": (Constituency(), (7, 7)),
    "projective tree": (ProjectiveTree(), (6, 6)),
    "projective tree of one root": (ProjectiveTree(single_root=True), (6, 6)),
    "shift-reduce": (ShiftReduce(), (6, 6, 2)),
    "assignment": (Assignment(), (5, 5)),
    "subset of one": (Subset(1), (1,)),
    "chain of one": (LinearChain(), (1, 1, 1)),
    "alignment of one": (Alignment(), (1, 1)),
    "constituency of one": (Constituency(), (1, 1)),
}
SCALES = [0.05, 1.0, 50.0, 1e4]


def derived(name: str) -> tuple[Any, tuple[int, ...], Derivations, Packed]:
    oracle, event = CASES[name]
    derivations = derivations_of(oracle, event)
    assert derivations is not None
    return oracle, event, derivations, packed_of(derivations)


def packed_of(derivations: Derivations) -> Packed:
    packed = pack(derivations)
    assert packed is not None
    return packed


def called(packed: Packed, operation: str, inputs: tuple[Tensor, ...], *results: Tensor) -> tuple[Tensor, ...]:
    """Results, and boolean [b], where they can be relied upon."""
    kernel = executor.kernel(packed, operation, len(inputs[0]))
    failed = refused_rows(kernel, tuple(given.contiguous() for given in inputs), results)
    certified = torch.ones(len(inputs[0]), dtype=torch.bool)
    if failed is not None:
        certified[failed] = False
    return *results, certified


def log_partition(packed: Packed, rows: Tensor) -> tuple[Tensor, ...]:
    return called(packed, "log_partition", (rows,), torch.zeros(len(rows), dtype=torch.float64))


def marginals(packed: Packed, rows: Tensor) -> tuple[Tensor, ...]:
    return called(packed, "marginals", (rows,), torch.zeros_like(rows), torch.zeros(len(rows), dtype=torch.float64))


def covariance_product(packed: Packed, rows: Tensor, directions: Tensor) -> tuple[Tensor, ...]:
    return called(packed, "covariance_product", (rows, directions), torch.zeros_like(rows))


def sample(packed: Packed, rows: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
    return called(packed, "sample", (rows, uniforms), rows.new_zeros(*uniforms.shape[:2], rows.shape[1]))


def argmax(packed: Packed, rows: Tensor) -> Tensor:
    structures = torch.zeros_like(rows)
    executor.kernel(packed, "argmax", len(rows))(rows.contiguous(), structures)
    return structures


def kbest(packed: Packed, rows: Tensor, k: int) -> Tensor:
    structures = rows.new_zeros(len(rows), k, rows.shape[1], dtype=torch.float32)
    executor.kernel(packed, "kbest", len(rows))(rows.contiguous(), structures)
    return structures


def rows_of(derivations: Derivations, scale: float, batch: int = 9, dtype: torch.dtype = torch.float64, *, holes: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(derivations.parts)
    rows = scale * torch.randn(batch, derivations.parts, generator=generator, dtype=dtype)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.15, -math.inf) if holes else rows


def laws_of(derivations: Derivations, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals and log-partitions by plain passes."""
    laws = [gibbs_law(derivations, row) for row in rows.double()]
    totals = torch.tensor([law.log_partition for law in laws], dtype=torch.float64)
    marginals = torch.stack([law.marginals for law in laws])
    return marginals.where((totals > -math.inf).unsqueeze(1), 0), totals


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CASES)
def test_marginals_and_log_partitions_are_those_of_plain_passes(name: str, scale: float, holes: bool) -> None:
    _, _, derivations, packed = derived(name)
    rows = rows_of(derivations, scale, holes=holes)
    found, totals, certified = marginals(packed, rows)
    expected, expected_totals = laws_of(derivations, rows)
    assert certified.all()
    torch.testing.assert_close(totals, expected_totals, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(log_partition(packed, rows)[0], totals, rtol=0, atol=0)
    # The plain passes round their log-weights, which for large scores costs digits.
    largest = float(expected_totals.where(expected_totals > -math.inf, 0).abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * max(1.0, largest / 100))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name, (oracle, event) in CASES.items() if math.prod(event) > 1])
def test_every_operation_is_that_of_the_oracle(name: str, scale: float, dtype: torch.dtype) -> None:
    oracle, event, derivations, packed = derived(name)
    rows = rows_of(derivations, scale, 65, dtype)
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-6}[dtype]
    items = rows.reshape(-1, *event)
    assert torch.equal(argmax(packed, rows).reshape(items.shape), oracle.argmax(items))
    if isinstance(oracle, Assignment):
        return
    found, totals, _ = marginals(packed, rows)
    torch.testing.assert_close(totals.to(dtype), oracle.log_partition(items), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.reshape(items.shape), oracle.marginals(items), rtol=0, atol=tolerance)
    directions = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    product, certified = covariance_product(packed, rows, directions)
    assert certified.all()
    leaf = items.clone().requires_grad_()
    (expected,) = torch.autograd.grad(oracle.marginals(leaf), leaf, directions.reshape(-1, *event))
    torch.testing.assert_close(product.reshape(items.shape), expected, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", CASES)
def test_covariance_products_are_derivatives(name: str, scale: float, holes: bool) -> None:
    _, _, derivations, packed = derived(name)
    rows = rows_of(derivations, scale, 2, holes=holes)
    directions = torch.randn(rows.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Nothing moves along a forbidden part, wherever that leads.
    product, certified = covariance_product(packed, rows, directions.masked_fill(rows == -math.inf, math.inf))
    assert certified.all()
    step = 1e-5
    after, before = (marginals(packed, rows + sign * step * directions)[0] for sign in (1, -1))
    torch.testing.assert_close(product, (after - before) / (2 * step), rtol=0, atol=1e-7)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("name", CASES)
def test_samples_follow_the_law(name: str, scale: float) -> None:
    _, _, derivations, packed = derived(name)
    rows, draws = rows_of(derivations, scale, 3, holes=True), 4000
    uniforms = torch.rand(3, draws, max(int(packed.sizes[1]), 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    structures, certified = sample(packed, rows, uniforms)
    expected, _ = laws_of(derivations, rows)
    assert certified.all()
    spread = (expected * (1 - expected) / draws).clamp(min=0).sqrt()
    assert ((structures.mean(1) - expected).abs() <= 5 * spread + 1e-9).all()
    # Structures, each of which has a value: that of its own parts.
    votes = 2 * structures[:, 0] - 1
    feasible = expected.sum(1) > 0
    torch.testing.assert_close(argmax(packed, votes)[feasible], structures[:, 0][feasible])


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("scale", [None, *SCALES])
@pytest.mark.parametrize("name", CASES)
def test_the_k_best_are_those_of_plain_torch_in_the_same_order(name: str, scale: float | None, holes: bool) -> None:
    oracle, event, derivations, packed = derived(name)
    # Scores of few values have many structures of equal score; of three values next to each other, sums that are equal by rounding alone.
    rows = rows_of(derivations, scale or 1.0, holes=holes)
    rows = rows if scale else torch.cat([rows.round(), 1e15 + rows.sign()])
    k = min(oracle.count(event), 30)
    expected = algorithms.kbest(tables_of(derivations, torch.device("cpu")), torch.where(rows > -math.inf, rows, FORBIDDEN), k).movedim(
        0, 1
    )
    expected = expected & ~(expected & (rows == -math.inf).unsqueeze(1)).any(-1, keepdim=True)
    found = kbest(packed, rows, k)
    assert torch.equal(found.bool(), expected)
    assert torch.equal(kbest(packed, rows[:1], 1)[0, 0], found[0, 0])


@pytest.mark.parametrize("name", CASES)
def test_of_equal_scores_the_first_edge_is_taken(name: str) -> None:
    _, _, derivations, packed = derived(name)
    rows = torch.zeros(1, derivations.parts, dtype=torch.float64)
    tied, forbidden = argmax(packed, rows), argmax(packed, rows - math.inf)
    assert torch.equal(tied, first_derivation(derivations))
    assert not forbidden.any()


def first_derivation(derivations: Derivations) -> Tensor:
    """[1, d], by the first edge of every node that leads anywhere."""
    edges: dict[int, list[tuple[int, int, int]]] = {}
    alive = {UNIT}
    for level in derivations.levels:
        second = torch.full_like(level.first, UNIT) if level.second is None else level.second
        parts = level.parts.expand_as(level.first)
        for head, (one, two, part) in enumerate(zip(level.first.tolist(), second.tolist(), parts.tolist(), strict=True), level.start):
            edges[head] = [edge for edge in zip(one, two, part, strict=True) if edge[0] in alive and edge[1] in alive]
            if edges[head]:
                alive.add(head)
    structure, waiting = torch.zeros(1, derivations.parts + 1, dtype=torch.float64), [derivations.root]
    while waiting:
        node = waiting.pop()
        if node != UNIT:
            one, two, part = edges[node][0]
            structure[0, part] = 1
            waiting += [one, two]
    return structure[:, :-1]


@pytest.mark.parametrize("batch", [0, 1, 2, 65])
def test_items_do_not_depend_on_those_beside_them(batch: int) -> None:
    _, _, derivations, packed = derived("constituency")
    rows = rows_of(derivations, 1.0, batch)
    rows[1::2] *= 1e4
    directions = rows.flip(0)
    uniforms = torch.rand(batch, 2, int(packed.sizes[1]), dtype=torch.float64)

    def found(rows: Tensor, directions: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        products = covariance_product(packed, rows, directions)
        return *marginals(packed, rows), *products, argmax(packed, rows), *sample(packed, rows, uniforms)

    together = found(rows, directions, uniforms)
    assert all(len(result) == batch for result in together)
    for i in range(batch):
        own = rows[i : i + 1], directions[i : i + 1], uniforms[i : i + 1]
        # Few items are computed node by node, and sums along nodes have another order.
        for one, all_ in zip(found(*own), together, strict=True):
            torch.testing.assert_close(one[0].double(), all_[i].double(), rtol=1e-14, atol=1e-10 if i % 2 else 1e-14)
        if batch >= SEVERAL:
            copies = found(*(given.repeat_interleave(SEVERAL, 0) for given in own))
            assert all(torch.equal(one[0], all_[i]) for one, all_ in zip(copies, together, strict=True))


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, derivations, packed = derived("projective tree")
    rows = rows_of(derivations, 1.0, 19)
    expected = marginals(packed, rows), log_partition(packed, rows), covariance_product(packed, rows, rows)
    monkeypatch.setattr(kernels, "GRAIN", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    found = marginals(packed, rows), log_partition(packed, rows), covariance_product(packed, rows, rows)
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


def test_what_is_beyond_every_range_is_not_certified() -> None:
    _, _, derivations, packed = derived("linear chain")
    rows = rows_of(derivations, 1.0, 3)
    rows[1] *= 1e9
    assert log_partition(packed, rows)[1].tolist() == [True, False, True]
    assert marginals(packed, rows)[2].tolist() == [True, False, True]
    assert covariance_product(packed, rows, rows)[1].tolist() == [True, False, True]
    assert sample(packed, rows, torch.rand(3, 1, int(packed.sizes[1]), dtype=torch.float64))[1].tolist() == [True, False, True]


def test_long_sums_leave_no_range() -> None:
    """Log-partitions of thousands, from scores of a moderate size that no shift by a constant brings near 0."""
    builder = Builder(600)
    node = torch.tensor([UNIT])
    for part in range(300):
        node = builder.add(node.expand(2).unsqueeze(0), torch.tensor([[part, part + 300]]))
    packed = packed_of(builder.finish(node))
    rows = torch.cat([torch.full((3, 150), 20.0), torch.full((3, 150), -20.0)], 1).repeat(1, 2).double()
    found, totals, certified = marginals(packed, rows)
    assert certified.all()
    torch.testing.assert_close(totals, torch.full((3,), 300 * math.log(2), dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.full_like(rows, 0.5), rtol=0, atol=1e-14)


def test_edges_that_join_and_take_a_part_each() -> None:
    builder = Builder(4)
    leaves = builder.add(torch.full((2, 1), UNIT), torch.tensor([[0], [1]]))
    first, second = leaves[[0, 0]].unsqueeze(0), torch.stack([leaves[1], torch.tensor(UNIT)]).unsqueeze(0)
    derivations = builder.finish(builder.add(first, torch.tensor([[2, 3]]), second))
    rows = rows_of(derivations, 1.0)
    expected, totals = laws_of(derivations, rows)
    found = marginals(packed_of(derivations), rows)
    torch.testing.assert_close(found[:2], (expected, totals), rtol=0, atol=1e-14)
    joined = (rows[:, 1] + rows[:, 2] > rows[:, 3]).unsqueeze(1)
    expected = torch.where(joined, torch.tensor([1.0, 1, 1, 0]), torch.tensor([1.0, 0, 0, 1])).double()
    assert torch.equal(argmax(packed_of(derivations), rows), expected)


def _empty_item(parts: int) -> Derivations:
    builder = Builder(parts)
    return builder.finish(builder.add(torch.tensor([[UNIT]])))


def test_the_empty_item_alone_is_a_structure() -> None:
    packed, rows = packed_of(_empty_item(2)), torch.randn(9, 2, dtype=torch.float64)
    expected, totals, certified = marginals(packed, rows)
    assert certified.all()
    nothing = torch.zeros_like(rows)
    assert torch.equal(totals, nothing[:, 0])
    for found in (
        expected,
        covariance_product(packed, rows, rows)[0],
        argmax(packed, rows),
        kbest(packed, rows, 1)[:, 0].double(),
        sample(packed, rows, rows.new_zeros(9, 1, 0))[0].squeeze(1),
    ):
        assert torch.equal(found, nothing)


def test_no_structure_is_not_packed() -> None:
    builder = Builder(1)
    assert pack(builder.finish(builder.add(torch.tensor([[DEAD]])))) is None


def test_one_compilation_serves_all_structures_and_dtypes() -> None:
    for name in CASES:
        _, _, derivations, packed = derived(name)
        for dtype in (torch.float32, torch.float64):
            rows = rows_of(derivations, 1.0, dtype=dtype)
            rows[0] *= 1e4
            marginals(packed, rows)
            covariance_product(packed, rows, rows)
            sample(packed, rows, torch.rand(9, 2, max(int(packed.sizes[1]), 1), dtype=torch.float64))
            argmax(packed, rows)
            kbest(packed, rows, 1)
    assert [len(function.signatures) for function in (cpu.evaluate, cpu.sample, cpu.argmax, cpu_kbest.kbest)] == [1, 1, 1, 1]

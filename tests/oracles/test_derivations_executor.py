"""The compiled executor of derivations, against plain passes item by item and in the order of plain torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset
from structgrad.oracles.capabilities.base import FORBIDDEN
from structgrad.oracles.derivations import UNIT, Builder, Derivations, algorithms, cpu, cpu_kbest, executor
from structgrad.oracles.derivations.packing import Packed, pack
from structgrad.oracles.derivations.tables import tables_of
from structgrad.suites.truth.laws import derivations_of, gibbs_law
from tests.helpers import refused_rows, seeded

CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "subset": (Subset(3), (9,)),
    "linear chain": (LinearChain(), (5, 3, 3)),
    "alignment": (Alignment(), (4, 6)),
    "constituency": (Constituency(), (7, 7)),
    "projective tree": (ProjectiveTree(single_root=False), (6, 6)),
    "projective tree of one root": (ProjectiveTree(), (6, 6)),
    "shift-reduce": (ShiftReduce(), (6, 6, 2)),
    "assignment": (Assignment(), (5, 5)),
    "alignment of one": (Alignment(), (1, 1)),
}
names = pytest.mark.parametrize("name", CASES)
holes = pytest.mark.parametrize("holes", [False, True])
scales = pytest.mark.parametrize("scale", [0.05, 1.0, 50.0, 1e4, 1e5])


def derived(name: str) -> tuple[Derivations, Packed]:
    derivations = derivations_of(*CASES[name])
    assert derivations is not None
    return derivations, packed_of(derivations)


def packed_of(derivations: Derivations) -> Packed:
    packed = pack(derivations)
    assert packed is not None
    return packed


def called(packed: Packed, operation: str, inputs: tuple[Tensor, ...], *results: Tensor) -> tuple[Tensor, ...]:
    """Results, every one of which the executor relies upon."""
    assert refused_rows(executor.kernel(packed, operation, len(inputs[0])), inputs, results) is None
    return results


def marginals(packed: Packed, rows: Tensor) -> tuple[Tensor, ...]:
    return called(packed, "marginals", (rows,), torch.zeros_like(rows), torch.zeros(len(rows), dtype=torch.float64))


def rows_of(derivations: Derivations, scale: float, batch: int = 9, *, holes: bool = False) -> Tensor:
    generator = seeded(derivations.parts)
    rows = scale * torch.randn(batch, derivations.parts, generator=generator, dtype=torch.float64)
    return rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.15, -math.inf) if holes else rows


@holes
@scales
@names
def test_sums_are_those_of_plain_passes(name: str, scale: float, holes: bool) -> None:
    derivations, packed = derived(name)
    rows = rows_of(derivations, scale, holes=holes)
    found, totals = marginals(packed, rows)
    laws = [gibbs_law(derivations, row) for row in rows]
    expected_totals = torch.tensor([law.log_partition for law in laws], dtype=torch.float64)
    expected = torch.stack([law.marginals for law in laws]).where((expected_totals > -math.inf).unsqueeze(1), 0)
    torch.testing.assert_close(totals, expected_totals, rtol=1e-12, atol=1e-12)
    assert torch.equal(called(packed, "log_partition", (rows,), torch.zeros_like(totals))[0], totals)
    # The plain passes round their log-weights, which for large scores costs digits.
    largest = float(expected_totals.where(expected_totals > -math.inf, 0).abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * max(1.0, largest / 100))
    # Nothing moves along a forbidden part, wherever that leads.
    directions, step = torch.randn(rows.shape, generator=seeded(1), dtype=torch.float64), 1e-5
    given = directions.masked_fill(rows == -math.inf, math.inf)
    (product,) = called(packed, "covariance_product", (rows, given), torch.zeros_like(rows))
    after, before = (marginals(packed, rows + sign * step * directions)[0] for sign in (1, -1))
    torch.testing.assert_close(product, (after - before) / (2 * step), rtol=0, atol=1e-7)


@holes
@pytest.mark.parametrize("scale", [None, 0.05, 1.0, 50.0, 1e4])
@names
def test_the_k_best_are_those_of_plain_torch_in_the_same_order(name: str, scale: float | None, holes: bool) -> None:
    oracle, event = CASES[name]
    derivations, packed = derived(name)
    # Scores of few values have many structures of equal score; of three values next to each other, sums that are equal by rounding alone.
    rows = rows_of(derivations, scale or 1.0, holes=holes)
    rows = rows if scale else torch.cat([rows.round(), 1e15 + rows.sign()])
    k, tables = min(oracle.count(event), 30), tables_of(derivations, torch.device("cpu"))
    expected = algorithms.kbest(tables, torch.where(rows > -math.inf, rows, FORBIDDEN), k).movedim(0, 1)
    expected = expected & ~(expected & (rows == -math.inf).unsqueeze(1)).any(-1, keepdim=True)
    found = kbest(packed, rows, k)
    assert torch.equal(found.bool(), expected)
    assert torch.equal(kbest(packed, rows[:1], 1)[0, 0], found[0, 0])


def kbest(packed: Packed, rows: Tensor, k: int) -> Tensor:
    structures = rows.new_zeros(len(rows), k, rows.shape[1], dtype=torch.float32)
    executor.kernel(packed, "kbest", len(rows))(rows, structures)
    return structures


@names
def test_of_equal_scores_the_first_edge_is_taken(name: str) -> None:
    derivations, packed = derived(name)
    rows = torch.zeros(1, derivations.parts, dtype=torch.float64)
    tied, forbidden = torch.zeros_like(rows), torch.zeros_like(rows)
    executor.kernel(packed, "argmax", 1)(rows, tied)
    executor.kernel(packed, "argmax", 1)(rows - math.inf, forbidden)
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


def test_long_sums_leave_no_range() -> None:
    """Log-partitions of thousands, from scores of a moderate size that no shift by a constant brings near 0."""
    builder = Builder(600)
    node = torch.tensor([UNIT])
    for part in range(300):
        node = builder.add(node.expand(2).unsqueeze(0), torch.tensor([[part, part + 300]]))
    rows = torch.cat([torch.full((3, 150), 20.0), torch.full((3, 150), -20.0)], 1).repeat(1, 2).double()
    found, totals = marginals(packed_of(builder.finish(node)), rows)
    torch.testing.assert_close(totals, torch.full((3,), 300 * math.log(2), dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.full_like(rows, 0.5), rtol=0, atol=1e-14)


def test_scores_beyond_every_range_are_refused() -> None:
    derivations, packed = derived("linear chain")
    rows = rows_of(derivations, 1.0, 3)
    rows[1] *= 1e9
    for operation, inputs, result in (
        ("log_partition", (rows,), torch.zeros(3, dtype=torch.float64)),
        ("covariance_product", (rows, rows), torch.zeros_like(rows)),
        ("sample", (rows, torch.rand(3, 1, 6, dtype=torch.float64)), rows.new_zeros(3, 1, rows.shape[1])),
    ):
        refused = refused_rows(executor.kernel(packed, operation, 3), inputs, (result,))
        assert refused is not None
        assert refused.tolist() == [1]


def test_one_compilation_serves_all_structures_and_dtypes() -> None:
    for oracle, event in CASES.values():
        for dtype in (torch.float32, torch.float64):
            scores = torch.randn(9, *event, generator=seeded(), dtype=torch.float64).to(dtype)
            scores[0] *= 1e4
            oracle.marginals(scores.requires_grad_()).sum().backward()
            oracle.sample(scores, 2, generator=seeded())
            oracle.kbest(scores, 1)
            oracle.argmax(scores)
    assert [len(function.signatures) for function in (cpu.evaluate, cpu.sample, cpu.argmax, cpu_kbest.kbest)] == [1, 1, 1, 1]

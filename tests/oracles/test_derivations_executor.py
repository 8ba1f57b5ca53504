"""The range of the compiled executor of derivations, and how often it is compiled. Laws compare it with plain torch and with 80 digits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset
from structgrad.oracles.capabilities.base import FORBIDDEN
from structgrad.oracles.derivations import DEAD, UNIT, Builder, Derivations, cpu, cpu_kbest, cpu_maxima, executor
from structgrad.oracles.derivations.packing import pack
from structgrad.suites.truth.laws import derivations_of
from tests.helpers import seeded

CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((Subset(3), (9,)), (LinearChain(), (5, 3, 3)), (Alignment(), (4, 6)), (Constituency(), (7, 7)), (ShiftReduce(), (6, 6, 2))),
    *((ProjectiveTree(single_root=False), (6, 6)), (ProjectiveTree(), (6, 6)), (Assignment(), (5, 5)), (Alignment(), (1, 1))),
)


@pytest.mark.parametrize("scale", [None, 1.0, 1e4])
@pytest.mark.parametrize(("oracle", "event"), CASES, ids=str)
def test_the_k_best_are_those_of_plain_lists_in_the_same_order(oracle: Any, event: tuple[int, ...], scale: float | None) -> None:
    derivations = derivations_of(oracle, event)
    assert derivations is not None
    packed = pack(derivations)
    assert packed is not None
    rows = (scale or 1.0) * torch.randn(9, derivations.parts, generator=seeded(), dtype=torch.float64)
    # Scores of few values have many structures of equal score; of three values next to each other, sums that are equal by rounding alone.
    rows = rows if scale else torch.cat([rows.round(), 1e15 + rows.sign()])
    rows[::3] = rows[::3].masked_fill(torch.rand(rows[::3].shape, generator=seeded()) < 0.15, -math.inf)
    k = min(oracle.count(event), 30)
    expected = torch.stack([listed_best(derivations, row, k) for row in torch.where(rows > -math.inf, rows, FORBIDDEN)])
    expected = expected & ~(expected & (rows == -math.inf).unsqueeze(1)).any(-1, keepdim=True)
    found = torch.zeros(expected.shape)
    executor.kernel(packed, "kbest", len(rows))(rows, found)
    assert torch.equal(found.bool(), expected)


def listed_best(derivations: Derivations, row: Tensor, k: int) -> Tensor:
    """Boolean [k, d]: of every node the k best, in the order of edges, then of the first node's list, then of the second one's."""
    scores, best = [*row.tolist(), 0.0], {UNIT: [(0.0, frozenset[int]())], DEAD: []}
    for level in derivations.levels:
        second = torch.full_like(level.first, UNIT) if level.second is None else level.second
        tables = (level.first.tolist(), second.tolist(), level.parts.expand_as(level.first).tolist())
        for head, edges in enumerate(zip(*tables, strict=True), level.start):
            ways = [
                (one + other + scores[part], left | right | ({part} - {derivations.parts}))
                for first, following, part in zip(*edges, strict=True)
                for one, left in best[first]
                for other, right in best[following]
            ]
            best[head] = sorted(ways, key=lambda way: -way[0])[:k]
    structures = torch.zeros(k, derivations.parts, dtype=torch.bool)
    for structure, (_, parts) in zip(structures, best[derivations.root], strict=True):
        structure[list(parts)] = True
    return structures


def test_long_sums_leave_no_range() -> None:
    """Log-partitions of thousands, from scores of a moderate size that no shift by a constant brings near 0."""
    builder, node = Builder(600), torch.tensor([UNIT])
    for part in range(300):
        node = builder.add(node.expand(2).unsqueeze(0), torch.tensor([[part, part + 300]]))
    packed = pack(builder.finish(node))
    assert packed is not None
    rows = torch.cat([torch.full((3, 150), 20.0), torch.full((3, 150), -20.0)], 1).repeat(1, 2).double()
    found, totals = executor.kernel(packed, "marginals", 3).computed(
        (rows,), ((rows.shape[1:], None), ((), None)), lambda _: pytest.fail("refused")
    )
    torch.testing.assert_close(totals, torch.full((3,), 300 * math.log(2), dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, torch.full_like(rows, 0.5), rtol=0, atol=1e-14)


def test_scores_beyond_every_range_are_refused() -> None:
    derivations = derivations_of(LinearChain(), (5, 3, 3))
    assert derivations is not None
    packed, rows = pack(derivations), torch.randn(3, derivations.parts, generator=seeded(), dtype=torch.float64)
    assert packed is not None
    rows[1] *= 1e9
    for operation, inputs, shape in (
        ("log_partition", (rows,), ()),
        ("covariance_product", (rows, rows), rows.shape[1:]),
        ("sample", (rows, torch.rand(3, 1, 6, dtype=torch.float64)), (1, rows.shape[1])),
    ):
        refused = torch.full((1, *shape), 7.0)
        (found,) = executor.kernel(packed, operation, 3).computed(inputs, ((shape, None),), lambda *_, refused=refused: (refused,))
        assert (found == 7).reshape(3, -1).all(1).tolist() == [False, True, False]


def test_one_compilation_serves_all_structures_and_dtypes() -> None:
    for oracle, event in CASES:
        for dtype in (torch.float32, torch.float64):
            scores = torch.randn(9, *event, generator=seeded(), dtype=torch.float64).to(dtype)
            scores[0] *= 1e4
            oracle.marginals(scores.requires_grad_()).sum().backward()
            oracle.sample(scores, 2, generator=seeded())
            oracle.kbest(scores, 1)
            oracle.argmax(scores)
    assert [len(function.signatures) for function in (cpu.evaluate, cpu.sample, cpu_maxima.argmax, cpu_kbest.kbest)] == [1, 1, 1, 1]

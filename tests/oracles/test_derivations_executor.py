"""The range of the compiled executor of derivations, and how often it is compiled. Laws compare it with plain torch and with 80 digits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset
from structgrad.oracles.derivations import UNIT, Builder, cpu, cpu_kbest, cpu_maxima, executor
from structgrad.oracles.derivations.packing import pack
from structgrad.suites.truth.laws import derivations_of
from tests.helpers import seeded

CASES: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((Subset(3), (9,)), (LinearChain(), (5, 3, 3)), (Alignment(), (4, 6)), (Constituency(), (7, 7)), (ShiftReduce(), (6, 6, 2))),
    *((ProjectiveTree(single_root=False), (6, 6)), (ProjectiveTree(), (6, 6)), (Assignment(), (5, 5)), (Alignment(), (1, 1))),
)


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

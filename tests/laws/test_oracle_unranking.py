"""Structures are listed by kernels as by their references: the same ones, in the same order, from any ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from structgrad.oracles import (
    Alignment,
    Assignment,
    Constituency,
    IndependentCategoricals,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
    kernels,
)
from structgrad.oracles.derivations import DerivedOracle, algorithms
from tests.helpers import ORACLE_CASES, OracleCase

SMALL: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((LinearChain(), (n, 3, 3)) for n in range(1, 7)),
    *((IndependentCategoricals(), (n, 3)) for n in range(1, 7)),
    *((Subset(k), (n,)) for n in range(1, 7) for k in range(1, n + 1)),
    *((Assignment(), (n, n)) for n in range(1, 7)),
    *((Alignment(), (n, m)) for n in range(1, 7) for m in range(1, 7)),
    *((Constituency(), (n, n)) for n in range(1, 7)),
    *((ShiftReduce(), (n + 1, n + 1, 2)) for n in range(1, 7)),
    *(
        (tree(single_root=single), (n + 1, n + 1))
        for tree in (SpanningTree, ProjectiveTree)
        for single in (True, False)
        for n in range(1, 7)
    ),
)
LARGE: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (LinearChain(), (26, 5, 5)),
    (IndependentCategoricals(), (26, 5)),
    (Subset(30), (64,)),
    (Subset(45), (62,)),
    (Assignment(), (20, 20)),
    (Alignment(), (24, 25)),
    (Constituency(), (34, 34)),
    (ShiftReduce(), (35, 35, 2)),
    (SpanningTree(), (17, 17)),
    (SpanningTree(single_root=False), (17, 17)),
    (ProjectiveTree(), (25, 25)),
    (ProjectiveTree(single_root=False), (25, 25)),
)
DERIVED = [case for case in ORACLE_CASES if isinstance(case.oracle, DerivedOracle)]
COMPILED = [*DERIVED, *(case for case in ORACLE_CASES if case.oracle.name in {"assignment", "categories", "spanning_tree"})]


@pytest.mark.parametrize(("oracle", "event"), SMALL, ids=str)
def test_is_a_bijection(oracle: Any, event: tuple[int, ...]) -> None:
    count = oracle.count(event)
    for first in range(0, count, 20_000):
        listed = oracle.enumerate(event, first, min(first + 20_000, count), dtype=torch.uint8)
        assert torch.equal(oracle.rank(listed), torch.arange(first, first + len(listed)))


@pytest.mark.parametrize("case", [case for case in COMPILED if case not in DERIVED], ids=str)
def test_a_kernel_is_what_runs(case: OracleCase) -> None:
    kernel = kernels.find_unranking(case.oracle._unranking, torch.arange(1), case.event, case.oracle.kernel_options())
    assert kernel is not None
    with kernels.disabled():
        assert kernels.find_unranking(case.oracle._unranking, torch.arange(1), case.event, ()) is None


@pytest.mark.parametrize("case", DERIVED, ids=str)
def test_derivations_are_taken_apart_by_the_executor(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("in torch")

    monkeypatch.setattr(algorithms, "unrank", refuse)
    assert len(case.oracle.enumerate(case.event, 0, 1)) == 1
    with kernels.disabled(), pytest.raises(AssertionError, match="in torch"):
        case.oracle.enumerate(case.event, 0, 1)


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_lists_what_the_twin_lists(case: OracleCase) -> None:
    compiled = case.oracle.enumerate(case.event, dtype=torch.uint8)
    with kernels.disabled():
        assert torch.equal(compiled, case.oracle.enumerate(case.event, dtype=torch.uint8))


@pytest.mark.parametrize(("oracle", "event"), LARGE, ids=str)
def test_the_ends_and_the_middle_of_a_large_space(oracle: Any, event: tuple[int, ...]) -> None:
    count = oracle.count(event)
    assert 2**47 < count <= 2**62
    for first in (0, count // 3, count - 50):
        compiled = oracle.enumerate(event, first, first + 50, dtype=torch.uint8)
        with kernels.disabled():
            assert torch.equal(compiled, oracle.enumerate(event, first, first + 50, dtype=torch.uint8))


@pytest.mark.parametrize(("oracle", "event"), [(oracle, event) for oracle, event in SMALL if oracle.count(event) > 90], ids=str)
def test_ranks_in_any_order(oracle: Any, event: tuple[int, ...]) -> None:
    """Kernels go on from the structure before, whichever it was."""
    order = torch.randint(oracle.count(event), (300,), generator=torch.Generator().manual_seed(0))
    with kernels.disabled():
        expected = oracle.unrank(order, event)
    assert torch.equal(oracle.unrank(order, event).bool(), expected.bool())

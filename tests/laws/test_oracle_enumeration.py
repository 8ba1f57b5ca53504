"""`enumerate` lists every structure once, in slices of a fixed order; `count` is exact."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from structgrad.oracles import Categorical, LinearChain, Subset
from tests.helpers import ORACLE_CASES, OracleCase, structures

HUGE: tuple[tuple[Any, tuple[int, ...], int], ...] = (
    (Categorical(), (10**30,), 10**30),
    (Subset(10), (1000,), math.comb(1000, 10)),
    (Subset(500), (1000,), math.comb(1000, 500)),
    (LinearChain(), (100, 5, 5), 5**100),
    (LinearChain(), (1000, 30, 30), 30**1000),
)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_order_is_lexicographic(case: OracleCase) -> None:
    assert torch.equal(case.oracle.enumerate(case.event, dtype=torch.float64), structures(case))


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_slices_concatenate_to_the_whole(case: OracleCase, size: int) -> None:
    count = case.oracle.count(case.event)
    pieces = [case.oracle.enumerate(case.event, start, min(start + size, count)) for start in range(0, count, size)]
    assert torch.equal(torch.cat(pieces), case.oracle.enumerate(case.event))
    assert case.oracle.enumerate(case.event, count).shape == (0, *case.event)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_dtype_is_the_default_or_the_one_asked_for(case: OracleCase) -> None:
    assert case.oracle.enumerate(case.event).dtype == torch.get_default_dtype()
    assert case.oracle.enumerate(case.event, dtype=torch.bool).dtype == torch.bool


@pytest.mark.parametrize(("oracle", "event", "count"), HUGE, ids=str)
def test_counts_are_exact_integers(oracle: Any, event: tuple[int, ...], count: int) -> None:
    assert oracle.count(event) == count
    assert isinstance(oracle.count(event), int)


@pytest.mark.parametrize(("oracle", "event"), [(oracle, event) for oracle, event, _ in HUGE[1:]], ids=str)
def test_a_space_beyond_int64_is_refused(oracle: Any, event: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`enumerate` got a space of \d\.\d\de\+\d+ structures; expected at most 2\*\*62"):
        oracle.enumerate(event, 0, 1)


def test_a_range_beyond_memory_is_refused_at_once() -> None:
    message = (
        r"^`enumerate` got 1\.18e\+17 structures of subset, which take [\d,.]+ GiB of memory, and this machine has [\d,.]+ GiB; take ranges"
    )
    with pytest.raises(ValueError, match=message):
        Subset(30).enumerate((60,))
    assert len(Subset(30).enumerate((60,), 10**15, 10**15 + 5)) == 5


@pytest.mark.parametrize(
    ("oracle", "event"), [(Subset(30), (64,)), (Subset(60), (64,)), (Subset(99), (100,)), (LinearChain(), (26, 5, 5))], ids=str
)
def test_slices_of_a_large_space(oracle: Any, event: tuple[int, ...]) -> None:
    count = oracle.count(event)
    ends = torch.cat([oracle.enumerate(event, 0, 3), oracle.enumerate(event, count - 3)]).flatten(1)
    assert len(ends.unique(dim=0)) == 6
    assert ends.sum(1).unique().numel() == 1
    if isinstance(oracle, Subset):
        assert torch.equal(ends[0].bool(), torch.arange(event[0]) < oracle.k)
        assert torch.equal(ends[-1].bool(), torch.arange(event[0]) >= event[0] - oracle.k)


@pytest.mark.parametrize(("start", "stop"), [(-1, None), (0, 10**6), (3, 2), (10**6, None)])
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_range_outside_the_space_is_refused(case: OracleCase, start: int, stop: int | None) -> None:
    with pytest.raises(
        ValueError, match=rf"`enumerate` got start={start}, stop={stop}; expected 0 <= start <= stop <= {len(structures(case))}"
    ):
        case.oracle.enumerate(case.event, start, stop)

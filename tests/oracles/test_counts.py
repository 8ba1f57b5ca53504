"""Counts that are published, exact at any size, and the order of spaces that no memory holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from structgrad.oracles import Alignment, Assignment, Constituency, ProjectiveTree, ShiftReduce, SpanningTree, Subset, kernels

CATALAN = (1, 1, 2, 5, 14, 42, 132, 429)
PUBLISHED: tuple[tuple[Any, tuple[int, ...]], ...] = (
    (Assignment(), (1, 2, 6, 24, 120, 720)),
    (Alignment(), (1, 3, 13, 63, 321, 1683, 8989, 48639, 265729)),  # Delannoy
    (Constituency(), CATALAN),
    (ShiftReduce(), CATALAN),
    (SpanningTree(), (1, 2, 9, 64, 625)),  # Cayley
    (SpanningTree(single_root=False), (1, 3, 16, 125, 1296)),
    (ProjectiveTree(), (1, 2, 7, 30, 143, 728, 3876, 21318)),
    (ProjectiveTree(single_root=False), (1, 3, 12, 55, 273, 1428, 7752, 43263)),
)
"""Counts at sizes 1, 2, 3 and following."""


def event_of(oracle: Any, size: int) -> tuple[int, ...]:
    return (size, size) if isinstance(oracle, Alignment) else oracle.event_shape(length=size)


@pytest.mark.parametrize(("oracle", "counts"), PUBLISHED, ids=str)
def test_published_counts(oracle: Any, counts: tuple[int, ...]) -> None:
    for size, count in enumerate(counts, 1):
        assert oracle.count(event_of(oracle, size)) == count
        if count < 10_000:
            assert len(oracle.enumerate(event_of(oracle, size)).flatten(1).unique(dim=0)) == count


def delannoy(n: int, m: int) -> int:
    row = [1] * m
    for _ in range(n - 1):
        after = [1]
        for j in range(1, m):
            after.append(row[j] + after[-1] + row[j - 1])
        row = after
    return row[-1]


LARGE: tuple[tuple[Any, tuple[int, ...], int], ...] = (
    (Alignment(), (30, 20), delannoy(30, 20)),
    (Constituency(), (40, 40), math.comb(78, 39) // 40),
    (ShiftReduce(), (31, 31, 2), math.comb(58, 29) // 30),
    (ProjectiveTree(), (41, 41), math.comb(118, 39) // 40),
    (ProjectiveTree(single_root=False), (41, 41), math.comb(120, 40) // 81),
    (SpanningTree(), (16, 16), 15**14),
    (SpanningTree(single_root=False), (16, 16), 16**14),
    (Assignment(), (12, 12), math.factorial(12)),
    (Subset(45), (62,), math.comb(62, 45)),
)


@pytest.mark.parametrize(("oracle", "event", "count"), LARGE, ids=str)
def test_equal_scores_count_the_structures(oracle: Any, event: tuple[int, ...], count: int) -> None:
    assert oracle.count(event) == count
    scores = torch.zeros(5, *event, dtype=torch.float64)
    expected = torch.full((5,), math.log(count), dtype=torch.float64)
    torch.testing.assert_close(oracle.log_partition(scores), expected, rtol=1e-13, atol=0)
    with kernels.disabled():
        torch.testing.assert_close(oracle.log_partition(scores), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize(
    ("oracle", "event"),
    [
        (Alignment(), (26, 26)),
        (Assignment(), (20, 20)),
        (Constituency(), (33, 33)),
        (ShiftReduce(), (36, 36, 2)),
        (ProjectiveTree(), (25, 25)),
        (ProjectiveTree(single_root=False), (25, 25)),
        (SpanningTree(), (16, 16)),
        (SpanningTree(single_root=False), (16, 16)),
        (Subset(30), (60,)),
    ],
    ids=str,
)
def test_ranks_beyond_float64_are_exact(oracle: Any, event: tuple[int, ...]) -> None:
    count = oracle.count(event)
    assert 2**54 < count <= 2**62
    ranks = sorted({0, 1, count // 3, count // 2 + 12345, 2 * count // 3, count - 2, count - 1})
    listed = torch.cat([oracle.enumerate(event, rank, rank + 1, dtype=torch.float64) for rank in ranks])
    assert oracle.rank(listed).tolist() == ranks
    # Of scores that want a structure and nothing else, that is the best, if it is one.
    assert torch.equal(oracle.argmax(2 * listed - 1), listed)


@pytest.mark.parametrize(
    ("oracle", "event"),
    [
        (Alignment(), (30, 30)),
        (Constituency(), (40, 40)),
        (ProjectiveTree(), (41, 41)),
        (ShiftReduce(), (38, 38, 2)),
        (Assignment(), (21, 21)),
    ],
    ids=str,
)
def test_spaces_beyond_int64_have_no_ranks(oracle: Any, event: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`rank` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        oracle.rank(torch.zeros(event))


@pytest.mark.parametrize(("oracle", "event"), [(Constituency(), (6, 6)), (ShiftReduce(), (5, 5, 2))], ids=str)
def test_something_that_is_no_structure_has_some_rank(oracle: Any, event: tuple[int, ...]) -> None:
    assert oracle.rank(torch.stack([torch.zeros(event), torch.ones(event)])).shape == (2,)

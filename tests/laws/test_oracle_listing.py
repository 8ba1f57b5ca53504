"""`enumerate` lists every structure once in a fixed order, `rank` is its inverse, `count` is exact; the k best lead all others."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from structgrad.oracles import (
    Alignment,
    Assignment,
    Categorical,
    Constituency,
    DerivedOracle,
    EnumerableOracle,
    IndependentCategoricals,
    LabelledConstituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    kernels,
)
from tests.helpers import ORACLE_CASES, OracleCase, make_scores, natural_parameters, structure_indices, structures

Space = tuple[Any, tuple[int, ...]]

LARGE: tuple[Space, ...] = (
    (LinearChain(), (26, 5, 5)),
    (IndependentCategoricals(), (26, 5)),
    (Subset(30), (64,)),
    (Subset(45), (62,)),
    (Assignment(), (20, 20)),
    (Alignment(), (24, 25)),
    (Constituency(), (34, 34)),
    (ShiftReduce(), (35, 35, 2)),
    *((SpanningTree(single_root=one), (17, 17)) for one in (True, False)),
    *((ProjectiveTree(single_root=one), (25, 25)) for one in (True, False)),
)
HUGE: tuple[tuple[Any, tuple[int, ...], int], ...] = (
    (Categorical(), (10**30,), 10**30),
    (Subset(10), (1000,), math.comb(1000, 10)),
    (Subset(500), (1000,), math.comb(1000, 500)),
    (LinearChain(), (1000, 30, 30), 30**1000),
    (Assignment(), (21, 21), math.factorial(21)),
    (ShiftReduce(), (38, 38, 2), math.comb(72, 36) // 37),
)

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

SUMMED: tuple[tuple[Any, tuple[int, ...], int], ...] = (
    (Alignment(), (30, 20), sum(math.comb(29, k) * math.comb(19, k) << k for k in range(20))),
    (Alignment(), (256, 256), sum(math.comb(255, k) ** 2 << k for k in range(256))),
    (Constituency(), (40, 40), math.comb(78, 39) // 40),
    (ShiftReduce(), (31, 31, 2), math.comb(58, 29) // 30),
    (ProjectiveTree(), (41, 41), math.comb(118, 39) // 40),
    (ProjectiveTree(single_root=False), (41, 41), math.comb(120, 40) // 81),
    (SpanningTree(), (16, 16), 15**14),
    (SpanningTree(single_root=False), (16, 16), 16**14),
    (Assignment(), (12, 12), math.factorial(12)),
    (Assignment(), (16, 16), math.factorial(16)),
    (Subset(45), (62,), math.comb(62, 45)),
)
cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)

ANOTHER_ORDER = (Alignment, Assignment, Constituency, LabelledConstituency, LinearChain, SpanningTree, TiedChain)
"""Oracles whose k best of equal scores have another order than the list."""


@cases
def test_the_order_is_that_of_an_independent_list(case: OracleCase) -> None:
    oracle, event, every = case.oracle, case.event, structures(case)
    assert torch.equal(oracle.enumerate(event, dtype=torch.float64), every)
    for size in (1, 7):
        pieces = [oracle.enumerate(event, start, min(start + size, len(every))) for start in range(0, len(every), size)]
        assert torch.equal(torch.cat(pieces), every.float())
    assert oracle.enumerate(event, len(every)).shape == (0, *event)
    assert oracle.enumerate(event, dtype=torch.bool).dtype == torch.bool
    with kernels.disabled():
        assert torch.equal(oracle.enumerate(event, dtype=torch.uint8), every.byte())
    ranks = torch.arange(len(every))
    assert torch.equal(oracle.rank(torch.stack([every, every.flip(0)])), torch.stack([ranks, ranks.flip(0)]))
    assert oracle.rank(every[0]).shape == ()
    for rank in (-1, len(every)):
        with pytest.raises(ValueError, match=rf"`unrank` got ranks from {rank} to {rank}; expected 0 <= rank < {len(every)}"):
            oracle.unrank(torch.tensor([rank]), event)
    for start, stop in ((-1, None), (0, 10**6), (3, 2), (len(every) + 1, None), (0, len(every) + 1)):
        with pytest.raises(ValueError, match=rf"`enumerate` got start={start}, stop={stop}; expected 0 <= start <= stop <= {len(every)}"):
            oracle.enumerate(event, start, stop)


@pytest.mark.parametrize(("oracle", "event"), LARGE, ids=str)
def test_the_ends_and_the_middle_of_a_large_space(oracle: Any, event: tuple[int, ...]) -> None:
    count = oracle.count(event)
    assert 2**47 < count <= 2**62
    for first in (0, count // 3, count - 50):
        compiled = oracle.enumerate(event, first, first + 50, dtype=torch.uint8)
        assert oracle.rank(compiled).tolist() == list(range(first, first + 50))  # exact beyond 2**53
        with kernels.disabled():
            assert torch.equal(compiled, oracle.enumerate(event, first, first + 50, dtype=torch.uint8))
        # Of scores that want a structure and nothing else, that is the best, if it is one.
        assert torch.equal(oracle.argmax(2.0 * compiled[::25] - 1).byte(), compiled[::25])
    order = torch.randint(count, (300,), generator=torch.Generator().manual_seed(0))  # kernels go on from the structure before, whichever
    compiled = oracle.unrank(order, event)
    assert torch.equal(oracle.rank(compiled), order)
    with kernels.disabled():
        assert torch.equal(compiled.bool(), oracle.unrank(order, event).bool())
    if isinstance(oracle, Subset):
        assert torch.equal(oracle.enumerate(event, 0, 1)[0].bool(), torch.arange(event[0]) < oracle.k)


@pytest.mark.parametrize(("oracle", "counts"), PUBLISHED, ids=str)
def test_published_counts(oracle: Any, counts: tuple[int, ...]) -> None:
    for size, count in enumerate(counts, 1):
        event = (size, size) if isinstance(oracle, Alignment) else oracle.event_shape(length=size)
        assert oracle.count(event) == count
        if count < 2000:
            assert len(oracle.enumerate(event).flatten(1).unique(dim=0)) == count


@pytest.mark.parametrize(("oracle", "event", "count"), SUMMED, ids=str)
def test_equal_scores_count_the_structures(oracle: Any, event: tuple[int, ...], count: int) -> None:
    assert oracle.count(event) == count
    scores = torch.zeros(5, *event, dtype=torch.float64)
    expected = torch.full((5,), math.log(count), dtype=torch.float64)
    for compiled in (True, False) if math.prod(event) < 2000 else (True,):
        with nullcontext() if compiled else kernels.disabled():
            torch.testing.assert_close(oracle.log_partition(scores), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", ["assignment", "categories", "spanning_tree"])
def test_structures_are_unranked_by_a_kernel(name: str) -> None:
    case = next(case for case in ORACLE_CASES if case.oracle.name == name)
    with kernels.recorded() as functions:
        case.oracle.enumerate(case.event, 0, 1)
    assert [function.__name__ for function in functions] == ["unrank"]


@pytest.mark.parametrize(("oracle", "event", "count"), HUGE, ids=str)
def test_counts_are_exact_integers(oracle: Any, event: tuple[int, ...], count: int) -> None:
    assert oracle.count(event) == count
    assert isinstance(oracle.count(event), int)
    if len(event) > 1 or event[0] < 10**4:
        with pytest.raises(ValueError, match=r"`enumerate` got a space of \d\.\d\de\+\d+ structures; expected at most 2\*\*62"):
            oracle.enumerate(event, 0, 1)
        with pytest.raises(ValueError, match=r"`rank` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
            oracle.rank(torch.zeros(1).expand(event))


@cases
def test_the_k_best_lead_all_others(case: OracleCase) -> None:
    """Each is listed once, and of equal scores the first one first."""
    oracle, every = case.oracle, structures(case)
    for regime in (1.0, "masked", "masked_ties", "tenths"):  # sums of tenths differ by rounding
        scores = 0.1 * make_scores(case, "ties", rows=3) if regime == "tenths" else make_scores(case, regime, rows=3)
        natural = natural_parameters(case, scores)
        totals = torch.where(every.unsqueeze(1) != 0, natural * every.unsqueeze(1), 0).flatten(2).sum(-1)
        expected = totals.sort(dim=0, descending=True, stable=True)
        for compiled in (True, False):
            with nullcontext() if compiled else kernels.disabled():
                listed = oracle.kbest(scores, len(every))
            for row, best in enumerate(listed.unbind(1)):
                count = int((expected.values[:, row] > -math.inf).sum())
                order = structure_indices(case, best[:count])
                assert not best[count:].any()
                assert len(order.unique()) == count
                found = totals[order, row]
                torch.testing.assert_close(found, expected.values[:count, row], rtol=1e-12, atol=1e-12 * max(1.0, case.event[0]))
                if regime == "masked_ties" and not case.potentials and not isinstance(oracle, ANOTHER_ORDER):
                    assert torch.equal(order, expected.indices[:count, row])
    assert torch.equal(oracle.kbest(scores, 1)[0], oracle.argmax(scores))
    scores = make_scores(case, 1.0)
    together = oracle.kbest(scores.reshape(2, 3, *case.event), k := min(len(every), 3))
    assert torch.equal(together[:, 1, 2], oracle.kbest(scores[5], k))
    assert torch.equal(oracle.kbest(scores[:1].expand(5, *case.event), k), together[:, 0, :1].expand(k, 5, *case.event))
    for k in (0, len(every) + 1):
        with pytest.raises(ValueError, match=rf"`kbest` got k={k}; expected 1 <= k <= {len(every)}, the number of structures"):
            oracle.kbest(scores, k)


@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if isinstance(case.oracle, DerivedOracle)], ids=str)
def test_max_marginals_are_scores_of_the_best_structures_with_a_part(case: OracleCase) -> None:
    every = structures(case).unsqueeze(1)
    for regime in (1.0, 100.0, "masked"):
        scores = make_scores(case, regime, rows=3)
        totals = torch.where(every != 0, natural_parameters(case, scores) * every, 0).flatten(2).sum(-1)
        each = torch.where(every != 0, totals.reshape(*totals.shape, *[1] * len(case.event)), -math.inf)
        torch.testing.assert_close(case.oracle.max_marginals(scores), each.amax(0), rtol=1e-12, atol=1e-12)


def test_an_oracle_without_ranks_says_so() -> None:
    class Unranked(Subset):
        _rank = EnumerableOracle._rank

    with pytest.raises(ValueError, match="`rank` is not offered by the oracle subset; implement `_rank`, the inverse of its `_unrank`"):
        Unranked(2).rank(torch.tensor([1.0, 1.0, 0.0]))

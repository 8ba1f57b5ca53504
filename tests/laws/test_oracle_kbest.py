"""The k best structures are the first k of all, sorted by score."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import Subset
from tests.helpers import (
    ORACLE_CASES,
    REGIMES,
    OracleCase,
    cut_to_item,
    item_event,
    make_scores,
    structures,
)

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
regimes = pytest.mark.parametrize("regime", REGIMES, ids=str)


@cases
def test_all_of_them_are_the_whole_space(case: OracleCase) -> None:
    everything = structures(case)
    best = case.oracle.kbest(make_scores(case, 1.0, rows=2), len(everything))
    for row in range(2):
        assert {tuple(z.flatten().tolist()) for z in best[:, row]} == {tuple(z.flatten().tolist()) for z in everything}


@cases
@pytest.mark.parametrize("regime", [1.0, 50.0])
def test_the_first_is_the_argmax(case: OracleCase, regime: float) -> None:
    scores = make_scores(case, regime)
    assert torch.equal(case.oracle.kbest(scores, 1)[0], case.oracle.argmax(scores))


@cases
def test_a_batch_is_a_loop_of_single_calls(case: OracleCase) -> None:
    scores = make_scores(case, 1.0).reshape(2, 3, *case.event)
    k = min(len(structures(case)), 3)
    together = case.oracle.kbest(scores, k)
    for i in range(2):
        for j in range(3):
            assert torch.equal(together[:, i, j], case.oracle.kbest(scores[i, j], k))
    shared = case.oracle.kbest(scores[:1, :1].expand(4, 5, *case.event), k)
    assert torch.equal(shared, together[:, :1, :1].expand(k, 4, 5, *case.event))


@cases
def test_lengths_give_the_best_of_the_item_alone(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    length = (torch.tensor(case.oracle.length_limits(case.event)).squeeze(-1) - 1).clamp(min=1)
    k = min(case.oracle.count(item_event(case, length)), 3)
    if k == 0:
        pytest.skip("the shorter item has no structure")
    found = case.oracle.kbest(scores, k, lengths=length)
    assert torch.equal(cut_to_item(case, found, length), case.oracle.kbest(cut_to_item(case, scores, length), k))
    assert found.sum() == cut_to_item(case, found, length).sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_keeps_the_dtype(dtype: torch.dtype) -> None:
    case = next(case for case in ORACLE_CASES if case.event == (5,))
    assert case.oracle.kbest(make_scores(case, 1.0).to(dtype), 2).dtype == dtype


@cases
def test_refuses_more_than_there_are(case: OracleCase) -> None:
    count = len(structures(case))
    for k in (0, count + 1):
        with pytest.raises(ValueError, match=rf"`kbest` got k={k}; expected 1 <= k <= {count}, the number of structures"):
            case.oracle.kbest(make_scores(case, 1.0), k)


def test_a_list_beyond_memory_is_refused_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"^`kbest` got k=10000000000000 of subset, which take [\d,.]+ GiB of memory, .*; choose a smaller k$"
    ):
        Subset(30).kbest(torch.zeros(60), 10**13)

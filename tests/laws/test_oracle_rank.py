"""`rank` is the inverse of `enumerate`."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.oracles import EnumerableOracle, LinearChain, Subset
from tests.helpers import ORACLE_CASES, OracleCase

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)


@cases
def test_any_batch(case: OracleCase) -> None:
    everything = case.oracle.enumerate(case.event)
    pairs = torch.stack([everything, everything.flip(0)])
    forward = torch.arange(len(everything))
    assert torch.equal(case.oracle.rank(pairs), torch.stack([forward, forward.flip(0)]))
    assert case.oracle.rank(everything[0]).shape == ()


def test_ranks_beyond_float64_are_exact() -> None:
    oracle, event, last = Subset(30), (60,), math.comb(60, 30)
    ends = oracle.enumerate(event, last - 3, last)
    assert oracle.rank(ends).tolist() == [last - 3, last - 2, last - 1]


def test_an_oracle_without_it_says_so() -> None:
    class Unranked(Subset):
        _rank = EnumerableOracle._rank

    with pytest.raises(ValueError, match="`rank` is not offered by the oracle subset; implement `_rank`, the inverse of its `_unrank`"):
        Unranked(2).rank(torch.tensor([1.0, 1.0, 0.0]))


def test_refuses_a_space_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"`rank` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        LinearChain().rank(torch.zeros(100, 5, 5))

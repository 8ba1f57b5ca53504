"""Faults that were found by hand, each with the smallest case that shows it."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import LinearChain, ShiftReduce
from structgrad.oracles.options import kind_of
from tests.helpers import GENERIC_CASES, OracleCase


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_ranks_out_of_range_are_refused(case: OracleCase) -> None:
    count = case.oracle.count(case.event)
    for rank in (-1, count):
        with pytest.raises(ValueError, match=rf"`unrank` got ranks from {rank} to {rank}; expected 0 <= rank < {count}"):
            case.oracle.unrank(torch.tensor([rank]), case.event)


def test_negative_views_are_gradients_too() -> None:
    scores, along = torch.randn(3, 4, 2, 2, requires_grad=True), torch.randn(3, 4, 2, 2)
    (wanted,) = torch.autograd.grad(LinearChain().marginals(scores), scores, -along)
    (found,) = torch.autograd.grad(LinearChain().marginals(scores), scores, torch._neg_view(along))
    torch.testing.assert_close(found, wanted)


def test_a_policy_keeps_the_digits_of_large_scores() -> None:
    oracle, generator = ShiftReduce("local"), torch.Generator().manual_seed(0)
    scores = 1e6 * torch.randn(64, 5, 5, 2, generator=generator)
    drawn = oracle.sample_distinct(scores, 4, generator=generator)
    exact = oracle.log_prob(drawn.structures.double(), scores.double()).movedim(0, -1)
    finite = drawn.log_probs > -torch.inf
    torch.testing.assert_close(drawn.log_probs[finite], exact[finite], rtol=1e-12, atol=1e-9)


def test_unions_of_the_same_types_in_another_order_read_differently() -> None:
    assert kind_of(int | str).read("5", {}) == 5
    assert kind_of(str | int).read("5", {}) == "5"

"""The divergence of two laws, against the enumeration."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch.autograd import gradcheck

from structgrad.oracles import Categorical
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    OracleCase,
    cut_to_item,
    make_scores,
)

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_is_infinite_where_the_other_forbids(case: OracleCase) -> None:
    scores = make_scores(case, 1.0)
    other = scores.clone()
    best = case.oracle.argmax(scores)[0] != 0
    other[0] = other[0].masked_fill(best, -math.inf)
    found = case.oracle.kl(scores, other)
    assert found[0] == math.inf
    assert found[1:].abs().max() < 1e-12
    assert case.oracle.kl(other, scores).isfinite().all()


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_from_an_infeasible_law_is_infinite_and_has_no_nan(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=3).requires_grad_()
    other = torch.cat([torch.full_like(scores[:1], -math.inf), scores[1:].detach() + 1]).requires_grad_()
    found = case.oracle.kl(scores, other)
    assert found[0] == math.inf
    gradients = torch.autograd.grad(found.sum(), (scores, other))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert case.oracle.kl(other, scores)[0] == 0


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_gradients(case: OracleCase) -> None:
    scores, other = make_scores(case, 1.0, rows=2).requires_grad_(), make_scores(case, 1.0, rows=2, seed=1).requires_grad_()
    assert gradcheck(case.oracle.kl, (scores, other))


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_lengths(case: OracleCase) -> None:
    scores, other = make_scores(case, 1.0), make_scores(case, 1.0, seed=1)
    length = (torch.tensor(case.oracle.length_limits(case.event)).squeeze(-1) - 1).clamp(min=1)
    found = case.oracle.kl(scores, other, lengths=length)
    alone = case.oracle.kl(cut_to_item(case, scores, length), cut_to_item(case, other, length))
    torch.testing.assert_close(found, alone, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (6,), (3, 5), ()])
def test_the_other_law_is_one_of_the_same_structures(shape: tuple[int, ...]) -> None:
    """Else a law of one category would broadcast."""
    expected = re.escape(f"`kl` got other of shape {shape} for scores of shape (2, 5); expected one like them")
    with pytest.raises(ValueError, match=f"^{expected}$"):
        Categorical().kl(torch.zeros(2, 5), torch.zeros(shape))
    assert Categorical().kl(torch.zeros(2, 5), torch.zeros(5)).shape == (2,)

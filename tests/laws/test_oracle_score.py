"""The score of a structure: what argmax maximises, what k-best lists are sorted by, and what log-probabilities are before normalisation."""

from __future__ import annotations

import math
import re

import pytest
import torch

from structgrad.oracles import LinearChain, Subset
from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, enumerate_truth, make_scores, read_parts, structures

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


@cases
def test_it_is_differentiable_and_reads_no_ignored_entry(case: OracleCase) -> None:
    scores = torch.where(read_parts(case), make_scores(case, 1.0), math.nan).requires_grad_()
    z = structures(case)[-1]
    (found,) = torch.autograd.grad(case.oracle.score(z, scores).sum(), scores)
    assert bool(found.isfinite().all())
    if case.potentials is None:
        assert torch.equal(found, z.expand_as(found))


def test_lengths() -> None:
    scores, lengths = make_scores(OracleCase(LinearChain(), (4, 2, 2), lambda *_: iter(())), 1.0, rows=3), torch.tensor([1, 2, 4])
    z = LinearChain().argmax(scores, lengths=lengths)
    found = LinearChain().score(z, scores, lengths=lengths)
    single = [LinearChain().score(z[i, :n], scores[i, :n]) for i, n in enumerate(lengths.tolist())]
    torch.testing.assert_close(found, torch.stack(single))
    free = LinearChain().free_parts(scores, lengths=lengths)
    assert not free[0, 1:].any()
    assert torch.equal(free[2], LinearChain().free_parts(scores[2]))


def test_another_shape_is_refused() -> None:
    message = "`score` got a structure of shape (4,) for scores of shape (2, 3); expected the same last 1 dimension(s)"
    with pytest.raises(ValueError, match=re.escape(message)):
        Subset(1).score(torch.zeros(4), torch.zeros(2, 3))


@pytest.mark.parametrize("scale", [1e3, 1e6], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_log_partition_neither_overflows_nor_underflows(case: OracleCase, scale: float) -> None:
    scores = make_scores(case, scale)
    torch.testing.assert_close(case.oracle.log_partition(scores), enumerate_truth(case, scores).log_partition, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_structure_with_a_forbidden_part_is_impossible(case: OracleCase) -> None:
    structure = structures(case)[-1]
    scores = torch.where(structure > 0, -math.inf, make_scores(case, 1.0)[0])
    assert case.oracle.log_prob(structure, scores).item() == -math.inf


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_structures_and_scores_broadcast(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=6).reshape(2, 3, *case.event)
    one = structures(case)[0]
    many = one.expand(4, 1, 3, *case.event)
    expected = case.oracle.log_prob(one.expand_as(scores), scores)
    assert torch.equal(case.oracle.log_prob(one, scores), expected)
    assert torch.equal(case.oracle.log_prob(many, scores), expected.expand(4, 2, 3))
    alone = case.oracle.log_prob(many[0, 0, 0], scores[0, 0])  # sums of few items may have another order
    torch.testing.assert_close(alone, expected[0, 0], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30], ids=str)
@cases
def test_nothing_has_a_probability_where_all_is_forbidden(case: OracleCase, scale: float) -> None:
    scores = scale * make_scores(case, "masked")
    found = case.oracle.log_prob(structures(case)[0], scores)
    assert not found.isnan().any()
    assert bool((found[~case.oracle.feasible(scores)] == -math.inf).all())

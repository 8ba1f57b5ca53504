"""The score of a structure: what argmax maximises, what k-best lists are sorted by, and what log-probabilities are before normalisation."""

from __future__ import annotations

import math
import re

import pytest
import torch

from structgrad.oracles import KBestOracle, LinearChain, Subset
from tests.helpers import GENERIC_CASES, OracleCase, enumerate_truth, make_scores, read_parts, structures

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


@cases
@pytest.mark.parametrize("regime", [0.05, 10.0, "masked"], ids=str)
def test_it_is_the_sum_of_the_parts(case: OracleCase, regime: float | str) -> None:
    scores, space = make_scores(case, regime), structures(case)
    found = case.oracle.score(space.unsqueeze(1), scores)
    torch.testing.assert_close(found.T, enumerate_truth(case, scores).structure_scores, rtol=1e-11, atol=1e-11)
    feasible = case.oracle.feasible(scores)
    log_prob = found - case.oracle.log_partition(scores)
    torch.testing.assert_close(log_prob[:, feasible], case.oracle.log_prob(space.unsqueeze(1), scores)[:, feasible], rtol=1e-10, atol=1e-10)
    best = case.oracle.score(case.oracle.argmax(scores), scores)
    torch.testing.assert_close(best[feasible], found.amax(0)[feasible], rtol=1e-11, atol=1e-11)


@cases
def test_lists_are_sorted_by_it(case: OracleCase) -> None:
    if isinstance(case.oracle, KBestOracle):
        scores = make_scores(case, 1.0)
        values = case.oracle.score(case.oracle.kbest(scores, min(6, len(structures(case)))), scores)
        assert bool((values.diff(dim=0) <= 1e-12).all())


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

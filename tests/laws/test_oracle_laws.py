"""The laws of `structgrad audit --oracle`, against structures that the tests list independently of every oracle, and laws at extremes."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from structgrad.oracles import Alignment, Assignment, LinearChain, SpanningTree, TiedChain, kernels
from structgrad.suites.audit.oracles import LAWS, Scene, check_rules, compared
from tests.covering import sampled
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    REGIMES,
    OracleCase,
    enumerate_truth,
    make_scores,
    seeded,
    structures,
)

ANOTHER_ORDER = (Alignment, Assignment, LinearChain, SpanningTree, TiedChain)
"""Oracles that do not list the structure first that ties go to."""

PRECISE = 0.05
"""Oracles of the package keep this share of the tolerances that the audit grants others."""

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
generic = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


@cases
def test_every_law_holds(case: OracleCase) -> None:
    """At some kinds of scores of each case; each kind is met by many cases."""
    whole = Scene(case.oracle, case.event, structures(case).flatten(1), "an independent list")
    derivations = getattr(case.oracle, "derivations", None)
    for check in check_rules(whole, derivations and derivations(case.event)):
        assert check.status == "holds", check
    for scene in sampled([*whole.with_scores(0, quick=False)], 3):
        for capability, name, law in LAWS:
            for check in compared(scene, name, law, precision=PRECISE) if isinstance(case.oracle, capability) else ():
                assert check.status in ("holds", "skipped"), check
                assert check.p_value is None or check.p_value > 1e-6, check


@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if not isinstance(case.oracle, ANOTHER_ORDER)], ids=str)
def test_ties_go_to_the_first_structure(case: OracleCase, device: torch.device) -> None:
    for regime in ("ties", "equal", "masked_ties"):
        scores = make_scores(case, regime, rows=12)
        truth = enumerate_truth(case, scores)
        first = structures(case)[truth.structure_scores.numpy().argmax(1)]
        assert torch.equal(case.oracle.argmax(scores.to(device)).cpu()[truth.feasible], first[truth.feasible])
        with kernels.disabled():
            assert torch.equal(case.oracle.argmax(scores)[truth.feasible], first[truth.feasible])


@cases
def test_an_infeasible_item_gives_the_zero_tensor(case: OracleCase, device: torch.device) -> None:
    """Indices are -1. Infeasible scores are found by enumeration."""
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=40)
    kept = torch.rand(scores.shape, generator=seeded()) < torch.linspace(0, 1, 40).reshape(-1, *[1] * len(case.event))
    scores = scores.masked_fill(~kept, -math.inf)
    feasible = enumerate_truth(case, scores).feasible
    for where in (nullcontext(), kernels.disabled()):
        with where:
            for rows in (scores, scores.half(), scores.flip(0).unsqueeze(1).expand(-1, 2, *case.event).flip(0)):
                best, indices = oracle.argmax(rows.to(device)).cpu(), oracle.argmax(rows.to(device), as_indices=True).cpu()
                some = best.flatten(-len(case.event)).any(-1)
                expected = feasible.reshape(-1, *[1] * (some.ndim - 1)).expand(some.shape)
                assert torch.equal(some | (expected & oracle._holds_empty(case.event)), expected)
                assert not ((best != 0) & (rows == -math.inf)).any()
                assert torch.equal(oracle.dense(indices, case.event, dtype=best.dtype), best)
                assert bool((indices[~expected] == -1).all())
    assert torch.equal(oracle.argmax_of(oracle.natural_parameters(scores)).flatten(1).any(-1), oracle.argmax(scores).flatten(1).any(-1))


@cases
def test_large_sums_neither_overflow_nor_underflow(case: OracleCase) -> None:
    for scale in (1e3, 1e6):
        scores = make_scores(case, scale)
        expected = enumerate_truth(case, scores).log_partition
        torch.testing.assert_close(case.oracle.log_partition(scores), expected, rtol=1e-12, atol=1e-12)
    for scale in (1.0, 1e6, 1e30):
        scores = scale * make_scores(case, "masked")
        found = case.oracle.log_prob(structures(case)[0], scores)
        assert not found.isnan().any()
        assert bool((found[~case.oracle.feasible(scores)] == -math.inf).all())


@generic
def test_structures_and_scores_broadcast(case: OracleCase) -> None:
    scores, one = make_scores(case, 1.0, rows=6).reshape(2, 3, *case.event), structures(case)[0]
    many, expected = one.expand(4, 1, 3, *case.event), case.oracle.log_prob(one.expand_as(scores), scores)
    assert torch.equal(case.oracle.log_prob(one, scores), expected)
    assert torch.equal(case.oracle.log_prob(many, scores), expected.expand(4, 2, 3))
    alone = case.oracle.log_prob(one, scores[0, 0])  # sums of few items may have another order
    torch.testing.assert_close(alone, expected[0, 0], rtol=1e-13, atol=1e-14)


@generic
def test_divergence_from_a_law_that_forbids_more(case: OracleCase) -> None:
    """Infinite, without NaN in gradients; 0 for an item that is infeasible itself."""
    scores, other = make_scores(case, 1.0, rows=3).requires_grad_(), make_scores(case, 1.0, rows=3)
    other[0] = other[0].masked_fill(case.oracle.argmax(scores)[0] != 0, -math.inf)
    other[1] = -math.inf
    other.requires_grad_()
    found = case.oracle.kl(scores, other)
    assert found[:2].tolist() == [math.inf, math.inf]
    assert abs(found[2]) < 1e-12
    assert all(bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(found.sum(), (scores, other)))
    back = case.oracle.kl(other, scores)
    assert back.isfinite().all()
    assert back[1] == 0
    assert gradcheck(case.oracle.kl, (scores[:2], make_scores(case, 1.0, rows=2, seed=1).requires_grad_()), fast_mode=True)


# A structure in the place of marginals.


@cases
def test_a_structure_in_the_place_of_marginals_has_their_derivative(case: OracleCase) -> None:
    for regime in REGIMES:
        scores = make_scores(case, regime).requires_grad_()
        best = case.oracle.argmax(scores)
        assert not best.requires_grad
        along = torch.linspace(-1.0, 2.0, best.numel(), dtype=torch.float64).reshape(best.shape)
        replaced = case.oracle.marginals(scores, at=best)
        assert torch.equal(replaced, best)
        found, expected = (torch.autograd.grad(value, scores, along)[0] for value in (replaced, case.oracle.marginals(scores)))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_structure_in_their_place_is_one_of_lengths_transforms_and_higher_derivatives() -> None:
    oracle, lengths = LinearChain(), torch.tensor([2, 4])
    scores = torch.linspace(-2.0, 2.0, 72, dtype=torch.float64).sin().reshape(2, 4, 3, 3).requires_grad_()
    best, along = oracle.argmax(scores.detach(), lengths=lengths), torch.cos(scores.detach())
    seconds = []
    for value in (oracle.marginals(scores, lengths=lengths, at=best), oracle.marginals(scores, lengths=lengths)):
        (first,) = torch.autograd.grad(value, scores, along, create_graph=True)
        seconds.append((first.detach(), torch.autograd.grad(first.square().sum(), scores)[0]))
    torch.testing.assert_close(*seconds)
    rows = scores.detach()

    def at_best(scores: Tensor, point: Tensor) -> Tensor:
        return oracle.marginals(scores, at=oracle.argmax(point))

    jacobians = [torch.func.jacrev(torch.func.vmap(at))(rows, rows) for at in (lambda z, _: oracle.marginals(z), at_best)]
    torch.testing.assert_close(*jacobians)
    assert torch.equal(oracle.marginals(rows[:1], at=best), best)

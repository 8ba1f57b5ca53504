"""The relaxed recursion, every step of whose walk is a sparsemax; and relaxed samples, whose choices are Gumbel-softmaxes."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import SeedBlocks
from structgrad.oracles.capabilities import RelaxedOracle
from tests.catalogue.walks import WALKS
from tests.helpers import (
    ORACLE_CASES,
    RAGGED_CASES,
    OracleCase,
    chi_square_p_value,
    enumerate_truth,
    make_scores,
    natural_parameters,
    seeded,
    structure_indices,
    structures,
)
from tests.laws.test_oracle_lengths import inside, item_event, lengths_of, outside, padded_scores
from tests.oracle_operations import assert_derivatives

CASES = [case for case in ORACLE_CASES if isinstance(case.oracle, RelaxedOracle)]
cases = pytest.mark.parametrize("case", CASES, ids=str)


def assert_in_the_polytope(case: OracleCase, points: Tensor) -> None:
    """No linear function is greater on them than on every structure."""
    listed = structures(case).flatten(1)
    directions = torch.randn(200, listed.shape[1], generator=seeded(1), dtype=torch.float64)
    assert bool(((points.flatten(1) @ directions.T) <= (listed @ directions.T).amax(0) + 1e-9).all())


# With ½‖·‖².


def test_every_relaxed_oracle_has_a_walk() -> None:
    assert {type(case.oracle) for case in CASES} == set(WALKS)


@cases
def test_it_is_the_expected_structure_of_the_sparse_walk(case: OracleCase) -> None:
    for regime in (0.05, 1.0, 10.0, "masked"):
        scores = make_scores(case, regime)
        feasible = case.oracle.feasible(scores).reshape(-1, *[1] * len(case.event))
        rows = [WALKS[type(case.oracle)](case.oracle, row) for row in natural_parameters(case, scores).numpy()]
        expected = torch.where(feasible, torch.from_numpy(np.stack(rows)), 0)
        torch.testing.assert_close(case.oracle.relax(scores, "l2"), expected, rtol=0, atol=1e-10)
        assert torch.equal(case.oracle.relax(scores), case.oracle.marginals(scores))
    scores = make_scores(case, 1.0)
    assert_in_the_polytope(case, case.oracle.relax(scores, "l2"))
    torch.testing.assert_close(case.oracle.relax(1e4 * scores, "l2"), case.oracle.argmax(1e4 * scores), rtol=0, atol=1e-9)
    assert_derivatives(lambda theta: case.oracle.relax(theta, "l2"), scores[:2])


# Relaxed samples. Their batches, dtypes, ignored and forbidden entries are among the operations of other laws; of hard ones here.


def law_holds(case: OracleCase, drawn: Tensor, row: Tensor) -> bool:
    probabilities = enumerate_truth(case, row).probabilities[0]
    counts = torch.bincount(structure_indices(case, drawn), minlength=len(probabilities))
    return chi_square_p_value(counts, probabilities) > 1e-4


@cases
def test_hard_walks_are_exact_samples(case: OracleCase) -> None:
    """By Pearson's test against the probabilities of all structures; the temperature is that of the derivative alone."""
    for regime, temperature in ((0.05, 2.0), (1.0, 0.1), ("ties", 2.0), ("masked", 0.1)):
        row = make_scores(case, regime, rows=3)[2]
        drawn = case.oracle.relaxed_sample(row.expand(3000, *case.event), temperature, hard=True, generator=seeded(7))
        assert not case.oracle.feasible(row) or law_holds(case, drawn, row)
        scores = make_scores(case, regime, rows=30)
        soft, hard = (case.oracle.relaxed_sample(scores, 1e-5, hard=hard, generator=seeded()) for hard in (False, True))
        assert regime == "ties" or float((soft - hard).abs().flatten(1).sum(1).quantile(0.9)) < 1e-6


@cases
def test_soft_walks(case: OracleCase) -> None:
    """They lie in the polytope; at high temperature every choice is even: the relaxed recursion at equal values, without noise."""
    scores = make_scores(case, 1.0)
    for temperature in (0.1, 1.0, 10.0):
        assert_in_the_polytope(case, case.oracle.relaxed_sample(scores, temperature, generator=seeded()))
    first, second = (case.oracle.relaxed_sample(scores, 1e9, generator=seeded(seed)) for seed in (1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    torch.testing.assert_close(first, first[:1].expand_as(first), rtol=0, atol=1e-6)
    assert_derivatives(lambda theta: case.oracle.relaxed_sample(theta, 0.7, generator=seeded(3)), scores[:2])


@cases
def test_a_hard_walk_has_the_derivative_of_its_soft_choices(case: OracleCase) -> None:
    """At low temperature the soft walk of the same noise is the hard one, and so is its derivative."""
    scores, gamma = make_scores(case, 0.5, rows=200), torch.randn(*case.event, generator=seeded(1), dtype=torch.float64)
    found = []
    for hard in (False, True):
        leaf = scores.clone().requires_grad_()
        found += torch.autograd.grad((case.oracle.relaxed_sample(leaf, 0.02, hard=hard, generator=seeded()) * gamma).sum(), leaf)
    # Where no choice is close to even, both vanish; the others are few.
    assert float(((found[0] - found[1]).abs().flatten(1).sum(1) < 1e-3).double().mean()) > 0.7


@cases
def test_gradients_and_rows_of_hard_and_soft_walks(case: OracleCase) -> None:
    """Entries may be forbidden, and each row may have its own stream."""
    for hard in (False, True):
        scores = make_scores(case, "masked", rows=12).requires_grad_()
        sample, feasible = case.oracle.relaxed_sample(scores, 0.5, hard=hard, generator=seeded()), case.oracle.feasible(scores)
        assert bool((sample[feasible].flatten(1).sum(1) > 0).all())
        (gradient,) = torch.autograd.grad(sample.square().sum() + (sample * scores.detach().nan_to_num(neginf=0.0)).sum(), scores)
        assert gradient.isfinite().all()
        assert not gradient[scores == -math.inf].any()
        assert not gradient[~feasible].any()
        plain, seeds = make_scores(case, 1.0, rows=3), (1, 2, 3)
        batched = case.oracle.relaxed_sample(plain, 0.5, hard=hard, generator=SeedBlocks(seeds, 1))
        single = [case.oracle.relaxed_sample(plain[row : row + 1], 0.5, hard=hard, generator=SeedBlocks((row + 1,), 1)) for row in range(3)]
        torch.testing.assert_close(batched, torch.cat(single), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("case", [case for case in RAGGED_CASES if isinstance(case.oracle, RelaxedOracle)], ids=str)
def test_an_item_with_a_length_is_the_item_alone(case: OracleCase) -> None:
    """In its law; what lies in its padding is never read, and is 0."""
    scores, lengths = padded_scores(case, 1.0), lengths_of(case)
    for row in (0, 1):
        several = scores[row].expand(3000, *case.event)
        drawn = case.oracle.relaxed_sample(several, hard=True, generator=seeded(), lengths=lengths[row])
        assert not drawn[:, outside(case, row)].any()
        item = OracleCase(case.oracle, item_event(case, lengths[row].tolist()))
        assert law_holds(item, drawn[(slice(None), *inside(case, row))], scores[row][inside(case, row)])

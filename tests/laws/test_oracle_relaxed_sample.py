"""Relaxed samples: walks through the recursion whose choices are Gumbel-softmaxes, and exact samples where they are hard."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Constituency, LinearChain, ProjectiveTree, RelaxedOracle, SeedBlocks, ShiftReduce
from tests.helpers import (
    ORACLE_CASES,
    REGIMES,
    OracleCase,
    binary_trees,
    chi_square_p_value,
    cut_to_item,
    derivations,
    enumerate_truth,
    item_event,
    make_scores,
    monotone_paths,
    projective_trees,
    read_parts,
    seeded,
    shift_reduce_policy,
    structure_indices,
    structures,
    tag_sequences,
)
from tests.oracle_operations import assert_derivatives

CASES = [case for case in ORACLE_CASES if isinstance(case.oracle, RelaxedOracle)]
cases = pytest.mark.parametrize("case", CASES, ids=str)
hardness = pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])

LENGTHS = (
    (OracleCase(LinearChain(), (4, 2, 2), tag_sequences), (1,)),
    (OracleCase(LinearChain(), (4, 2, 2), tag_sequences), (3,)),
    (OracleCase(Alignment(), (3, 4), monotone_paths), (2, 2)),
    (OracleCase(Alignment(), (3, 4), monotone_paths), (3, 2)),
    (OracleCase(Constituency(), (5, 5), binary_trees), (4,)),
    (OracleCase(ProjectiveTree(), (5, 5), projective_trees), (3,)),
    (OracleCase(ProjectiveTree(single_root=False), (4, 4), projective_trees), (2,)),
    (OracleCase(ShiftReduce(), (6, 6, 2), derivations), (4,)),
    (OracleCase(ShiftReduce("local"), (6, 6, 2), derivations, shift_reduce_policy), (4,)),
)


def law_holds(case: OracleCase, drawn: Tensor, row: Tensor) -> bool:
    probabilities = enumerate_truth(case, row).probabilities[0]
    counts = torch.bincount(structure_indices(case, drawn), minlength=len(probabilities))
    return chi_square_p_value(counts, probabilities) > 1e-4


@pytest.mark.parametrize("temperature", [0.1, 2.0])
@pytest.mark.parametrize("regime", [0.05, 1.0, "ties", "masked"], ids=str)
@cases
def test_hard_walks_are_exact_samples(case: OracleCase, regime: float | str, temperature: float) -> None:
    """By Pearson's test against the probabilities of all structures; the temperature is that of the derivative alone."""
    for row in make_scores(case, regime, rows=3)[1:]:
        drawn = case.oracle.relaxed_sample(row.expand(4000, *case.event), temperature, hard=True, generator=seeded(7))
        if case.oracle.feasible(row):
            assert law_holds(case, drawn, row)


@pytest.mark.parametrize("regime", [1.0, "masked"], ids=str)
@cases
def test_soft_walks_of_temperature_zero_are_hard(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime, rows=30)
    soft, hard = (case.oracle.relaxed_sample(scores, 1e-5, hard=hard, generator=seeded()) for hard in (False, True))
    assert float((soft - hard).abs().flatten(1).sum(1).quantile(0.9)) < 1e-6


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
@cases
def test_soft_walks_lie_in_the_marginal_polytope(case: OracleCase, temperature: float) -> None:
    """No linear function is greater on them than on every structure."""
    relaxed = case.oracle.relaxed_sample(make_scores(case, 1.0), temperature, generator=seeded()).flatten(1)
    listed = structures(case).flatten(1)
    directions = torch.randn(200, listed.shape[1], generator=seeded(1), dtype=torch.float64)
    assert bool(((relaxed @ directions.T) <= (listed @ directions.T).amax(0) + 1e-9).all())


@cases
def test_at_high_temperature_every_choice_is_even(case: OracleCase) -> None:
    """Of what is not forbidden: then the walk is that of the relaxed recursion at equal values, without noise."""
    scores = make_scores(case, 1.0)
    first, second = (case.oracle.relaxed_sample(scores, 1e9, generator=seeded(seed)) for seed in (1, 2))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    torch.testing.assert_close(first, first[:1].expand_as(first), rtol=0, atol=1e-6)


@cases
def test_they_are_differentiable(case: OracleCase) -> None:
    """For the same noise, by finite differences."""
    assert_derivatives(lambda theta: case.oracle.relaxed_sample(theta, 0.7, generator=seeded(3)), make_scores(case, 1.0, rows=2))


@cases
def test_a_hard_walk_has_the_derivative_of_its_soft_choices(case: OracleCase) -> None:
    """At low temperature the soft walk of the same noise is the hard one, and so is its derivative."""
    scores, gamma = make_scores(case, 0.5, rows=200), torch.randn(*case.event, generator=seeded(1), dtype=torch.float64)
    found = []
    for hard in (False, True):
        leaf = scores.clone().requires_grad_()
        sample = case.oracle.relaxed_sample(leaf, 0.02, hard=hard, generator=seeded())
        found += torch.autograd.grad((sample * gamma).sum(), leaf)
    # Where no choice is close to even, both vanish; the others are few.
    far = (found[0] - found[1]).abs().flatten(1).sum(1) < 1e-3
    assert float(far.double().mean()) > 0.7


@hardness
@pytest.mark.parametrize("regime", REGIMES, ids=str)
@cases
def test_forbidden_parts_and_infeasible_items(case: OracleCase, regime: float | str, hard: bool) -> None:
    scores = make_scores(case, regime, rows=20).requires_grad_()
    sample = case.oracle.relaxed_sample(scores, 0.5, hard=hard, generator=seeded())
    assert bool((sample[scores == -math.inf] == 0).all())
    assert bool((sample[:, ~read_parts(case)] == 0).all())
    feasible = case.oracle.feasible(scores)
    assert not sample[~feasible].any()
    assert bool((sample[feasible].flatten(1).sum(1) > 0).all())
    (gradient,) = torch.autograd.grad(sample.square().sum() + (sample * scores.detach().nan_to_num(neginf=0.0)).sum(), scores)
    assert gradient.isfinite().all()
    assert bool((gradient[scores == -math.inf] == 0).all())
    assert not gradient[~feasible].any()


@hardness
@cases
def test_ignored_entries_are_never_read(case: OracleCase, hard: bool) -> None:
    scores = make_scores(case, 1.0)
    garbage = torch.where(read_parts(case), scores, math.nan)
    expected, found = (case.oracle.relaxed_sample(theta, 0.5, hard=hard, generator=seeded()) for theta in (scores, garbage))
    assert torch.equal(found, expected)


@hardness
@cases
def test_batches_are_single_calls(case: OracleCase, hard: bool) -> None:
    scores = make_scores(case, 1.0)
    seeds = tuple(range(1, 7))
    batched = case.oracle.relaxed_sample(scores, 0.5, hard=hard, generator=SeedBlocks(seeds, 1))
    single = [
        case.oracle.relaxed_sample(row.unsqueeze(0), 0.5, hard=hard, generator=SeedBlocks((seed,), 1))
        for row, seed in zip(scores, seeds, strict=True)
    ]
    torch.testing.assert_close(batched, torch.cat(single), rtol=1e-12, atol=1e-13)
    shaped = case.oracle.relaxed_sample(scores.reshape(2, 3, *case.event), 0.5, hard=hard, generator=seeded())
    flat = case.oracle.relaxed_sample(scores, 0.5, hard=hard, generator=seeded())
    torch.testing.assert_close(shaped.reshape(flat.shape), flat, rtol=1e-12, atol=1e-13)
    alone = case.oracle.relaxed_sample(scores[0], 0.5, hard=hard, generator=seeded())
    assert torch.equal(alone, case.oracle.relaxed_sample(scores[:1], 0.5, hard=hard, generator=seeded())[0])


@hardness
@cases
def test_dtypes_share_their_noise(case: OracleCase, hard: bool) -> None:
    scores = make_scores(case, 1.0).float()
    single = case.oracle.relaxed_sample(scores, 0.5, hard=hard, generator=seeded())
    double = case.oracle.relaxed_sample(scores.double(), 0.5, hard=hard, generator=seeded())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), double, rtol=1e-4, atol=1e-5)
    half = case.oracle.relaxed_sample(scores.bfloat16(), 0.5, hard=hard, generator=seeded())
    assert half.dtype == torch.bfloat16
    assert half.isfinite().all()


@pytest.mark.parametrize(("case", "lengths"), LENGTHS, ids=str)
def test_an_item_with_a_length_is_the_item_alone(case: OracleCase, lengths: tuple[int, ...]) -> None:
    """In its law; what lies in its padding is never read, and is 0."""
    size = torch.tensor(lengths if len(lengths) > 1 else lengths[0])
    row = make_scores(case, 1.0, rows=1)[0]
    inside = case.oracle._inside(case.event, size).expand(case.event)
    junk = torch.where(inside, row, math.nan).expand(4000, *case.event)
    drawn = case.oracle.relaxed_sample(junk, hard=True, generator=seeded(), lengths=size)
    assert drawn.shape == junk.shape
    assert not drawn[:, ~inside].any()
    item = OracleCase(case.oracle, item_event(case, size), case.listed, case.potentials)
    assert law_holds(item, cut_to_item(case, drawn, size), cut_to_item(case, row, size))


def test_a_temperature_is_positive() -> None:
    with pytest.raises(ValueError, match=r"`relaxed_sample` got temperature=0\.0; expected a positive number"):
        LinearChain().relaxed_sample(torch.zeros(2, 2, 2), 0.0, generator=seeded())

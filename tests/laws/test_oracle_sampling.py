"""Samples follow the enumerated probabilities, and depend on the generator alone."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import SeedBlocks
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    REGIMES,
    OracleCase,
    chi_square_p_value,
    enumerate_truth,
    make_scores,
    seeded,
    structure_indices,
    structures,
)

SAMPLES = 100_000
ALPHA = 1e-4


@pytest.mark.parametrize("expanded", [True, False])
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_rows_are_independent_of_each_other(case: OracleCase, expanded: bool) -> None:
    row = make_scores(case, 0.05, rows=1)
    scores = row.expand(2, *case.event) if expanded else row.repeat(2, *[1] * len(case.event))
    first, second = structure_indices(case, case.oracle.sample(scores, SAMPLES, generator=seeded())).unbind(1)
    count, p = len(structures(case)), enumerate_truth(case, row).probabilities[0]
    pairs = (first * count + second).bincount(minlength=count**2)
    assert chi_square_p_value(pairs, torch.outer(p, p).flatten()) > ALPHA


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_successive_samples_are_independent(case: OracleCase) -> None:
    scores = make_scores(case, 0.05, rows=1)
    drawn = structure_indices(case, case.oracle.sample(scores[0], SAMPLES, generator=seeded()))
    count, p = len(structures(case)), enumerate_truth(case, scores).probabilities[0]
    pairs = (drawn[0::2] * count + drawn[1::2]).bincount(minlength=count**2)
    assert chi_square_p_value(pairs, torch.outer(p, p).flatten()) > ALPHA


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_every_sample_is_a_feasible_structure(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime)
    samples = case.oracle.sample(scores, 200, generator=seeded())
    feasible = case.oracle.feasible(scores)
    structure_indices(case, samples[:, feasible])
    assert bool((case.oracle.log_prob(samples, scores)[:, feasible] > -torch.inf).all())
    assert bool((samples[:, ~feasible] == 0).all())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53], ids=["lowest", "highest"])
@pytest.mark.parametrize("regime", [50.0, "equal", "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_extreme_uniforms_give_feasible_structures(case: OracleCase, regime: float | str, uniform: float) -> None:
    scores = make_scores(case, regime, rows=30)
    noise = torch.full((1, 30, case.oracle._noise_size(case.event)), uniform, dtype=torch.float64)
    samples = case.oracle._sample(scores, noise)[0].to(scores)
    feasible = case.oracle.feasible(scores)
    structure_indices(case, samples[feasible])
    assert bool((case.oracle.log_prob(samples, scores)[feasible] > -torch.inf).all())


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_shapes_of_samples(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=6).reshape(2, 3, *case.event)
    assert case.oracle.sample(scores, generator=seeded()).shape == scores.shape
    assert case.oracle.sample(scores, 1, generator=seeded()).shape == (1, *scores.shape)
    assert case.oracle.sample(scores, 4, generator=seeded()).shape == (4, *scores.shape)
    assert case.oracle.sample(scores[0, 0], generator=seeded()).shape == case.event
    assert case.oracle.sample(scores[0, 0], 4, generator=seeded()).shape == (4, *case.event)
    assert not case.oracle.sample(scores.requires_grad_(), generator=seeded()).requires_grad


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_the_same_seed_gives_the_same_samples(case: OracleCase) -> None:
    scores = make_scores(case, 0.05).expand(6, *case.event)
    first, again, other = (case.oracle.sample(scores, 20, generator=seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_the_global_generator_is_left_alone(case: OracleCase) -> None:
    before = torch.get_rng_state()
    case.oracle.sample(make_scores(case, 1.0), 3, generator=seeded())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_expanded_rows_draw_the_samples_of_materialised_ones(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 3, *case.event)
    found = case.oracle.sample(scores, 50, generator=seeded())
    assert torch.equal(found, case.oracle.sample(scores.contiguous(), 50, generator=seeded()))


@pytest.mark.parametrize("expanded", [True, False])
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_blocks_do_not_depend_on_how_many_share_a_launch(case: OracleCase, expanded: bool) -> None:
    scores = make_scores(case, 1.0, rows=11)
    scores = scores[:1].expand(11, *case.event) if expanded else scores
    together = case.oracle.sample(scores, 3, generator=SeedBlocks((5, 6, 7), 4))
    apart = [case.oracle.sample(scores[4 * i : 4 * i + 4], 3, generator=SeedBlocks((seed,), 4)) for i, seed in enumerate((5, 6, 7))]
    assert torch.equal(together, torch.cat(apart, 1))
    assert not torch.equal(together[:, :4], together[:, 4:8])

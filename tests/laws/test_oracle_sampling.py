"""Samples depend on the generator alone, and are independent; those without replacement have the law of a race of all structures.

That samples follow the enumerated probabilities is a law of `test_oracle_laws`.
"""

import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from structgrad.oracles import DistinctSamplingOracle, DrawnSet, LinearChain, SeedBlocks, SpanningTree, Subset, kernels
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    OracleCase,
    chi_square_p_value,
    enumerate_truth,
    make_scores,
    seeded,
    structure_indices,
    structures,
)

SAMPLES = 50_000
ALPHA = 1e-4

generic = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)


@generic
def test_rows_and_successive_samples_are_independent(case: OracleCase) -> None:
    row = make_scores(case, 0.05, rows=1)
    count, p = len(structures(case)), enumerate_truth(case, row).probabilities[0]
    expanded, repeated = row.expand(2, *case.event), row.repeat(2, *[1] * len(case.event))
    pairs = [structure_indices(case, case.oracle.sample(scores, SAMPLES, generator=seeded())).unbind(1) for scores in (expanded, repeated)]
    for first, second in (*pairs, (pairs[0][0][::2], pairs[0][0][1::2])):
        assert chi_square_p_value((first * count + second).bincount(minlength=count**2), torch.outer(p, p).flatten()) > ALPHA


@cases
def test_extreme_uniforms_give_feasible_structures(case: OracleCase) -> None:
    for regime in (50.0, "equal", "masked"):
        scores = make_scores(case, regime, rows=30)
        feasible = case.oracle.feasible(scores)
        for uniform in (0.0, 1 - 2**-53):
            noise = torch.full((1, 30, case.oracle._noise_size(case.event)), uniform, dtype=torch.float64)
            samples = case.oracle._sample(scores, noise)[0].to(scores)
            structure_indices(case, samples[feasible])
            assert bool((case.oracle.log_prob(samples, scores)[feasible] > -torch.inf).all())


@generic
def test_the_generator_decides(case: OracleCase) -> None:
    """Also where rows are expanded; and blocks of seeds do not depend on how many share a launch."""
    scores = make_scores(case, 0.05).expand(6, *case.event)
    before = torch.get_rng_state()
    first, again, other = (case.oracle.sample(scores.requires_grad_(), 20, generator=seeded(seed)) for seed in (3, 3, 4))
    assert not first.requires_grad
    assert case.oracle.sample(scores[0], 1, generator=seeded()).shape == (1, *case.event)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    expanded = make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 3, *case.event)
    found = case.oracle.sample(expanded, 50, generator=seeded())
    assert torch.equal(found, case.oracle.sample(expanded.contiguous(), 50, generator=seeded()))
    for rows in (make_scores(case, 1.0, rows=11), make_scores(case, 1.0, rows=1).expand(11, *case.event)):
        together = case.oracle.sample(rows, 3, generator=SeedBlocks((5, 6, 7), 4))
        apart = [case.oracle.sample(rows[4 * i : 4 * i + 4], 3, generator=SeedBlocks((seed,), 4)) for i, seed in enumerate((5, 6, 7))]
        assert torch.equal(together, torch.cat(apart, 1))
        assert not torch.equal(together[:, :4], together[:, 4:8])
        streams = SeedBlocks((5, 6, 7), 4)
        assert not torch.equal(case.oracle.sample(rows, 9, generator=streams), case.oracle.sample(rows, 9, generator=streams))


# Without replacement.

DISTINCT = [case for case in ORACLE_CASES if isinstance(case.oracle, DistinctSamplingOracle)]
distinct = pytest.mark.parametrize("case", DISTINCT, ids=str)


def drawn_from(case: OracleCase, scores: Tensor, k: int, *, draws: int = 1, compiled: bool = True) -> DrawnSet:
    with nullcontext() if compiled else kernels.disabled():
        found: DrawnSet = case.oracle.sample_distinct(scores.expand(draws, *scores.shape), k, generator=seeded(7))
    return found


@distinct
def test_the_law_of_two_draws(case: OracleCase) -> None:
    for regime, draws in ((0.05, 2000), (1.0, 200), (50.0, 200), ("masked", 200)):
        scores = make_scores(case, regime)[1]
        p = enumerate_truth(case, scores).probabilities[0]
        if int((p > 0).sum()) < 2:
            continue
        for compiled in (True, False) if draws == 200 else (True,):
            drawn = drawn_from(case, scores, 2, draws=draws, compiled=compiled)
            first, second = structure_indices(case, drawn.structures)
            assert bool((first != second).all())
            assert_close(drawn.log_probs.exp(), torch.stack([p[first], p[second]], -1), rtol=1e-9, atol=1e-12)
            others = [[i for i in range(len(p)) if i not in pair] for pair in zip(first.tolist(), second.tolist(), strict=True)]
            rest = torch.stack([p[each].sum() for each in others])
            assert_close(drawn.log_rest.exp(), rest, rtol=1e-9, atol=1e-13)
            assert_close(drawn.threshold > -math.inf, rest > 0)
            # The second by the first: of the pairs, those that have any chance.
            chances = p.unsqueeze(1) * p / (p.sum() - p).clamp(min=1e-300).unsqueeze(1)
            counts = torch.bincount(first * len(p) + second, minlength=len(p) ** 2)
            if float(chances.fill_diagonal_(0).sum()) == pytest.approx(1, abs=1e-6):
                assert chi_square_p_value(counts, chances.flatten()) > 1e-6


@distinct
def test_all_structures_leave_nothing(case: OracleCase) -> None:
    """However improbable the last ones are; and more than all are all. Torch draws what is compiled."""
    for scale in (1.0, 50.0):
        scores, total = make_scores(case, scale)[0], case.oracle.count(case.event)
        truth = enumerate_truth(case, scores)
        for compiled in (True, False):
            drawn = drawn_from(case, scores, total + 1, compiled=compiled)
            order = structure_indices(case, drawn.structures)[:, 0]
            assert sorted(order.tolist()) == list(range(total))
            expected = (truth.structure_scores - truth.log_partition.unsqueeze(-1))[0]
            assert_close(drawn.log_probs[0], expected[order], rtol=1e-9, atol=1e-9)
            assert drawn.log_rest.tolist() == drawn.threshold.tolist() == [-math.inf]
    ours, theirs = (drawn_from(case, scores / 50, min(4, total), draws=20, compiled=compiled) for compiled in (True, False))
    for field in ("structures", "log_probs", "log_rest", "threshold"):
        assert_close(getattr(ours, field), getattr(theirs, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("oracle", [Subset(1), SpanningTree()], ids=str)
def test_the_law_of_the_threshold(oracle: DistinctSamplingOracle) -> None:
    """Of the third greatest of all races: below ``t`` where at most two are above it."""
    scores = torch.randn(4, 4, generator=seeded(1), dtype=torch.float64)
    scores = scores if isinstance(oracle, SpanningTree) else scores[0]
    drawn = oracle.sample_distinct(scores.expand(20_000, *scores.shape), 2, generator=seeded(3))
    every = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)  # type: ignore[attr-defined]
    p = oracle.log_prob(every, scores).exp()
    for t in (-1.0, 0.0, 1.0):
        above, below = 1 - (-p * math.exp(-t)).exp(), (-p * math.exp(-t)).exp()
        some = [list(chosen) for count in range(3) for chosen in itertools.combinations(range(len(p)), count)]
        expected = sum(float(above[chosen].prod() * below.prod() / below[chosen].prod()) for chosen in some)
        assert float((drawn.threshold < t).double().mean()) == pytest.approx(expected, abs=0.015)


def test_too_few_are_feasible() -> None:
    scores = torch.tensor([[0.3, 0.1, -math.inf, -math.inf], [-math.inf] * 4], dtype=torch.float64)
    for compiled in (True, False):
        with nullcontext() if compiled else kernels.disabled():
            drawn = Subset(1).sample_distinct(scores, 3, generator=seeded())
        assert bool((drawn.structures[2, 0] == drawn.structures[0, 0]).all())
        assert drawn.log_probs[0, 2] == drawn.log_rest[0] == drawn.threshold[0] == -math.inf
        assert float(drawn.structures[:, 1].abs().sum()) == 0
        assert bool((drawn.log_probs[1] == -math.inf).all())


def test_batches_and_lengths() -> None:
    scores = torch.randn(2, 3, 5, 2, 2, generator=seeded(), dtype=torch.float64)
    assert LinearChain().sample_distinct(scores[:0], 2, generator=seeded()).log_probs.shape == (0, 3, 2)
    expanded, lengths = scores[:, :1].expand(2, 4, 5, 2, 2), torch.tensor([[5], [2]]).expand(2, 4)
    drawn = LinearChain().sample_distinct(expanded, 3, generator=seeded(), lengths=lengths)
    assert drawn.structures.shape == (3, 2, 4, 5, 2, 2)
    assert float(drawn.structures[:, 1, :, 2:].abs().sum()) == 0
    assert_close(LinearChain().log_prob(drawn.structures, expanded, lengths=lengths).movedim(0, -1), drawn.log_probs)

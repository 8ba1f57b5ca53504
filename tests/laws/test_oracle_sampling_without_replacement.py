"""Structures that are drawn without replacement have the law of a race of all of them, and know the mass of the others."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from structgrad.oracles import DistinctSamplingOracle, DrawnSet, LinearChain, SpanningTree, Subset
from structgrad.oracles.kernels.switch import serving_as
from tests.helpers import (
    GENERIC_CASES,
    ORACLE_CASES,
    OracleCase,
    chi_square_p_value,
    enumerate_truth,
    make_scores,
    seeded,
    structure_indices,
)

CASES = [case for case in (*ORACLE_CASES, *GENERIC_CASES) if isinstance(case.oracle, DistinctSamplingOracle)]
DRAWS = 2000


def drawn_from(case: OracleCase, scores: Tensor, k: int, *, draws: int = 1, compiled: bool = True) -> DrawnSet:
    with serving_as(compiled):
        found: DrawnSet = case.oracle.sample_distinct(scores.expand(draws, *scores.shape), k, generator=seeded(7))
    return found


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("regime", [0.05, 1.0, 50.0, "masked"], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_law_of_two_draws(case: OracleCase, regime: float | str, compiled: bool) -> None:
    scores = make_scores(case, regime)[1]
    p = enumerate_truth(case, scores).probabilities[0]
    if int((p > 0).sum()) < 2:
        return
    drawn = drawn_from(case, scores, 2, draws=DRAWS if compiled else 200, compiled=compiled)
    first, second = structure_indices(case, drawn.structures)
    assert bool((first != second).all())
    assert_close(drawn.log_probs.exp(), torch.stack([p[first], p[second]], -1), rtol=1e-9, atol=1e-12)
    rest = torch.stack([p[[i for i in range(len(p)) if i not in pair]].sum() for pair in zip(first.tolist(), second.tolist(), strict=True)])
    assert_close(drawn.log_rest.exp(), rest, rtol=1e-9, atol=1e-13)
    assert_close(drawn.threshold > -math.inf, rest > 0)
    # The second by the first: of the pairs, those that have any chance.
    chances = p.unsqueeze(1) * p / (p.sum() - p).clamp(min=1e-300).unsqueeze(1)
    counts = torch.bincount(first * len(p) + second, minlength=len(p) ** 2)
    if float(chances.fill_diagonal_(0).sum()) == pytest.approx(1, abs=1e-6):
        assert chi_square_p_value(counts, chances.flatten()) > 1e-6


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_structures_leave_nothing(case: OracleCase, scale: float) -> None:
    """However improbable the last ones are; and more than all are all."""
    scores, total = make_scores(case, scale)[0], case.oracle.count(case.event)
    truth = enumerate_truth(case, scores)
    for compiled in (True, False):
        drawn = drawn_from(case, scores, total + 1, compiled=compiled)
        order = structure_indices(case, drawn.structures)[:, 0]
        assert sorted(order.tolist()) == list(range(total))
        expected = (truth.structure_scores - truth.log_partition.unsqueeze(-1))[0]
        assert_close(drawn.log_probs[0], expected[order], rtol=1e-9, atol=1e-9)
        assert drawn.log_rest.tolist() == drawn.threshold.tolist() == [-math.inf]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_torch_draws_what_is_compiled(case: OracleCase) -> None:
    k = min(4, case.oracle.count(case.event))
    ours, theirs = (drawn_from(case, make_scores(case, 1.0)[0], k, draws=20, compiled=compiled) for compiled in (True, False))
    for field in ("structures", "log_probs", "log_rest", "threshold"):
        assert_close(getattr(ours, field), getattr(theirs, field), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("oracle", [Subset(1), SpanningTree()], ids=str)
def test_the_law_of_the_threshold(oracle: DistinctSamplingOracle) -> None:
    """Of the third greatest of all races: below ``t`` where at most two are above it."""
    scores = torch.randn(4, 4, generator=seeded(1), dtype=torch.float64)
    scores = scores if isinstance(oracle, SpanningTree) else scores[0]
    drawn = oracle.sample_distinct(scores.expand(20_000, *scores.shape), 2, generator=seeded(3))
    structures = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)  # type: ignore[attr-defined]
    p = oracle.log_prob(structures, scores).exp()
    for t in (-1.0, 0.0, 1.0):
        above, below = 1 - (-p * math.exp(-t)).exp(), (-p * math.exp(-t)).exp()
        some = [list(chosen) for count in range(3) for chosen in itertools.combinations(range(len(p)), count)]
        expected = sum(float(above[chosen].prod() * below.prod() / below[chosen].prod()) for chosen in some)
        assert float((drawn.threshold < t).double().mean()) == pytest.approx(expected, abs=0.015)


def test_too_few_are_feasible() -> None:
    scores = torch.tensor([[0.3, 0.1, -math.inf, -math.inf], [-math.inf] * 4], dtype=torch.float64)
    for compiled in (True, False):
        with serving_as(compiled):
            drawn = Subset(1).sample_distinct(scores, 3, generator=seeded())
        assert bool((drawn.structures[2, 0] == drawn.structures[0, 0]).all())
        assert drawn.log_probs[0, 2] == drawn.log_rest[0] == drawn.threshold[0] == -math.inf
        assert float(drawn.structures[:, 1].abs().sum()) == 0
        assert bool((drawn.log_probs[1] == -math.inf).all())


def test_batches_and_lengths() -> None:
    scores = torch.randn(2, 3, 5, 2, 2, generator=seeded(), dtype=torch.float64)
    assert LinearChain().sample_distinct(scores[:0], 2, generator=seeded()).log_probs.shape == (0, 3, 2)
    expanded = scores[:, :1].expand(2, 4, 5, 2, 2)
    drawn = LinearChain().sample_distinct(expanded, 3, generator=seeded(), lengths=torch.tensor([[5], [2]]).expand(2, 4))
    assert drawn.structures.shape == (3, 2, 4, 5, 2, 2)
    assert float(drawn.structures[:, 1, :, 2:].abs().sum()) == 0
    totals = LinearChain().log_prob(drawn.structures, expanded, lengths=torch.tensor([[5], [2]]).expand(2, 4))
    assert_close(totals.movedim(0, -1), drawn.log_probs)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_a_number_that_is_none(k: object) -> None:
    with pytest.raises(ValueError, match=f"^`sample_distinct` got k={k}; expected an integer >= 1, how many structures to draw"):
        Subset(1).sample_distinct(torch.zeros(3), k, generator=seeded())  # type: ignore[arg-type]


def test_under_a_transform() -> None:
    with pytest.raises(ValueError, match=r"^`sample_distinct` got called under a transform of torch.func; expected plain tensors"):
        torch.func.vmap(lambda row: Subset(1).sample_distinct(row, 1, generator=seeded()).log_probs)(torch.zeros(2, 3))

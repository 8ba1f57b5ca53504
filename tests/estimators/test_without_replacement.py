"""Sets without replacement, and the best structures with a sample of the others: laws of draws, and digits."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor

from structgrad.estimators import ImportanceWeightedSet, SumAndSample, UnorderedSet
from structgrad.estimators.without_replacement import by_quadrature, by_recursion, draw_set, log_chance_above, log_mass_of_others
from structgrad.oracles import Categorical, Subset
from tests.estimator_cases import numbers
from tests.helpers import chi_square_p_value, seeded


def chance(p: Tensor, order: tuple[int, ...]) -> float:
    """To draw structures in this order: each from what is left, which is added up and never subtracted."""
    total = 1.0
    for place, i in enumerate(order):
        total *= float(p[i]) / float(p[[j for j in range(len(p)) if j not in order[:place]]].sum())
    return total


@pytest.mark.parametrize("k", [2, 3, 4, 6])
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0, 30.0, 200.0])
def test_recursion_and_quadrature_agree(k: int, scale: float) -> None:
    log_probs = (scale * numbers(20, 9, seed=k)).log_softmax(-1)
    chosen, rest = log_probs[:, :k], log_probs[:, k:].logsumexp(-1)
    rest[0], rest[1], chosen[1, 0] = -math.inf, -math.inf, -math.inf
    for ours, theirs in zip(by_recursion(chosen, rest), by_quadrature(chosen, rest), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_chance_far_out() -> None:
    gaps = torch.tensor([-800.0, -40.0, -1.0, 3.0, 800.0, math.inf], dtype=torch.float64)
    expected = torch.tensor([-800.0, -40.0, math.log(1 - math.exp(-math.exp(-1))), math.log1p(-math.exp(-math.exp(3))), 0.0, 0.0])
    torch.testing.assert_close(log_chance_above(gaps), expected.double(), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 100.0])
def test_the_mass_of_the_others(scale: float) -> None:
    log_probs = (scale * numbers(50, 40)).log_softmax(-1)
    log_probs[::2, 30:] = -math.inf
    ranks = torch.stack([torch.randperm(30, generator=seeded(row))[:6] for row in range(50)])
    ranks[0] = log_probs[0].argsort(descending=True)[:6]
    ranks[1, 4:] = ranks[1, 0]
    expected = log_probs.scatter(-1, ranks, -math.inf).logsumexp(-1)
    torch.testing.assert_close(log_mass_of_others(log_probs, ranks), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [3, 4096])
def test_the_law_of_the_race(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordered draws are each from what is left, whatever the chunks; the set knows its probabilities and its rest."""
    monkeypatch.setattr("structgrad.estimators.without_replacement.CHUNK", chunk)
    scores = numbers(5)
    drawn = draw_set(Categorical(), scores.expand(100_000, 5), 2, generator=seeded(chunk))
    first, second = drawn.structures.argmax(-1)
    p = scores.softmax(-1)
    orders = list(itertools.permutations(range(5), 2))
    counts = torch.tensor([int(((first == i) & (second == j)).sum()) for i, j in orders])
    assert chi_square_p_value(counts, torch.tensor([chance(p, order) for order in orders])) > 1e-3
    torch.testing.assert_close(drawn.log_probs.exp(), torch.stack([p[first], p[second]], -1), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(drawn.log_rest.exp(), 1 - p[first] - p[second], rtol=1e-10, atol=1e-14)


def test_too_few_are_feasible() -> None:
    scores = torch.tensor([0.3, -math.inf, 1.0, -math.inf], dtype=torch.float64)
    drawn = draw_set(Categorical(), scores.expand(50, 4), 3, generator=seeded())
    chosen = drawn.structures.argmax(-1)
    assert bool((chosen[2] == chosen[0]).all())
    assert bool((chosen[0] != chosen[1]).all())
    assert bool((drawn.log_probs[:, 2] == -math.inf).all())
    assert bool((drawn.log_rest == -math.inf).all())
    assert bool((drawn.threshold == -math.inf).all())


@pytest.mark.parametrize("estimator", [UnorderedSet(4), ImportanceWeightedSet(4)], ids=str)
def test_the_mean_over_sets_of_a_large_space(estimator: Any) -> None:
    """Of 8.5·10⁸ structures, whose exact gradient of a linear loss is ``Cov(z) γ``."""
    scores, slope = numbers(40, seed=1), numbers(40, seed=2)
    leaf = scores.clone().requires_grad_()
    (exact_gradient,) = torch.autograd.grad(Subset(10).marginals(leaf) @ slope, leaf)
    found = estimator.gradient(lambda z: z @ slope, Subset(10), scores.expand(3000, 40), generator=seeded(11))
    errors = (found.mean(0) - exact_gradient) / (found.std(0) / math.sqrt(3000))
    assert float(errors.abs().max()) < 5


@pytest.mark.parametrize("estimator", [UnorderedSet(3), ImportanceWeightedSet(3)], ids=str)
def test_what_is_drawn_alone_has_the_law_of_the_race(estimator: Any) -> None:
    """Estimates of sets that were drawn by listing all structures, and by splitting the race from the root down."""
    scores, loss = numbers(6, seed=4), lambda z: (z @ numbers(6, seed=5)).square()
    both = [replace(estimator, limit=limit).gradient(loss, Subset(3), scores.expand(4000, 6), generator=seeded(12)) for limit in (1, 100)]
    for entry in range(6):
        # Rounded, since what is 0 in one of them is rounding in the other.
        assert ks_2samp(*(found[:, entry].round(decimals=9).numpy() for found in both)).pvalue > 1e-4


def test_the_mass_outside_keeps_its_digits() -> None:
    """``1 − q`` of 1e-20 is added up, and not subtracted from 1."""
    scores = torch.tensor([46.0, 0.0, -1.0], dtype=torch.float64)
    best = Categorical().kbest(scores, 1)
    _, mass, missed = SumAndSample()._other(Categorical(), scores, best, seeded())
    assert not bool(missed.any())
    assert float(mass) == pytest.approx((1 + math.exp(-1)) * math.exp(-46), rel=1e-12)
    found = SumAndSample().gradient(lambda z: z[..., 1:].sum(-1), Categorical(), scores, generator=seeded())
    assert float(found[0]) == pytest.approx(-(1 + math.exp(-1)) * math.exp(-46), rel=1e-12)


def test_fewer_are_feasible_than_asked_for() -> None:
    """The loss sees structures alone, and the estimate is exact."""
    scores, seen = torch.tensor([0.3, -math.inf, 1.0, -math.inf], dtype=torch.float64), []

    def loss(z: torch.Tensor) -> torch.Tensor:
        seen.append(z)
        return z @ torch.tensor([1.0, 5.0, -1.0, 7.0], dtype=torch.float64)

    found = SumAndSample(3).gradient(loss, Categorical(), scores, generator=seeded())
    assert bool((seen[0].sum(-1) == 1).all())
    assert float(seen[0][..., 1::2].sum()) == 0
    p = scores.softmax(-1)
    slope = 2 * p[0] * p[2]
    torch.testing.assert_close(found, torch.stack([slope, slope * 0, -slope, slope * 0]))

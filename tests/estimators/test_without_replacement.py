"""Sets without replacement, and the best structures with a sample of the others: exact means, laws of draws, digits."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from scipy import stats
from scipy.stats import ks_2samp
from torch import Tensor

from structgrad.estimators import ImportanceWeightedSet, Loss, SumAndSample, UnorderedSet
from structgrad.estimators.without_replacement import by_quadrature, by_recursion, draw_set, log_chance_above, log_mass_of_others
from structgrad.oracles import Categorical, DrawnSet, Subset
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers, oracles
from tests.helpers import OracleCase, chi_square_p_value, enumerate_truth, make_scores, pulled_back, seeded, structures


def chance(p: Tensor, order: tuple[int, ...]) -> float:
    """To draw structures in this order: each from what is left, which is added up and never subtracted."""
    total = 1.0
    for place, i in enumerate(order):
        total *= float(p[i]) / float(p[[j for j in range(len(p)) if j not in order[:place]]].sum())
    return total


def every_set(case: OracleCase, scores: Tensor, k: int) -> tuple[list[tuple[int, ...]], Tensor, DrawnSet]:
    """All sets of k feasible structures, their probabilities, and what a draw would give: the sets are the batch."""
    p = enumerate_truth(case, scores).probabilities[0]
    feasible = [i for i in range(len(p)) if p[i] > 0]
    sets = list(itertools.combinations(feasible, k))
    chances = torch.tensor([sum(chance(p, order) for order in itertools.permutations(chosen)) for chosen in sets], dtype=torch.float64)
    rest = [p[[i for i in range(len(p)) if i not in chosen]].sum() for chosen in sets]
    index = torch.tensor(sets)
    log_rest = torch.stack(rest).log()
    return sets, chances, DrawnSet(structures(case)[index.T], p[index].log(), log_rest, log_rest)


def estimates(estimator: Any, case: OracleCase, loss: Loss, scores: Tensor, drawn: DrawnSet) -> Tensor:
    """One estimate per set of the batch."""
    leaf = scores.expand(drawn.log_rest.shape[0], *case.event).clone().requires_grad_()
    (found,) = torch.autograd.grad(estimator.from_set(loss, case.oracle, leaf, drawn).sum(), leaf)
    return found


def exact(case: OracleCase, loss: Loss, scores: Tensor) -> Tensor:
    truth, values = enumerate_truth(case, scores), loss(structures(case))
    centred = truth.probabilities[0] * (values - truth.probabilities[0] @ values)
    natural = torch.einsum("s,s...->...", centred, structures(case))
    return pulled_back(case, scores.unsqueeze(0), natural.unsqueeze(0))[0]


def some_scores(case: OracleCase, regime: float | str) -> Tensor:
    rows = make_scores(case, regime, rows=6, seed=2)
    return rows[2] if isinstance(regime, str) else rows[0]


@pytest.mark.parametrize("regime", [0.05, 1.0, 5.0, 50.0, "ties", "equal", "masked"], ids=str)
@pytest.mark.parametrize("kind", ["smooth", "offset"])
@pytest.mark.parametrize("estimator", [UnorderedSet(2), UnorderedSet(3), UnorderedSet(2, baseline=False)], ids=str)
@oracles
def test_the_mean_over_all_sets_is_the_exact_gradient(case: OracleCase, estimator: UnorderedSet, kind: str, regime: float | str) -> None:
    scores, loss = some_scores(case, regime), LOSSES[kind](case)
    feasible = int((enumerate_truth(case, scores).probabilities > 0).sum())
    if not feasible:
        return
    _, chances, drawn = every_set(case, scores, min(estimator.num_samples, feasible))
    assert float(chances.sum()) == pytest.approx(1.0, abs=1e-12)
    found = torch.einsum("s,s...->...", chances, estimates(estimator, case, loss, scores, drawn))
    size = float(loss(structures(case)).abs().max())
    torch.testing.assert_close(found, exact(case, loss, scores), rtol=1e-9, atol=1e-13 * size)


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


STEP = 0.2
STEPS = torch.arange(-45, 5, STEP, dtype=torch.float64)


def over_thresholds(estimator: ImportanceWeightedSet, case: OracleCase, loss: Loss, scores: Tensor) -> Tensor:
    """The mean over sets, and over the threshold by equal steps in ``x = log p(rest) − κ``: the shipped code is the integrand."""
    _, chances, drawn = every_set(case, scores, estimator.num_samples)
    threshold = drawn.log_rest - STEPS.unsqueeze(-1)
    beaten = (1 - (-(drawn.log_probs - threshold.unsqueeze(-1)).exp()).exp()).prod(-1)
    density = beaten * (STEPS - STEPS.exp()).exp().unsqueeze(-1) * STEP
    torch.testing.assert_close(density.sum(0), chances, rtol=1e-8, atol=1e-12)
    spread = DrawnSet(
        drawn.structures.unsqueeze(1).expand(-1, len(STEPS), *drawn.structures.shape[1:]).flatten(1, 2),
        drawn.log_probs.expand(len(STEPS), -1, -1).flatten(0, 1),
        drawn.log_rest.expand(len(STEPS), -1).flatten(),
        threshold.flatten(),
    )
    return torch.einsum("s,s...->...", density.flatten(), estimates(estimator, case, loss, scores, spread))


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
@pytest.mark.parametrize(
    "estimator", [ImportanceWeightedSet(2), ImportanceWeightedSet(3), ImportanceWeightedSet(1, baseline=False)], ids=str
)
@oracles
def test_the_mean_over_sets_and_thresholds_is_the_exact_gradient(case: OracleCase, estimator: ImportanceWeightedSet, scale: float) -> None:
    scores, loss = scale * numbers(*case.event, seed=3), LOSSES["smooth"](case)
    found = over_thresholds(estimator, case, loss, scores)
    torch.testing.assert_close(found, exact(case, loss, scores), rtol=1e-6, atol=1e-7)


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


@pytest.mark.parametrize("kind", [UnorderedSet, ImportanceWeightedSet])
def test_options_that_make_no_sense(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"^`{kind.name}` got num_samples=1; expected an integer >= 2, the others are the baseline"):
        kind(1)


@dataclass(frozen=True)
class Dealt(SumAndSample):
    """Each row has another structure for its sample; the weight is the estimator's own."""

    def _other(self, oracle: Any, scores: Tensor, best: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        drawn, mass, missed = super()._other(oracle, scores, best, generator)
        return self.dealt.unsqueeze(0).to(drawn), mass, missed  # type: ignore[attr-defined]


def outside_of(case: OracleCase, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Structures that are not among the k best, and their probabilities."""
    best, space = case.oracle.kbest(scores, k), structures(case)
    outside = ~(space.unsqueeze(1) == best).flatten(2).all(-1).any(1)
    return space[outside], enumerate_truth(case, scores).probabilities[0][outside]


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
@oracles
def test_mean_and_variance_are_those_of_liu_et_al(case: OracleCase, scale: float, k: int, centred: bool) -> None:
    """Over the law outside C, ``ĝ`` has the mean g, and the variance that the exact law outside gives."""
    scores, loss = scale * numbers(*case.event, seed=2), LOSSES["smooth"](case)
    truth = exact_truth(loss, case.oracle, scores)
    dealt, p = outside_of(case, scores, k)
    if not len(dealt):
        return
    estimator = Dealt(k, centred)
    object.__setattr__(estimator, "dealt", dealt)
    found = estimator.gradient(loss, case.oracle, scores.expand(len(dealt), *case.event), generator=seeded()).flatten(1)
    mean = (p / p.sum()) @ found
    gradient = truth.gradient.flatten()
    assert float((mean - gradient).norm()) <= 1e-9 * float(gradient.norm()) + 1e-15 * abs(truth.value)


@oracles
def test_the_sample_has_the_law_outside_and_its_mass(case: OracleCase) -> None:
    scores, k = numbers(*case.event, seed=2), 2
    dealt, p = outside_of(case, scores, k)
    estimator, rows = SumAndSample(k), scores.expand(4000, *case.event)
    best = case.oracle.kbest(rows, estimator.k)
    drawn, mass, missed = estimator._other(case.oracle, rows, best, seeded(5))
    weight = mass - (case.oracle.log_prob(best, rows).exp() * missed).sum(0)
    torch.testing.assert_close(weight, torch.full_like(weight, float(p.sum())), rtol=1e-9, atol=0)
    counts = (drawn[0].unsqueeze(1) == dealt).flatten(2).all(-1).sum(0)
    assert int(counts.sum()) == len(rows)
    common = p / p.sum() * len(rows) >= 5
    expected = torch.cat([p[common], p[~common].sum(0, keepdim=True)]) / p.sum() * len(rows)
    seen = torch.cat([counts[common], counts[~common].sum(0, keepdim=True)])
    kept = expected > 0
    assert stats.chisquare(seen[kept].double(), expected[kept]).pvalue > 1e-6


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

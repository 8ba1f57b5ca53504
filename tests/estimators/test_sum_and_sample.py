"""The best structures and a sample of the others: exact means and variances, by every structure outside."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from structgrad.estimators import SumAndSample
from structgrad.oracles import Categorical
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers, oracles
from tests.helpers import OracleCase, enumerate_truth, seeded, structures


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


@oracles
def test_all_of_the_best_is_exact(case: OracleCase) -> None:
    scores, loss = numbers(*case.event), LOSSES["offset"](case)
    found = SumAndSample(k=10_000).gradient(loss, case.oracle, scores.expand(20, *case.event), generator=seeded())
    expected = exact_truth(loss, case.oracle, scores).gradient
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


def test_the_mass_outside_keeps_its_digits() -> None:
    """``1 − q`` of 1e-20 is added up, and not subtracted from 1."""
    scores = torch.tensor([46.0, 0.0, -1.0], dtype=torch.float64)
    best = Categorical().kbest(scores, 1)
    _, mass, missed = SumAndSample()._other(Categorical(), scores, best, seeded())
    assert not bool(missed.any())
    assert float(mass) == pytest.approx((1 + math.exp(-1)) * math.exp(-46), rel=1e-12)


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

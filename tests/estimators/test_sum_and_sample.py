"""The best structures and a sample of the others: exact for every number of candidates."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import Reinforce, SumAndSample
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, seeded

SCORES, TABLE, GRADIENT = three_classes()
P = SCORES.softmax(-1)
EXACTLY = Sampling(tier="exact")


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize(("k", "candidates"), [(1, 1), (1, 3), (2, 2), (3, 1), (4, 3)])
@oracles
def test_the_mean_is_the_exact_gradient(case: OracleCase, k: int, candidates: int, centred: bool) -> None:
    estimator = SumAndSample(k, candidates, centred)
    for scale in (0.05, 1.0, 20.0):
        scores, loss = scale * numbers(*case.event, seed=2), LOSSES["smooth"](case)
        truth = exact_truth(loss, case.oracle, scores)
        found = measure(estimator, case.oracle, loss, scores, truth=truth, sampling=EXACTLY)
        error = found.metrics["relative_bias"].value * float(truth.gradient.norm())  # type: ignore[operator]
        assert error <= 1e-10 * float(truth.gradient.norm()) + 1e-15 * abs(truth.value)


@pytest.mark.parametrize("candidates", [1, 2, 4])
@pytest.mark.parametrize("k", [1, 2])
def test_the_variance_is_that_of_one_weighted_term(k: int, candidates: int) -> None:
    """``w² (1 − q^m) E[(L − b)² ‖s‖² | outside] − ‖(1 − q) E[(L − b) s | outside]‖²``; the sum has none."""
    order = P.argsort(descending=True)
    inside, outside = order[:k], order[k:]
    q = float(P[inside].sum())
    baseline = P[inside] @ TABLE[inside] / q
    law = P[outside] / P[outside].sum()
    terms = ((TABLE - baseline).unsqueeze(-1) * (torch.eye(3, dtype=torch.float64) - P))[outside]
    weight = (1 - q) / (1 - q**candidates)
    second = weight**2 * (1 - q**candidates) * float(law @ terms.square().sum(-1))
    expected = second - float(((1 - q) * (law @ terms)).square().sum())
    found = measure(SumAndSample(k, candidates), Categorical(), table_loss, SCORES, sampling=EXACTLY)
    assert found.metrics["relative_variance"].value * float(GRADIENT.square().sum()) == pytest.approx(expected, abs=1e-12)  # type: ignore[operator]


def test_more_candidates_and_more_of_the_best_lower_the_variance() -> None:
    def variance(estimator: SumAndSample) -> float:
        found = measure(estimator, Categorical(), table_loss, SCORES, sampling=EXACTLY).metrics["relative_variance"].value
        assert found is not None
        return found

    by_candidates = [variance(SumAndSample(2, m)) for m in (1, 2, 3, 6)]
    assert by_candidates == sorted(by_candidates, reverse=True)
    assert variance(SumAndSample(3, 1)) == pytest.approx(0, abs=1e-20)
    assert variance(SumAndSample(2, 6)) < variance(SumAndSample(1, 6))


@oracles
def test_all_of_the_best_is_exact(case: OracleCase) -> None:
    scores, loss = numbers(*case.event), LOSSES["offset"](case)
    found = SumAndSample(k=10_000).gradient(loss, case.oracle, scores.expand(20, *case.event), generator=seeded())
    expected = exact_truth(loss, case.oracle, scores).gradient
    torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-9, atol=1e-9)


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


def test_a_term_without_a_centre_is_reinforce_outside() -> None:
    """Where the best structure is all but impossible to miss, one candidate seldom counts; REINFORCE wastes the same draws."""
    one = SumAndSample(1, candidates=1, centred=False)
    found = measure(one, Categorical(), table_loss, SCORES, sampling=EXACTLY).metrics["relative_variance"].value
    plain = measure(Reinforce(), Categorical(), table_loss, SCORES, sampling=EXACTLY).metrics["relative_variance"].value
    assert found < plain  # type: ignore[operator]

"""Path quadrature, in the mean over every sample: exact for quadratics, and for sums over categories as far as its rule goes."""

from __future__ import annotations

import pytest
from torch import Tensor

from structgrad.estimators import Loss, PathQuadrature, ReinMax
from structgrad.oracles import IndependentCategoricals
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import exact_mean, numbers
from tests.helpers import OracleCase, products

CASE = OracleCase(IndependentCategoricals(), (3, 3), products)
WEIGHTS = numbers(3, 3, seed=5)


def bias(estimator: PathQuadrature | ReinMax, loss: Loss, scores: Tensor) -> float:
    exact = exact_truth(loss, CASE.oracle, scores).gradient
    return float((exact_mean(estimator, CASE, loss, scores) - exact).norm() / exact.norm())


def summed(degree: int) -> Loss:
    return lambda z: ((WEIGHTS * z).sum(-1) - 0.4).pow(degree).sum(-1)


def joint(degree: int) -> Loss:
    return lambda z: ((WEIGHTS * z).sum((-1, -2)) - 0.4).pow(degree)


@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("rule", ["midpoint", "gauss", "simpson"])
def test_quadratics_of_all_categories(rule: str, scale: float) -> None:
    assert bias(PathQuadrature(rule), joint(2), scale * numbers(3, 3)) < 1e-9  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "degree"), [("midpoint", 2), ("gauss", 4), ("simpson", 4)])
def test_sums_over_categories_up_to_the_degree_of_the_rule(rule: str, degree: int) -> None:
    estimator = PathQuadrature(rule)  # type: ignore[arg-type]
    for power in range(1, degree + 3):
        found = bias(estimator, summed(power), numbers(3, 3))
        assert found < 1e-12 if power <= degree else found > 1e-4


def test_neither_is_the_better_one_everywhere() -> None:
    """A product of one factor per category is linear in each, which the trapezoid rule along edges takes as it is."""
    scores = numbers(3, 3)
    assert bias(ReinMax(), summed(3), scores) > 3 * bias(PathQuadrature(), summed(3), scores) > 1e-3
    powers = lambda z: (1 + (WEIGHTS * z).sum(-1) ** 2).prod(-1)  # noqa: E731
    assert bias(ReinMax(), powers, scores) < 1e-12 < bias(PathQuadrature("simpson"), powers, scores)

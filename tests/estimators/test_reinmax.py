"""ReinMax: exact where the trapezoid rule is exact along every edge, in the mean over every sample."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from structgrad.estimators import GumbelRao, Loss, ReinMax, ReinMaxControl, ReinMaxRao
from structgrad.oracles import Categorical, IndependentCategoricals
from structgrad.suites.measures.bias import measure
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import exact_mean, loss_gradient, numbers, table_loss, three_classes
from tests.helpers import OracleCase, one_hots, products, structures
from tests.quadrature import bits_of_ratios, deal_gumbels, estimates_of, logistic_numbers, moments

SIZES = [2, 3, 5]


def quadratic(size: int, seed: int) -> Loss:
    """Of a matrix that is not symmetric, with a linear term."""
    matrix, linear = numbers(size, size, seed=seed), numbers(size, seed=seed + 1)
    return lambda z: ((z @ matrix.to(z)) * z).sum(-1) + z @ linear.to(z)


def biased_by(loss: Loss, scores: Tensor, estimator: ReinMax, case: OracleCase) -> float:
    exact = exact_truth(loss, case.oracle, scores).gradient
    return float((exact_mean(estimator, case, loss, scores) - exact).norm() / exact.norm())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 10, 20])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_it_is_exact_for_quadratic_losses(size: int, seed: int, scale: float) -> None:
    found = measure(ReinMax(), Categorical(), quadratic(size, seed), scale * numbers(size, seed=seed + 2))
    assert found.tier == "exact"
    assert found.verdict == "unbiased-exact"


@pytest.mark.parametrize("event", [(3, 2), (2, 3), (4, 3)], ids=str)
def test_several_categories_need_a_quadratic_in_each_alone(event: tuple[int, ...]) -> None:
    """A product of one quadratic per category is of degree 2n in all of them, and the mean is exact."""
    parts = [quadratic(event[1], seed) for seed in range(0, 10 * event[0], 10)]

    def loss(z: Tensor) -> Tensor:
        return torch.stack([part(z[..., i, :]) for i, part in enumerate(parts)]).prod(0) + parts[0](z[..., 1, :])

    case = OracleCase(IndependentCategoricals(), event, products)
    assert biased_by(loss, numbers(*event, seed=7), ReinMax(), case) < 1e-12


@pytest.mark.parametrize("size", SIZES)
def test_it_is_biased_for_cubic_losses(size: int) -> None:
    """By what the trapezoid rule misses: for z_0³ the slope is 3/2 in place of 1 on every edge from part 0."""
    case, scores = OracleCase(Categorical(), (size,), one_hots), numbers(size, seed=3)
    exact = exact_truth(lambda z: z[..., 0] ** 3, Categorical(), scores).gradient
    torch.testing.assert_close(exact_mean(ReinMax(), case, lambda z: z[..., 0] ** 3, scores), 1.5 * exact)


def test_a_cubic_term_of_three_parts_of_one_category_is_nothing_to_it() -> None:
    """It vanishes along every edge, with its slope: what counts are edges, not degrees."""
    case, inner = OracleCase(Categorical(), (4,), one_hots), quadratic(4, 0)
    assert biased_by(lambda z: inner(z) + 5 * z[..., 0] * z[..., 1] * z[..., 2], numbers(4), ReinMax(), case) < 1e-12
    assert biased_by(lambda z: inner(z) + 5 * z[..., 0].square() * z[..., 1], numbers(4), ReinMax(), case) > 0.05


@pytest.mark.parametrize("size", SIZES)
def test_the_mean_is_the_trapezoid_rule(size: int) -> None:
    """``Σ_j p_i p_j ½ (γ(i) + γ(j))·(i − j)`` for any smooth loss; the exact gradient has ``L(i) − L(j)`` there."""
    case, scores, inner = OracleCase(Categorical(), (size,), one_hots), numbers(size, seed=4), quadratic(size, 5)

    def loss(z: Tensor) -> Tensor:
        return inner(z).sin() + inner(z).exp()

    gamma, p = loss_gradient(loss, structures(case)), scores.softmax(-1)
    rule = (gamma.diagonal().unsqueeze(1) + gamma.mT - gamma - gamma.diagonal()) / 2
    torch.testing.assert_close(exact_mean(ReinMax(), case, loss, scores), p * (rule @ p), rtol=1e-11, atol=1e-13)
    values = loss(structures(case))
    exact = exact_truth(loss, Categorical(), scores).gradient
    torch.testing.assert_close(p * ((values.unsqueeze(1) - values) @ p), exact, rtol=1e-11, atol=1e-13)


def test_a_temperature_makes_it_biased() -> None:
    case = OracleCase(Categorical(), (3,), one_hots)
    scores, _, gradient = three_classes()
    torch.testing.assert_close(exact_mean(ReinMax(), case, table_loss, scores), gradient)
    found = exact_mean(ReinMax(temperature=1.3), case, table_loss, scores)
    # Linear losses: 2 E J((p_τ + z)/2) γ − ½ J(p) γ with E zzᵀ = diag p.
    p, cold = scores.softmax(-1), (scores / 1.3).softmax(-1)
    second = (torch.outer(cold, cold) + torch.outer(cold, p) + torch.outer(p, cold) + p.diag()) / 4
    jacobian = 2 * (((p + cold) / 2).diag() - second) - (p.diag() - torch.outer(p, p)) / 2
    torch.testing.assert_close(found, jacobian @ table_loss(torch.eye(3, dtype=torch.float64)))
    assert float((found - gradient).norm()) > 0.005


@pytest.mark.parametrize("gap", [0.0, 0.8, -2.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_the_average_over_races_at_the_middle(gap: float, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`reinmax_rao` is twice Gumbel-Rao at scores log (p + z)/2, minus half of the straight-through term, in the mean over the races."""
    scores = torch.tensor([gap, 0.0], dtype=torch.float64)
    p, loss, (x, weights) = scores.softmax(-1), lambda z: z[..., 0], logistic_numbers()
    deal_gumbels(monkeypatch, bits_of_ratios(x).unsqueeze(1))
    for z in torch.eye(2, dtype=torch.float64):
        samples = z.expand(len(x), 2)
        found, _ = moments(estimates_of(ReinMaxRao(temperature, 1), Categorical(), loss, scores, samples), weights)
        middle, _ = moments(estimates_of(GumbelRao(temperature, 1), Categorical(), loss, ((p + z) / 2).log(), samples), weights)
        torch.testing.assert_close(found[0], 2 * middle[0] - p[0] * p[1] / 2, rtol=1e-11, atol=1e-13)


def conditional_moments(eta: float, z: Tensor, scores: Tensor, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, float]:
    """Of `reinmax_cv` given its sample, over the noise of both relaxations: a linear loss of two classes."""
    (x, weights), loss = logistic_numbers(4.0), lambda point: point[..., 0]
    first, second = (numbers.flatten() for numbers in torch.meshgrid(x, x, indexing="ij"))
    deal_gumbels(monkeypatch, torch.stack([bits_of_ratios(first), bits_of_ratios(second)], 1))
    estimator = ReinMaxControl(temperature=1.0, eta=eta, num_conditionals=1)
    return moments(estimates_of(estimator, Categorical(), loss, scores, z.expand(len(first), 2)), torch.outer(weights, weights).flatten())


def test_the_control_of_reinmax_moves_its_mean_and_adds_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given z ReinMax has no variance, so that a control variate of mean 0 given z could lower none; and this one's mean is not 0."""
    scores, means = torch.tensor([1.0, 0.0], dtype=torch.float64), {}
    p = scores.softmax(-1)
    for eta in (0.0, 0.5):
        given = [conditional_moments(eta, z, scores, monkeypatch) for z in torch.eye(2, dtype=torch.float64)]
        means[eta] = float(p @ torch.stack([mean[0] for mean, _ in given]))
        assert all((variance > 1e-4) == (eta > 0) for _, variance in given)
    exact = float(p[0] * p[1])
    assert means[0.0] == pytest.approx(exact, rel=1e-6)
    assert means[0.5] / exact == pytest.approx(1.0968, abs=1e-3)

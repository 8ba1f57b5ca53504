"""Closed forms on three classes, ``θ = (.3, −.2, .5)`` with losses ``(1, −.5, 2)``, and other published numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from structgrad.estimators import (
    SPIGOT,
    ConstantBaseline,
    Estimator,
    GreedyBaseline,
    Gumbel,
    ImplicitMLE,
    LeaveOneOut,
    PerturbAndParse,
    Reinforce,
    SampledStraightThrough,
    Simple,
    SparseMAPMarginalisation,
    StraightThroughGumbel,
    StraightThroughMarginals,
    StructuredAttention,
    SumOfGamma,
    make_estimator,
)
from structgrad.oracles import Categorical, Subset
from structgrad.suites.measures.bias import Measurement, measure
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import FixedNoise, exact_mean, numbers, table_loss, three_classes
from tests.helpers import OracleCase, one_hots, seeded

SCORES, LOSS_TABLE, GRADIENT = three_classes()
PROBABILITIES = SCORES.softmax(-1)
JACOBIAN = PROBABILITIES.diag() - torch.outer(PROBABILITIES, PROBABILITIES)
CLASSES = OracleCase(Categorical(), (3,), one_hots)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def measured(estimator: Estimator[Categorical]) -> Measurement:
    return measure(estimator, Categorical(), table_loss, SCORES)


def variance(found: Measurement, gradient: Tensor = GRADIENT) -> float:
    """Trace of the covariance of one estimate."""
    relative = found.metrics["relative_variance"].value
    assert relative is not None
    return relative * float(gradient.square().sum())


def estimates(estimator: Estimator[Categorical], scores: Tensor = SCORES, replicates: int = 200_000) -> Tensor:
    loss = table_loss if len(scores) == 3 else lambda z: z[..., 0]
    return estimator.gradient(loss, Categorical(), scores.expand(replicates, -1), generator=seeded(7))


def assert_mean(values: Tensor, expected: Tensor | float) -> None:
    """Within 5 standard errors, which are small."""
    error = values.std(0) / math.sqrt(len(values))
    assert bool((error < 0.02).all())
    assert bool(((values.mean(0) - torch.as_tensor(expected)).abs() <= 5 * error).all())


def test_the_example() -> None:
    torch.testing.assert_close(GRADIENT, vector(-0.038964, -0.345351, 0.384315), rtol=0, atol=1e-6)
    torch.testing.assert_close(exact_truth(table_loss, Categorical(), SCORES).gradient, GRADIENT)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (Reinforce(), 0.864344),
        (ConstantBaseline(0.0), 0.864344),
        (ConstantBaseline(float(PROBABILITIES @ LOSS_TABLE)), 0.419557),
        (ConstantBaseline(0.866920), 0.381539),
        (GreedyBaseline(), 1.206313),
        (LeaveOneOut(2), 0.633858),
        (LeaveOneOut(3), 0.281212),
        (LeaveOneOut(4), 0.175569),
    ],
    ids=str,
)
def test_the_variance_of_the_score_function(estimator: Estimator[Categorical], expected: float) -> None:
    found = measured(estimator)
    assert found.verdict == "unbiased-exact"
    assert variance(found) == pytest.approx(expected, abs=1e-6)


def test_more_samples_divide_the_variance() -> None:
    assert variance(measured(Reinforce(4))) == pytest.approx(0.864344 / 4, abs=1e-6)
    assert variance(measured(ConstantBaseline(0.5, num_samples=3))) == pytest.approx(variance(measured(ConstantBaseline(0.5))) / 3)


def test_the_best_constant() -> None:
    """``b* = E[ℓ‖s‖²] / E‖s‖²``: a little to either side is worse."""
    norms = (torch.eye(3, dtype=torch.float64) - PROBABILITIES).square().sum(-1)
    best = float(PROBABILITIES @ (LOSS_TABLE * norms) / (PROBABILITIES @ norms))
    assert best == pytest.approx(0.866920, abs=1e-6)
    assert variance(measured(ConstantBaseline(best))) < min(variance(measured(ConstantBaseline(best + d))) for d in (-0.01, 0.01))


def test_the_diagonal_of_the_jacobian_is_another_vector() -> None:
    found = StraightThroughMarginals().gradient(table_loss, Categorical(), SCORES, generator=seeded())
    torch.testing.assert_close(found, vector(-0.039, -0.345, 0.384), rtol=0, atol=5e-4)
    diagonal = JACOBIAN.diagonal() * LOSS_TABLE
    torch.testing.assert_close(diagonal, vector(0.229, -0.084, 0.491), rtol=0, atol=5e-4)


@pytest.mark.parametrize("name", ["structured_attention", "simple", "ste_marginals"])
def test_backward_through_marginals_is_exact_for_a_linear_loss(name: str) -> None:
    found = measured(make_estimator(name))
    assert found.verdict == "unbiased-exact"
    assert variance(found) == pytest.approx(0, abs=1e-20)


def test_straight_through_on_samples_is_biased_for_a_linear_loss() -> None:
    """By ``(I − J)γ``."""
    found = exact_mean(SampledStraightThrough(), CLASSES, table_loss, SCORES)
    torch.testing.assert_close(found - GRADIENT, LOSS_TABLE - JACOBIAN @ LOSS_TABLE)


@pytest.mark.parametrize("seed", range(3))
def test_simple_is_structured_attention_in_the_mean_for_a_quadratic_loss(seed: int) -> None:
    matrix, linear = numbers(3, 3, seed=seed), numbers(3, seed=seed + 10)
    matrix = matrix + matrix.mT

    def loss(z: Tensor) -> Tensor:
        return ((z @ matrix) * z).sum(-1) / 2 + z @ linear

    attention = StructuredAttention().gradient(loss, Categorical(), SCORES, generator=seeded())
    torch.testing.assert_close(attention, JACOBIAN @ (matrix @ PROBABILITIES + linear))
    torch.testing.assert_close(exact_mean(Simple(), CLASSES, loss, SCORES), attention)
    bias = attention - exact_truth(loss, Categorical(), SCORES).gradient
    torch.testing.assert_close(bias, JACOBIAN @ (matrix @ PROBABILITIES - matrix.diagonal() / 2))


@pytest.mark.parametrize(("best", "expected"), [(0, (0.075, -0.075, 0.0)), (1, (0.0, 0.0, 0.0)), (2, (0.0, -0.125, 0.125))])
def test_spigot_from_every_vertex(best: int, expected: tuple[float, ...]) -> None:
    scores = 10 * torch.eye(3, dtype=torch.float64)[best]
    found = SPIGOT(step_size=0.1).gradient(table_loss, Categorical(), scores, generator=seeded())
    torch.testing.assert_close(found, vector(*expected), rtol=0, atol=1e-12)


def test_an_endless_step_is_the_perceptron() -> None:
    """SPIGOT and I-MLE without noise give ``z − argmin⟨γ, ·⟩``."""
    still = FixedNoise(torch.zeros(3, dtype=torch.float64))
    for estimator in (SPIGOT(step_size=1e6), ImplicitMLE(lambda_=1e6, noise=still)):
        found = estimator.gradient(table_loss, Categorical(), SCORES, generator=seeded())
        torch.testing.assert_close(found, vector(0, -1, 1), rtol=0, atol=1e-9)


def test_blackbox_differentiation_is_blind_to_small_steps() -> None:
    """``λ_c = min_j (θ_k − θ_j)/(γ_k − γ_j) = 0.2``."""
    still = FixedNoise(torch.zeros(3, dtype=torch.float64))
    below, above = (
        ImplicitMLE(lambda_=step, noise=still).gradient(table_loss, Categorical(), SCORES, generator=seeded()) for step in (0.1999, 0.2001)
    )
    assert bool((below == 0).all())
    torch.testing.assert_close(above, vector(-1, 0, 1))


def test_implicit_mle_with_gumbel_noise() -> None:
    """Mean ``p − softmax(θ − λℓ)``; noise that is shared between both argmax calls lowers the variance."""
    found = estimates(ImplicitMLE())
    target = (SCORES - LOSS_TABLE).softmax(-1)
    torch.testing.assert_close(PROBABILITIES - target, vector(0.113669, -0.437761, 0.324092), rtol=0, atol=1e-6)
    assert_mean(found, PROBABILITIES - target)
    both = 1 / torch.maximum((SCORES - SCORES[:, None]).exp(), ((SCORES - LOSS_TABLE) - (SCORES - LOSS_TABLE)[:, None]).exp()).sum(-1)
    shared = float(2 * (1 - both.sum()) - (PROBABILITIES - target).square().sum())
    assert shared == pytest.approx(0.640939, abs=1e-6)
    assert_mean((found - (PROBABILITIES - target)).square().sum(-1), shared)
    independent = float(2 - PROBABILITIES.square().sum() - target.square().sum())
    assert independent == pytest.approx(1.147797, abs=1e-6)


@pytest.mark.parametrize("step", [0.1, 1.0, 3.0])
def test_implicit_mle_divided_by_its_step(step: float) -> None:
    expected = (PROBABILITIES - (SCORES - step * LOSS_TABLE).softmax(-1)) / step
    assert_mean(estimates(ImplicitMLE(lambda_=step, divide_by_lambda=True), replicates=400_000), expected)


def gumbel_factor(gap: float) -> float:
    """``a((a+1) ln a − 2(a−1)) / (a−1)³`` with ``a = e^gap``: the mean of ST-Gumbel on two classes for a unit loss, τ = 1."""
    a = math.exp(gap)
    return a * ((a + 1) * math.log(a) - 2 * (a - 1)) / (a - 1) ** 3 if gap else 1 / 6


@pytest.mark.parametrize(("gap", "expected", "exact"), [(0.0, 0.166667, 0.25), (0.8, 0.156395, 0.213910)])
def test_straight_through_gumbel_on_two_classes(gap: float, expected: float, exact: float) -> None:
    scores = vector(gap, 0.0)
    torch.testing.assert_close(exact_truth(lambda z: z[..., 0], Categorical(), scores).gradient, vector(exact, -exact), rtol=0, atol=1e-6)
    assert gumbel_factor(gap) == pytest.approx(expected, abs=1e-6)
    assert by_quadrature(gap) == pytest.approx(expected, abs=1e-6)
    assert_mean(estimates(StraightThroughGumbel(), scores)[:, 0], expected)


def by_quadrature(gap: float) -> float:
    """The same mean with the shipped code as the integrand; the difference of two Gumbel variables is logistic."""

    def integrand(x: float) -> float:
        noisy = PerturbAndParse(noise=FixedNoise(vector(x, 0.0)))
        estimate = noisy.gradient(lambda z: z[..., 0], Categorical(), vector(gap, 0.0), generator=seeded())
        return float(estimate[0]) * 0.25 / math.cosh(x / 2) ** 2

    return float(quad(integrand, -40, 40, epsabs=1e-9, limit=50)[0])


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_forward_of_straight_through_gumbel_is_a_sample_of_the_softmax(temperature: float) -> None:
    drawn = StraightThroughGumbel(temperature).structure(Categorical(), SCORES.expand(200_000, -1), generator=seeded())
    assert_mean(drawn, PROBABILITIES)


def test_sparsemap_marginalisation() -> None:
    """``1_S (ℓ − mean_S ℓ)``; at 2θ the support is the first and the last class."""
    found = SparseMAPMarginalisation().gradient(table_loss, Categorical(), 2 * SCORES, generator=seeded())
    torch.testing.assert_close(found, vector(-0.5, 0.0, 0.5), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("scale", "mean", "variance"), [(1.0, 0.577216, math.pi**2 / 6), (2.5, 1.443039, 2.5**2 * math.pi**2 / 6)])
def test_the_moments_of_gumbel_noise(scale: float, mean: float, variance: float) -> None:
    drawn = Gumbel(scale).perturb(Categorical(), torch.zeros(200_000, 3, dtype=torch.float64), generator=seeded()).flatten()
    assert_mean(drawn, mean)
    assert float(drawn.var()) == pytest.approx(variance, rel=0.02)
    ordered = drawn.sort().values[:: len(drawn) // 100]
    expected = (-(-ordered / scale).exp()).exp()
    assert float((expected - torch.arange(len(ordered)) / 100).abs().max()) < 0.01


@pytest.mark.parametrize(
    ("noise", "mean", "variance"),
    [
        (SumOfGamma(k=5, scale=1.0, terms=10), 0.125277, 0.309954),
        (SumOfGamma(k=2, scale=3.0, terms=4), None, None),
        (SumOfGamma(), None, None),
    ],
    ids=str,
)
def test_the_moments_of_sum_of_gamma_noise(noise: SumOfGamma, mean: float | None, variance: float | None) -> None:
    terms = np.arange(1, noise.terms + 1)
    expected_mean = noise.scale * ((1 / terms).sum() - math.log(noise.terms)) / noise.k
    expected_variance = noise.scale**2 * (1 / terms**2).sum() / noise.k
    assert mean is None or expected_mean == pytest.approx(mean, abs=1e-6)
    assert variance is None or expected_variance == pytest.approx(variance, abs=1e-6)
    drawn = noise.perturb(Categorical(), torch.zeros(50_000, 3, dtype=torch.float64), generator=seeded()).flatten()
    assert_mean(drawn, expected_mean)
    assert_mean((drawn - expected_mean).square() / expected_variance, 1.0)


def test_the_sum_of_gamma_noise_of_a_subset_is_almost_one_gumbel_variable() -> None:
    """That is what the noise is for: k of them, with enough terms, add up to location 0 and scale τ."""
    noise = SumOfGamma(k=4, scale=1.0, terms=100)
    drawn = noise.perturb(Subset(4), torch.zeros(10_000, 4, dtype=torch.float64), generator=seeded()).sum(-1)
    ordered = drawn.sort().values[:: len(drawn) // 100]
    assert float(((-(-ordered).exp()).exp() - torch.arange(len(ordered)) / 100).abs().max()) < 0.03


def toy() -> tuple[Tensor, Tensor]:
    """The k-subset toy of the SIMPLE paper, seed 1234: scores and targets of ten parts."""
    random = np.random.RandomState(1234)
    return torch.from_numpy(random.randn(10)), torch.from_numpy(np.abs(random.randn(10)))


@pytest.mark.parametrize(
    ("estimator", "one_minus_cosine", "trace"),
    [(Simple(), 0.038047, 0.4325), (Reinforce(), 0.0, 147.7269), (LeaveOneOut(2), 0.0, 6.7914)],
    ids=str,
)
def test_the_subset_toy(estimator: Estimator[Subset], one_minus_cosine: float, trace: float) -> None:
    scores, target = toy()
    loss = lambda z: (z - target).square().sum(-1)  # noqa: E731
    truth = exact_truth(loss, Subset(5), scores)
    assert float(truth.gradient.norm()) == pytest.approx(0.919681, abs=1e-6)
    assert truth.value == pytest.approx(8.685266, abs=1e-6)
    found = measure(estimator, Subset(5), loss, scores, truth=truth)
    assert 1 - found.metrics["cosine"].value == pytest.approx(one_minus_cosine, abs=1e-6)  # type: ignore[operator]
    assert variance(found, truth.gradient) == pytest.approx(trace, abs=1e-4)

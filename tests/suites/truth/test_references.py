"""References: each against another way to the same gradient, and the stated error against repetitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Gumbel, Normal, SmoothNoise, make_estimator
from structgrad.oracles import Categorical
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.references import Reference, own_reference, perturbed_gradient, perturbed_reference, relaxed_gradient
from tests.suites.cases import ORACLES, quadratic, scores_of

LOSSES = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
SCORES = torch.tensor([0.4, -0.3, 0.1, 0.8], dtype=torch.float64)


def table(z: Tensor) -> Tensor:
    return z @ LOSSES


def assert_near(found: Reference, gradient: Tensor, value: float) -> None:
    """Within the error that it states, which is small enough to tell a factor of 1.1."""
    assert float((found.gradient - gradient).square().sum()) < 6 * found.noise
    assert math.sqrt(found.noise) < 0.02 * float(gradient.norm())
    assert found.value == pytest.approx(value, abs=0.03)


def by_normal_quadrature(scores: Tensor, scale: float) -> tuple[Tensor, float]:
    """``P(argmax = j) = ∫ φ(x) Π_k Φ(x + (θ_j − θ_k)/s) dx``, differentiated."""
    leaf = scores.clone().requires_grad_()
    x = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weights = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    gaps = (leaf.unsqueeze(1) - leaf) / scale
    below = torch.special.ndtr(x[:, None, None] + gaps).masked_fill(torch.eye(len(scores), dtype=torch.bool), 1)
    value = (weights @ below.prod(-1)) @ LOSSES
    return torch.autograd.grad(value, leaf)[0], float(value.detach())


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_gumbel_noise_on_a_category_is_the_expected_loss_at_the_scaled_scores(scale: float) -> None:
    exact = perturbed_reference(Categorical(), table, SCORES, Gumbel(scale), key=(), replicates=65_536)
    assert (exact.method, exact.noise, exact.replicates) == ("gumbel-max", 0.0, None)
    leaf = SCORES.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf / scale).softmax(-1) @ LOSSES, leaf)
    torch.testing.assert_close(exact.gradient, gradient, rtol=1e-12, atol=1e-14)
    assert_near(perturbed_gradient(Categorical(), table, SCORES, Gumbel(scale), key=("",), replicates=65_536), gradient, exact.value)


@pytest.mark.parametrize("scale", [0.7, 2.0])
def test_normal_noise_on_a_category_by_quadrature(scale: float) -> None:
    found = perturbed_reference(Categorical(), table, SCORES, Normal(scale), key=("a",), replicates=65_536)
    assert (found.method, found.replicates) == ("score-function", 65_536)
    assert_near(found, *by_normal_quadrature(SCORES, scale))


@pytest.mark.parametrize("name", ["subset", "linear_chain"])
@pytest.mark.parametrize("law", [Gumbel(), Normal(0.8)], ids=str)
def test_the_stated_error_is_that_of_repetitions(name: str, law: SmoothNoise) -> None:
    oracle, loss, scores = ORACLES[name][0], quadratic(name), scores_of(name)
    found = [perturbed_gradient(oracle, loss, scores, law, key=(str(i),), replicates=2048) for i in range(60)]
    gradients = torch.stack([reference.gradient for reference in found]).flatten(1)
    stated = sum(reference.noise for reference in found) / len(found)
    assert float(gradients.var(0).sum()) / stated == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("name", ORACLES)
def test_the_relaxed_gradient_is_a_covariance(name: str) -> None:
    """``∇ L(μ(θ)) = Cov(z) ∇L(μ)``: the expected gradient of a linear loss."""
    oracle, loss, scores = ORACLES[name][0], quadratic(name), scores_of(name)
    marginals = oracle.marginals(scores).requires_grad_()
    value = loss(marginals)
    (slope,) = torch.autograd.grad(value, marginals)
    expected = exact_truth(lambda z: (z * slope).flatten(z.ndim - scores.ndim).sum(-1), oracle, scores).gradient
    found = relaxed_gradient(oracle, loss, scores.float())
    torch.testing.assert_close(found.gradient, expected, rtol=1e-5, atol=1e-5)
    found = relaxed_gradient(oracle, loss, scores)
    torch.testing.assert_close(found.gradient, expected, rtol=1e-11, atol=1e-12)
    assert (found.value, found.noise, found.method) == (pytest.approx(float(value.detach())), 0.0, "derivative")
    other = relaxed_gradient(oracle, loss, scores, oracle.marginals)
    torch.testing.assert_close(other.gradient, expected, rtol=1e-7, atol=1e-8)
    assert other.noise < 1e-10 * float(expected.square().sum())


def test_who_has_a_reference() -> None:
    kinds = {name: own_reference(make_estimator(name)) for name in ESTIMATORS}
    assert {kinds[name] for name in ("reinforce", "simple", "rebar")} == {"expected"}
    assert {kinds[name] for name in ("imle", "perturb_and_map", "st_gumbel")} == {"perturbed"}
    assert {kinds[name] for name in ("ste", "spigot", "blackbox")} == {"argmax"}
    assert {kinds[name] for name in ("structured_attention", "sparsemap", "differentiable_dp")} == {"relaxed"}
    assert {kinds[name] for name in ("sparsemap_marginalisation", "gumbel_softmax", "perturbed_optimizer")} == {None}


def test_a_relaxed_gradient_needs_a_differentiable_loss() -> None:
    with pytest.raises(ValueError, match="a loss without a gradient"):
        relaxed_gradient(Categorical(), lambda z: z.argmax(-1).double(), SCORES)

"""References against another way to the same gradient; a loss that cannot be measured is refused in one sentence."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import Gumbel, Normal, SmoothNoise, make_estimator
from structgrad.oracles import Categorical, Subset
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.metrics import NoisyGradient
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.closed_form import known_truth, own_reference, perturbed_gradient, relaxed_gradient
from structgrad.suites.truth.loss_checks import examine_loss
from tests.suites.cases import ORACLES, quadratic, scores_of

VALUES = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)
LOGITS = torch.tensor([0.4, -0.3, 0.1, 0.8], dtype=torch.float64)


def table(z: Tensor) -> Tensor:
    return z @ VALUES


def assert_near(found: NoisyGradient, gradient: Tensor) -> None:
    """Within the error that it states, which is small enough to tell a factor of 1.1."""
    assert float((found.gradient - gradient).square().sum()) < 6 * found.noise
    assert math.sqrt(found.noise) < 0.02 * float(gradient.norm())


def by_normal_quadrature(scores: Tensor, scale: float) -> Tensor:
    """``P(argmax = j) = ∫ φ(x) Π_k Φ(x + (θ_j − θ_k)/s) dx``, differentiated."""
    leaf = scores.clone().requires_grad_()
    x = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    weights = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    gaps = (leaf.unsqueeze(1) - leaf) / scale
    below = torch.special.ndtr(x[:, None, None] + gaps).masked_fill(torch.eye(len(scores), dtype=torch.bool), 1)
    return torch.autograd.grad((weights @ below.prod(-1)) @ VALUES, leaf)[0]


@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_gumbel_noise_on_a_category_is_the_expected_loss_at_the_scaled_scores(scale: float) -> None:
    exact = perturbed_gradient(Categorical(), table, LOGITS, Gumbel(scale), key=(), replicates=65_536)
    assert exact.noise == 0
    leaf = LOGITS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((leaf / scale).softmax(-1) @ VALUES, leaf)
    torch.testing.assert_close(exact.gradient, gradient, rtol=1e-12, atol=1e-14)
    assert_near(perturbed_gradient(Subset(1), table, LOGITS, Gumbel(scale), key=("",), replicates=65_536), gradient)


@pytest.mark.parametrize("scale", [0.7, 2.0])
def test_normal_noise_on_a_category_by_quadrature(scale: float) -> None:
    found = perturbed_gradient(Categorical(), table, LOGITS, Normal(scale), key=("a",), replicates=65_536)
    assert_near(found, by_normal_quadrature(LOGITS, scale))


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
    (slope,) = torch.autograd.grad(loss(marginals), marginals)
    expected = exact_truth(lambda z: (z * slope).flatten(z.ndim - scores.ndim).sum(-1), oracle, scores).gradient
    found = relaxed_gradient(oracle, loss, scores.float())
    torch.testing.assert_close(found.gradient, expected, rtol=1e-5, atol=1e-5)
    found = relaxed_gradient(oracle, loss, scores)
    torch.testing.assert_close(found.gradient, expected, rtol=1e-11, atol=1e-12)
    assert found.noise == 0
    other = relaxed_gradient(oracle, loss, scores, oracle.marginals)
    torch.testing.assert_close(other.gradient, expected, rtol=1e-7, atol=1e-8)
    assert other.noise < 1e-10 * float(expected.square().sum())


def test_the_own_objective_of_an_estimator() -> None:
    names = ("rloo", "structured_attention", "ste", "imle", "gumbel_softmax", "sparsemap_marginalisation", "crf")
    found = [own_reference(make_estimator(name)) for name in names]
    assert found == ["expected", "relaxed", "argmax", "perturbed", None, None, None]


def test_a_relaxed_gradient_needs_a_differentiable_loss() -> None:
    with pytest.raises(ValueError, match="a loss without a gradient"):
        relaxed_gradient(Categorical(), lambda z: z.argmax(-1).double(), LOGITS)


ORACLE, SCORES = Subset(2), torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64)
COSTS = torch.tensor([1.0, -0.5, 2.0, 0.3], dtype=torch.float64)


def linear(z: Tensor) -> Tensor:
    return z @ COSTS


def write(z: Tensor) -> Tensor:
    z.mul_(2)
    return linear(z)


def by_place(z: Tensor) -> Tensor:
    return linear(z) + torch.arange(z.shape[0], dtype=z.dtype)


def normalised() -> Callable[[Tensor], Tensor]:
    layer = nn.BatchNorm1d(4, affine=False, track_running_stats=False).double()
    return lambda z: linear(layer(z)) if len(z) > 1 else linear(z)


def rare(z: Tensor) -> Tensor:
    """NaN at one structure, which has the lowest score of all: no look at a few sees it."""
    return torch.where(z[..., 1] * z[..., 3] > 0, math.nan, linear(z))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: lambda z: linear(z) * math.nan, r"the loss gave nan; expected finite numbers below 1e\+77, for every structure"),
    "huge": (lambda: lambda z: linear(z) * 1e200, r"the loss gave -?\d.*e\+200; expected finite numbers below 1e\+77"),
    "random": (lambda: lambda z: linear(z) + torch.randn(z.shape[:-1]), "another value in a second call; expected .*must not be random"),
    "writes": (lambda: write, "the loss writes into its argument; expected it to leave the structures as they are"),
    "place": (lambda: by_place, "another value next to other structures; expected a value that depends on the structure alone"),
    "batch norm": (normalised, "another value next to other structures; .*no batch normalisation"),
    "reduces": (lambda: lambda z: linear(z).mean(), r"the loss gave shape \(\) for structures \(8, 4\); expected .*, \(8,\)"),
    "float": (lambda: lambda z: 1.0, "the loss gave a float; expected a function"),
    "complex": (lambda: lambda z: linear(z) * 1j, "the loss gave a tensor of dtype torch.complex128"),
    "single": (lambda: lambda z: z @ COSTS.float(), "the loss raised RuntimeError: .*; expected a function .* of float64 structures"),
    "raises": (lambda: lambda z: 1 / 0, r"the loss raised ZeroDivisionError: division by zero, in line \d+ of \S+\.py; expected"),
}
each_wrong = pytest.mark.parametrize("name", list(WRONG))


@each_wrong
def test_a_loss_that_cannot_be_measured(name: str) -> None:
    make, message = WRONG[name]
    calls: dict[str, Callable[[Any], object]] = {
        "examine_loss": lambda loss: examine_loss(loss, ORACLE, SCORES),
        "exact_truth": lambda loss: exact_truth(loss, ORACLE, SCORES),
        "known_truth": lambda loss: known_truth(loss, ORACLE, SCORES),
        "measure": lambda loss: measure(make_estimator("rloo"), ORACLE, loss, SCORES),
        "measure with a truth": lambda loss: measure(
            make_estimator("rloo"), ORACLE, loss, SCORES, truth=exact_truth(linear, ORACLE, SCORES)
        ),
    }
    for call in calls.values():
        with pytest.raises(ValueError, match=f"^{message}" if message.startswith("the loss") else message):
            call(make())


def test_a_rare_structure_is_found_by_enumeration() -> None:
    scores = torch.tensor([60.0, -60.0, 60.0, -60.0], dtype=torch.float64)
    examine_loss(rare, ORACLE, scores / 60 * 1e6)
    with pytest.raises(ValueError, match="the loss gave nan; expected finite numbers"):
        exact_truth(rare, ORACLE, scores)


def test_a_gradient_that_is_no_number() -> None:
    """A norm at distance 0: the values are right, so estimators that need values alone can be measured."""
    target = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)

    def root(z: Tensor) -> Tensor:
        return (z - target).square().sum(-1).sqrt()

    with pytest.raises(ValueError, match="the gradient of the loss is nan at a structure; expected finite numbers"):
        measure(make_estimator("ste"), ORACLE, root, SCORES)
    assert measure(make_estimator("rloo"), ORACLE, root, SCORES).verdict == "unbiased-exact"

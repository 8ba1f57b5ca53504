"""REBAR, RELAX and local expectations: exact means, tuning, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import LocalExpectation, Loss, Rebar, Relax, StepLocalExpectation, make_estimator
from structgrad.oracles import Categorical, IndependentCategoricals, ShiftReduce
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers
from tests.helpers import OracleCase, derivations, seeded
from tests.quadrature import bits_of_ratios, deal_gumbels, estimates_of, logistic_numbers, moments

LOGITS = [0.0, 0.8, -2.5]
logits = pytest.mark.parametrize("logit", LOGITS)
settings = pytest.mark.parametrize(("eta", "temperature"), [(1.0, 0.5), (0.3, 1.0), (-1.4, 2.0), (0.0, 0.5)])
SAMPLES = torch.eye(2, dtype=torch.float64)


def bit(logit: float) -> Tensor:
    return torch.tensor([0.0, logit], dtype=torch.float64)


def curved(z: Tensor) -> Tensor:
    """A smooth loss of one bit."""
    return (1.3 * z[..., 1] - 0.4 * z[..., 0]).exp() + z[..., 0] * z[..., 1]


def network(event: tuple[int, ...], seed: int = 0) -> nn.Module:
    """A small one in float64, one value per point."""
    layers = nn.Sequential(nn.Flatten(-len(event)), nn.Linear(math.prod(event), 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(-2)).double()
    for i, parameter in enumerate(layers.parameters()):
        parameter.data = numbers(*parameter.shape, seed=seed + i)
    return layers


class Pointwise(nn.Module):
    """A control of one category, for `categorical`, whose event has one dimension."""

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__()
        self.inner = network((1, size), seed)

    def forward(self, points: Tensor) -> Tensor:
        return self.inner(points.unsqueeze(-2))


def integrated(estimator: Rebar, loss: Loss, logit: float, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The mean over the sample and the noise; the estimate is a sum of functions of one race each, so that both may share their noise."""
    x, weights = logistic_numbers()
    mean = torch.zeros(2, dtype=torch.float64)
    for z, p in zip(SAMPLES, bit(logit).softmax(-1), strict=True):
        with monkeypatch.context() as patch:
            deal_gumbels(patch, bits_of_ratios(x).unsqueeze(1))
            mean += p * moments(estimates_of(estimator, Categorical(), loss, bit(logit), z.expand(len(x), 2)), weights)[0]
    return mean


@logits
@settings
def test_the_mean_of_rebar_is_the_exact_gradient(logit: float, eta: float, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_truth(curved, Categorical(), bit(logit)).gradient
    torch.testing.assert_close(integrated(Rebar(eta, temperature), curved, logit, monkeypatch), exact, rtol=1e-8, atol=1e-9)


@logits
@pytest.mark.parametrize("with_loss", [True, False])
def test_the_mean_of_relax_is_the_exact_gradient_for_every_network(logit: float, with_loss: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = exact_truth(curved, Categorical(), bit(logit)).gradient
    for seed in range(0, 30, 10):
        relax = Relax(0.7, 0.8, Pointwise(2, seed), with_loss)
        torch.testing.assert_close(integrated(relax, curved, logit, monkeypatch), exact, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("with_loss", [True, False])
def test_the_squared_norm_and_its_derivatives(with_loss: bool) -> None:
    """That of `gradient` from the same seed, and by finite differences in η, log τ and a weight of the network."""
    scores, loss, event = numbers(5, 2, 2), lambda z: (z * numbers(2, 2)).sum((-2, -1)).sin(), (2, 2)
    estimator = Relax(0.6, 0.8, network(event), with_loss)

    def value(settings: nn.Module) -> Tensor:
        return estimator.squared_norm(loss, IndependentCategoricals(), scores, settings, generator=seeded())  # type: ignore[arg-type]

    settings = estimator.settings()
    found = value(settings)
    expected = estimator.gradient(loss, IndependentCategoricals(), scores, generator=seeded()).square().sum((-2, -1))
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad(found.sum(), list(settings.parameters()))
    step = 1e-5
    for parameter, gradient in zip(settings.parameters(), gradients, strict=True):
        first = parameter.data.view(-1)
        differences = []
        for sign in (1, -1):
            first[0] += sign * step
            differences.append(float(value(settings).sum().detach()))
            first[0] -= sign * step
        slope = (differences[0] - differences[1]) / (2 * step)
        assert float(gradient.view(-1)[0]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


def test_settings_in_a_loop_of_ones_own() -> None:
    scores, loss = numbers(64, 2, 2), lambda z: (z * numbers(2, 2, seed=3)).sum((-2, -1)).exp()
    estimator, generator = Rebar(eta=0.1), seeded()
    held = estimator.settings()
    optimiser = torch.optim.SGD(held.parameters(), lr=0.05)
    for _ in range(50):
        optimiser.zero_grad()
        estimator.squared_norm(loss, IndependentCategoricals(), scores, held, generator=generator).mean().backward()
        optimiser.step()
    assert estimator.with_settings(held).eta > 0.2


def test_the_cost_of_relax_without_the_loss() -> None:
    seen = []
    relax = Relax(control=network((2, 2)), with_loss=False)
    relax.gradient(
        lambda z: (seen.append(z.shape), z.detach().sum((-2, -1)))[1], IndependentCategoricals(), numbers(4, 2, 2), generator=seeded()
    )
    assert seen == [(4, 2, 2)]
    assert (relax.evaluations().losses, relax.evaluations().loss_gradients) == (1, 0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("relax[with_loss=False]", "`relax` got with_loss=False and no control; expected a module where the loss is left out"),
    ],
)
def test_an_option_that_makes_no_sense(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        make_estimator(name)


def test_what_a_control_must_give() -> None:
    wrong = nn.Linear(2, 1, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"^`relax` got a control that gives a tensor of shape \(2, 4, 3, 1\) for points of shape \(2, 4, 3, 2\)"
    ):
        Relax(control=wrong).gradient(lambda z: z.sum((-2, -1)), IndependentCategoricals(), numbers(4, 3, 2), generator=seeded())


@pytest.mark.parametrize("name", ["rebar", "relax"])
def test_a_loss_needs_a_gradient_inside_the_hull(name: str) -> None:
    """Else the terms of the relaxed points would be missing, and the estimate biased."""
    with pytest.raises(ValueError, match=f"^`{name}` got a loss without a gradient in the structure; .* such as rloo"):
        make_estimator(name).gradient(lambda z: z.detach().sum((-2, -1)), IndependentCategoricals(), numbers(4, 3, 2), generator=seeded())


@pytest.mark.parametrize("normalization", ["local", "global"])
def test_the_mean_over_all_actions(normalization: str) -> None:
    """Within 5 standard errors, an action forbidden in the second batch of scores."""
    case = OracleCase(ShiftReduce(normalization), (5, 5, 2), derivations)  # type: ignore[arg-type]
    loss = LOSSES["smooth"](case)
    scores = torch.stack([numbers(5, 5, 2), numbers(5, 5, 2, seed=3)])
    scores[1, 2, 1, 0] = -math.inf
    rows = scores.expand(1500, 2, 5, 5, 2)
    found = StepLocalExpectation().gradient(loss, case.oracle, rows, generator=seeded())
    for i in range(2):
        error = found[:, i].std(0) / math.sqrt(len(found))
        exact = exact_truth(loss, case.oracle, scores[i]).gradient
        assert bool(((found[:, i].mean(0) - exact).abs() <= 5 * error + 1e-12).all())
        assert float(error.max()) > 0


def test_changes_beyond_memory_are_refused() -> None:
    said = LocalExpectation().incompatibility(IndependentCategoricals(), (10**3, 10**4))
    assert said
    assert said.startswith("local_expectation takes the loss on 9,999,000 structures at a time, ")

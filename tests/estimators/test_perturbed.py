"""Perturbed optimizers against closed forms: quadrature of the shipped code, and Gumbel races with every case enumerated."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from structgrad.estimators import Gumbel, MultiplicativePerturbation, Normal, PerturbedOptimizer, SmoothNoise, make_estimator
from structgrad.oracles import Categorical, Oracle, Subset
from tests.estimator_cases import CASES, LOSSES, FixedNoise, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, read_parts, seeded

SCORES, LOSS_TABLE, GRADIENT = three_classes()
PROBABILITIES = SCORES.softmax(-1)


class FixedSmoothNoise(FixedNoise, SmoothNoise):
    """Noise that is known beforehand, with the score of a law."""

    def __init__(self, values: Tensor, law: SmoothNoise) -> None:
        super().__init__(values)
        self.law = law

    def score(self, noise: Tensor) -> Tensor:
        return self.law.score(noise)


@dataclass(frozen=True)
class Unchanged(Oracle):
    """A solver that gives its scores back: its smoothed version is the identity, whose Jacobian is known."""

    name: ClassVar[str] = "unchanged"
    event_ndim: ClassVar[int] = 1

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return cls._sizes(sizes, "length")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return 1

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        assert len(event_shape) == 1

    def _argmax(self, rows: Tensor) -> Tensor:
        return rows


def normal_grid(size: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """Gauss–Hermite nodes [rows, dimensions] and weights [rows] of standard normal variables."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(size)
    return product_grid(torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum()), dimensions)


def gumbel_grid(dimensions: int) -> tuple[Tensor, Tensor]:
    """The trapezoidal rule, which is all but exact for a density that falls this fast."""
    nodes = torch.linspace(-6, 60, 3301 if dimensions == 1 else 661, dtype=torch.float64)
    weights = (-nodes - (-nodes).exp()).exp() * (nodes[1] - nodes[0])
    return product_grid(nodes, weights, dimensions)


def product_grid(nodes: Tensor, weights: Tensor, dimensions: int) -> tuple[Tensor, Tensor]:
    points = torch.cartesian_prod(*[nodes] * dimensions).reshape(-1, dimensions)
    return points, torch.cartesian_prod(*[weights] * dimensions).reshape(-1, dimensions).prod(-1)


def mean_estimate(estimator: Any, loss: Any, oracle: Any, scores: Tensor, weights: Tensor) -> Tensor:
    rows = scores.expand(len(weights), *scores.shape)
    found: Tensor = weights @ estimator.gradient(loss, oracle, rows, generator=seeded())
    return found


def on_fixed(noise: Tensor, law: SmoothNoise, **options: Any) -> PerturbedOptimizer:
    return PerturbedOptimizer(noise=FixedSmoothNoise(noise.unsqueeze(1), law), num_samples=1, control_variate="none", **options)


@pytest.mark.parametrize("law", [Normal(), Normal(2.5), Gumbel(), Gumbel(0.4)], ids=str)
def test_the_score_of_noise(law: SmoothNoise) -> None:
    """It is the derivative of minus the log-density, of mean 0, and ``E ν(ε) ε = 1``."""
    scale: float = law.scale  # type: ignore[attr-defined]
    values = torch.linspace(-2, 6, 41, dtype=torch.float64, requires_grad=True)
    log_density = {"normal": -((values / scale) ** 2) / 2, "gumbel": -values / scale - (-values / scale).exp()}[law.name]
    (expected,) = torch.autograd.grad(-log_density.sum(), values)
    torch.testing.assert_close(law.score(values.detach()), expected, rtol=1e-12, atol=1e-12)
    points, weights = normal_grid(20, 1) if law.name == "normal" else gumbel_grid(1)
    points = scale * points.squeeze(-1)
    assert float(weights @ law.score(points)) == pytest.approx(0, abs=1e-9)
    assert float(weights @ (law.score(points) * points)) == pytest.approx(1, abs=1e-9)


def test_the_moments_of_normal_noise() -> None:
    drawn = Normal(2.0).perturb(Categorical(), torch.zeros(200_000, 3, dtype=torch.float64), generator=seeded()).flatten()
    assert abs(float(drawn.mean())) < 5 * 2 / math.sqrt(len(drawn))
    assert float(drawn.var()) == pytest.approx(4, rel=0.01)
    assert float((drawn.abs() < 2).double().mean()) == pytest.approx(0.6827, abs=5e-3)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 2.5])
@pytest.mark.parametrize("law", [Normal(), Normal(0.5), Gumbel(), Gumbel(3.0)], ids=str)
def test_the_smoothed_identity_has_the_jacobian_one(law: SmoothNoise, sigma: float) -> None:
    """A gradient that is off by σ, or by the scale of the noise, cannot pass."""
    points, weights = normal_grid(12, 2) if law.name == "normal" else gumbel_grid(2)
    gamma, scores = torch.tensor([0.7, -1.3], dtype=torch.float64), torch.tensor([0.4, -0.9], dtype=torch.float64)
    estimator = on_fixed(law.scale * points, law, sigma=sigma)  # type: ignore[attr-defined]
    found = mean_estimate(estimator, lambda z: z @ gamma, Unchanged(), scores, weights)
    torch.testing.assert_close(found, gamma, rtol=0, atol=1e-7)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0])
def test_the_smoothed_identity_of_a_multiplicative_perturbation(sigma: float) -> None:
    """The mean of the factor is 1, so that the mean of the perturbed scores is the scores."""
    points, weights = normal_grid(60, 2)
    gamma, scores = torch.tensor([0.7, -1.3], dtype=torch.float64), torch.tensor([0.4, -0.9], dtype=torch.float64)
    estimate = MultiplicativePerturbation(sigma, 1, "none")
    noisy = estimate._perturbed(scores, points)
    torch.testing.assert_close(weights @ noisy, scores, rtol=1e-9, atol=1e-9)
    assert bool((noisy.sign() == scores.sign()).all())
    found = multiplicative_mean(estimate, lambda z: z @ gamma, Unchanged(), scores, (points, weights))
    torch.testing.assert_close(found, gamma, rtol=0, atol=1e-7)


def multiplicative_mean(estimator: Any, loss: Any, oracle: Any, scores: Tensor, grid: tuple[Tensor, Tensor]) -> Tensor:
    """The mean of the shipped estimate over given noise."""
    points, weights = grid

    class Fixed(type(estimator)):  # type: ignore[misc]
        def _noise(self) -> SmoothNoise:
            return FixedSmoothNoise(points.unsqueeze(1), Normal())

    return mean_estimate(Fixed(estimator.sigma, estimator.num_samples, estimator.control_variate), loss, oracle, scores, weights)


def halves(boundary: float) -> tuple[Tensor, Tensor]:
    """Two normal variables, with a rule for functions that are smooth but where their difference, over √2, passes a boundary."""
    nodes, weights = np.polynomial.legendre.leggauss(80)
    ends = [-12.0, boundary, 12.0]
    across = np.concatenate([(b - a) / 2 * nodes + (a + b) / 2 for a, b in itertools.pairwise(ends)])
    density = np.concatenate([(b - a) / 2 * weights for a, b in itertools.pairwise(ends)]) * norm.pdf(across)
    along, masses = np.polynomial.hermite_e.hermegauss(4)
    difference, total = (torch.from_numpy(grid).flatten() for grid in np.meshgrid(across, along, indexing="ij"))
    mass = torch.from_numpy(np.outer(density, masses / masses.sum())).flatten()
    return torch.stack([total + difference, total - difference], -1) / math.sqrt(2), mass


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("gap", [0.0, 0.8, -1.5])
def test_normal_noise_on_two_classes(gap: float, sigma: float) -> None:
    """The first class has probability ``Φ(Δ/(σ√2))``."""
    scores, gamma = torch.tensor([gap, 0.0], dtype=torch.float64), torch.tensor([1.0, -0.5], dtype=torch.float64)
    width = sigma * math.sqrt(2)
    points, weights = halves(-gap / width)
    found = mean_estimate(on_fixed(points, Normal(), sigma=sigma), lambda z: z @ gamma, Categorical(), scores, weights)
    rate = 1.5 * norm.pdf(gap / width) / width
    torch.testing.assert_close(found, torch.tensor([rate, -rate], dtype=torch.float64), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("scores", [(0.5, 0.8), (2.0, 0.1), (-0.5, -0.8), (-0.3, 0.4)])
def test_multiplicative_noise_on_two_classes(scores: tuple[float, float], sigma: float) -> None:
    """Where both signs are equal, the probability is normal in the difference of the logarithms; else the order never changes."""
    theta, gamma = torch.tensor(scores, dtype=torch.float64), torch.tensor([1.0, -0.5], dtype=torch.float64)
    width, sign = sigma * math.sqrt(2), math.copysign(1, scores[0])
    same = scores[0] * scores[1] > 0
    gap = math.log(scores[0] / scores[1]) if same else 0.0
    estimator, grid = MultiplicativePerturbation(sigma, 1, "none"), halves(-gap / width)
    found = multiplicative_mean(estimator, lambda z: z @ gamma, Categorical(), theta, grid)
    rate = sign * 1.5 * norm.pdf(gap / width) / width if same else 0.0
    torch.testing.assert_close(found, torch.tensor([rate, -rate], dtype=torch.float64) / theta, rtol=0, atol=1e-9)


def test_a_score_of_zero_is_not_perturbed() -> None:
    scores = torch.tensor([0.0, 0.4, 0.2, 0.3], dtype=torch.float64).expand(200, 4)
    found = MultiplicativePerturbation().gradient(lambda z: z @ numbers(4), Subset(2), scores, generator=seeded())
    assert found.isfinite().all()
    assert not found[:, 0].any()
    assert found[:, 1:].any(0).all()


def race(scores: Tensor, nodes: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Gumbel noise on scores [n] case by case: noise [rows, n], weights [rows], winner [rows].

    The winner i has probability p_i; then the arrival of the first is an exponential variable T, of rate 1 after scaling, and each of the
    others arrives later by an exponential variable of its own. What is a polynomial of these is integrated exactly by Gauss–Laguerre.
    """
    points, masses = np.polynomial.laguerre.laggauss(nodes)
    times, weights = product_grid(torch.from_numpy(points), torch.from_numpy(masses), len(scores))
    rates, noise, mass, winners = scores.exp(), [], [], []
    for i in range(len(scores)):
        first = times[:, i : i + 1] / rates.sum()
        arrivals = rates * first + torch.where(torch.arange(len(scores)) == i, 0, times)
        noise.append(-arrivals.log())
        mass.append(rates[i] / rates.sum() * weights)
        winners.append(torch.full((len(times),), i))
    return torch.cat(noise), torch.cat(mass), torch.cat(winners)


@pytest.mark.parametrize("scores", [SCORES, numbers(4, seed=2), 3 * numbers(2, seed=3)], ids=len)
def test_the_race_is_one_of_gumbel_variables(scores: Tensor) -> None:
    noise, weights, winner = race(scores)
    assert torch.equal((scores + noise).argmax(-1), winner)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(weights @ (-noise).exp(), torch.ones_like(scores))  # the mean of an exponential variable
    torch.testing.assert_close(weights @ (-2 * noise).exp(), 2 * torch.ones_like(scores))


@pytest.mark.parametrize("scores", [SCORES, numbers(4, seed=2), 3 * numbers(2, seed=3)], ids=len)
@pytest.mark.parametrize("kind", ["linear", "quadratic"])
def test_given_the_structure_gumbel_noise_is_reinforce_in_the_mean(scores: Tensor, kind: str) -> None:
    """``E[1 − e^{−Z} | z] = z − p``: Rao-Blackwellised, the perturbed optimizer is REINFORCE with the loss ``⟨γ(z), z⟩``."""
    n = len(scores)
    matrix = {"linear": torch.zeros(n, n, dtype=torch.float64), "quadratic": numbers(n, n)}[kind]
    loss = lambda z: z @ numbers(n, seed=1) + ((z @ matrix) * z).sum(-1)  # noqa: E731
    noise, weights, winner = race(scores)
    found = on_fixed(noise, Gumbel()).gradient(loss, Categorical(), scores.expand(len(noise), n), generator=seeded())
    p = scores.softmax(-1)
    for i, z in enumerate(torch.eye(n, dtype=torch.float64)):
        given = weights * (winner == i)
        gamma = numbers(n, seed=1) + (matrix + matrix.mT) @ z
        torch.testing.assert_close(given @ found / given.sum(), (gamma @ z) * (z - p), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("control_variate", ["none", "argmax"])
def test_gumbel_noise_on_classes_gives_the_jacobian_of_the_softmax(control_variate: str, sigma: float) -> None:
    """Of ``softmax(θ/σ)``; a control variate changes the variance alone."""
    noise, weights, _ = race(SCORES / sigma)
    estimator = replace(on_fixed(noise, Gumbel(), sigma=sigma), control_variate=control_variate)
    p = (SCORES / sigma).softmax(-1)
    forward = estimator.structure(Categorical(), SCORES.expand(len(noise), 3), generator=seeded())
    torch.testing.assert_close(weights @ forward, p)
    found = mean_estimate(estimator, table_loss, Categorical(), SCORES, weights)
    torch.testing.assert_close(found, p * (LOSS_TABLE - p @ LOSS_TABLE) / sigma, rtol=1e-9, atol=1e-12)


def pairs_of_races(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent races: noise [rows, 2, n] and weights [rows]."""
    noise, weights, _ = race(scores, nodes=2)
    first, second = torch.cartesian_prod(torch.arange(len(noise)), torch.arange(len(noise))).unbind(-1)
    return torch.stack([noise[first], noise[second]], 1), weights[first] * weights[second]


@pytest.mark.parametrize("control_variate", ["none", "argmax", "leave_one_out"])
def test_two_samples_are_unbiased_for_a_linear_loss_and_biased_for_a_curved_one(control_variate: Any) -> None:
    noise, weights = pairs_of_races(SCORES)
    estimator = PerturbedOptimizer(1.0, 2, FixedSmoothNoise(noise, Gumbel()), control_variate)
    found = mean_estimate(estimator, table_loss, Categorical(), SCORES, weights)
    torch.testing.assert_close(found, GRADIENT, rtol=1e-9, atol=1e-12)
    # L = (⟨ℓ, y⟩)²: at the mean of y the gradient is 2⟨ℓ, p⟩ J ℓ, but γ varies with the noise.
    curved = mean_estimate(estimator, lambda z: table_loss(z).square(), Categorical(), SCORES, weights)
    assert not torch.allclose(curved, 2 * (PROBABILITIES @ LOSS_TABLE) * GRADIENT, rtol=0.05)


def test_what_a_curved_loss_is_off_by() -> None:
    """With M = 1 and no control variate the mean is that of REINFORCE with the loss ``⟨γ(z), z⟩``, here twice the square."""
    noise, weights, _ = race(SCORES)
    found = mean_estimate(on_fixed(noise, Gumbel()), lambda z: table_loss(z).square(), Categorical(), SCORES, weights)
    expected = 2 * PROBABILITIES * (LOSS_TABLE.square() - PROBABILITIES @ LOSS_TABLE.square())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_conditioning_lowers_the_variance() -> None:
    """tr Var of REINFORCE on three classes is .864344; the noise of the perturbed optimizer adds to it."""
    noise, weights, winner = race(SCORES)
    found = on_fixed(noise, Gumbel()).gradient(table_loss, Categorical(), SCORES.expand(len(noise), 3), generator=seeded())
    total = weights @ (found - GRADIENT).square().sum(-1)
    given = torch.stack([(weights * (winner == i)) @ found / PROBABILITIES[i] for i in range(3)])
    reinforce = PROBABILITIES @ (given - GRADIENT).square().sum(-1)
    assert float(reinforce) == pytest.approx(0.864344, abs=1e-6)
    assert float(total) > 2 * float(reinforce)


@oracles
def test_control_variates_give_nothing_where_all_samples_agree(case: OracleCase) -> None:
    scores = 1e4 * numbers(3, *case.event)
    if case.potentials is None:
        for control_variate in ("argmax", "leave_one_out"):
            estimator = PerturbedOptimizer(1e-3, 4, control_variate=control_variate)  # type: ignore[arg-type]
            found = estimator.gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
            torch.testing.assert_close(found, torch.zeros_like(found), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["perturbed_optimizer[num_samples=5]", "perturbed_multiplicative[num_samples=5]"])
@oracles
def test_the_forward_is_the_mean_of_best_structures(name: str, case: OracleCase) -> None:
    scores, estimator = numbers(6, *case.event), make_estimator(name)
    mean = estimator.structure(case.oracle, scores, generator=seeded())  # type: ignore[attr-defined]
    noise = Normal().draw(case.oracle, torch.zeros(6, 5, *case.event, dtype=torch.float64), generator=seeded())
    theta = scores.unsqueeze(1)
    perturbed = theta + noise if "optimizer" in name else theta * (noise - 0.5).exp()
    torch.testing.assert_close(mean, case.oracle.argmax(torch.where(read_parts(case), perturbed, 0)).mean(1))


@pytest.mark.parametrize("law", [Normal(), Gumbel()], ids=str)
def test_many_samples_give_the_gradient_of_the_smoothed_maximum(law: SmoothNoise) -> None:
    """Structures are the gradient of ``max ⟨θ, z⟩``: the Jacobian of their mean is symmetric, and their size does not vary."""
    case = CASES[3]
    scores, gammas = 0.5 * numbers(*case.event), torch.eye(5, dtype=torch.float64)
    rows = scores.expand(5, *case.event)
    estimator = PerturbedOptimizer(1.0, 200_000, law)
    jacobian = estimator.gradient(lambda z: (z * gammas).sum(-1), case.oracle, rows, generator=seeded())
    torch.testing.assert_close(jacobian, jacobian.mT, rtol=0, atol=0.03)
    size = estimator.gradient(lambda z: z.sum(-1), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(size, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh((jacobian + jacobian.mT) / 2)[0]) > -0.03


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PerturbedOptimizer(num_samples=1), "got num_samples=1; expected at least 2, the others are the control variate"),
    ],
)
def test_options_that_make_no_sense(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()

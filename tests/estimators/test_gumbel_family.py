"""Gumbel-softmax, Gumbel-Rao and the gapped straight-through estimator: conditional races, and means by quadrature."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from structgrad.estimators import DecoupledGumbel, Estimator, GappedStraightThrough, GumbelRao, GumbelSoftmax, Loss, StraightThroughGumbel
from structgrad.estimators.factorised import conditional_race
from structgrad.oracles import Categorical, IndependentCategoricals
from tests.estimator_cases import exact_mean, numbers, table_loss, three_classes
from tests.helpers import OracleCase, chi_square_p_value, one_hots, seeded
from tests.quadrature import bits_of_ratios, deal_gumbels, estimates_of, logistic_numbers, moments, product

GAPS = [0.0, 0.8, -2.5]
gaps = pytest.mark.parametrize("gap", GAPS)
temperatures = pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
FIRST, SECOND = torch.eye(2, dtype=torch.float64)


def curved(z: Tensor) -> Tensor:
    """A smooth loss of a bit."""
    return (1.3 * z[..., 0] - 0.4 * z[..., 1]).exp() + z[..., 0] * z[..., 1]


def classes(gap: float) -> Tensor:
    return torch.tensor([gap, 0.0], dtype=torch.float64)


def sigmoid(value: float) -> float:
    return 0.5 * (1 + math.tanh(value / 2))


def mean_of(
    estimator: Estimator[Categorical], loss: Loss, scores: Tensor, monkeypatch: pytest.MonkeyPatch, sample: Tensor | None = None
) -> Tensor:
    """Over the noise of one race, given the sample if there is one."""
    x, weights = logistic_numbers()
    samples = None if sample is None else sample.expand(len(x), 2)
    with monkeypatch.context() as patch:
        deal_gumbels(patch, bits_of_ratios(x).unsqueeze(1))
        return moments(estimates_of(estimator, Categorical(), loss, scores, len(x) if samples is None else samples), weights)[0]


def over_samples(estimator: Estimator[Categorical], loss: Loss, scores: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    p = scores.softmax(-1)
    return sum(p[i] * mean_of(estimator, loss, scores, monkeypatch, z) for i, z in enumerate((FIRST, SECOND)))  # type: ignore[return-value]


@gaps
@temperatures
def test_gumbel_softmax_is_exact_for_its_relaxed_objective(gap: float, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The derivative of ``E L(σ((φ + x)/τ))``, x logistic, by scipy."""

    def slope(x: float) -> float:
        y = sigmoid((gap + x) / temperature)
        of_loss = (1.3 * y - 0.4 * (1 - y), 1 - 2 * y)
        return (1.7 * math.exp(of_loss[0]) + of_loss[1]) * y * (1 - y) / temperature * 0.25 / math.cosh(x / 2) ** 2

    expected = quad(slope, -40, 40, epsabs=1e-12, limit=200)[0]
    found = mean_of(GumbelSoftmax(temperature), curved, classes(gap), monkeypatch)
    torch.testing.assert_close(found, torch.tensor([expected, -expected], dtype=torch.float64), rtol=1e-8, atol=1e-10)


def test_gumbel_softmax_tends_to_the_structures_as_the_temperature_falls() -> None:
    y = GumbelSoftmax(temperature=0.01).structure(IndependentCategoricals(), numbers(200, 4, 3), generator=seeded())
    torch.testing.assert_close(y.sum(-1), torch.ones(200, 4, dtype=torch.float64))
    assert float(y.amax(-1).mean()) > 0.99


def test_a_race_given_its_winner() -> None:
    """The winner wins; its score is a Gumbel variable of location 0; over all winners, every score is one of location log p."""
    log_probs = numbers(4).log_softmax(-1).expand(200_000, 4)
    noise = -(-torch.rand(200_000, 4, generator=seeded(), dtype=torch.float64).log()).log()
    chosen = torch.multinomial(log_probs[0].exp(), 200_000, replacement=True, generator=seeded(1))
    sample = torch.nn.functional.one_hot(chosen, 4).double()
    race = conditional_race(log_probs, sample, noise)
    assert torch.equal(race.argmax(-1), chosen)
    for values in ((race * sample).sum(-1), *(race - log_probs).unbind(-1)):
        uniform = (-(-values).exp()).exp().sort().values
        assert float((uniform - torch.linspace(0, 1, len(uniform), dtype=torch.float64)).abs().max()) < 1.95 / math.sqrt(len(uniform))
    losers = race.gather(-1, sample.argsort(-1)[:, :3])
    assert bool((losers < race.amax(-1, keepdim=True)).all())


@gaps
@temperatures
def test_gumbel_rao_is_the_mean_of_straight_through_gumbel_given_the_sample(
    gap: float, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``E[ST-Gumbel | z]`` by scipy: the logistic variable x on the side of zero where z wins."""
    scores, p = classes(gap), sigmoid(gap)

    def jacobian(x: float) -> float:
        y = sigmoid((gap + x) / temperature)
        return y * (1 - y) / temperature * 0.25 / math.cosh(x / 2) ** 2

    for z, share, ends in ((FIRST, p, (-gap, 45)), (SECOND, 1 - p, (-45, -gap))):
        slope = float(torch.func.grad(curved)(z) @ (FIRST - SECOND))
        expected = slope * quad(jacobian, *ends, epsabs=1e-13, limit=200)[0] / share
        found = mean_of(GumbelRao(temperature, 1), curved, scores, monkeypatch, z)
        torch.testing.assert_close(found, expected * (FIRST - SECOND), rtol=1e-7, atol=1e-10)


@gaps
@temperatures
def test_gumbel_rao_has_the_mean_of_straight_through_gumbel(gap: float, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = over_samples(GumbelRao(temperature, 1), lambda z: z[..., 0], classes(gap), monkeypatch)
    x, weights = logistic_numbers()
    # The forward jumps where the race is a draw; for a linear loss the backward does not.
    with monkeypatch.context() as patch:
        deal_gumbels(patch, bits_of_ratios(x).unsqueeze(1))
        estimates = estimates_of(StraightThroughGumbel(temperature), Categorical(), lambda z: z[..., 0], classes(gap), len(x))
    torch.testing.assert_close(found, moments(estimates, weights)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("gap", "expected"), [(0.0, 0.166667), (0.8, 0.156395)])
def test_the_golden_means(gap: float, expected: float, monkeypatch: pytest.MonkeyPatch) -> None:
    mean = over_samples(GumbelRao(num_conditionals=1), lambda z: z[..., 0], classes(gap), monkeypatch)
    torch.testing.assert_close(mean, expected * (FIRST - SECOND), rtol=0, atol=5e-7)
    several = GumbelRao().gradient(lambda z: z[..., 0], Categorical(), classes(gap).expand(100_000, 2), generator=seeded())[:, 0]
    assert abs(float(several.mean()) - expected) < 5 * float(several.std()) / math.sqrt(100_000)


@pytest.mark.parametrize(("gap", "expected"), [(0.0, 0.041662)])
def test_the_total_derivative_has_another_mean(gap: float, expected: float) -> None:
    """With the noise of the race differentiated as well, which the paper's wording suggests."""
    x, weights = logistic_numbers()
    scores, mean = classes(gap).requires_grad_(), torch.zeros(2, dtype=torch.float64)
    for i, z in enumerate((FIRST, SECOND)):
        log_probs = scores.log_softmax(-1)
        y = conditional_race(log_probs, z, bits_of_ratios(x)).softmax(-1)[:, 0]
        mean += scores.detach().softmax(-1)[i] * torch.autograd.grad(weights @ y, scores)[0]
    assert float(mean[0]) == pytest.approx(expected, abs=2e-5)
    assert float(mean[0]) != pytest.approx(1 / 6, abs=0.1)


@gaps
@pytest.mark.parametrize("count", [2])
def test_the_variance_of_gumbel_rao(gap: float, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Var E[·|z] + E Var(·|z)/K``: given the sample, the mean does not depend on K, and the variance is divided by it."""
    x, weights = logistic_numbers(8.0)
    weights = weights / weights.sum()
    places, joint = product([x] * count, [weights] * count)

    def conditional(z: Tensor, number: int, noise: Tensor, probabilities: Tensor) -> tuple[Tensor, float]:
        with monkeypatch.context() as patch:
            deal_gumbels(patch, bits_of_ratios(noise))
            estimates = estimates_of(GumbelRao(1.0, number), Categorical(), curved, classes(gap), z.expand(len(noise), 2))
        return moments(estimates, probabilities)

    for z in (FIRST, SECOND):
        mean, trace = conditional(z, 1, x.unsqueeze(-1), weights)
        found, trace_of_several = conditional(z, count, places, joint)
        torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-12)
        assert trace_of_several == pytest.approx(trace / count, rel=1e-9)


def test_gumbel_rao_on_three_classes_has_the_mean_of_straight_through_gumbel() -> None:
    scores, _, _ = three_classes()
    rows = scores.expand(200_000, 3)
    rao = GumbelRao(0.5, 4).gradient(table_loss, Categorical(), rows, generator=seeded())
    straight = StraightThroughGumbel(0.5).gradient(table_loss, Categorical(), rows, generator=seeded(1))
    error = ((rao.var(0) + straight.var(0)) / len(rows)).sqrt()
    assert bool(((rao.mean(0) - straight.mean(0)).abs() < 5 * error).all())
    assert float(rao.var(0).sum()) < 0.7 * float(straight.var(0).sum())


@gaps
@temperatures
@pytest.mark.parametrize("distance", [0.2, 1.0, 4.0])
def test_the_gap_on_two_classes(gap: float, temperature: float, distance: float) -> None:
    """The better class stays as far ahead as it is, at least by the gap; the worse one, if drawn, is ahead by the gap."""
    scores, case = classes(gap), OracleCase(Categorical(), (2,), one_hots)
    found = exact_mean(GappedStraightThrough(temperature, distance), case, lambda z: z[..., 0], scores)
    expected = 0.0
    for ahead, p in ((gap, sigmoid(gap)), (-gap, sigmoid(-gap))):
        y = sigmoid(max(ahead, distance) / temperature)
        expected += p * y * (1 - y) / temperature
    torch.testing.assert_close(found, expected * (FIRST - SECOND), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("scores", [(0.3, -0.2, 0.5), (4.0, 0.0, -1.0), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("gap", [0.5, 1.0, "p"])
def test_the_sample_is_ahead_by_the_gap(scores: tuple[float, ...], gap: float | str) -> None:
    """Seen from outside: one estimate is ``J(y) γ``, and for ``γ = e_j`` the off-diagonal entries are ``−y_i y_j``."""
    theta, unit = torch.tensor(scores, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
    p = theta.softmax(-1)
    for i, z in enumerate(unit):
        rows = [
            estimates_of(GappedStraightThrough(gap=gap), Categorical(), lambda x, j=j: x[..., j], theta, z.unsqueeze(0))[0]
            for j in range(3)
        ]  # type: ignore[arg-type,misc]
        y = torch.stack(rows).abs().sum(-1) / 2  # y_j (1 − y_j)
        odds = {j: float(-rows[i][j]) for j in range(3) if j != i}
        distance = -math.log1p(-float(p[i])) / float(p[i]) if gap == "p" else float(gap)
        j, k = odds
        # −J_ij = y_i y_j, and −J_jk = y_j y_k: their ratio is y_i / y_k.
        for one, other in ((j, k), (k, j)):
            ahead = math.log(odds[one] / float(-rows[one][other]))
            assert ahead == pytest.approx(max(distance, float(theta.max() - theta[other])), rel=1e-9)
        assert bool((y <= 0.25).all())


@gaps
def test_gst_p_leaves_the_mean_gap_of_a_race(gap: float) -> None:
    """``−log(1 − p)/p = E[θ_z + G_z − max of the others | z wins]``, z the first class."""
    p = sigmoid(gap)
    mean = quad(lambda x: (gap + x) * 0.25 / math.cosh(x / 2) ** 2, -gap, 60, epsabs=1e-13, limit=200)[0] / p
    assert mean == pytest.approx(-math.log1p(-p) / p, rel=1e-9)


def test_a_certain_category_leaves_no_gap_to_gst_p() -> None:
    scores = torch.tensor([[500.0, 0.0], [0.0, -math.inf], [0.2, 0.1]], dtype=torch.float64)
    found = GappedStraightThrough(gap="p").gradient(lambda z: z[..., 0].sum(-1), IndependentCategoricals(), scores, generator=seeded())
    assert found.isfinite().all()
    assert bool((found[:2] == 0).all())


@pytest.mark.parametrize("forward", [0.5, 3.0])
@pytest.mark.parametrize("backward", [0.5, 1.0, 2.0])
@gaps
def test_the_forward_temperature_says_nothing_of_a_linear_loss(
    gap: float, backward: float, forward: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``a ((a + 1) ln a − 2 (a − 1)) / (a − 1)³ / τ_b`` with ``a = exp(Δ/τ_b)``, 1/6τ_b at 0."""
    a = math.exp(gap / backward)
    expected = (a * ((a + 1) * math.log(a) - 2 * (a - 1)) / (a - 1) ** 3 if abs(a - 1) > 1e-3 else 1 / 6) / backward
    found = mean_of(DecoupledGumbel(forward, backward), lambda z: z[..., 0], classes(gap), monkeypatch)
    assert float(found[0]) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("forward", [0.5, 1.0, 3.0])
def test_the_forward_of_decoupled_gumbel_is_the_law_of_tempered_scores(forward: float) -> None:
    scores = numbers(4)
    drawn = DecoupledGumbel(forward, 0.3).structure(Categorical(), scores.expand(20_000, 4), generator=seeded())
    assert chi_square_p_value(drawn.sum(0), (scores / forward).softmax(-1)) > 1e-4

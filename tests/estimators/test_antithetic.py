"""ARM, DisARM and ARSM: exact means and variances, by quadrature over their uniforms with cuts where the bits change."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import ARM, ARSM, DisARM, Loss, Reinforce, make_estimator
from structgrad.oracles import Categorical, IndependentCategoricals
from structgrad.suites.measures.bias import measure
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import numbers
from tests.helpers import seeded
from tests.quadrature import deal_gumbels, deal_uniforms, estimates_of, moments, pieces, product

LOGITS = [(0.0,), (0.8,), (-2.5,), (6.0,), (0.8, -0.3), (0.0, 3.0), (-1.2, 0.4, 2.0)]
logits = pytest.mark.parametrize("logits", LOGITS, ids=str)


def bits(*values: float) -> Tensor:
    """Scores (0, φ) of bits, plus a number that nothing depends on."""
    return torch.tensor([[0.3, value + 0.3] for value in values], dtype=torch.float64)


def table(*event: int) -> Loss:
    """Any numbers, as a function of the structure."""
    weights = numbers(*event, seed=5)
    return lambda z: (1.7 * (z * weights).flatten(-len(event)).sum(-1)).sin() + (z * weights).flatten(-len(event)).sum(-1).square()


def sigmoid(value: float) -> float:
    return 0.5 * (1 + math.tanh(value / 2))


def uniforms(values: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Every piece on which the pair of bits is the same; the estimates are linear on it, their squares quadratic."""
    each = [pieces([0.0, sigmoid(value), sigmoid(-value), 1.0], 2) for value in values]
    return product(*([torch.from_numpy(one[i]) for one in each] for i in (0, 1)))


def integrated(estimator: ARM | DisARM, scores: Tensor, loss: Loss, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor, Tensor]:
    places, weights = uniforms(tuple((scores[:, 1] - scores[:, 0]).tolist()))
    with monkeypatch.context() as patch:
        deal_uniforms(patch, places)
        return estimates_of(estimator, IndependentCategoricals(), loss, scores, len(places)), weights, places


@logits
@pytest.mark.parametrize("estimator", [ARM(), DisARM()], ids=str)
def test_the_mean_is_the_exact_gradient(estimator: ARM | DisARM, logits: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    scores, loss = bits(*logits), table(len(logits), 2)
    mean, _ = moments(*integrated(estimator, scores, loss, monkeypatch)[:2])
    torch.testing.assert_close(mean, exact_truth(loss, IndependentCategoricals(), scores).gradient, rtol=1e-10, atol=1e-13)


@logits
def test_disarm_is_the_mean_of_arm_given_its_pair(logits: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    scores, loss = bits(*logits), table(len(logits), 2)
    arm, weights, places = integrated(ARM(), scores, loss, monkeypatch)
    disarm, _, _ = integrated(DisARM(), scores, loss, monkeypatch)
    thresholds = torch.tensor([sigmoid(value) for value in logits], dtype=torch.float64)
    pair = torch.cat([places > 1 - thresholds, places < thresholds], -1)
    spread = 0.0
    for one in pair.unique(dim=0):
        chosen = (pair == one).all(-1)
        share = weights[chosen] / weights[chosen].sum()
        conditional, trace = moments(arm[chosen], share)
        torch.testing.assert_close(disarm[chosen], conditional.expand_as(disarm[chosen]), rtol=1e-10, atol=1e-13)
        spread += trace * float(weights[chosen].sum())
    assert moments(arm, weights)[1] == pytest.approx(moments(disarm, weights)[1] + spread, rel=1e-10)


def test_disarm_has_no_variance_for_one_bit_of_logit_zero() -> None:
    loss = table(1, 2)
    found = DisARM().gradient(loss, IndependentCategoricals(), bits(0.0).expand(50, 1, 2), generator=seeded())
    torch.testing.assert_close(
        found, exact_truth(loss, IndependentCategoricals(), bits(0.0)).gradient.expand_as(found), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("logit", [0.0, 0.8, -0.8, 3.0])
def test_variances_of_one_bit(logit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """``q = min(σ, 1 − σ)``: ARM is ``±Δ(u − ½)`` on two intervals of length q, DisARM ``Δ(1 − q)/2`` there."""
    scores, loss = bits(logit), table(1, 2)
    one, zero = (float(loss(z)) for z in (torch.tensor([[0.0, 1.0]]).double(), torch.tensor([[1.0, 0.0]]).double()))
    q, delta = min(sigmoid(logit), sigmoid(-logit)), one - zero
    square = (delta * q * (1 - q)) ** 2
    arm = delta**2 * 2 * (0.125 - (0.5 - q) ** 3) / 3 - square
    disarm = delta**2 * 2 * q * ((1 - q) / 2) ** 2 - square
    for estimator, expected in ((ARM(), arm), (DisARM(), disarm)):
        estimates, weights, _ = integrated(estimator, scores, loss, monkeypatch)
        assert moments(estimates[:, :, 1], weights)[1] == pytest.approx(expected, abs=1e-12)


def test_a_single_choice_of_two_is_a_bit() -> None:
    """The event of `categorical` has no dimension for the bits."""
    loss = table(2)
    found = DisARM(num_pairs=3).gradient(loss, Categorical(), bits(0.7)[0].expand(20, 2), generator=seeded())
    expected = DisARM(num_pairs=3).gradient(
        lambda z: loss(z[..., 0, :]), IndependentCategoricals(), bits(0.7).expand(20, 1, 2), generator=seeded()
    )
    torch.testing.assert_close(found, expected[:, 0])


@pytest.mark.parametrize("kind", [ARM, DisARM])
def test_more_pairs_divide_the_variance(kind: type[ARM] | type[DisARM]) -> None:
    scores, loss = bits(0.8, -0.3), table(2, 2)
    one, four = (
        kind(num_pairs=n).gradient(loss, IndependentCategoricals(), scores.expand(40_000, 2, 2), generator=seeded()) for n in (1, 4)
    )
    assert float(four.var(0).sum()) == pytest.approx(float(one.var(0).sum()) / 4, rel=0.05)


def test_a_bit_without_a_choice_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its forbidden value is never shown to the loss, not even for uniforms at their edge."""
    scores = bits(0.5, 1.0, -1.0)
    scores[1, 0], scores[2, 1] = -math.inf, -math.inf
    loss = table(3, 2)
    seen = []
    for estimator in (ARM(), DisARM()):
        with monkeypatch.context() as patch:
            deal_uniforms(patch, torch.tensor([[0.3, 0.0, 0.0], [0.3, 1 - 2**-53, 1 - 2**-53]], dtype=torch.float64))
            found = estimates_of(estimator, IndependentCategoricals(), lambda z: (seen.append(z), loss(z))[1], scores, 2)
        assert bool((found[:, 1:] == 0).all())
        assert bool((found[:, 0] != 0).all())
    assert all(bool((z[..., 1, 1] == 1).all()) and bool((z[..., 2, 0] == 1).all()) for z in seen)


@pytest.mark.parametrize("logits", [(0.0,), (0.8, -0.3), (-1.2, 0.4, 2.0)], ids=str)
def test_arsm_of_bits_is_arm(logits: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``π = (u, 1 − u)``, estimate by estimate."""
    scores, loss = bits(*logits), table(len(logits), 2)
    places, _ = uniforms(logits)
    deal_uniforms(monkeypatch, places)
    deal_gumbels(monkeypatch, -torch.stack([places, 1 - places], -1).log().unsqueeze(1))
    arm, arsm = (estimates_of(estimator, IndependentCategoricals(), loss, scores, len(places)) for estimator in (ARM(), ARSM()))
    torch.testing.assert_close(arsm, arm, rtol=1e-11, atol=1e-13)


def simplex(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Points π of the triangle with weights, cut wherever a race of exchanged parts changes its winner.

    That is at ``log π_i/π_j = θ_k − θ_l``. With ``u = π_0/(π_0 + π_1)`` uniform and ``s = π_2`` of density 2(1 − s), the integrand is
    quadratic in s between the cuts, and analytic in u.
    """
    free = scores[scores > -math.inf].numpy()
    gaps = np.unique(np.subtract.outer(free, free).round(12))
    turns = np.unique(np.subtract.outer(gaps, gaps).round(12))
    points, weights = [], []
    for u, weight in zip(*pieces([0, *1 / (1 + np.exp(-turns)), 1], 14), strict=True):
        s, inner = pieces([0, *u / (u + np.exp(gaps)), *(1 - u) / (1 - u + np.exp(gaps)), 1], 2)
        points.append(np.stack([u * (1 - s), (1 - u) * (1 - s), s], -1))
        weights.append(weight * inner * 2 * (1 - s))
    return torch.from_numpy(np.concatenate(points)), torch.from_numpy(np.concatenate(weights))


@pytest.mark.parametrize(
    "scores", [(0.3, -0.2, 0.5), (0.0, 0.0, 0.0), (2.5, -1.0, 0.4), (0.3, -math.inf, 0.5), (-math.inf, 1.0, 0.2)], ids=str
)
def test_the_mean_of_arsm_on_three_parts(scores: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of probability 0 takes part in the exchanges, and the free ones still have the exact mean."""
    theta, loss = torch.tensor(scores, dtype=torch.float64), table(3)
    points, weights = simplex(theta)
    deal_gumbels(monkeypatch, -points.log().unsqueeze(1))
    mean, _ = moments(estimates_of(ARSM(), Categorical(), loss, theta, len(points)), weights)
    torch.testing.assert_close(mean, exact_truth(loss, Categorical(), theta).gradient, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("event", [(5,), (2, 3), (3, 4)], ids=str)
def test_the_mean_of_arsm_on_more_parts(event: tuple[int, ...]) -> None:
    """Within 5 standard errors, the last part of the first category forbidden."""
    oracle, scores, loss = IndependentCategoricals() if len(event) == 2 else Categorical(), numbers(*event), table(*event)
    scores[(0, -1) if len(event) == 2 else -1] = -math.inf
    found = ARSM().gradient(loss, oracle, scores.expand(100_000, *event), generator=seeded())
    error = found.std(0) / math.sqrt(len(found))
    assert bool(((found.mean(0) - exact_truth(loss, oracle, scores).gradient).abs() <= 5 * error).all())
    assert bool((error < 0.01).all())


def test_variances_fall_from_reinforce_to_disarm() -> None:
    """On the toy of the papers, ``E (b − .49)²`` at logit 0: REINFORCE .0156, ARM 3.3e-5, DisARM 0."""
    scores, loss = bits(0.0), lambda z: (z[..., 0, 1] - 0.49).square()
    reinforce = measure(Reinforce(), IndependentCategoricals(), loss, scores)
    variance = (
        reinforce.metrics["relative_variance"].value
        * float(exact_truth(loss, IndependentCategoricals(), scores).gradient.square().sum())
        / 2
    )  # type: ignore[operator]
    assert variance == pytest.approx(((0.51**2 + 0.49**2) / 4) ** 2, abs=1e-12)
    arm = ARM().gradient(loss, IndependentCategoricals(), scores.expand(20_000, 1, 2), generator=seeded())[:, 0, 1]
    assert float(arm.var()) == pytest.approx(0.02**2 * (1 / 12 - 1 / 16), rel=0.05)
    assert float(DisARM().gradient(loss, IndependentCategoricals(), scores.expand(9, 1, 2), generator=seeded())[:, 0, 1].var()) < 1e-30


@pytest.mark.parametrize("name", ["arm", "disarm"])
def test_what_is_no_bit_is_refused(name: str) -> None:
    reason = f"{name} needs bits, which are categories of two parts, and these have 3"
    assert make_estimator(name).incompatibility(Categorical(), (3,)) == reason
    assert make_estimator(name).incompatibility(IndependentCategoricals(), (3, 2)) is None
    with pytest.raises(ValueError, match=f"^{reason}; choose another pair"):
        make_estimator(name).gradient(lambda z: z[..., 0], Categorical(), torch.zeros(3), generator=seeded())


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_cost_of_arsm(parts: int) -> None:
    seen = []
    ARSM().gradient(
        lambda z: (seen.append(len(z)), z.sum((-2, -1)))[1], IndependentCategoricals(), torch.zeros(7, 2, parts), generator=seeded()
    )
    assert seen == [parts * (parts - 1) // 2 + 1]

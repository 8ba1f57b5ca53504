"""Antithetic samples: exact means over all uniforms, or over many draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import ARM, ARSM, CARMS, DisARM, DisARMStickBreaking, DisARMTree, Loss, make_estimator
from structgrad.estimators.antithetic import halves, sticks
from structgrad.estimators.score_function import Opposite, Recorded
from structgrad.oracles import Categorical, IndependentCategoricals, SeedBlocks
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers
from tests.helpers import OracleCase, one_hots, products, seeded
from tests.quadrature import deal_gumbels, deal_uniforms, estimates_of, moments, pieces, product


def table(*event: int) -> Loss:
    """Any numbers, as a function of the structure."""
    weights = numbers(*event, seed=5)
    return lambda z: (1.7 * (z * weights).flatten(-len(event)).sum(-1)).sin() + (z * weights).flatten(-len(event)).sum(-1).square()


def test_a_bit_without_a_choice_gets_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its forbidden value is never shown to the loss, not even for uniforms at their edge."""
    scores = torch.tensor([[0.3, 0.8], [-math.inf, 1.3], [0.3, -math.inf]], dtype=torch.float64)
    loss = table(3, 2)
    seen = []
    for estimator in (ARM(), DisARM()):
        with monkeypatch.context() as patch:
            deal_uniforms(patch, torch.tensor([[0.3, 0.0, 0.0], [0.3, 1 - 2**-53, 1 - 2**-53]], dtype=torch.float64))
            found = estimates_of(estimator, IndependentCategoricals(), lambda z: (seen.append(z), loss(z))[1], scores, 2)
        assert bool((found[:, 1:] == 0).all())
        assert bool((found[:, 0] != 0).all())
    assert all(bool((z[..., 1, 1] == 1).all()) and bool((z[..., 2, 0] == 1).all()) for z in seen)


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


@pytest.mark.parametrize("name", ["arm", "disarm"])
def test_what_is_no_bit_is_refused(name: str) -> None:
    reason = f"{name} needs bits, which are categories of two parts, and these have 3"
    assert make_estimator(name).incompatibility(Categorical(), (3,)) == reason
    assert make_estimator(name).incompatibility(IndependentCategoricals(), (3, 2)) is None
    with pytest.raises(ValueError, match=f"^{reason}; choose another pair"):
        make_estimator(name).gradient(lambda z: z[..., 0], Categorical(), torch.zeros(3), generator=seeded())


CPU = torch.device("cpu")


def case_of(event: tuple[int, ...]) -> OracleCase:
    return OracleCase(Categorical(), event, one_hots) if len(event) == 1 else OracleCase(IndependentCategoricals(), event, products)


def chances(scores: Tensor, tree: str) -> list[float]:
    """Probabilities of going right, node by node and category by category."""
    found = []
    for p in scores.softmax(-1).reshape(-1, scores.shape[-1]).tolist():
        p, (right, left) = (sorted(p), sticks(len(p), CPU)) if tree == "sticks" else (p, halves(len(p), CPU))
        for goes, stays in zip(right.tolist(), left.tolist(), strict=True):
            mass = [sum(a * b for a, b in zip(side, p, strict=True)) for side in (goes, stays)]
            found.append(mass[0] / sum(mass))
    return found


@pytest.mark.parametrize("event", [(3,), (4,), (2, 3), (1, 2), (3, 2)], ids=str)
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(
    ("estimator", "tree"), [(ARM(), "halves"), (DisARM(), "halves"), (DisARMStickBreaking(), "sticks"), (DisARMTree(), "halves")], ids=str
)
def test_the_mean_of_antithetic_choices_is_the_exact_gradient(
    estimator: Any, tree: str, scale: float, event: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weight of ARM is linear in its uniforms, between the cuts."""
    case = case_of(event)
    if estimator.incompatibility(case.oracle, event):
        return
    scores, loss = scale * numbers(*event), LOSSES["smooth"](case)
    cuts = [pieces([0, sigma, 1 - sigma, 1], 1) for sigma in chances(scores, tree)]
    places, weights = product(*([torch.from_numpy(one[i]) for one in cuts] for i in (0, 1)))
    deal_uniforms(monkeypatch, places)
    mean, _ = moments(estimates_of(estimator, case.oracle, loss, scores, len(places)), weights)
    torch.testing.assert_close(mean, exact_truth(loss, case.oracle, scores).gradient, rtol=1e-9, atol=1e-13)


def thirds(sigma: float) -> tuple[Tensor, Tensor]:
    """Points of the triangle, cut where a stick of three samples breaks: at ``d = 1 − √σ``."""
    c, points, weights = 1 - math.sqrt(sigma), [], []
    for first, outer in zip(*pieces(sorted({min(max(cut, 0.0), 1.0) for cut in (0, c, 1 - 2 * c, 1 - c, 1)}), 2), strict=True):
        cuts = sorted({min(max(cut, 0.0), 1 - first) for cut in (0, c, 1 - first - c, 1 - first)})
        for second, inner in zip(*pieces(cuts, 1), strict=True):
            points.append([first, second, 1 - first - second])
            weights.append(2 * outer * inner)
    return torch.tensor(points, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64)


@pytest.mark.parametrize(("count", "event"), [(2, (4,)), (2, (2, 3)), (3, (3,)), (3, (2, 2))], ids=str)
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
def test_the_mean_of_carms_is_the_exact_gradient(count: int, event: tuple[int, ...], scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(event)
    scores, loss = scale * numbers(*event), LOSSES["smooth"](case)
    each = []
    for sigma in chances(scores, "sticks"):
        if count == 3:
            each.append(thirds(sigma))
        else:
            d, weights = (torch.from_numpy(values) for values in pieces([0, sigma, 1 - sigma, 1], 1))
            each.append((torch.stack([d, 1 - d], -1), weights))
    rows = list(itertools.product(*[range(len(points)) for points, _ in each]))
    copulas = torch.stack([torch.stack([each[k][0][i] for k, i in enumerate(row)], -1) for row in rows])
    weights = torch.tensor([math.prod(float(each[k][1][i]) for k, i in enumerate(row)) for row in rows], dtype=torch.float64)
    # Exponentials of sum 1 are the point of the thirds itself.
    deal_uniforms(monkeypatch, (-copulas).exp(), "inner_uniform")
    mean, _ = moments(estimates_of(CARMS(count), case.oracle, loss, scores, len(rows)), weights)
    torch.testing.assert_close(mean, exact_truth(loss, case.oracle, scores).gradient, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("estimator", [DisARMStickBreaking(), DisARMTree(), CARMS(), CARMS(3)], ids=str)
def test_a_forbidden_part_is_never_shown(estimator: Any) -> None:
    scores = numbers(2, 4)
    scores[0, 0], scores[1, 1:] = -math.inf, -math.inf
    seen = []
    loss = lambda z: (seen.append(z), z.flatten(-2).sum(-1).sin())[1]  # noqa: E731
    found = estimator.gradient(loss, IndependentCategoricals(), scores.expand(200, 2, 4), generator=seeded())
    assert bool((found[:, 1] == 0).all())
    assert all(bool((z[..., 0, 0] == 0).all()) and bool((z[..., 1, 0] == 1).all()) for z in seen)


def test_opposite_uniforms_are_uniforms() -> None:
    """On the same lattice below 1, in the order of what was drawn, row by row from streams of their own."""
    recorded = Recorded(SeedBlocks((3, 4), 1))
    first = [recorded.uniforms(2, width, torch.device("cpu")) for width in (3, 1)]
    opposite = Opposite(recorded)
    for drawn in first:
        found = opposite.uniforms(*drawn.shape, torch.device("cpu"))
        assert torch.equal(found + drawn, torch.full_like(drawn, 1 - 2.0**-53))
        assert torch.equal(found * 2.0**53 % 1, torch.zeros_like(drawn))
    assert torch.equal(first[0], SeedBlocks((3, 4), 1).uniforms(2, 3, torch.device("cpu")))
    edges = Recorded(seeded())
    edges.drawn.append(torch.tensor([[0.0, 1 - 2.0**-53]], dtype=torch.float64))
    assert Opposite(edges).uniforms(1, 2, torch.device("cpu")).tolist() == [[1 - 2.0**-53, 0.0]]

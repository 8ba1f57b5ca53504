"""DisARM-SB, DisARM-Tree and CARMS: exact means, by quadrature over their random numbers with cuts where the bits change."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import CARMS, DisARM, DisARMStickBreaking, DisARMTree, make_estimator
from structgrad.estimators.antithetic import Choices, halves, sticks
from structgrad.oracles import Categorical, IndependentCategoricals
from structgrad.suites.truth import exact_truth
from tests.estimator_cases import LOSSES, numbers
from tests.helpers import OracleCase, one_hots, products, seeded
from tests.quadrature import estimates_of, moments, pieces, product

CPU = torch.device("cpu")
WHERE = "structgrad.estimators.antithetic."
EVENTS = [(3,), (4,), (2, 3), (3, 2)]


def case_of(event: tuple[int, ...]) -> OracleCase:
    return OracleCase(Categorical(), event, one_hots) if len(event) == 1 else OracleCase(IndependentCategoricals(), event, products)


def chances(scores: Tensor, tree: str) -> list[float]:
    """Of going right, node by node and category by category."""
    found = []
    for p in scores.softmax(-1).reshape(-1, scores.shape[-1]).tolist():
        p, (right, left) = (sorted(p), sticks(len(p), CPU)) if tree == "sticks" else (p, halves(len(p), CPU))
        for goes, stays in zip(right.tolist(), left.tolist(), strict=True):
            mass = [sum(a * b for a, b in zip(side, p, strict=True)) for side in (goes, stays)]
            found.append(mass[0] / sum(mass))
    return found


def deal(monkeypatch: pytest.MonkeyPatch, name: str, values: Tensor) -> None:
    """Random numbers of this function are these from now on."""
    monkeypatch.setattr(WHERE + name, lambda batch, shape, **named: values.reshape(*batch, *shape))


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("scale", [0.05, 1.0, 5.0])
@pytest.mark.parametrize(("estimator", "tree"), [(DisARMStickBreaking(), "sticks"), (DisARMTree(), "halves")], ids=str)
def test_the_mean_of_disarm_is_the_exact_gradient(
    estimator: Any, tree: str, scale: float, event: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(event)
    scores, loss = scale * numbers(*event), LOSSES["smooth"](case)
    cuts = [pieces([0, sigma, 1 - sigma, 1], 1) for sigma in chances(scores, tree)]
    places, weights = product(*([torch.from_numpy(one[i]) for one in cuts] for i in (0, 1)))
    deal(monkeypatch, "random_uniform", places)
    mean, _ = moments(estimates_of(estimator, case.oracle, loss, scores, len(places)), weights)
    torch.testing.assert_close(mean, exact_truth(loss, case.oracle, scores).gradient, rtol=1e-9, atol=1e-13)


def simplex(sigma: float) -> tuple[Tensor, Tensor]:
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
            each.append(simplex(sigma))
        else:
            d, weights = (torch.from_numpy(values) for values in pieces([0, sigma, 1 - sigma, 1], 1))
            each.append((torch.stack([d, 1 - d], -1), weights))
    rows = list(itertools.product(*[range(len(points)) for points, _ in each]))
    copulas = torch.stack([torch.stack([each[k][0][i] for k, i in enumerate(row)], -1) for row in rows])
    weights = torch.tensor([math.prod(float(each[k][1][i]) for k, i in enumerate(row)) for row in rows], dtype=torch.float64)
    # Exponentials of sum 1 are the point of the simplex itself.
    deal(monkeypatch, "inner_uniform", (-copulas).exp())
    mean, _ = moments(estimates_of(CARMS(count), case.oracle, loss, scores, len(rows)), weights)
    torch.testing.assert_close(mean, exact_truth(loss, case.oracle, scores).gradient, rtol=1e-9, atol=1e-13)


class GivenOrder(CARMS):
    """The published code unless it is told to sort: pairs that come after a stick of probability ½ and more are dropped."""

    def _choices(self, log_probs: Tensor) -> Choices:
        parts = log_probs.shape[-1]
        return Choices.of(log_probs, torch.arange(parts).expand(log_probs.shape), sticks(parts, CPU))

    def _weights(self, chance: Tensor) -> Tensor:
        going_on = torch.where(chance < 0.5, (1 - chance).square() / (1 - 2 * chance), 0).cumprod(-1)
        return torch.cat([torch.ones_like(chance[..., :1]), going_on], -1) * torch.cat(
            [torch.maximum(chance, 1 - chance), chance[..., :1]], -1
        )


@pytest.mark.parametrize(("logit", "bias"), [(0.0, 0.0), (3.0, 0.0733)])
def test_sticks_in_the_given_order_are_biased_after_a_likely_part(logit: float, bias: float, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, loss = torch.tensor([logit, 0.3, -0.2], dtype=torch.float64), lambda z: z @ torch.tensor([1.0, -0.5, 2.0], dtype=z.dtype)
    p = scores.softmax(-1)
    each = [pieces([0, float(sigma), 1 - float(sigma), 1], 1) for sigma in (p[0], p[1] / (p[1] + p[2]))]
    places, weights = product(*([torch.from_numpy(one[i]) for one in each] for i in (0, 1)))
    deal(monkeypatch, "inner_uniform", (-torch.stack([places, 1 - places], 1)).exp())
    mean, _ = moments(estimates_of(GivenOrder(), Categorical(), loss, scores, len(places)), weights)
    exact = exact_truth(loss, Categorical(), scores).gradient
    assert float((mean - exact).norm() / exact.norm()) == pytest.approx(bias, abs=1e-4)


@pytest.mark.parametrize("name", ["disarm_sb", "disarm_tree"])
def test_of_bits_it_is_disarm(name: str) -> None:
    """The tree goes right to the second part, as DisARM does; sticks to the less likely one."""
    case = case_of((3, 2))
    scores, loss = numbers(3, 2), LOSSES["smooth"](case)
    scores = scores.sort(dim=-1, descending=name == "disarm_sb").values.expand(30, 3, 2)
    found = make_estimator(name).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(found, DisARM().gradient(loss, case.oracle, scores, generator=seeded()), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("estimator", [DisARMStickBreaking(), DisARMTree(), CARMS(), CARMS(3)], ids=str)
def test_a_forbidden_part_is_never_shown(estimator: Any) -> None:
    scores = numbers(2, 4)
    scores[0, 0], scores[1, 1:] = -math.inf, -math.inf
    seen = []
    loss = lambda z: (seen.append(z), z.flatten(-2).sum(-1).sin())[1]  # noqa: E731
    found = estimator.gradient(loss, IndependentCategoricals(), scores.expand(200, 2, 4), generator=seeded())
    assert bool((found[:, 1] == 0).all())
    assert all(bool((z[..., 0, 0] == 0).all()) and bool((z[..., 1, 0] == 1).all()) for z in seen)

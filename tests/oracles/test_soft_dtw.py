"""Soft-DTW divergences of time series."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, soft_dtw_divergence
from tests.helpers import seeded


def soft_dtw(costs: Tensor, gamma: float) -> Tensor:
    """Cell by cell, as algorithm 1 of Cuturi & Blondel (2017)."""
    n, m = costs.shape
    before = {(0, 0): torch.zeros(()).double()}
    for i, j in itertools.product(range(1, n + 1), range(1, m + 1)):
        reached = [before[place] for place in ((i - 1, j - 1), (i - 1, j), (i, j - 1)) if place in before]
        before[i, j] = costs[i - 1, j - 1] - gamma * (-torch.stack(reached) / gamma).logsumexp(0)
    return before[n, m]


def expected_cost(costs: Tensor, gamma: float) -> Tensor:
    totals = (Alignment().enumerate(tuple(costs.shape), dtype=torch.float64) * costs).sum((-2, -1))
    return (totals * (-totals / gamma).softmax(0)).sum()


@pytest.mark.parametrize("kind", ["soft", "sharp", "mean"])
def test_divergences_are_those_of_plain_steps(kind: Any) -> None:
    x, y = (torch.randn(2, n, 2, dtype=torch.float64, generator=seeded(n)).requires_grad_() for n in (4, 3))
    lengths = [[4, 3], [2, 3]]
    value = {"soft": soft_dtw, "sharp": expected_cost, "mean": lambda costs, gamma: expected_cost(costs, 1e12)}[kind]
    expected = []
    for item, (n, m) in enumerate(lengths):
        own, other = x[item, :n], y[item, :m]
        pairs = [(one.unsqueeze(1) - two).abs().sum(-1) for one, two in ((own, other), (own, own), (other, other))]
        expected.append(torch.stack([value(costs, 0.7) for costs in pairs]) @ torch.tensor([1, -0.5, -0.5]).double())
    spoilt = torch.where(torch.arange(4).unsqueeze(-1) < torch.tensor(lengths)[:, :1, None], x, math.nan)
    named: dict[str, Any] = {"gamma": 0.7, "kind": kind, "cost": lambda one, two: (one.unsqueeze(-2) - two.unsqueeze(-3)).abs().sum(-1)}
    found = soft_dtw_divergence(spoilt, y, lengths=torch.tensor(lengths), **named)
    torch.testing.assert_close(found, torch.stack(expected))
    for ours, theirs in zip(*(torch.autograd.grad(each.sum(), (x, y)) for each in (found, torch.stack(expected))), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_equal_series_have_the_least_divergence(gamma: float) -> None:
    x, y = (torch.randn(200, 5, 2, dtype=torch.float64, generator=seeded(i)).requires_grad_() for i in range(2))
    assert (soft_dtw_divergence(x, y, gamma=gamma) > 0).all()
    same = soft_dtw_divergence(x, x.detach(), gamma=gamma)
    for zeros in (same, torch.autograd.grad(same.sum(), x, retain_graph=True)[0]):
        torch.testing.assert_close(zeros, torch.zeros_like(zeros), rtol=0, atol=1e-12)
    assert soft_dtw_divergence(x[0].detach().float(), y.detach().float(), gamma=gamma).shape == (200,)


def test_series_that_have_no_divergence() -> None:
    with pytest.raises(ValueError, match=r"got x of shape \(3, 2\) and y of shape \(3, 1\)"):
        soft_dtw_divergence(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ValueError, match=r"got gamma=0 and kind='soft'; expected a finite number above 0"):
        soft_dtw_divergence(torch.zeros(3, 1), torch.zeros(3, 1), gamma=0)
    with pytest.raises(ValueError, match=r"got lengths from 1 to 4; expected 0 to 3"):
        soft_dtw_divergence(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1), lengths=torch.tensor([[4, 3], [1, 2]]))

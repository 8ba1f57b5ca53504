"""Beyond enumeration: the gradient is the derivative of the value, and special cases have closed forms."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, SpanningTree, Subset
from structgrad.suites.problems.forms import CountForm
from structgrad.suites.problems.losses import ExactMatch, Hamming, LowRankQuadratic
from structgrad.suites.truth.closed_form import analytic_truth
from tests.suites.closed_form.cases import Formed

LARGE = {
    "subset": (Subset(12), (36,)),
    "linear_chain": (LinearChain(), (24, 4, 4)),
    "alignment": (Alignment(), (12, 12)),
    "constituency": (Constituency(), (16, 16)),
    "shift_reduce": (ShiftReduce(), (16, 16, 2)),
    "assignment": (Assignment(), (10, 10)),
    "projective": (ProjectiveTree(), (12, 12)),
    "spanning": (SpanningTree(single_root=False), (16, 16)),
    "spanning_single": (SpanningTree(), (16, 16)),
}
"""Of a million structures and far more."""


def instance(name):
    oracle, event = LARGE[name]
    random = torch.Generator().manual_seed(7)
    scores, direction = torch.randn((2, *event), generator=random, dtype=torch.float64)
    gold = oracle.sample(scores, generator=random)
    return oracle, scores, direction, gold


def losses(gold, event_ndim):
    """One of every kind."""
    size = int(gold.sum())
    matrix = torch.randn((3, *gold.shape), generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    yield Hamming(gold)
    yield LowRankQuadratic(matrix / size, gold)
    yield Formed(CountForm((gold,), lambda k: (size - k).double().sqrt()), event_ndim)


@pytest.mark.parametrize("name", list(LARGE))
def test_the_gradient_is_the_derivative_of_the_value(name):
    oracle, scores, direction, gold = instance(name)
    step = 1e-5
    for loss in losses(gold, oracle.event_ndim):
        plus, minus = (analytic_truth(loss, oracle, scores + sign * step * direction).value for sign in (1, -1))
        slope = float((analytic_truth(loss, oracle, scores).gradient * direction).sum())
        assert (plus - minus) / (2 * step) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", ["spanning", "spanning_single", "projective", "linear_chain"])
def test_a_count_finds_the_probability_of_gold(name):
    """That all parts are right has probability p(gold), here below 1e-6, by another way."""
    oracle, scores, _, gold = instance(name)
    size = int(gold.sum())
    point = analytic_truth(ExactMatch(gold), oracle, scores)
    counted = analytic_truth(Formed(CountForm((gold,), lambda k: (k < size).double()), oracle.event_ndim), oracle, scores)
    assert counted.method == "analytic:count"
    assert 0 < float(point.gradient.norm()) < 1e-6
    # Over trees, a Fourier transform keeps an absolute precision.
    allowed = counted.error if name.startswith("spanning") else 1e-11 * float(point.gradient.norm())
    assert float((counted.gradient - point.gradient).norm()) <= allowed

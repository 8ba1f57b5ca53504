"""The exact gradient against high-precision arithmetic, finite differences, and at every chunking."""

from __future__ import annotations

import math
import re

import pytest
import torch

from structgrad.oracles import Categorical, LinearChain, ShiftReduce, SpanningTree, Subset
from structgrad.suites.truth import exact_truth
from tests.suites.cases import scores_of


def test_kurtosis_of_a_policy_is_that_of_its_own_scores():
    """The score is nearly always 0 at a state with one nearly certain action, though the part is nearly always there."""
    oracle, scores = ShiftReduce("local"), torch.randn(5, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scores[2, 2] = torch.tensor([-9.0, 3.0])
    weights = torch.randn(5, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(z: torch.Tensor) -> torch.Tensor:
        return (z * weights).sum((-3, -2, -1)).square()

    truth = exact_truth(loss, oracle, scores)
    structures = oracle.enumerate((5, 5, 2), dtype=torch.float64)
    p = oracle.log_prob(structures, scores).exp()
    own = torch.func.jacrev(lambda theta: oracle.log_prob(structures, theta))(scores)
    estimates = (loss(structures) - truth.value).reshape(-1, 1, 1, 1) * own - truth.gradient
    moments = [torch.einsum("c,cijk->ijk", p, estimates**power) for power in (2, 4)]
    expected = torch.where(moments[0] > 1e-20, moments[1] / moments[0] ** 2, math.inf)
    torch.testing.assert_close(truth.kurtosis, expected, rtol=1e-6, atol=0)
    assert float(truth.kurtosis[2, 2, 1]) > 1e4 * float(expected.min())


def test_refuses_a_space_beyond_the_cap():
    with pytest.raises(
        ValueError, match=r"^`exact_truth` got a space of 1,220 structures; expected at most 1,000, because at a typical "
    ) as caught:
        exact_truth(lambda z: z.sum(-1), Categorical(), torch.zeros(1220), cap=1000)
    assert re.search(r"structures a second they take .*; choose smaller sizes, raise cap=, or a loss whose", str(caught.value))


@pytest.mark.parametrize(
    ("oracle", "event", "number"),
    [
        (LinearChain(), (100, 5, 5), r"7\.89e\+69"),
        (LinearChain(), (27, 5, 5), r"7\.45e\+18"),
        (SpanningTree(), (1001, 1001), r"1\.00e\+2997"),
    ],
    ids=["chain", "int64", "beyond floats"],
)
def test_refuses_a_space_that_ranks_cannot_count(oracle, event, number):
    expected = rf"^`exact_truth` got a space of {number} structures; expected at most 4\.61e\+18, .* years; choose smaller sizes, or a loss"
    with pytest.raises(ValueError, match=expected):
        exact_truth(lambda z: z.flatten(1).sum(-1), oracle, torch.zeros(event), cap=10**4000)


def test_the_loss_is_evaluated_once():
    calls = []

    def loss(z):
        calls.append(len(z))
        return z.sum(-1)

    exact_truth(loss, Subset(2), scores_of("subset"), chunk=5)
    looks = [8, 8, 8, 1]  # whether it can be measured
    assert calls == [*looks, 5, 5, 5]


def test_structures_that_cannot_be_told_from_impossible_ones_are_supported():
    """Their probability is below the least float64, and positive."""
    scores = torch.tensor([0.0, -2000.0, 0.0], dtype=torch.float64)
    truth = exact_truth(lambda z: z[:, 0], Categorical(), scores)
    assert truth.support == 3
    assert truth.gradient.tolist() == [0.25, 0.0, -0.25]


def test_a_policy_has_the_gradient_of_its_scores():
    oracle, event = ShiftReduce("local"), (5, 5, 2)
    scores = torch.randn(event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(z):
        return z.flatten(1) @ torch.linspace(0, 7, scores.numel(), dtype=z.dtype).sin()

    leaf = scores.clone().requires_grad_()
    structures = oracle.enumerate(event, dtype=torch.float64)
    (expected,) = torch.autograd.grad(oracle.log_prob(structures, leaf).exp() @ loss(structures), leaf)
    truth = exact_truth(loss, oracle, scores)
    assert (truth.gradient - expected).norm() <= 1e-14 + truth.error

from __future__ import annotations

import contextlib
import math

import pytest
import torch

from structgrad.oracles import Categorical, IndependentCategoricals, kernels
from structgrad.oracles.categorical import softmax
from tests.helpers import seeded

THETA = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
LOSSES = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)


def test_the_exact_gradient_of_an_expected_loss() -> None:
    theta = THETA.clone().requires_grad_()
    marginals = Categorical().marginals(theta)
    (gradient,) = torch.autograd.grad(marginals @ LOSSES, theta)
    torch.testing.assert_close(marginals.detach(), torch.tensor([0.353615, 0.214478, 0.431906]).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([-0.038964, -0.345351, 0.384315], dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_gradient_of_sparsemax_marginalisation() -> None:
    scores = (2 * THETA).requires_grad_()
    solution = Categorical().project(scores)
    expected = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    for value in (solution.mean @ LOSSES, solution.weights @ LOSSES):
        (gradient,) = torch.autograd.grad(value, scores, retain_graph=True)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    assert solution.support.item() == 2


def test_softmax_of_extreme_rows() -> None:
    rows = torch.tensor([[-math.inf, -math.inf], [-math.inf, -3e38], [3e38, -3e38], [-200.0, -200.0]])
    assert softmax(rows).tolist() == [[0, 0], [0, 1], [1, 0], [0.5, 0.5]]
    expected = torch.tensor([-math.inf, -3e38, 3e38, math.log(2) - 200])
    torch.testing.assert_close(Categorical().log_partition(rows), expected)
    # As two items of two categories each: the first has one without a part.
    assert softmax(rows.reshape(2, 2, 2), 2).tolist() == [[[0, 0], [0, 0]], [[1, 0], [0.5, 0.5]]]


@pytest.mark.parametrize("compiled", [True, False], ids=["kernel", "reference"])
@pytest.mark.parametrize(("oracle", "event"), [(Categorical(), (70,)), (IndependentCategoricals(), (3, 4))], ids=["one", "several"])
@pytest.mark.parametrize("masked", [False, True])
def test_ties_of_the_k_best_are_in_the_order_of_enumeration(
    compiled: bool, oracle: Categorical | IndependentCategoricals, event: tuple[int, ...], masked: bool
) -> None:
    scores = torch.randint(-2, 3, (5, *event), generator=seeded()).double()
    scores = scores.masked_fill(torch.rand(scores.shape, generator=seeded(1)) < 0.4, -math.inf) if masked else scores
    every = oracle.enumerate(event, dtype=torch.float64)
    listed = torch.where(every.unsqueeze(1) != 0, scores, 0).flatten(2).sum(-1).sort(dim=0, descending=True, stable=True)
    expected = every[listed.indices] * (listed.values > -math.inf).reshape(len(every), 5, *[1] * len(event))
    with contextlib.nullcontext() if compiled else kernels.disabled():
        for k in (1, 7, len(every)):
            assert torch.equal(oracle.kbest(scores, k), expected[:k])
            assert torch.equal(oracle.kbest(scores.float(), k, as_indices=True), oracle.indices(expected[:k]))

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, IndependentCategoricals, kernels
from structgrad.oracles.categorical import inverse_cdf, softmax
from tests.helpers import seeded

THETA = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
P = torch.tensor([0.353615, 0.214478, 0.431906], dtype=torch.float64)
LOSSES = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)


def test_marginals_are_softmax() -> None:
    torch.testing.assert_close(Categorical().marginals(THETA), P, rtol=0, atol=1e-6)


def test_the_exact_gradient_of_an_expected_loss() -> None:
    theta = THETA.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(Categorical().marginals(theta) @ LOSSES, theta)
    torch.testing.assert_close(gradient, torch.tensor([-0.038964, -0.345351, 0.384315], dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_gradient_of_sparsemax_marginalisation() -> None:
    scores = (2 * THETA).requires_grad_()
    solution = Categorical().project(scores)
    expected = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    for value in (solution.mean @ LOSSES, solution.weights @ LOSSES):
        (gradient,) = torch.autograd.grad(value, scores, retain_graph=True)
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)
    assert solution.support.item() == 2


@pytest.mark.parametrize(("uniform", "index"), [(0.0, 1), (0.25, 1), (0.5, 3), (0.75, 3), (1 - 2**-53, 3)])
def test_inverse_cdf_never_gives_a_category_of_weight_zero(uniform: float, index: int) -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 3.0, 0.0], dtype=torch.float64)
    assert inverse_cdf(weights.cumsum(-1), torch.tensor([uniform], dtype=torch.float64)).item() == index


def test_equal_spacing_gives_exact_frequencies() -> None:
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    samples = Categorical()._sample(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log(), uniforms.reshape(1000, 1, 1))
    assert samples.sum((0, 1)).tolist() == [200, 300, 500]


def test_rare_categories_can_be_drawn_in_float32() -> None:
    scores = torch.tensor([-25.0, 0.0])
    assert Categorical()._sample(scores.unsqueeze(0), torch.full((1, 1, 1), 1e-12, dtype=torch.float64))[0, 0].tolist() == [1, 0]


def test_the_event_shape_by_name() -> None:
    assert Categorical.event_shape(length=7) == (7,)


def test_softmax_of_extreme_rows() -> None:
    rows = torch.tensor([[-math.inf, -math.inf], [-math.inf, -3e38], [3e38, -3e38], [-200.0, -200.0]])
    assert softmax(rows).tolist() == [[0, 0], [0, 1], [1, 0], [0.5, 0.5]]
    expected = torch.tensor([-math.inf, -3e38, 3e38, math.log(2) - 200])
    torch.testing.assert_close(Categorical().log_partition(rows), expected)
    # As two items of two categories each: the first has one without a part.
    assert softmax(rows.reshape(2, 2, 2), 2).tolist() == [[[0, 0], [0, 0]], [[1, 0], [0.5, 0.5]]]


def test_the_closed_forms_are_the_derivatives() -> None:
    scores = 3 * torch.randn(5, 7, dtype=torch.float64)
    scores[1, :3], scores[2] = -math.inf, -math.inf
    direction = torch.randn(5, 7, dtype=torch.float64)
    leaf = scores.clone().requires_grad_()
    (first,) = torch.autograd.grad(Categorical()._log_partition(leaf).sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first, leaf, direction)
    marginals, log_partition = Categorical()._compute_marginals(scores)
    torch.testing.assert_close(marginals, first.detach(), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(log_partition, Categorical()._log_partition(scores), rtol=1e-14, atol=0)
    torch.testing.assert_close(Categorical()._compute_covariance_product(scores, direction), second, rtol=1e-12, atol=1e-14)


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


@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0])
@pytest.mark.parametrize(
    ("oracle", "shape"),
    [
        (Categorical(), (3, 37)),
        (Categorical(), (5, 1)),
        (Categorical(), (3, 5000)),
        (IndependentCategoricals(), (2, 3, 17)),
        (IndependentCategoricals(), (2, 2, 16)),
        (IndependentCategoricals(), (3, 300, 2)),
    ],
)
def test_one_pass_gives_what_torch_gives_and_refuses_what_is_no_number(oracle: Any, shape: tuple[int, ...], scale: float) -> None:
    scores = torch.randn(shape).mul(scale)
    scores.view(-1)[::4] = scores.flatten()[0]  # ties
    scores[0, ..., 1:] = -math.inf
    for given in (scores, scores.double().clamp(min=-1).round(), scores[:0]):
        first, second = _at_once(oracle, given), _at_once(oracle, given)
        with kernels.disabled():
            for name, expected in _at_once(oracle, given).items():
                summed = 1e-6 if given.dtype == torch.float32 else 1e-14
                tolerance = summed if name in ("log-partition", "marginals") else 0.0
                torch.testing.assert_close(first[name], expected, rtol=tolerance, atol=tolerance)
                assert torch.equal(first[name], second[name])
    for place, wrong in ((0, math.nan), (-1, math.inf)):
        scores.view(-1)[place] = wrong
        for operation in (oracle.argmax, oracle.log_partition, oracle.marginals, lambda theta: oracle.argmax(theta, as_indices=True)):
            with pytest.raises(ValueError, match=r"got scores with NaN or \+inf"):
                operation(scores)
        scores.view(-1)[place] = 0


def _at_once(oracle: Any, scores: Tensor) -> dict[str, Tensor]:
    return {
        "argmax": oracle.argmax(scores),
        "its indices": oracle.argmax(scores, as_indices=True),
        "log-partition": oracle.log_partition(scores),
        "marginals": oracle.marginals(scores),
        "samples": oracle.sample(scores, 20, generator=torch.Generator().manual_seed(0)),
        "their indices": oracle.sample(scores, 20, generator=torch.Generator().manual_seed(0), as_indices=True),
    }

"""The exact gradient of policies, at the cap, at rare structures, and on a device."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, ShiftReduce, SpanningTree, Subset, make_oracle
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
    [(LinearChain(), (27, 5, 5), r"7\.45e\+18"), (SpanningTree(), (1001, 1001), r"1\.00e\+2997")],
    ids=["int64", "beyond floats"],
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


DEVICE_CASES = {"subset[k=3]": (7,), "linear_chain": (4, 2, 2), "spanning_tree": (4, 4), "assignment": (4, 4)}


def loss_of(weights: Tensor):  # type: ignore[no-untyped-def]
    return lambda z: (z.flatten(-weights.ndim) @ weights.flatten()).square()


@pytest.mark.parametrize("case", DEVICE_CASES)
def test_a_device_gives_the_gradient_of_the_cpu(case: str, device: torch.device) -> None:
    oracle, scores = make_oracle(case), torch.randn(DEVICE_CASES[case], dtype=torch.float64)
    weights = torch.randn(DEVICE_CASES[case], dtype=torch.float64)
    here = exact_truth(loss_of(weights), oracle, scores)
    there = exact_truth(loss_of(weights.to(device)), oracle, scores.to(device), chunk=5)
    assert there.gradient.device.type == device.type
    assert float((there.gradient.cpu() - here.gradient).norm()) <= here.error + there.error + 1e-14 * float(here.gradient.norm())
    torch.testing.assert_close(there.kurtosis.cpu(), here.kurtosis, rtol=1e-9, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_forty_million_structures() -> None:
    """40,116,600 subsets by enumeration, against the closed form of a linear loss: E z_i z_j − μ_i μ_j."""
    device, oracle = torch.device("cuda"), Subset(14)
    scores, weights = (torch.randn(28, dtype=torch.float64, device=device) for _ in range(2))
    torch.cuda.reset_peak_memory_stats(device)
    truth = exact_truth(lambda z: z @ weights, oracle, scores, cap=10**8, kurtosis=False)
    assert truth.count == 40_116_600
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(oracle.marginals(leaf) @ weights, leaf)
    torch.testing.assert_close(truth.gradient, expected, rtol=1e-10, atol=1e-12)
    assert torch.cuda.max_memory_allocated() < 20 * 2**30

"""The exact gradient does not depend on where it is computed; a GPU lists more structures than a CPU would in an afternoon."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Subset, make_oracle
from structgrad.suites.truth import exact_truth

CASES = {
    "subset[k=3]": (7,),
    "linear_chain": (4, 2, 2),
    "alignment": (4, 3),
    "constituency": (5, 5),
    "spanning_tree": (4, 4),
    "assignment": (4, 4),
}


def loss_of(weights: Tensor):  # type: ignore[no-untyped-def]
    return lambda z: (z.flatten(-weights.ndim) @ weights.flatten()).square()


@pytest.mark.parametrize("case", CASES)
def test_a_device_gives_the_gradient_of_the_cpu(case: str, device: torch.device) -> None:
    oracle, scores = make_oracle(case), torch.randn(CASES[case], dtype=torch.float64)
    weights = torch.randn(CASES[case], dtype=torch.float64)
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

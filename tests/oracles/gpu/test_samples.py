"""Samples that several programs draw of the same row, and write in pieces, are those of the reference."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import kernels, make_oracle
from structgrad.oracles.random_streams import SeedBlocks

CASES: dict[str, tuple[int, ...]] = {
    "subset[k=2]": (4,),
    "linear_chain": (9, 2, 2),
    "alignment": (3, 2),
    "constituency": (4, 4),
    "projective_tree": (4, 4),
    "spanning_tree": (4, 4),
    "assignment": (3, 3),
    "shift_reduce": (4, 4, 2),
    "semi_markov": (3, 2, 2, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_more_samples_than_a_program_draws(case: str, gpu_kernels: torch.device) -> None:
    oracle, scores = make_oracle(case), torch.randn(2, *CASES[case], device=gpu_kernels)
    found = oracle.sample(scores, 35, generator=SeedBlocks((7,), 2, device=gpu_kernels))
    with kernels.disabled():
        expected = oracle.sample(scores, 35, generator=SeedBlocks((7,), 2, device=gpu_kernels))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)

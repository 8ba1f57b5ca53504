"""The Fisher metric against enumeration, and the directions that change nothing."""

from __future__ import annotations

import pytest
import torch

from structgrad.oracles import LinearChain, ShiftReduce, SpanningTree, Subset
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.enumeration import fisher_information, geometry

CASES = {
    "subset": (Subset(2), (5,)),
    "linear_chain": (LinearChain(), (3, 2, 2)),
    "spanning_tree": (SpanningTree(), (4, 4)),
    "shift_reduce": (ShiftReduce("local"), (4, 4, 2)),
    "shift_reduce_global": (ShiftReduce("global"), (4, 4, 2)),
}


def scores_of(shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def listed(name: str, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [c] and scores of the log-probabilities [c, d] of all structures."""
    oracle = CASES[name][0]
    structures = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)
    leaf = scores.expand(len(structures), *scores.shape).clone().requires_grad_()
    log_prob = oracle.log_prob(structures, leaf)
    (score,) = torch.autograd.grad(log_prob.sum(), leaf)
    return log_prob.detach().exp(), score.flatten(1)


@pytest.mark.parametrize("name", list(CASES))
def test_equals_the_expected_square_of_the_score(name):
    """``F = E ∇log p ∇log pᵀ``, for policies that are normalised locally too."""
    scores = scores_of(CASES[name][1])
    p, score = listed(name, scores)
    torch.testing.assert_close(fisher_information(CASES[name][0], scores), (score * p.unsqueeze(-1)).T @ score, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("name", list(CASES))
def test_null_directions_change_no_probability_and_the_others_do(name, scale):
    oracle, shape = CASES[name]
    scores = scores_of(shape, scale)
    truth = exact_truth(lambda z: z.flatten(-len(shape))[..., 1:].cumsum(-1).square().sum(-1), oracle, scores)
    found = geometry(oracle, scores, truth)
    _, score = listed(name, scores)
    assert (score @ found.null).abs().max() < 1e-9
    centred = score - score.mean(0)
    assert found.null.shape[1] == scores.numel() - torch.linalg.matrix_rank(centred, rtol=1e-9)
    assert (truth.gradient.flatten() @ found.null).norm() < 1e-10 * truth.gradient.norm()

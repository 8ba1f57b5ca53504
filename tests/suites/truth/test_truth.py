"""The exact gradient against 50 digits, of policies, at the cap, at rare structures, and on a device; the Fisher metric."""

import math
import re
import statistics
from functools import cache
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from structgrad.oracles import Alignment, Assignment, Categorical, Constituency, LinearChain, ShiftReduce, SpanningTree, Subset, make_oracle
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.enumeration import fisher_information, geometry


def test_refuses_a_space_beyond_the_cap():
    with pytest.raises(
        ValueError, match=r"^`exact_truth` got a space of 1,220 structures; expected at most 1,000, because at a typical "
    ) as caught:
        exact_truth(lambda z: z.sum(-1), Categorical(), torch.zeros(1220), cap=1000)
    assert re.search(r"structures a second they take .*; choose smaller sizes, raise cap=, or a loss whose", str(caught.value))


DEVICE_CASES = {"subset[k=3]": (7,), "linear_chain": (4, 2, 2), "spanning_tree": (4, 4), "assignment": (4, 4)}


def squared_loss(weights: Tensor):  # type: ignore[no-untyped-def]
    return lambda z: (z.flatten(-weights.ndim) @ weights.flatten()).square()


@pytest.mark.parametrize("case", DEVICE_CASES)
def test_a_device_gives_the_gradient_of_the_cpu(case: str, device: torch.device) -> None:
    oracle, scores = make_oracle(case), torch.randn(DEVICE_CASES[case], dtype=torch.float64)
    weights = torch.randn(DEVICE_CASES[case], dtype=torch.float64)
    here = exact_truth(squared_loss(weights), oracle, scores)
    there = exact_truth(squared_loss(weights.to(device)), oracle, scores.to(device))
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
    truth = exact_truth(lambda z: z @ weights, oracle, scores, cap=10**8)
    assert truth.count == 40_116_600
    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(oracle.marginals(leaf) @ weights, leaf)
    torch.testing.assert_close(truth.gradient, expected, rtol=1e-10, atol=1e-12)
    assert torch.cuda.max_memory_allocated() < 20 * 2**30


SPACES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear_chain": (LinearChain(), (4, 3, 3)),
    "constituency": (Constituency(), (7, 7)),
    "assignment": (Assignment(), (5, 5)),
    "spanning_tree": (SpanningTree(single_root=False), (5, 5)),
    "alignment": (Alignment(), (4, 4)),
    "subset": (Subset(4), (9,)),
}
REGIMES = (0.05, 0.1, 1.0, 10.0, 50.0, "masked", "ties")
OFFSETS = (0.0, 1e6)
CASES = [(name, regime, offset) for name in SPACES for regime in REGIMES for offset in OFFSETS]
cases = pytest.mark.parametrize(("name", "regime", "offset"), CASES)


def scores_in(name: str, regime: float | str) -> Tensor:
    oracle, event = SPACES[name]
    generator = torch.Generator().manual_seed(len(name))
    scores = torch.randn(event, generator=generator, dtype=torch.float64)
    if isinstance(regime, float):
        return regime * scores
    if regime == "ties":
        return scores.round()
    # The structures of every sixth rank stay feasible.
    listed = oracle.enumerate(event, dtype=torch.bool)
    return scores.masked_fill(~listed[::6].any(0) | (torch.rand(event, generator=generator) < 0.1) & ~listed[7], -math.inf)


def loss_of(name: str, offset: float) -> Any:
    """A curved loss whose values float64 holds exactly, also with the offset."""
    matrix = torch.randn(3, math.prod(SPACES[name][1]), generator=torch.Generator().manual_seed(9), dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return ((z.reshape(len(z), -1) @ matrix.T).square().sum(-1) * 1024).round() / 1024 + offset

    return loss


@cache
def fifty_digits(name: str, regime: float | str) -> list[Any]:
    """The gradient by enumeration in 50 digits; an offset does not change it."""
    mpmath.mp.dps = 50
    oracle, event = SPACES[name]
    scores, structures = scores_in(name, regime).flatten(), oracle.enumerate(event, dtype=torch.float64)
    losses, listed = loss_of(name, 0.0)(structures), structures.flatten(1).bool()
    kept = [row for row in range(len(listed)) if bool((scores[listed[row]] > -math.inf).all())]
    weights = [mpmath.exp(mpmath.fsum(map(mpmath.mpf, scores[listed[row]].tolist()))) for row in kept]
    total = mpmath.fsum(weights)
    value = mpmath.fsum(w * mpmath.mpf(float(losses[row])) for w, row in zip(weights, kept, strict=True)) / total
    centred = [w / total * (mpmath.mpf(float(losses[row])) - value) for w, row in zip(weights, kept, strict=True)]
    parts = listed[kept].T.tolist()
    return [mpmath.fsum(c for c, used in zip(centred, part, strict=True) if used) for part in parts]


@cache
def errors_of(name: str, regime: float | str, offset: float) -> tuple[float, float, float]:
    """The error of the gradient, its bound, and the norm of the gradient."""
    exact = fifty_digits(name, regime)
    truth = exact_truth(loss_of(name, offset), SPACES[name][0], scores_in(name, regime))
    found = truth.gradient.flatten().tolist()
    error = mpmath.sqrt(mpmath.fsum((mpmath.mpf(f) - e) ** 2 for f, e in zip(found, exact, strict=True)))
    return float(error), truth.error, float(mpmath.sqrt(mpmath.fsum(e**2 for e in exact)))


@cases
def test_the_gradient_is_right_to_thirteen_digits_and_within_its_bound(name: str, regime: float | str, offset: float) -> None:
    error, bound, norm = errors_of(name, regime, offset)
    assert norm > 0
    assert error <= min(1e-13 * norm, bound)


def test_the_bound_is_not_vacuous() -> None:
    found = [errors_of(*case) for case in CASES]
    assert statistics.median(bound / error for error, bound, _ in found if error > 0) < 1e4
    assert max(bound / norm for _, bound, norm in found) < 1e-9


LAWS = {
    "subset": (Subset(2), (5,)),
    "linear_chain": (LinearChain(), (3, 2, 2)),
    "spanning_tree": (SpanningTree(), (4, 4)),
    "shift_reduce": (ShiftReduce("local"), (4, 4, 2)),
    "shift_reduce_global": (ShiftReduce("global"), (4, 4, 2)),
}


def normal_scores(shape: tuple[int, ...], scale: float = 1.0) -> torch.Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def listed(name: str, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [c] and scores of the log-probabilities [c, d] of all structures."""
    oracle = LAWS[name][0]
    structures = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)
    leaf = scores.expand(len(structures), *scores.shape).clone().requires_grad_()
    log_prob = oracle.log_prob(structures, leaf)
    (score,) = torch.autograd.grad(log_prob.sum(), leaf)
    return log_prob.detach().exp(), score.flatten(1)


@pytest.mark.parametrize("name", list(LAWS))
def test_equals_the_expected_square_of_the_score(name):
    """``F = E ∇log p ∇log pᵀ``, for policies that are normalised locally too."""
    scores = normal_scores(LAWS[name][1])
    p, score = listed(name, scores)
    torch.testing.assert_close(fisher_information(LAWS[name][0], scores), (score * p.unsqueeze(-1)).T @ score, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [0.3, 3.0])
@pytest.mark.parametrize("name", list(LAWS))
def test_null_directions_change_no_probability_and_the_others_do(name, scale):
    oracle, shape = LAWS[name]
    scores = normal_scores(shape, scale)
    truth = exact_truth(lambda z: z.flatten(-len(shape))[..., 1:].cumsum(-1).square().sum(-1), oracle, scores)
    found = geometry(oracle, scores, truth)
    _, score = listed(name, scores)
    assert (score @ found.null).abs().max() < 1e-9
    centred = score - score.mean(0)
    assert found.null.shape[1] == scores.numel() - torch.linalg.matrix_rank(centred, rtol=1e-9)
    assert (truth.gradient.flatten() @ found.null).norm() < 1e-10 * truth.gradient.norm()


@pytest.mark.parametrize("name", list(LAWS))
def test_value_and_moments_are_those_of_listed_estimates(name):
    """Moments of the score function with the mean loss as baseline, by part and along the gradient."""
    scores = normal_scores(LAWS[name][1])
    weights = normal_scores(LAWS[name][1]).flip(0)
    loss = squared_loss(weights)
    truth, (p, score) = exact_truth(loss, LAWS[name][0], scores), listed(name, scores)
    losses = loss(LAWS[name][0].enumerate(tuple(scores.shape), dtype=torch.float64))
    errors = losses - p @ losses
    estimates = errors.unsqueeze(-1) * score
    centred = estimates - p @ estimates
    columns = torch.cat([centred, centred @ truth.gradient.reshape(-1, 1)], -1)
    kurtosis = torch.where(p @ columns**2 > 1e-20, p @ columns**4 / (p @ columns**2) ** 2, math.inf)
    torch.testing.assert_close(torch.cat([truth.kurtosis.flatten(), torch.tensor([truth.kurtosis_along])]), kurtosis)
    torch.testing.assert_close(truth.gradient.flatten(), p @ estimates)
    expected = [p @ losses, p @ errors**2, -(p @ p.log())]
    assert [truth.value, truth.loss_variance, truth.entropy] == pytest.approx(list(map(float, expected)))
    assert truth.support == truth.count == len(p)

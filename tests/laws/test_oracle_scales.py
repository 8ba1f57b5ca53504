"""Probabilities, entropy and divergence are right at any scale of scores, and at any offset that leaves the law as it is."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import crf_loss, make_estimator
from structgrad.oracles.capabilities import DistinctSamplingOracle, RelaxedOracle
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, natural_parameters, pulled_back, seeded, structures

SCALES = (1.0, 1e2, 1e4, 1e6, 1e30)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
KINDS = ("scaled", "scaled ties", "offset", "offset by place")

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
scales = pytest.mark.parametrize("scale", SCALES, ids=str)
kinds = pytest.mark.parametrize("kind", KINDS)


def large_scores(case: OracleCase, kind: str, scale: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[4, *event]: multiples of a scale, or moderate scores with an offset; rounded to the dtype, which is then exact."""
    if dtype == torch.float16 and scale >= 1e4:
        pytest.skip("beyond float16")
    moderate = make_scores(case, 2.0, rows=4, seed=seed)
    shift = torch.randn(case.event[:1], generator=seeded(1), dtype=torch.float64).reshape(-1, *[1] * (len(case.event) - 1))
    return {
        "scaled": scale * moderate,
        "scaled ties": scale * (moderate / 2).round(),
        "offset": moderate.round() + scale,
        "offset by place": moderate.round() + scale * shift,
    }[kind].to(dtype)


def log_law(case: OracleCase, scores: Tensor) -> Tensor:
    """[b, structures]: log-probabilities by exact differences of the scores as they are."""
    every, rows = structures(case).flatten(1).long().numpy(), natural_parameters(case, scores).flatten(1).numpy()
    laws = []
    for row in rows:
        parts = [Fraction(float(part)) if math.isfinite(part) else Fraction(0) for part in row]
        totals = [sum((parts[i] * int(z[i]) for i in z.nonzero()[0]), Fraction(0)) for z in every]
        laws.append([float(total - max(totals)) for total in totals])
    return torch.from_numpy(np.array(laws)).log_softmax(-1)


def precision(dtype: torch.dtype) -> dict[str, float]:
    eps = torch.finfo(dtype).eps
    # Up to the scale from which laws are exact, sums in float64 are.
    return {"rtol": max(2 * eps, 1e-11), "atol": max(4 * eps, 2e-9)}


@cases
@dtypes
@scales
@kinds
def test_probabilities(case: OracleCase, kind: str, scale: float, dtype: torch.dtype) -> None:
    scores = large_scores(case, kind, scale, dtype)
    expected, every = log_law(case, scores), structures(case)
    found = case.oracle.log_prob(every.unsqueeze(1).to(dtype), scores).double().T
    finite = torch.finfo(dtype).max
    torch.testing.assert_close(found.clamp(min=-finite), expected.clamp(min=-finite), **precision(dtype))
    assert bool((found <= 0).all())
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=max(1e-8, 8 * torch.finfo(dtype).eps))
    marginals = (expected.exp() @ every.flatten(1)).reshape(scores.shape)
    torch.testing.assert_close(case.oracle.marginals(scores).double(), marginals, rtol=0, atol=max(1e-9, 4 * torch.finfo(dtype).eps))


@cases
@dtypes
@scales
@kinds
def test_entropy_and_divergence(case: OracleCase, kind: str, scale: float, dtype: torch.dtype) -> None:
    scores, other = (large_scores(case, kind, scale, dtype, seed) for seed in (0, 1))
    here, there = log_law(case, scores), log_law(case, other)
    entropy = case.oracle.entropy(scores).double()
    torch.testing.assert_close(entropy, -(here.exp() * here).sum(-1), **precision(dtype))
    expected = (here.exp() * torch.where(here.exp() > 0, here - there, 0)).sum(-1)
    divergence, finite = case.oracle.kl(scores, other).double(), torch.finfo(dtype).max
    torch.testing.assert_close(divergence.clamp(max=finite), expected.clamp(max=finite), **precision(dtype))
    assert bool((entropy >= 0).all() and (divergence >= 0).all())


@cases
@scales
@kinds
def test_gradients(case: OracleCase, kind: str, scale: float) -> None:
    scores = large_scores(case, kind, scale, torch.float64).requires_grad_()
    law, every = log_law(case, scores.detach()).exp(), structures(case)
    mean = (law @ every.flatten(1)).reshape(scores.shape)
    (gradient,) = torch.autograd.grad(case.oracle.log_prob(every[-1], scores).sum(), scores)
    torch.testing.assert_close(gradient, pulled_back(case, scores.detach(), every[-1] - mean), rtol=1e-7, atol=1e-9)
    (gradient,) = torch.autograd.grad(case.oracle.entropy(scores).sum(), scores)
    assert bool(gradient.isfinite().all())
    # -Cov(z, log p(z)), of the enumerated law.
    surprise = torch.where(law > 0, law * law.log(), 0)
    expected = -(surprise @ every.flatten(1) - surprise.sum(-1, keepdim=True) * mean.flatten(1)).reshape(scores.shape)
    torch.testing.assert_close(gradient, pulled_back(case, scores.detach(), expected), rtol=1e-6, atol=1e-7)


@cases
@scales
@kinds
def test_estimates_are_finite_and_exact_marginalisation_is_exact(case: OracleCase, kind: str, scale: float) -> None:
    scores = large_scores(case, kind, scale, torch.float64)
    weights = torch.randn(case.event, generator=seeded(2), dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return (z * weights).flatten(-len(case.event)).sum(-1).square()

    for name in ("exact", "reinforce_conditional_mean", "sum_and_sample"):
        estimate = make_estimator(name).gradient(loss, case.oracle, scores, generator=seeded())
        assert bool(estimate.isfinite().all()), name
        if name == "exact":
            law, every = log_law(case, scores).exp(), structures(case)
            losses, mean = loss(every), law @ every.flatten(1)
            expected = ((law * losses) @ every.flatten(1) - (law * losses).sum(-1, keepdim=True) * mean).reshape(scores.shape)
            torch.testing.assert_close(estimate, pulled_back(case, scores, expected), rtol=1e-6, atol=1e-7)


@cases
def test_the_loss_of_a_structure_is_its_negative_log_probability(case: OracleCase) -> None:
    scores = large_scores(case, "offset", 1e6, torch.float32)
    gold = structures(case)[-1].float().expand(4, *case.event)
    torch.testing.assert_close(crf_loss(case.oracle, scores, gold).double(), -log_law(case, scores)[:, -1], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in GENERIC_CASES if isinstance(case.oracle, RelaxedOracle)], ids=str)
@pytest.mark.parametrize("omega", ["l2", "entropy"])
def test_the_loss_of_a_smoothed_recursion_keeps_its_digits(case: OracleCase, omega: str) -> None:
    scores = large_scores(case, "offset", 1e6, torch.float32)
    gold = structures(case)[-1].expand(4, *case.event)
    trained = make_estimator(f"differentiable_dp_loss[omega={omega}]")
    single, double = (
        trained._against(case.oracle, given, gold.to(given), seeded()).double()  # type: ignore[attr-defined]
        for given in (scores, scores.double())
    )
    torch.testing.assert_close(single, double, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", [case for case in GENERIC_CASES if isinstance(case.oracle, DistinctSamplingOracle)], ids=str)
@scales
@kinds
def test_probabilities_of_a_set_without_replacement(case: OracleCase, kind: str, scale: float) -> None:
    scores = large_scores(case, kind, scale, torch.float64)
    drawn = case.oracle.sample_distinct(scores, 2, generator=seeded())  # type: ignore[attr-defined]
    expected = case.oracle.log_prob(drawn.structures, scores).T  # type: ignore[attr-defined]
    torch.testing.assert_close(drawn.log_probs, expected, rtol=1e-9, atol=1e-8)
    rest = 1 - expected.exp().sum(-1)
    torch.testing.assert_close(drawn.log_rest.exp(), rest, rtol=1e-6, atol=1e-8)

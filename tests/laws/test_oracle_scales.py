"""Probabilities, entropy and divergence are right at any scale of scores, and at any offset that leaves the law as it is."""

import math
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import crf_loss, make_estimator
from structgrad.oracles import Alignment, Assignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset, TiedChain, kernels
from structgrad.oracles.capabilities import DistinctSamplingOracle, RelaxedOracle
from structgrad.oracles.derivations import UNIT, Derivations
from structgrad.suites.truth.laws import derivations_of
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, natural_parameters, pulled_back, seeded, structures
from tests.oracle_cases import TABLE

SCALES = (1.0, 1e2, 700.0, 1e4, 1e6, 1e30)
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
KINDS = ("scaled", "scaled ties", "offset", "offset by place", "two parts")

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
FITTING = [(kind, scale, dtype) for kind in KINDS for scale in SCALES for dtype in DTYPES if dtype != torch.float16 or scale < 1e4]
"""Scales that a dtype holds."""


def large_scores(case: OracleCase, kind: str, scale: float, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[4, *event]: multiples of a scale, moderate scores with an offset, or two large scores; rounded to the dtype, which is then exact."""
    moderate = make_scores(case, 2.0, rows=4, seed=seed)
    order = moderate.flatten(1).argsort(1)
    large = torch.zeros_like(moderate).flatten(1).scatter(1, order[:, -1:], scale).scatter(1, order[:, :1], -scale)
    shift = torch.randn(case.event[:1], generator=seeded(1), dtype=torch.float64).reshape(-1, *[1] * (len(case.event) - 1))
    return {
        "scaled": scale * moderate,
        "scaled ties": scale * (moderate / 2).round(),
        "offset": moderate.round() + scale,
        "offset by place": moderate.round() + scale * shift,
        "two parts": large.reshape(moderate.shape),
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
def test_laws_of_large_scores(case: OracleCase) -> None:
    """Probabilities, marginals, entropy and divergence against sums of fractions."""
    every = structures(case)
    for kind, scale, dtype in sampled(FITTING, 12):
        scores, other = (large_scores(case, kind, scale, dtype, seed) for seed in (0, 1))
        here, there = log_law(case, scores), log_law(case, other)
        limit, eps = torch.finfo(dtype).max, torch.finfo(dtype).eps
        found = case.oracle.log_prob(every.unsqueeze(1).to(dtype), scores).double().T
        torch.testing.assert_close(found.clamp(min=-limit), here.clamp(min=-limit), **precision(dtype))
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=max(1e-8, 8 * eps))
        marginals = (here.exp() @ every.flatten(1)).reshape(scores.shape)
        torch.testing.assert_close(case.oracle.marginals(scores).double(), marginals, rtol=0, atol=max(1e-9, 4 * eps))
        entropy, divergence = case.oracle.entropy(scores).double(), case.oracle.kl(scores, other).double()
        torch.testing.assert_close(entropy, -(here.exp() * here).sum(-1), **precision(dtype))
        expected = (here.exp() * torch.where(here.exp() > 0, here - there, 0)).sum(-1)
        torch.testing.assert_close(divergence.clamp(max=limit), expected.clamp(max=limit), **precision(dtype))
        assert bool((found <= 0).all() and (entropy >= 0).all() and (divergence >= 0).all())


@cases
def test_gradients_and_estimates_at_large_scores(case: OracleCase) -> None:
    """Estimates are finite, and exact marginalisation is exact; a set without replacement knows its probabilities."""
    every, weights = structures(case), torch.randn(case.event, generator=seeded(2), dtype=torch.float64)
    loss = lambda z: (z * weights).flatten(-len(case.event)).sum(-1).square()  # noqa: E731
    for kind, scale in sampled([(kind, scale) for kind in KINDS for scale in SCALES], 4):
        scores = large_scores(case, kind, scale, torch.float64).requires_grad_()
        law = log_law(case, scores.detach()).exp()
        mean = (law @ every.flatten(1)).reshape(scores.shape)
        covariance = lambda values, law=law, mean=mean: (  # noqa: E731
            ((law * values) @ every.flatten(1) - (law * values).sum(-1, keepdim=True) * mean.flatten(1)).reshape(mean.shape)
        )
        (gradient,) = torch.autograd.grad(case.oracle.log_prob(every[-1], scores).sum(), scores)
        torch.testing.assert_close(gradient, pulled_back(case, scores.detach(), every[-1] - mean), rtol=1e-7, atol=1e-9)
        (gradient,) = torch.autograd.grad(case.oracle.entropy(scores).sum(), scores)
        expected = -covariance(torch.where(law > 0, law.log(), 0))
        torch.testing.assert_close(gradient, pulled_back(case, scores.detach(), expected), rtol=1e-6, atol=1e-7)
        for name in ("exact", "reinforce_conditional_mean", "sum_and_sample"):
            estimate = make_estimator(name).gradient(loss, case.oracle, scores, generator=seeded())
            assert bool(estimate.isfinite().all()), name
            if name == "exact":
                exact = pulled_back(case, scores.detach(), covariance(loss(every)))
                torch.testing.assert_close(estimate, exact, rtol=1e-6, atol=1e-7)
        if isinstance(case.oracle, DistinctSamplingOracle):
            for given, error in ((scores.detach(), 1e-8), (scores.detach().float(), 1e-6)):  # a policy itself is rounded to float32
                drawn = case.oracle.sample_distinct(given, 2, generator=seeded())
                log_probs = case.oracle.log_prob(drawn.structures.double(), given.double()).T
                torch.testing.assert_close(drawn.log_probs, log_probs, rtol=error / 10, atol=error)
                torch.testing.assert_close(drawn.log_rest.exp(), 1 - log_probs.exp().sum(-1), rtol=1e-6, atol=error)


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


# Larger events.

LARGER: tuple[tuple[Any, tuple[int, ...]], ...] = (
    *((Subset(7), (30,)), (Subset(39), (40,)), (LinearChain(), (12, 5, 5)), (TiedChain(), (13, 5)), (Alignment(), (12, 9))),
    *((Constituency(), (20, 20)), (ShiftReduce(), (16, 16, 2)), (Assignment(), (8, 8))),
    *((ProjectiveTree(single_root=one), (14, 14)) for one in (True, False)),
    *((row.oracle, row.ragged) for row in TABLE if row.derived),
)


def law_in_many_digits(derivations: Derivations, scores: Any) -> tuple[Any, Any]:
    """The log-partition, and marginals as an array, by weights of nodes and of their surroundings: nothing over- or underflows."""
    weights, marginals = [*map(mpmath.exp, scores), mpmath.mpf(1)], [mpmath.mpf(0)] * (derivations.parts + 1)
    inside, outside, edges = {UNIT: mpmath.mpf(1)}, dict[int, Any](), []
    for level in derivations.levels:
        second = torch.full_like(level.first, UNIT) if level.second is None else level.second
        rows = (level.first.tolist(), second.tolist(), level.parts.expand_as(level.first).tolist())
        for head, lists in enumerate(zip(*rows, strict=True), level.start):
            found = [edge for edge in zip(*lists, strict=True) if inside.get(edge[0]) and inside.get(edge[1])]
            inside[head] = mpmath.fsum(weights[part] * inside[one] * inside[other] for one, other, part in found)
            edges.append((head, found))
    outside[derivations.root] = 1 / inside[derivations.root]
    for head, found in reversed(edges):
        for one, other, part in found if head in outside else ():
            along = outside[head] * weights[part]
            marginals[part] += along * inside[one] * inside[other]
            for node, sibling in ((one, other), (other, one)):
                outside[node] = outside.get(node, 0) + along * inside[sibling]
    return mpmath.log(inside[derivations.root]), np.array(marginals[:-1], dtype=object)


@pytest.mark.parametrize(("oracle", "event"), LARGER, ids=str)
def test_larger_events_in_many_digits(oracle: Any, event: tuple[int, ...]) -> None:
    """Small marginals are right to their own size, and so are derivatives along a direction."""
    derivations, direction = derivations_of(oracle, event), torch.randn(event, generator=seeded(1), dtype=torch.float64)
    assert derivations is not None
    for place, scale in enumerate((0.05, 1.0, 50.0, 1000.0, 3.0)):
        scores = scale * torch.randn(event, generator=seeded(place), dtype=torch.float64)
        if place == 4:
            forbidden = torch.rand(event, generator=seeded(9)) < 0.3
            scores = scores.masked_fill(forbidden & (oracle.argmax(scores) == 0), -math.inf)
        theta, along = (np.array(values.flatten().tolist(), dtype=object) for values in (scores, direction))
        with mpmath.workdps(80):
            step = mpmath.mpf(10) ** -25
            total, marginals = law_in_many_digits(derivations, theta)
            above, below = (law_in_many_digits(derivations, theta + sign * step * along)[1] for sign in (1, -1))
            slope = torch.tensor([float(value) for value in (above - below) / (2 * step)], dtype=torch.float64)
        expected = torch.tensor([float(value) for value in marginals], dtype=torch.float64)
        for compiled in (True, False):
            with nullcontext() if compiled else kernels.disabled():
                leaf = scores.clone().requires_grad_()
                assert oracle.log_partition(leaf).item() == pytest.approx(float(total), rel=1e-13, abs=1e-12)
                found = oracle.marginals(leaf)
                (product,) = torch.autograd.grad(found, leaf, direction)
            atol = 1e-250 if compiled else 1e-13
            torch.testing.assert_close(found.flatten(), expected, rtol=1e-9, atol=atol)
            torch.testing.assert_close(product.flatten(), slope, rtol=1e-8, atol=1e-12)

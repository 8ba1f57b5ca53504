"""The exact gradient against high-precision arithmetic, finite differences, and at every chunking."""

from __future__ import annotations

import math
import re

import mpmath
import pytest
import torch

from structgrad.oracles import Categorical, LinearChain, ShiftReduce, SpanningTree, Subset
from structgrad.suites.truth import exact_truth
from tests.suites.cases import ORACLES, quadratic, scores_of


def high_precision(loss, oracle, scores):
    """Gradient, value, entropy and log-partition by enumeration in 60 digits."""
    mpmath.mp.dps = 60
    structures = oracle.enumerate(tuple(scores.shape), dtype=torch.float64)
    keep = [z for z in structures if not bool(((z > 0) & (scores == -math.inf)).any())]
    totals = [mpmath.fsum(mpmath.mpf(float(s)) for s in scores[z > 0]) for z in keep]
    losses = [mpmath.mpf(float(loss(z))) for z in keep]
    partition = mpmath.fsum(mpmath.exp(t) for t in totals)
    probabilities = [mpmath.exp(t) / partition for t in totals]
    value = mpmath.fsum(p * v for p, v in zip(probabilities, losses, strict=True))
    weights = [p * (v - value) for p, v in zip(probabilities, losses, strict=True)]
    flat = [z.flatten().tolist() for z in keep]
    gradient = [mpmath.fsum(w for w, z in zip(weights, flat, strict=True) if z[j]) for j in range(scores.numel())]
    entropy = -mpmath.fsum(p * mpmath.log(p) for p in probabilities)
    return torch.tensor([float(g) for g in gradient], dtype=torch.float64), float(value), float(entropy), float(mpmath.log(partition))


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0])
@pytest.mark.parametrize("name", list(ORACLES))
def test_equals_sixty_digits_at_every_scale_and_offset(name, scale, offset):
    oracle, _ = ORACLES[name]
    scores = scores_of(name, scale)
    # Losses that float64 holds exactly, so that only the summation is judged.
    plain = quadratic(name)

    def loss(z):
        return (plain(z) * 1024).round() / 1024 + offset

    truth = exact_truth(loss, oracle, scores, chunk=7)
    gradient, value, entropy, log_partition = high_precision(loss, oracle, scores)
    assert (truth.gradient.flatten() - gradient).norm() <= 1e-13 * gradient.norm()
    assert truth.value == pytest.approx(value, rel=1e-14)
    assert truth.entropy == pytest.approx(entropy, rel=1e-11, abs=1e-14)
    assert truth.log_partition == pytest.approx(log_partition, rel=1e-14)


@pytest.mark.parametrize("name", list(ORACLES))
def test_is_the_derivative_of_the_value(name):
    oracle, _ = ORACLES[name]
    scores, loss = scores_of(name), quadratic(name)
    direction = scores_of(name, seed=3)
    step = 1e-5
    plus, minus = (exact_truth(loss, oracle, scores + sign * step * direction).value for sign in (1, -1))
    slope = float((exact_truth(loss, oracle, scores).gradient * direction).sum())
    assert (plus - minus) / (2 * step) == pytest.approx(slope, rel=1e-7)


@pytest.mark.parametrize("name", list(ORACLES))
def test_does_not_depend_on_the_chunk(name):
    oracle, _ = ORACLES[name]
    scores, loss = scores_of(name, 5.0), quadratic(name)
    one, many = (exact_truth(loss, oracle, scores, chunk=chunk) for chunk in (100_000, 4))
    for field in ("gradient", "marginals"):
        torch.testing.assert_close(getattr(one, field), getattr(many, field), rtol=1e-12, atol=1e-13)
    assert one.entropy == pytest.approx(many.entropy, rel=1e-12)
    assert one.loss_variance == pytest.approx(many.loss_variance, rel=1e-12)
    torch.testing.assert_close(one.kurtosis, many.kurtosis, rtol=1e-9, atol=0)


def test_kurtosis_is_that_of_the_score_function():
    oracle, scores, loss = Subset(2), scores_of("subset"), quadratic("subset")
    truth = exact_truth(loss, oracle, scores)
    structures = oracle.enumerate((6,), dtype=torch.float64)
    p = oracle.log_prob(structures, scores).exp()
    estimates = (loss(structures) - truth.value).unsqueeze(-1) * (structures - truth.marginals) - truth.gradient
    expected = (p @ estimates**4) / (p @ estimates**2) ** 2
    torch.testing.assert_close(truth.kurtosis, expected)
    along = estimates @ truth.gradient
    assert truth.kurtosis_along == pytest.approx(float((p @ along**4) / (p @ along**2) ** 2))


def test_kurtosis_of_a_policy_is_that_of_its_own_scores():
    """At a state where one action is all but sure the score is 0 nearly always, though the part is nearly always there."""
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


def test_forbidden_parts_have_no_gradient_and_no_support():
    scores = torch.tensor([0.3, -math.inf, 0.5, -0.1], dtype=torch.float64)
    truth = exact_truth(lambda z: z @ torch.tensor([1.0, 5.0, -2.0, 0.5], dtype=torch.float64), Subset(2), scores)
    assert truth.gradient[1] == 0
    assert (truth.count, truth.support) == (6, 3)


def test_one_structure_has_no_gradient():
    truth = exact_truth(lambda z: z.sum(-1), Subset(3), torch.zeros(3, dtype=torch.float64))
    assert truth.gradient.tolist() == [0, 0, 0]
    assert truth.entropy == 0
    assert truth.kurtosis.isinf().all()


def test_refuses_a_space_beyond_the_cap():
    with pytest.raises(
        ValueError, match=r"^`exact_truth` got a space of 1,220 structures; expected at most 1,000, because at a typical "
    ) as caught:
        exact_truth(lambda z: z.sum(-1), Categorical(), torch.zeros(1220), cap=1000)
    assert re.search(r"structures a second they take .*; choose smaller sizes, raise cap=, or a loss whose", str(caught.value))


def test_refuses_a_batch():
    with pytest.raises(ValueError, match=r"got scores of shape \(2, 3\); expected one instance"):
        exact_truth(lambda z: z.sum(-1), Categorical(), torch.zeros(2, 3))


def test_refuses_scores_that_forbid_everything():
    with pytest.raises(ValueError, match="forbid every structure; expected at least one feasible structure"):
        exact_truth(lambda z: z.sum(-1), Categorical(), torch.full((3,), -math.inf))


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


def test_a_loss_that_gives_something_else_is_refused():
    with pytest.raises(ValueError, match=r"the loss gave shape \(8, 4\) for structures \(8, 4\); expected .*, \(8,\)"):
        exact_truth(lambda z: z, Subset(2), torch.zeros(4))


@pytest.mark.parametrize("name", list(ORACLES))
def test_the_gradient_alone_is_the_same(name):
    oracle, _ = ORACLES[name]
    scores, loss = scores_of(name), quadratic(name)
    whole, alone = (exact_truth(loss, oracle, scores, kurtosis=kurtosis) for kurtosis in (True, False))
    assert torch.equal(whole.gradient, alone.gradient)
    assert (whole.error, whole.entropy) == (alone.error, alone.entropy)
    assert bool(alone.kurtosis.isinf().all())
    assert alone.kurtosis_along == math.inf
    assert math.isfinite(whole.kurtosis_along)


def test_the_loss_is_evaluated_once():
    calls = []

    def loss(z):
        calls.append(len(z))
        return z.sum(-1)

    exact_truth(loss, Subset(2), scores_of("subset"), chunk=5)
    looks = [8, 8, 8, 1]  # whether it can be measured
    assert calls == [*looks, 5, 5, 5]


def test_says_how_it_was_found():
    truth = exact_truth(quadratic("subset"), Subset(2), scores_of("subset"), chunk=5)
    assert truth.method == "enumeration"
    assert 0 < truth.error < 1e-11 * truth.gradient.norm()


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

"""Adaptive I-MLE: what its step is, how its state moves, and the order of its error."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from structgrad.estimators import AdaptiveImplicitMLE, ImplicitMLE, Normal
from structgrad.oracles import Categorical, Subset
from tests.estimator_cases import LOSSES, FixedNoise, numbers, oracles
from tests.helpers import OracleCase, make_scores, read_parts, seeded


def norm(values: Tensor) -> float:
    return float(values.norm())


@pytest.mark.parametrize("divide", [True, False])
@oracles
def test_it_is_implicit_mle_with_a_step_of_its_own(case: OracleCase, divide: bool) -> None:
    """``λ = β ‖θ‖ / ‖γ‖``, with the γ of the structure that the noise gives."""
    scores, loss = torch.where(read_parts(case), numbers(*case.event), 0), LOSSES["linear"](case)
    leaf = torch.zeros(case.event, dtype=torch.float64, requires_grad=True)
    (gamma,) = torch.autograd.grad(loss(leaf), leaf)
    step = 0.7 * norm(scores) / norm(gamma * read_parts(case))
    for seed in range(5):
        found, expected = (
            estimator.gradient(loss, case.oracle, scores, generator=seeded(seed))
            for estimator in (
                AdaptiveImplicitMLE(0.7, symmetric=False, divide_by_lambda=divide),
                ImplicitMLE(step, divide_by_lambda=divide),
            )
        )
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-3, 1 / 8, 50.0])
@pytest.mark.parametrize("symmetric", [True, False])
@oracles
def test_scaling_the_loss_scales_the_estimate_and_nothing_else(case: OracleCase, symmetric: bool, factor: float) -> None:
    """So that a layer under a mean of losses sees the same step."""
    scores, loss, estimator = numbers(6, *case.event), LOSSES["smooth"](case), AdaptiveImplicitMLE(symmetric=symmetric)
    plain = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    small = estimator.gradient(lambda z: factor * loss(z), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(small, factor * plain, rtol=1e-9, atol=1e-12)
    leaf = scores.clone().requires_grad_()
    (layer,) = torch.autograd.grad(loss(estimator.structure(case.oracle, leaf, generator=seeded())).mean(), leaf)
    torch.testing.assert_close(layer, plain / 6, rtol=1e-9, atol=1e-12)


def mean_on_two_classes(estimator: AdaptiveImplicitMLE, gap: float, table: Tensor) -> Tensor:
    """Exactly: between the noise at which some argmax changes, the shipped estimate is constant."""
    scores = torch.tensor([gap, 0.0], dtype=torch.float64)
    shift = estimator.beta * norm(scores) / norm(table) * float(table[0] - table[1])
    changes = torch.tensor([-gap, -gap - shift, -gap + shift], dtype=torch.float64).sort().values
    inside = torch.cat([changes[:1] - 1, (changes[1:] + changes[:-1]) / 2, changes[-1:] + 1])
    noise = torch.stack([inside, torch.zeros_like(inside)], -1)
    weights = torch.cat([torch.zeros(1), changes.sigmoid(), torch.ones(1)]).double().diff()
    fixed = replace(estimator, noise=FixedNoise(noise))
    return weights @ fixed.gradient(lambda z: z @ table, Categorical(), scores.expand(len(noise), 2), generator=seeded())


@pytest.mark.parametrize(("symmetric", "order"), [(False, 1), (True, 2)])
def test_the_order_of_the_error(symmetric: bool, order: int) -> None:
    """The noise is logistic on two classes, so that the mean is a difference quotient of the softmax, forward or central."""
    table, gap = torch.tensor([1.0, -0.5], dtype=torch.float64), 0.8
    p = 1 / (1 + math.exp(-gap))
    exact = p * (1 - p) * 1.5
    errors = []
    for beta in (0.4, 0.04, 0.004):
        found = mean_on_two_classes(AdaptiveImplicitMLE(beta, symmetric=symmetric), gap, table)
        step = beta * gap / norm(table)
        upper, lower = (1 / (1 + math.exp(-gap - sign * 1.5 * step)) for sign in (1, -1))
        expected = (upper - lower) / (2 * step) if symmetric else (p - lower) / step
        torch.testing.assert_close(found, torch.tensor([expected, -expected], dtype=torch.float64), rtol=0, atol=1e-10)
        errors.append(abs(expected - exact))
    assert errors[1] == pytest.approx(errors[0] / 10**order, rel=0.2)
    assert errors[2] == pytest.approx(errors[1] / 10**order, rel=0.05)


def test_an_update_moves_beta_towards_the_target() -> None:
    estimator = AdaptiveImplicitMLE(beta=0.5, nonzeros=1.0, target=2.0, step_size=0.1, decay=0.75)
    many, none = torch.ones(4, 3, 2), torch.zeros(4, 3, 2)
    once = estimator.observed(estimates=many)
    assert once.nonzeros == pytest.approx(0.75 + 0.25 * 6)
    assert once.beta == pytest.approx(0.4)
    assert estimator.observed(estimates=none).nonzeros == pytest.approx(0.75)
    assert estimator.observed(estimates=none).beta == pytest.approx(0.6)
    mixed = many.clone()
    mixed[:2] = 0
    assert estimator.observed(estimates=mixed).nonzeros == pytest.approx(0.75 + 0.25 * 3)
    assert (estimator.beta, estimator.nonzeros) == (0.5, 1.0)


def test_beta_does_not_fall_below_zero() -> None:
    assert AdaptiveImplicitMLE(beta=0.05, target=0.1, step_size=0.1).observed(estimates=torch.ones(1, 4)).beta == 0


def test_the_start_of_the_authors_gives_nothing_and_leaves_it() -> None:
    """At β = 0 the estimate is 0, which has no non-zeros, which raises β."""
    scores, estimator = numbers(8, 5), AdaptiveImplicitMLE(beta=0.0, nonzeros=0.0)
    loss = lambda z: z @ numbers(5, seed=1)  # noqa: E731
    found = estimator.gradient(loss, Subset(2), scores, generator=seeded())
    assert not found.any()
    assert estimator.observed(estimates=found).beta > 0


STARTS, TARGETS = (0.0, 1.0, 20.0), (2.5, 1.0, 0.5)
PAIRS = [
    pytest.param(start, target, marks=() if x == y else pytest.mark.sweep)
    for x, start in enumerate(STARTS)
    for y, target in enumerate(TARGETS)
]


@pytest.mark.parametrize(("start", "target"), PAIRS)
def test_the_number_of_nonzeros_reaches_the_target(start: float, target: float) -> None:
    loss, scores = (lambda z: z @ numbers(8, seed=1)), numbers(8).expand(256, 8)
    estimator, generator, counts = AdaptiveImplicitMLE(beta=start, target=target, step_size=0.05), seeded(), []
    for _ in range(600):
        found = estimator.gradient(loss, Subset(3), scores, generator=generator)
        estimator = estimator.observed(estimates=found)
        counts.append(float((found != 0).sum(-1).double().mean()))
    assert sum(counts[-50:]) / 50 == pytest.approx(target, rel=0.1)


def test_warming_up_is_a_number_of_updates() -> None:
    loss, scores, estimator = (lambda z: z @ numbers(5, seed=1)), numbers(5), AdaptiveImplicitMLE(beta=0.3, step_size=0.01)
    expected, generator = estimator, seeded(1)
    for _ in range(64):
        expected = expected.observed(estimates=expected.gradient(loss, Subset(2), scores, generator=generator).unsqueeze(0))
    assert estimator.warmed_up(loss, Subset(2), scores, generator=seeded(1)) == expected
    assert expected.beta != estimator.beta


@pytest.mark.parametrize("symmetric", [True, False])
@oracles
def test_rows_without_a_direction_or_a_length_give_nothing(case: OracleCase, symmetric: bool) -> None:
    estimator = AdaptiveImplicitMLE(symmetric=symmetric, noise=Normal())
    flat = estimator.gradient(lambda z: 0 * LOSSES["smooth"](case)(z), case.oracle, numbers(3, *case.event), generator=seeded())
    short = estimator.gradient(LOSSES["smooth"](case), case.oracle, torch.zeros(3, *case.event), generator=seeded())
    masked = estimator.gradient(LOSSES["smooth"](case), case.oracle, make_scores(case, "masked"), generator=seeded())
    assert not flat.any()
    assert not short.any()
    assert masked.isfinite().all()

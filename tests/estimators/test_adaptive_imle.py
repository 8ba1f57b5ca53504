"""Adaptive I-MLE: what its step is, how its state moves, and the order of its error."""

from __future__ import annotations

import pytest
import torch

from structgrad.estimators import AdaptiveImplicitMLE, Normal
from structgrad.oracles import Subset
from tests.estimator_cases import LOSSES, numbers, oracles
from tests.helpers import OracleCase, make_scores, seeded


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

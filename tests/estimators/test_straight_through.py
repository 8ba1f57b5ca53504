"""Straight-through estimators, perturbation and adaptive I-MLE: edges, state and refusals; the catalogue has their formulas."""

import math

import pytest
import torch

from structgrad.estimators import (
    AdaptiveImplicitMLE,
    GappedStraightThrough,
    MultiplicativePerturbation,
    Normal,
    make_estimator,
)
from structgrad.estimators.gumbel import successive_softmaxes
from structgrad.oracles import Categorical, IndependentCategoricals, Subset
from structgrad.oracles.numerics import scaled
from tests.estimator_cases import LOSSES, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, make_scores, seeded


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("level", [0.0, 0.1, 1e6 / 3, -1e-30])
@pytest.mark.parametrize("name", ["identity", "identity[centre=False]"])
def test_equal_scores_have_no_direction(name: str, level: float, dtype: torch.dtype) -> None:
    scores = torch.full((7,), level, dtype=dtype)
    found = make_estimator(name).gradient(lambda z: z @ torch.arange(7, dtype=dtype), Subset(3), scores, generator=seeded())
    assert found.isfinite().all()
    assert name != "identity" or not found.any()


def test_a_certain_category_leaves_no_gap_to_gst_p() -> None:
    scores = torch.tensor([[500.0, 0.0], [0.0, -math.inf], [0.2, 0.1]], dtype=torch.float64)
    found = GappedStraightThrough(gap="p").gradient(lambda z: z[..., 0].sum(-1), IndependentCategoricals(), scores, generator=seeded())
    assert found.isfinite().all()
    assert bool((found[:2] == 0).all())


SCORES = three_classes()[0]


@pytest.mark.parametrize("name", ["ste_marginals[temperature=0.5]", "simple[temperature=0.5]"])
def test_tempered_rows_stay_shared(name: str) -> None:
    """Ten million replicates of one row cost one row."""
    leaf = numbers(3).expand(1000, 3).requires_grad_()
    tempered = scaled(leaf, 2.0, 1)
    assert tempered.stride(0) == 0
    (gradient,) = torch.autograd.grad(tempered, leaf, numbers(1000, 3))
    torch.testing.assert_close(gradient, 2 * numbers(1000, 3))
    found = make_estimator(name).gradient(table_loss, Categorical(), SCORES.expand(5, 3), generator=seeded())
    torch.testing.assert_close(found, found[:1].expand_as(found))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_no_part_is_taken_twice_where_scores_are_far_apart(scale: float) -> None:
    scores = scale * torch.tensor([[5.0, 4.0, 3.0, -1.0], [1.0, 5.0, -math.inf, 2.0]], dtype=torch.float64)
    leaf = scores.requires_grad_()
    relaxed = successive_softmaxes(leaf, 3, 0.01)
    torch.testing.assert_close(relaxed, torch.tensor([[1.0, 1, 1, 0], [1.0, 1, 0, 1]], dtype=torch.float64), rtol=0, atol=1e-9)
    (gradient,) = torch.autograd.grad(relaxed @ numbers(4), leaf, torch.ones(2, dtype=torch.float64))
    assert gradient.isfinite().all()


def test_a_row_with_too_few_parts_gives_nothing() -> None:
    scores = torch.tensor([[1.0, -math.inf, -math.inf], [0.0, 1.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    relaxed = successive_softmaxes(scores, 2, 0.5)
    assert not relaxed[0].any()
    (gradient,) = torch.autograd.grad(relaxed.square().sum(), scores)
    assert gradient.isfinite().all()
    assert not gradient[0].any()


def test_a_score_of_zero_is_not_perturbed() -> None:
    scores = torch.tensor([0.0, 0.4, 0.2, 0.3], dtype=torch.float64).expand(200, 4)
    found = MultiplicativePerturbation().gradient(lambda z: z @ numbers(4), Subset(2), scores, generator=seeded())
    assert found.isfinite().all()
    assert not found[:, 0].any()
    assert found[:, 1:].any(0).all()


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

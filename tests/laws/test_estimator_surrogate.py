"""A surrogate's value is the objective's estimate and its gradient is `gradient`, whatever reduction or weighting of rows follows."""

from __future__ import annotations

import torch
from torch import Tensor

from structgrad.estimators import Loss, PathwiseEstimator, make_estimator
from tests.catalogue.values import value_of
from tests.estimator_cases import LOSSES, PATHWISE, STANDS_STILL, each_pair, numbers, pairs, pairs_of, undecided
from tests.helpers import OracleCase, seeded

ROWS = 4


class Recorded:
    """A loss that keeps what it saw."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, z: Tensor) -> Tensor:
        values = self.loss(z)
        self.calls.append((z.detach(), values.detach()))
        return values


@each_pair
def test_the_value_estimates_the_objective(name: str, case: OracleCase) -> None:
    estimator, scores, recorded = make_estimator(name), numbers(ROWS, *case.event), Recorded(LOSSES["offset"](case))
    value = estimator.surrogate(recorded, case.oracle, scores, generator=seeded())
    assert value.shape == (ROWS,)
    expected = value_of(estimator, case, scores, [z for z, _ in recorded.calls], recorded.loss)
    torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-12)


@pairs
def test_the_gradient_does_not_depend_on_the_reduction(name: str, case: OracleCase) -> None:
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    scores = numbers(ROWS, *case.event).requires_grad_()
    estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
    rates = torch.tensor([0.5, -2.0, 0.0, 1e3], dtype=torch.float64)
    ones = torch.ones_like(rates)
    for reduced, weights in (
        (value.sum(), ones),
        (value.mean(), ones / ROWS),
        ((rates * value).sum(), rates),
        (value.square().sum() / 2, value.detach()),
    ):
        (found,) = torch.autograd.grad(reduced, scores, retain_graph=True)
        expected = weights.reshape(-1, *[1] * len(case.event)) * estimate
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pairs
def test_a_surrogate_is_part_of_a_larger_graph(name: str, case: OracleCase) -> None:
    """Scores come from an encoder, and the surrogate is not the last operation."""
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    scores = weight * numbers(ROWS, *case.event)
    estimator.surrogate(loss, case.oracle, scores, generator=seeded()).mul(3).mean().backward()
    estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(weight.grad, 3 * (estimate * numbers(ROWS, *case.event)).sum() / ROWS, rtol=1e-11, atol=1e-12)


@pairs
def test_gradient_leaves_its_arguments_alone(name: str, case: OracleCase) -> None:
    scores = undecided(name, numbers(ROWS, *case.event)).requires_grad_()
    before = scores.detach().clone()
    with torch.no_grad():
        estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    assert scores.grad is None
    assert torch.equal(scores, before)
    assert not estimate.requires_grad
    assert estimate.abs().sum() > 0 or name in STANDS_STILL


@pairs_of([name for name in PATHWISE if "num_samples" not in name])
def test_a_layer_gives_the_structure_and_the_estimate(name: str, case: OracleCase) -> None:
    """With the sum of the losses, γ is that of every single row, and a layer gives what the surrogate gives."""
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    assert isinstance(estimator, PathwiseEstimator)
    scores, recorded = numbers(ROWS, *case.event).requires_grad_(), Recorded(loss)
    value = estimator.surrogate(recorded, case.oracle, scores, generator=seeded())
    structure = estimator.structure(case.oracle, scores, generator=seeded())
    assert torch.equal(structure.detach(), recorded.calls[0][0])
    (found,) = torch.autograd.grad(loss(structure).sum(), scores)
    torch.testing.assert_close(loss(structure), value, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found, estimator.gradient(loss, case.oracle, scores, generator=seeded()), rtol=1e-12, atol=1e-12)

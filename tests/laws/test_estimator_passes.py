"""What is declared to be linear in γ is so, and one backward goes through the loss; through a loss that learns nothing none goes twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import PathwiseEstimator, make_estimator
from tests.estimator_cases import PATHWISE, a_case_for, numbers, pairs_of, undecided
from tests.helpers import OracleCase, seeded

ROWS = 4
LINEAR = tuple(name for name in PATHWISE if make_estimator(name).linear)  # type: ignore[attr-defined]
OTHERS = tuple(name for name in PATHWISE if name not in LINEAR)


def defect(name: str, case: OracleCase) -> float:
    """By how much the estimate of a combination is off the combination of estimates, at the same random numbers."""
    estimator = make_estimator(name)
    assert isinstance(estimator, PathwiseEstimator)
    scores = undecided(name, numbers(ROWS, *case.event)).requires_grad_()

    def estimate(gamma: Tensor) -> Tensor:
        structure = estimator.structure(case.oracle, scores, generator=seeded())
        return torch.autograd.grad(structure, scores, gamma)[0]

    first, second = numbers(ROWS, *case.event, seed=1), numbers(ROWS, *case.event, seed=2)
    return float((estimate(2 * first - 3 * second) - 2 * estimate(first) + 3 * estimate(second)).abs().max())


@pairs_of(LINEAR)
def test_what_is_declared_to_be_linear_is(name: str, case: OracleCase) -> None:
    assert defect(name, case) < 1e-9


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_is_not(name: str) -> None:
    assert defect(name, a_case_for(name)) > 1e-3


class Decoder:
    """A loss with parameters that counts how often a gradient goes back through it."""

    def __init__(self, case: OracleCase, *, learns: bool = True) -> None:
        self.weight = numbers(*case.event, seed=3).requires_grad_(learns)
        self.event_ndim, self.passes = len(case.event), 0
        self.seen: list[Tensor] = []

    def __call__(self, z: Tensor) -> Tensor:
        hidden = (z * self.weight).sin()
        if hidden.requires_grad:
            hidden.register_hook(self._passed)
        return hidden.flatten(z.ndim - self.event_ndim).sum(-1)

    def _passed(self, gradient: Tensor) -> None:
        self.passes += 1


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("name", PATHWISE)
def test_passes_through_the_loss(name: str, learns: bool) -> None:
    case = a_case_for(name)
    decoder, scores = Decoder(case, learns=learns), undecided(name, numbers(ROWS, *case.event)).requires_grad_()
    make_estimator(name).surrogate(decoder, case.oracle, scores, generator=seeded()).mean().backward()
    assert decoder.passes == (1 if name in LINEAR or not learns else 2)
    assert (decoder.weight.grad is not None) == learns


class _Recomputed(torch.autograd.Function):
    """A decoder whose parameters autograd does not see, as under a checkpoint: its backward gives them their gradient."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, decoder: Decoder) -> Tensor:
        ctx.save_for_backward(z)
        ctx.decoder = decoder
        return decoder(z)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            z = ctx.saved_tensors[0].detach().requires_grad_()
            found, weights = torch.autograd.grad(ctx.decoder(z), (z, ctx.decoder.weight), grads)
        ctx.decoder.seen.append(weights)
        return found, None


@pytest.mark.parametrize("name", ["ste", "imle"])
def test_parameters_that_a_function_holds_back_learn(name: str) -> None:
    case = a_case_for(name)
    plain, hidden, scores = Decoder(case), Decoder(case), numbers(ROWS, *case.event).requires_grad_()
    for loss in (plain, lambda z: _Recomputed.apply(z, hidden)):
        make_estimator(name).surrogate(loss, case.oracle, scores, generator=seeded()).mean().backward()
    torch.testing.assert_close(hidden.seen[-1], plain.weight.grad)


@pytest.mark.parametrize("name", ["ste", "imle", "simple"])
def test_a_loss_whose_gradient_stops_before_the_structure_is_refused(name: str) -> None:
    """Its parameters have a gradient, and the structure has none."""
    case = a_case_for(name)
    decoder, scores = Decoder(case), numbers(ROWS, *case.event).requires_grad_()
    for theta in (scores, scores.detach()):
        with pytest.raises(ValueError, match=f"`{name}` got a loss without a gradient in the structure; expected a differentiable loss"):
            make_estimator(name).surrogate(lambda z: decoder(z.detach()), case.oracle, theta, generator=seeded())


def test_a_loss_may_be_computed_in_another_thread() -> None:
    """There autograd counts anew, so that the loss seems older than the structure."""
    case = a_case_for("ste")
    decoder, scores = Decoder(case), numbers(ROWS, *case.event).requires_grad_()
    for _ in range(50):
        scores.sin()
    with ThreadPoolExecutor(1) as pool:
        make_estimator("ste").surrogate(
            lambda z: pool.submit(decoder, z).result(), case.oracle, scores, generator=seeded()
        ).sum().backward()
    assert scores.grad is not None

"""A surrogate's value is the objective's estimate, and its gradients are right: in the scores `gradient`, in the loss that of the value."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ESTIMATORS, Loss, PathwiseEstimator, make_estimator
from tests.catalogue.deterministic import OBJECTIVES
from tests.catalogue.mappings import point
from tests.covering import sampled
from tests.estimator_cases import (
    EACH_NAME,
    EXACT_FOR_ANOTHER_OBJECTIVE,
    LOSSES,
    PATHWISE,
    STANDS_STILL,
    a_case_for,
    fitting,
    numbers,
    pairs,
    pairs_of,
    undecided,
)
from tests.helpers import OracleCase, enumerate_truth, seeded, structures

ROWS = 4


class Recorded:
    """A loss that keeps what it saw."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.seen = loss, list[Tensor]()

    def __call__(self, z: Tensor) -> Tensor:
        self.seen.append(z.detach())
        return self.loss(z)


OF_THE_FIRST_SAMPLES = (
    *("spigot_steps", "spigot_ce", "spigot_eg", "muprop", "local_expectation", "path_quadrature", "rebar", "relax"),
    *("step_local_expectation", "step_greedy", "step_sampled", "step_conditional_mean", "step_optimal"),
)
"""Their value is the mean loss of what the loss saw first; that of others, of what it saw last."""

OF_NO_CALL = ("exact", "sum_and_sample", "unordered_set", "importance_weighted_set")
"""They weigh losses. Objectives of sparse laws are compared below."""


@pytest.mark.parametrize("entry", ESTIMATORS)
def test_the_value_estimates_the_objective(entry: str) -> None:
    for name in [each for each in EACH_NAME if each.partition("[")[0] == entry and entry not in OBJECTIVES]:
        for case in sampled(fitting(name), 2):
            estimator, loss, recorded = make_estimator(name), LOSSES["offset"](case), Recorded(LOSSES["offset"](case))
            scores = numbers(*case.event).expand(2000, *case.event) if entry in OF_NO_CALL else numbers(ROWS, *case.event)
            value = estimator.surrogate(recorded, case.oracle, scores, generator=seeded())
            assert value.shape == scores.shape[:1]
            if entry not in OF_NO_CALL:
                seen = recorded.seen[0 if entry in OF_THE_FIRST_SAMPLES else -1]
                torch.testing.assert_close(value, loss(seen).reshape(-1, ROWS).mean(0), rtol=1e-11, atol=1e-12)
            elif estimator.unbiased:
                expected = enumerate_truth(case, scores[:1]).probabilities[0] @ loss(structures(case))
                assert abs(float(value.mean() - expected)) < 5 * float(value.std()) / len(value) ** 0.5 + 1e-9
            else:  # a mean with weights
                raised = estimator.surrogate(lambda z, loss=loss: loss(z) + 7, case.oracle, scores, generator=seeded())
                torch.testing.assert_close(raised, value + 7, rtol=1e-11, atol=1e-12)


@pairs
def test_the_gradient_does_not_depend_on_the_reduction(name: str, case: OracleCase) -> None:
    """Nor on what comes before and after: scores come from an encoder, and the surrogate is not the last operation."""
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    scores = undecided(name, numbers(ROWS, *case.event)).requires_grad_()
    with torch.no_grad():
        estimate = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    assert not estimate.requires_grad
    assert estimate.abs().sum() > 0 or name in STANDS_STILL
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
        torch.testing.assert_close(found, weights.reshape(-1, *[1] * len(case.event)) * estimate, rtol=1e-12, atol=1e-12)
    weight = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    theta = weight * scores.detach()
    estimator.surrogate(loss, case.oracle, theta, generator=seeded()).mul(3).mean().backward()
    estimate = estimator.gradient(loss, case.oracle, theta, generator=seeded())
    torch.testing.assert_close(weight.grad, 3 * (estimate * scores.detach()).sum() / ROWS, rtol=1e-11, atol=1e-12)


@pairs_of([name for name in PATHWISE if "num_samples" not in name])
def test_a_layer_gives_the_structure_and_the_estimate(name: str, case: OracleCase) -> None:
    """With the sum of the losses, γ is that of every single row, and a layer gives what the surrogate gives."""
    estimator, loss = make_estimator(name), LOSSES["smooth"](case)
    assert isinstance(estimator, PathwiseEstimator)
    scores, recorded = numbers(ROWS, *case.event).requires_grad_(), Recorded(loss)
    value = estimator.surrogate(recorded, case.oracle, scores, generator=seeded())
    structure = estimator.structure(case.oracle, scores, generator=seeded())
    assert torch.equal(structure.detach(), recorded.seen[0])
    (found,) = torch.autograd.grad(loss(structure).sum(), scores)
    torch.testing.assert_close(loss(structure), value, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(found, estimator.gradient(loss, case.oracle, scores, generator=seeded()), rtol=1e-12, atol=1e-12)


# Objectives of which an estimate is the derivative.


def objective(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    """Written down per estimator, with the oracle's operations or the mappings of the catalogue alone: [*batch]."""
    loss, estimator = LOSSES[kind](case), make_estimator(name)
    if estimator.name in OBJECTIVES:
        return OBJECTIVES[estimator.name](estimator, case, loss, scores.reshape(-1, *case.event)).reshape(scores.shape[: -len(case.event)])
    return loss(torch.stack([point(estimator, row) for row in scores]))


@pairs_of(EXACT_FOR_ANOTHER_OBJECTIVE)
def test_a_deterministic_estimate_is_the_derivative_of_its_objective(name: str, case: OracleCase) -> None:
    for kind, scale in (("linear", 5.0), ("smooth", 1.0)):
        scores = scale * numbers(*case.event, seed=3)
        estimate = make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())
        steps = 1e-5 * torch.eye(scores.numel(), dtype=scores.dtype).reshape(-1, *case.event)
        difference = objective(name, case, kind, scores + steps) - objective(name, case, kind, scores - steps)
        torch.testing.assert_close(estimate, (difference / 2e-5).reshape(case.event), rtol=1e-5, atol=1e-7)
    scores = numbers(4, *case.event)
    value = make_estimator(name).surrogate(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    torch.testing.assert_close(value, objective(name, case, "smooth", scores), rtol=1e-12, atol=1e-12)


# Parameters of the loss, and passes through it.


class Network(nn.Module):
    """A loss with a target per batch row."""

    def __init__(self, case: OracleCase) -> None:
        super().__init__()
        self.first = nn.Parameter(numbers(4, int(torch.ones(case.event).sum())))
        self.second = nn.Parameter(numbers(4, seed=1))
        self.target, self.event_ndim = numbers(3, seed=2), len(case.event)

    def forward(self, z: Tensor) -> Tensor:
        hidden = (z.flatten(z.ndim - self.event_ndim) @ self.first.mT).tanh()
        return (hidden @ self.second - self.target).square()


@pairs
def test_the_parameters_of_the_loss_get_the_gradient_of_the_value(name: str, case: OracleCase) -> None:
    """Row by row, whether or not scores require one; `gradient` gives them nothing."""
    estimator, rates, network = make_estimator(name), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), Network(case)
    weights, along = [network.first, network.second], [numbers(*network.first.shape, seed=4), numbers(4, seed=5)]
    for learning in (True, False):
        scores = numbers(3, *case.event).requires_grad_(learning)

        def total(step: float, scores: Tensor = scores) -> Tensor:
            moved = {key: weight + step * slope for key, weight, slope in zip(("first", "second"), weights, along, strict=True)}
            loss = lambda z: torch.func.functional_call(network, moved, (z,))  # noqa: E731
            return (rates * estimator.surrogate(loss, case.oracle, scores, generator=seeded())).sum()

        found = torch.autograd.grad(total(0.0), weights)
        assert all(slope.any() for slope in found)
        ours = sum((slope * direction).sum() for slope, direction in zip(found, along, strict=True))
        torch.testing.assert_close(ours, ((total(1e-5) - total(-1e-5)) / 2e-5).detach(), rtol=1e-6, atol=1e-7)
    estimator.gradient(network, case.oracle, scores, generator=seeded())
    assert all(weight.grad is None for weight in weights)


LINEAR = tuple(name for name in PATHWISE if make_estimator(name).linear)  # type: ignore[attr-defined]


@pairs_of(PATHWISE)
def test_what_is_declared_to_be_linear_is_and_nothing_else(name: str, case: OracleCase) -> None:
    """The estimate of a combination of γ is the combination of estimates, at the same random numbers."""
    estimator: Any = make_estimator(name)
    case = case if name in LINEAR else a_case_for(name)
    scores = undecided(name, numbers(ROWS, *case.event)).requires_grad_()

    def estimate(gamma: Tensor) -> Tensor:
        return torch.autograd.grad(estimator.structure(case.oracle, scores, generator=seeded()), scores, gamma)[0]

    first, second = numbers(ROWS, *case.event, seed=1), numbers(ROWS, *case.event, seed=2)
    defect = float((estimate(2 * first - 3 * second) - 2 * estimate(first) + 3 * estimate(second)).abs().max())
    assert defect < 1e-9 if name in LINEAR else defect > 1e-3


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


@pytest.mark.parametrize("name", PATHWISE)
def test_passes_through_the_loss(name: str) -> None:
    """One for a linear estimate; through a loss that learns nothing none goes twice."""
    case = a_case_for(name)
    for learns in (True, False):
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
        in_a_thread = lambda z: pool.submit(decoder, z).result()  # noqa: E731
        make_estimator("ste").surrogate(in_a_thread, case.oracle, scores, generator=seeded()).sum().backward()
    assert scores.grad is not None

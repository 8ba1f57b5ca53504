"""A derivative of an estimate, and what draws again in a backward pass, is refused: both would give other numbers without a word."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from structgrad.estimators import StructuredLayer, make_estimator
from structgrad.oracles import Categorical
from tests.estimator_cases import numbers, table_loss

ORACLE = Categorical()


@pytest.mark.parametrize("name", ["exact", "imle", "spigot", "spigot_ce"])
def test_an_estimate_that_is_a_number_has_no_derivative(name: str) -> None:
    scores = numbers(6, 3).requires_grad_()
    value = make_estimator(name).surrogate(table_loss, ORACLE, scores, generator=torch.Generator()).sum()
    (plain,) = torch.autograd.grad(value, scores, retain_graph=True)
    (estimate,) = torch.autograd.grad(value, scores, create_graph=True)
    assert torch.equal(estimate.detach(), plain)
    with pytest.raises(RuntimeError, match=r"^the estimate of a gradient got differentiated, as by a gradient penalty; expected no more"):
        estimate.square().sum().backward()


def test_a_relaxation_has_derivatives() -> None:
    scores = numbers(6, 3).requires_grad_()
    penalty = lambda theta: torch.autograd.grad(  # noqa: E731
        make_estimator("structured_attention").surrogate(table_loss, ORACLE, theta, generator=torch.Generator()).sum(),
        theta,
        create_graph=True,
    )[0].square()
    assert torch.autograd.gradcheck(penalty, scores)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_around_random_numbers_is_refused(reentrant: bool) -> None:
    layer, scores = StructuredLayer(ORACLE, "simple"), numbers(6, 3).requires_grad_()
    structure = checkpoint(lambda theta: layer(theta).square(), scores, use_reentrant=reentrant)
    with pytest.raises(ValueError, match=r"^`StructuredLayer` got a call inside of a backward pass, .* where simple would draw other"):
        structure.sum().backward()


def test_a_checkpoint_around_a_relaxation_is_right() -> None:
    layer, scores = StructuredLayer(ORACLE, "structured_attention"), numbers(6, 3).requires_grad_()
    gradients = [
        torch.autograd.grad(call(lambda theta: layer(theta).square(), scores), scores, torch.ones_like(scores))[0]
        for call in (lambda function, theta: function(theta), lambda function, theta: checkpoint(function, theta, use_reentrant=False))
    ]
    assert torch.equal(*gradients)


def test_a_gradient_is_refused_under_a_transform() -> None:
    estimate = lambda theta: make_estimator("rloo").gradient(table_loss, ORACLE, theta, generator=torch.Generator())  # noqa: E731
    with pytest.raises(ValueError, match=r"^`rloo` got its gradient called under a transform of torch.func; expected plain tensors"):
        torch.func.vmap(estimate, randomness="different")(numbers(6, 3))


def test_values_without_gradients_under_inference_mode() -> None:
    scores, generator = numbers(6, 3), torch.Generator()
    with torch.inference_mode():
        value = make_estimator("structured_attention").surrogate(table_loss, ORACLE, scores, generator=generator)
    assert torch.equal(value, table_loss(ORACLE.marginals(scores)))


@pytest.mark.parametrize(("name", "reason"), [("muprop", "where no loss has a gradient"), ("exact", "and failed there (Inference tensors")])
def test_what_asks_autograd_says_so_under_inference_mode(name: str, reason: str) -> None:
    sentence = f"`{name}` got its surrogate called under torch.inference_mode, {reason}"
    with torch.inference_mode(), pytest.raises(ValueError, match=f"^{re.escape(sentence)}.*; use torch.no_grad$"):
        make_estimator(name).surrogate(table_loss, ORACLE, torch.zeros(6, 3, dtype=torch.float64), generator=torch.Generator())

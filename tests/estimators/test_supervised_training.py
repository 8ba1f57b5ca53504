"""Training that is told true structures, as estimators: gradients, decoders, and what is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import (
    ESTIMATORS,
    SUPERVISED,
    PerturbedFenchelYoung,
    Supervised,
    crf_loss,
    make_estimator,
    margin_perceptron,
    margin_sparsemap_loss,
    smoothed_maximum,
    sparsemap_loss,
    structured_perceptron,
)
from structgrad.oracles import Categorical, LinearChain
from structgrad.suites.audit.subject import subject_of
from structgrad.suites.base import pairing
from structgrad.suites.tasks import TaskLoss
from tests.helpers import seeded

ORACLE = LinearChain()
GOLD = LinearChain.structure(torch.tensor([[0, 1, 1], [2, 0, 1]]), 3, torch.float64)
LOSSES: dict[str, Any] = {
    "crf": crf_loss,
    "perceptron": structured_perceptron,
    "margin_perceptron[cost=0.5]": lambda *told: margin_perceptron(*told, cost=0.5),
    "sparsemap_loss": sparsemap_loss,
    "margin_sparsemap[cost=0.5]": lambda *told: margin_sparsemap_loss(*told, cost=0.5),
    "perturbed_fenchel_young[num_samples=3]": lambda *told: PerturbedFenchelYoung(num_samples=3)(*told, generator=seeded(1)),
    "differentiable_dp_loss": lambda oracle, theta, y: smoothed_maximum(oracle, theta) - oracle.score(y, theta),
    "differentiable_dp_loss[omega=entropy]": crf_loss,
}


@dataclass
class Decoder:
    """A loss with a parameter."""

    weight: Tensor
    gold: Tensor | None = None

    def __call__(self, z: Tensor) -> Tensor:
        return (z * self.weight).sum((-1, -2, -3)).square()


def drawn() -> tuple[Tensor, Decoder]:
    scores = 2 * torch.randn(2, 3, 3, 3, generator=seeded(2), dtype=torch.float64)
    scores[:, 0, 1:] = 0
    return scores.requires_grad_(), Decoder(torch.randn(3, 3, 3, generator=seeded(3), dtype=torch.float64).requires_grad_(), GOLD)


def test_the_registry():
    assert {name.partition("[")[0] for name in LOSSES} == set(SUPERVISED) - {"frozen"}
    assert not set(SUPERVISED) & set(ESTIMATORS)
    for name, kind in SUPERVISED.items():
        assert kind.name == name
        assert make_estimator(name) == kind()
        assert kind.needs_gold == issubclass(kind, Supervised) == (name != "frozen")


@pytest.mark.parametrize("name", LOSSES)
def test_encoder_follows_the_loss_and_decoder_the_true_structure(name: str):
    scores, loss = drawn()
    value = make_estimator(name).surrogate(loss, ORACLE, scores, generator=seeded(1))
    of_scores, of_decoder = torch.autograd.grad(value.sum(), [scores, loss.weight])
    against = LOSSES[name](ORACLE, scores, GOLD)
    torch.testing.assert_close(value, against + loss(GOLD))
    torch.testing.assert_close(of_scores, *torch.autograd.grad(against.sum(), scores))
    torch.testing.assert_close(of_decoder, *torch.autograd.grad(loss(GOLD).sum(), loss.weight))


def test_replicates_share_the_true_structures():
    scores, loss = drawn()
    estimator = make_estimator("crf")
    several = estimator.gradient(loss, ORACLE, scores.expand(4, *scores.shape), generator=seeded(1))
    torch.testing.assert_close(several[3], estimator.gradient(loss, ORACLE, scores, generator=seeded(1)))


def test_frozen_encoders_get_no_gradient_and_their_decoders_do():
    scores, loss = drawn()
    loss.gold = None
    value = make_estimator("frozen").surrogate(loss, ORACLE, scores, generator=seeded(1))
    of_scores, of_decoder = torch.autograd.grad(value.sum(), [scores, loss.weight])
    best = ORACLE.argmax(scores.detach())
    torch.testing.assert_close(value, loss(best))
    assert not of_scores.any()
    torch.testing.assert_close(of_decoder, *torch.autograd.grad(loss(best).sum(), loss.weight))


@pytest.mark.parametrize("name", [name for name in SUPERVISED if name != "frozen"])
def test_without_true_structures(name: str):
    scores, loss = drawn()
    loss.gold = None
    said = f"`{name}` got a loss without true structures; expected one with `gold`, as that of the task parsing has"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        make_estimator(name).surrogate(loss, ORACLE, scores, generator=seeded(1))
    claims = TaskLoss(loss, "squared")
    skipped = pairing(make_estimator(name), ORACLE, claims)
    assert skipped is not None
    assert skipped.reason == f"{name} needs true structures, and the loss squared holds none"
    assert pairing(make_estimator(name), ORACLE, TaskLoss(loss, "squared", gold=GOLD)) is None
    assert pairing(make_estimator("frozen"), ORACLE, claims) is None


def test_an_oracle_that_cannot_serve():
    with pytest.raises(ValueError, match=r"^differentiable_dp_loss needs RelaxedOracle, which the oracle categorical does not offer"):
        make_estimator("differentiable_dp_loss").surrogate(drawn()[1], Categorical(), torch.zeros(2, 3), generator=seeded(1))


def test_what_a_function_may_claim_in_an_audit():
    with pytest.raises(ValueError, match=r"^`audit` got the unknown objective 'supervised'; did you mean sparse or perturbed\?$"):
        subject_of(lambda loss, oracle, scores, generator: scores, objective="supervised")

"""Every estimator trains through `StructuredLayer` and `train_step`: as a loop by hand does, and from a checkpoint as if never stopped."""

import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ESTIMATORS, Estimator, StructuredLayer, train_step
from structgrad.estimators.ppo import ClippedUpdates
from structgrad.oracles import Alignment, IndependentCategoricals, LinearChain, ProjectiveTree, ShiftReduce
from tests.estimator_cases import numbers
from tests.helpers import seeded
from tests.training_cases import Model, estimator_of, first_space

SEED, STEPS, RATE = 3, 3, 0.1


class Run:
    """Training of a model with one estimator."""

    def __init__(self, estimator: Estimator[Any], oracle: Any, event: tuple[int, ...], *, seed: int = SEED) -> None:
        self.model = Model(oracle, event)
        self.layer = StructuredLayer(oracle, estimator, seed=seeded(seed), event_shape=event)
        self.optimiser = torch.optim.Adam([*self.model.parameters(), *self.layer.parameters()], lr=RATE)

    def step(self) -> Tensor:
        return train_step(self.layer, self.optimiser, lambda: 1.0 * self.model.encoder, self.model.loss)

    def trained(self, steps: int = STEPS) -> Tensor:
        """All parameters of the model in a row."""
        for _ in range(steps):
            self.step()
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "layer": self.layer.state_dict(), "optimiser": self.optimiser.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            getattr(self, name).load_state_dict(values)


def by_hand(estimator: Any, model: Model) -> Tensor:
    """The parameters after the same steps, written out."""
    generator = torch.Generator().manual_seed(SEED)
    estimator = estimator.prepared(model.oracle, model.event, generator)
    learnt = [*estimator.module.parameters()] if getattr(estimator, "module", None) is not None else []
    optimiser = torch.optim.Adam([*model.parameters(), *learnt], lr=RATE)

    def descend(objective: Tensor) -> None:
        optimiser.zero_grad()
        objective.mean().backward()
        optimiser.step()

    for _ in range(STEPS):
        if isinstance(estimator, ClippedUpdates):
            rollout = estimator.rollout(model.loss, model.oracle, model.encoder, generator=generator)
            descend(estimator.inner_objective(rollout, model.oracle, model.encoder) + model.loss(rollout.samples).mean(0))
            for _ in range(estimator.inner_steps - 1):
                descend(estimator.inner_objective(rollout, model.oracle, model.encoder))
            continue
        scores = 1.0 * model.encoder
        scores.retain_grad()
        surrogate = estimator.surrogate(model.loss, model.oracle, scores, generator=generator)
        descend(surrogate)
        assert scores.grad is not None
        estimator = estimator.observed(surrogate, scores.grad)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_step_is_the_loop_by_hand_and_goes_on_from_a_checkpoint(name: str) -> None:
    """From a checkpoint bit for bit."""
    estimator = estimator_of(name)
    space = first_space(estimator)
    torch.testing.assert_close(Run(estimator, *space).trained(), by_hand(estimator, Model(*space)), rtol=1e-9, atol=1e-10)
    whole, part, rest = (Run(estimator, *space, seed=seed) for seed in (SEED, SEED, SEED + 1))
    part.trained(2)
    file = io.BytesIO()
    torch.save(part.state(), file)
    file.seek(0)
    rest.load(torch.load(file, weights_only=True))
    assert torch.equal(rest.trained(2), whole.trained(4))
    for option in estimator.state:
        assert getattr(rest.layer.estimator, option) == getattr(whole.layer.estimator, option)


# Items of several lengths.

RAGGED: tuple[tuple[Any, tuple[int, ...], Tensor], ...] = (
    (LinearChain(), (4, 2, 2), torch.tensor([4, 2, 3])),
    (IndependentCategoricals(), (4, 3), torch.tensor([1, 4, 2])),
    (ProjectiveTree(), (4, 4), torch.tensor([3, 2, 1])),
    (Alignment(), (3, 3), torch.tensor([[3, 3], [2, 3], [2, 1]])),
    *((ShiftReduce(normalization), (5, 5, 2), torch.tensor([4, 2, 3])) for normalization in ("local", "global")),
)


@pytest.mark.parametrize(("oracle", "event", "lengths"), RAGGED, ids=lambda value: getattr(value, "name", ""))
def test_lengths_are_training_each_item_alone(oracle: Any, event: tuple[int, ...], lengths: Tensor) -> None:
    """What is drawn differs, and lies inside the item; what is deterministic has the gradient of the item by itself."""
    scores, inside = numbers(3, *event), oracle._inside(event, lengths).expand(3, *event)
    targets = torch.where(inside, 0.3 * numbers(3, *event, seed=1), 0)
    for name in ESTIMATORS:
        estimator = estimator_of(name)
        if estimator.incompatibility(oracle, event) is not None:
            continue
        layer, theta, seen = StructuredLayer(oracle, estimator, event_shape=event), scores.clone().requires_grad_(), list[Tensor]()

        def loss(z: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(z)
            return (z - targets).square().flatten(z.ndim - len(event)).sum(-1)

        layer.surrogate(loss, theta, lengths=lengths).sum().backward()
        assert theta.grad is not None
        assert not theta.grad[~inside].any(), name
        assert not any(z[..., ~inside].any() for z in seen), name
        if not estimator.deterministic:
            continue
        for item in range(3):
            own = tuple(slice(0, int(places.max()) + 1) for places in inside[item].nonzero(as_tuple=True))
            alone, target = scores[item][own].clone().requires_grad_(), targets[item][own]
            value = lambda z, target=target: (z - target).square().flatten(z.ndim - len(event)).sum(-1)  # noqa: E731
            estimator.surrogate(value, oracle, alone, generator=seeded()).backward()
            assert torch.allclose(theta.grad[item][own], alone.grad, rtol=1e-9, atol=1e-10), name


@pytest.mark.parametrize("name", ["simple", "sparsemap", "aimle", "identity"])
def test_lengths_of_a_layer_that_hands_on_structures(name: str) -> None:
    oracle, event, lengths = RAGGED[0]
    layer, scores, inside = (
        StructuredLayer(oracle, name),
        numbers(3, *event).requires_grad_(),
        oracle._inside(event, lengths).expand(3, *event),
    )
    for evaluation in (False, True):
        structure = layer.train(not evaluation)(scores, lengths=lengths)
        assert structure.shape == scores.shape
        assert not structure[~inside].any()
    layer.train()(scores, lengths=lengths).square().sum().backward()
    assert scores.grad is not None
    assert not scores.grad[~inside].any()


@pytest.mark.parametrize("name", ["rloo", "structured_attention", "reinforce_ppo[inner_steps=2]"])
def test_a_mask_trains_as_lengths_and_forbidden_scores_do(name: str) -> None:
    """Inner steps meet the mask again; an entropy bonus sees what it forbids."""
    oracle, event, lengths = RAGGED[0]
    items, allowed = torch.arange(event[0]) < lengths.unsqueeze(-1), numbers(1, *event, seed=2) < 1
    scores, hand = numbers(3, *event), torch.where(allowed, 0.0, -math.inf)
    for masked, plain, by_hand in ((items, lengths, 0), (allowed, None, hand)):
        trained = []
        for given in ({"mask": masked}, {"lengths": plain}):
            theta, layer = scores.clone().requires_grad_(), StructuredLayer(oracle, name, seed=1)
            forbid = by_hand if "lengths" in given else 0
            train_step(
                layer,
                torch.optim.SGD([theta], lr=0.5),
                lambda theta=theta, forbid=forbid: theta + forbid,
                lambda z: (z - 0.2).square().sum((-3, -2, -1)),
                regulariser=lambda theta, plain=plain: -0.1 * oracle.entropy(theta, lengths=plain),
                **given,
            )
            trained += [theta.detach(), layer.eval()(theta.detach() + forbid, **given)]
        assert torch.equal(trained[0], trained[2])
        assert torch.equal(trained[1], trained[3])
        assert not torch.equal(trained[0], scores)

"""A layer holds the state of its estimator, and what cannot be trained says so."""

import contextlib
import copy
import dataclasses
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import (
    ESTIMATORS,
    AdaptiveImplicitMLE,
    LearnedBaseline,
    ProximalPolicy,
    RunningMeanBaseline,
    StochasticSoftmax,
    StructuredLayer,
    train_step,
)
from structgrad.oracles import Categorical, LinearChain, WarmStart
from tests.estimator_cases import numbers, table_loss
from tests.laws.test_estimator_incompatibility import Three

ORACLE = Categorical()


def scores_of(rows: int = 6) -> nn.Parameter:
    return nn.Parameter(numbers(rows, 3))


def mean_of(layer: StructuredLayer) -> float:
    estimator: Any = layer.estimator
    return float(estimator.mean)


def test_what_was_seen_is_observed_at_the_next_call() -> None:
    """After use: the baseline of a step does not know its own losses."""
    layer, scores = StructuredLayer(ORACLE, RunningMeanBaseline(decay=0.5)), scores_of()
    first = layer.surrogate(lambda z: table_loss(z) + 8, scores)
    first.mean().backward()
    assert mean_of(layer) == 0
    layer.surrogate(table_loss, scores)
    assert mean_of(layer) == pytest.approx(0.5 * float(first.mean().detach()))


@pytest.mark.parametrize("quiet", ["eval", "no_grad"])
def test_nothing_is_observed_outside_of_training(quiet: str) -> None:
    layer, scores = StructuredLayer(ORACLE, RunningMeanBaseline()), scores_of()
    layer.train(quiet != "eval")
    for _ in range(3):
        with torch.set_grad_enabled(quiet != "no_grad"):
            layer.surrogate(lambda z: table_loss(z) + 8, scores)
    layer.get_extra_state()
    assert mean_of(layer) == 0


def test_a_call_that_fails_is_not_observed() -> None:
    layer, scores = StructuredLayer(ORACLE, RunningMeanBaseline()), scores_of()
    with pytest.raises(ValueError, match="the loss gave a tensor of shape"):
        layer.surrogate(lambda z: z.sum() + 8, scores)
    layer.get_extra_state()
    assert mean_of(layer) == 0


def test_what_is_done_to_a_surrogate_later_is_not_seen() -> None:
    layer, scores = StructuredLayer(ORACLE, RunningMeanBaseline(decay=0.0)), scores_of()
    value = layer.surrogate(table_loss, scores)
    expected = float(value.detach().mean())
    value.detach().add_(100)
    layer.get_extra_state()
    assert mean_of(layer) == pytest.approx(expected)


@pytest.mark.parametrize("way", ["forward", "surrogate"])
def test_estimates_are_seen_on_their_way_to_the_scores(way: str) -> None:
    """Not what a regulariser adds to them, once per call, and whenever the gradient comes."""
    estimator = AdaptiveImplicitMLE(beta=1.0, nonzeros=0.0, decay=0.0, target=1.5, step_size=0.25)
    layer, scores = StructuredLayer(ORACLE, estimator), scores_of()
    values = [layer.surrogate(table_loss, scores) if way == "surrogate" else table_loss(layer(scores)) for _ in range(2)]
    (values[0].sum() + scores.square().sum()).backward(retain_graph=True)
    values[0].sum().backward()
    layer.get_extra_state()
    state: Any = layer.estimator
    once = abs(state.beta - 1.0)
    assert once == pytest.approx(0.25)
    assert 0 < state.nonzeros <= 2  # a class less and another one more
    values[1].sum().backward()
    layer.get_extra_state()
    assert layer.estimator.beta in (state.beta + 0.25, state.beta - 0.25)  # type: ignore[attr-defined]


def test_a_learnt_baseline_is_part_of_the_module() -> None:
    layer = StructuredLayer(ORACLE, "reinforce_learned", event_shape=(3,))
    assert {name for name, _ in layer.named_parameters()} == {"learnt.module.hidden", "learnt.module.out"}
    module = nn.Sequential(nn.Linear(3, 1, dtype=torch.float64), nn.Flatten(0))
    assert [*StructuredLayer(ORACLE, LearnedBaseline(module)).parameters()] == [*module.parameters()]


def test_evaluation() -> None:
    scores = scores_of()
    for name, evaluation, expected in (
        ("simple", "argmax", ORACLE.argmax(scores)),
        ("rloo", "relaxed", ORACLE.marginals(scores)),
        ("sparsemap", "relaxed", ORACLE.project(scores).mean),
        ("gumbel_softmax", "relaxed", ORACLE.marginals(scores)),
    ):
        layer = StructuredLayer(ORACLE, name, evaluation=evaluation).eval()  # type: ignore[arg-type]
        assert torch.equal(layer(scores), expected)


def test_a_regulariser_is_differentiated_exactly() -> None:
    """Minus the entropy: with losses of 0, descent spreads the law out."""
    layer, scores = StructuredLayer(ORACLE, "rloo"), scores_of()
    optimiser, before = torch.optim.SGD([scores], lr=1.0), ORACLE.entropy(scores).detach()
    (expected,) = torch.autograd.grad(-ORACLE.entropy(scores).mean(), scores)
    start = scores.detach().clone()
    train_step(layer, optimiser, lambda: scores, lambda z: 0 * z.sum(-1), regulariser=lambda theta: -ORACLE.entropy(theta))
    torch.testing.assert_close(start - scores.detach(), expected)
    assert (ORACLE.entropy(scores) > before).all()


def test_a_regulariser_is_part_of_every_inner_step() -> None:
    layer, scores, calls = StructuredLayer(ORACLE, ProximalPolicy(inner_steps=3)), scores_of(), []

    def regulariser(theta: Tensor) -> Tensor:
        calls.append(theta.detach().clone())
        return -ORACLE.entropy(theta)

    train_step(layer, torch.optim.SGD([scores], lr=0.1), lambda: 1 * scores, table_loss, regulariser=regulariser)
    assert len(calls) == 3
    assert not torch.equal(calls[0], calls[1])


def test_a_gradient_is_clipped() -> None:
    layer, scores = StructuredLayer(ORACLE, "structured_attention"), scores_of()
    start = scores.detach().clone()
    train_step(layer, torch.optim.SGD([scores], lr=1.0), lambda: scores, lambda z: 1e3 * table_loss(z), clip=0.25)
    assert float((scores.detach() - start).norm()) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("name", [name for name, estimator in ESTIMATORS.items() if estimator.state])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_batch_of_nan_does_not_enter_a_running_state(name: str, bad: float) -> None:
    """With one warning that says so, and the rows that are finite do."""
    layer, scores = StructuredLayer(ORACLE, name, seed=1, event_shape=(3,)), scores_of()
    values, estimates = torch.tensor([bad, 1.0]), torch.tensor([[bad, 0.0, 0.0], [1.0, 0.0, -1.0]])
    with pytest.warns(UserWarning, match=f"^`{name}` got NaN or inf in 1 of 2 .* of a batch; expected finite losses: these are left"):
        assert layer.estimator.observed(values, estimates) == layer.estimator.observed(values[1:], estimates[1:])
    weight = torch.full((6,), bad, dtype=torch.float64)
    with contextlib.suppress(ValueError):  # `aimle` refuses it at once
        layer.surrogate(lambda z: (table_loss(z) * z.sum(-1)) * weight, scores).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.surrogate(table_loss, scores_of()).sum().backward()
        layer.get_extra_state()
    assert all(math.isfinite(getattr(layer.estimator, option)) for option in layer.estimator.state)


def test_a_temperature_that_falls_goes_on_from_a_checkpoint() -> None:
    def train(layer: StructuredLayer, scores: nn.Parameter, steps: int) -> None:
        for _ in range(steps):
            now: Any = layer.estimator
            layer.estimator = dataclasses.replace(now, temperature=0.8 * now.temperature)
            train_step(layer, torch.optim.SGD([scores], lr=0.1), scores, table_loss)

    def started() -> tuple[StructuredLayer, nn.Parameter]:
        return StructuredLayer(ORACLE, "stochastic_softmax[temperature=2]", seed=1), scores_of()

    (whole, expected), (part, halfway), (rest, _) = started(), started(), started()
    first = rest.state_dict()
    train(whole, expected, 4)
    train(part, halfway, 2)
    rest.load_state_dict(part.state_dict())
    assert copy.deepcopy(part).estimator == rest.estimator == StochasticSoftmax(temperature=0.8 * (0.8 * 2))
    train(rest, halfway, 2)
    assert torch.equal(halfway, expected)
    rest.load_state_dict(first)
    assert rest.estimator == StochasticSoftmax(temperature=2.0)
    other = StructuredLayer(ORACLE, "stochastic_softmax")
    other.load_state_dict(first)  # an option that training does not change is that of the layer
    assert other.estimator == StochasticSoftmax()


# What is refused.


@pytest.mark.parametrize(
    ("name", "oracle", "event"), [("reinforce_learned", "spanning_tree", ()), ("step_learned", "shift_reduce[normalization=local]", (2,))]
)
def test_a_learned_baseline_takes_batches_of_any_length(name: str, oracle: str, event: tuple[int, ...]) -> None:
    layer = StructuredLayer(oracle, name)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1)
    for size in (4, 7, 3):
        scores, lengths = nn.Parameter(torch.randn(2, size, size, *event)), torch.tensor([2, size - 1])
        values = train_step(layer, optimiser, scores, lambda z: z.flatten(-2 - len(event)).sum(-1), lengths=lengths)
        assert values.shape == (2,)
        assert scores.grad is not None


def test_a_baseline_of_features_gets_these() -> None:
    module = nn.Linear(2, 1)
    seen: list[Tensor] = []
    layer = StructuredLayer("subset[k=2]", LearnedBaseline(nn.Sequential(module, nn.Flatten(0))))
    module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    features, optimiser = torch.randn(3, 2, requires_grad=True), torch.optim.SGD(layer.parameters(), lr=0.1)
    before = module.weight.detach().clone()
    train_step(layer, optimiser, nn.Parameter(torch.zeros(3, 4)), lambda z: z[..., 0], features=features)
    assert torch.equal(seen[0], features)
    assert not torch.equal(module.weight, before)
    assert features.grad is None
    layer.surrogate(lambda z: z[..., 0], torch.zeros(3, 4), features=features)


def test_a_step_takes_a_tensor_of_scores() -> None:
    after = []
    for given in (lambda scores: scores, lambda scores: lambda: scores):
        scores, layer = scores_of(), StructuredLayer(ORACLE, "rloo", seed=1)
        train_step(layer, torch.optim.SGD([scores], lr=0.5), given(scores), table_loss)
        after.append(scores.detach())
    assert torch.equal(*after)
    model, layer = nn.Linear(3, 3, dtype=torch.float64), StructuredLayer(ORACLE, "reinforce_ppo")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    train_step(StructuredLayer(ORACLE, "rloo"), optimiser, model(scores_of()), table_loss)
    train_step(layer, torch.optim.SGD([scores], lr=0.5), scores, table_loss)


def test_a_layer_shows_oracle_and_estimator() -> None:
    assert repr(StructuredLayer("subset[k=3]", "rloo[num_samples=4]")) == (
        "StructuredLayer(oracle=Subset(k=3), estimator=LeaveOneOut(num_samples=4))"
    )
    shown = repr(StructuredLayer(ORACLE, "reinforce_learned"))
    assert "oracle=Categorical(), estimator=LearnedBaseline(num_samples=1, regression_weight=1.0)" in shown
    assert "(module): PooledNetwork()" in shown


def test_an_evaluation_that_cannot_be_had_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^`StructuredLayer` got evaluation='relaxed' for ste and the oracle three; expected an oracle with"
    ):
        StructuredLayer(Three(), "ste", evaluation="relaxed")
    assert StructuredLayer(Three(), "ste").eval()(torch.tensor([1.0, -1.0, 0.0])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 4])], ids=["whole", "shorter"])
@pytest.mark.parametrize("name", ["sparsemap", "sparsemap_marginalisation"])
def test_a_warm_start_changes_no_training(name: str, lengths: Tensor | None) -> None:
    first = torch.randn(2, 4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = LinearChain().argmax(-first)
    trained, memories = [], (None, WarmStart())
    for memory in memories:
        table, layer = nn.Parameter(first.clone()), StructuredLayer(LinearChain(), name)
        optimiser = torch.optim.SGD([table], lr=0.01)
        values = [
            train_step(layer, optimiser, lambda table=table: table, lambda z: (z * target).sum((-3, -2, -1)), lengths=lengths, warm=memory)
            for _ in range(10)
        ]
        trained.append(torch.stack(values))
    torch.testing.assert_close(*trained, rtol=0, atol=1e-8)
    assert memories[1] is not None
    assert memories[1].solution is not None


def test_forward_takes_a_warm_start() -> None:
    layer, memory, scores = StructuredLayer(LinearChain(), "sparsemap"), WarmStart(), torch.randn(2, 4, 3, 3)
    torch.testing.assert_close(layer(scores, warm=memory), layer(scores))
    assert memory.solution is not None
    torch.testing.assert_close(layer(scores * 1.01, warm=memory), layer(scores * 1.01))

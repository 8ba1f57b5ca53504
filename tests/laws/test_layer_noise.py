"""Layers draw numbers of their own: no two of them, no copies, no ranks share a stream, and evaluation leaves that of training alone."""

import copy
import io
import pickle
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset

from structgrad.estimators import StructuredLayer, train_step
from structgrad.oracles import Subset
from tests.covering import sampled
from tests.estimator_cases import numbers
from tests.helpers import seeded
from tests.training_cases import estimator_of, first_space

KINDS = ("reinforce", "reinforce_learned", "reinforce_normalised", "reinforce_ppo", "simple", "aimle", "relax", "step_learned")
"""Without a state and with one, of numbers or a module; in one step and in several; a structure or a surrogate."""

names = pytest.mark.parametrize("name", KINDS)


def layer_of(name: str, **options: Any) -> StructuredLayer:
    estimator = estimator_of(name)
    oracle, event = first_space(estimator)
    return StructuredLayer(oracle, estimator, event_shape=event, **options)


def stream(layer: StructuredLayer, draws: int = 2) -> list[Tensor]:
    """Scores after each of some steps of training, which depend on every number that is drawn."""
    oracle, event = first_space(layer.estimator)
    table, values = nn.Parameter(0.1 * numbers(20, *event)), []
    weights = torch.linspace(0.1, 1.5, table[0].numel(), dtype=torch.float64).reshape(event)
    for _ in range(draws):
        train_step(
            layer,
            torch.optim.SGD([table, *layer.parameters()], lr=0.1),
            lambda: table,
            lambda z: (z * weights).square().flatten(z.ndim - oracle.event_ndim).sum(-1),
        )
        values.append(table.detach().clone())
    return values


def same(*streams: list[Tensor]) -> bool:
    """Whether any two of them agree after the first step."""
    return any(torch.equal(a[0], b[0]) for a, b in combinations(streams, 2))


@names
def test_layers_and_copies_share_no_numbers(name: str) -> None:
    """The global seed decides, a pickle continues, and evaluation leaves training alone."""
    torch.manual_seed(0)
    first = layer_of(name)
    shallow, deep, pair = copy.copy(first), copy.deepcopy(first), nn.ModuleList(copy.deepcopy(first) for _ in range(2))
    layers: list[Any] = [first, layer_of(name), shallow, deep, copy.deepcopy(deep), *pair, layer_of(name, seed=0)]
    assert not same(*map(stream, layers))
    torch.manual_seed(3)
    first, deep = (other := layer_of(name)), copy.deepcopy(other)
    torch.manual_seed(3)
    again, pickled = layer_of(name), pickle.loads(pickle.dumps(first))
    expected, of_copy = stream(first)[-1], stream(deep)[-1]
    assert torch.equal(stream(pickled)[-1], expected)
    assert torch.equal(stream(copy.deepcopy(again))[-1], of_copy)
    assert torch.equal(stream(again)[-1], expected)
    layer, other = (layer_of(name, seed=1) for _ in range(2))
    _, event = first_space(layer.estimator)
    for _ in range(2):
        other.eval()
        with torch.no_grad():
            other.surrogate(lambda z: z.flatten(z.ndim - len(event)).sum(-1), numbers(7, *event))
        other.train()
        assert torch.equal(stream(layer)[-1], stream(other)[-1])


@pytest.mark.parametrize("seed", [None, 5])
def test_a_layer_does_not_draw_what_the_data_are_made_of(seed: int | None) -> None:
    torch.manual_seed(5)
    layer = layer_of("reinforce", seed=seed)
    torch.manual_seed(5)
    assert not set(torch.rand(1000).tolist()) & set(torch.rand(1000, generator=layer.generator).tolist())


@names
def test_ranks_share_no_numbers_and_a_checkpoint_of_one_serves_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = sampled((None, 5), 1)[0]
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    streams, states = [], []
    for rank in range(3):
        monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
        torch.manual_seed(0)
        layer = layer_of(name, seed=seed)
        streams.append(stream(layer))
        states.append(layer.state_dict())
    assert not same(*streams)
    goes_on = []
    for rank, given in ((0, 0), (1, 0), (2, 0), (1, 1)):
        monkeypatch.setattr(distributed, "get_rank", lambda rank=rank: rank)
        layer = layer_of(name)
        layer.load_state_dict(states[given])
        if rank == given:
            layers = copy.deepcopy(layer)
            layers.load_state_dict(states[given])
            assert torch.equal(stream(layers)[-1], stream(pickle.loads(pickle.dumps(layer)))[-1])
        goes_on.append(stream(layer))
    assert not same(*goes_on)


def test_batches_of_an_evaluation_have_numbers_of_their_own() -> None:
    layer, scores = layer_of("reinforce", seed=1).eval(), torch.zeros(40, 4)
    first, second = (layer.surrogate(lambda z: z @ torch.arange(4.0), scores) for _ in range(2))
    assert not torch.equal(first, second)


def test_copies_of_layers_with_one_generator_share_no_numbers() -> None:
    shared = seeded()
    pair = nn.ModuleList(layer_of("reinforce", seed=shared) for _ in range(2))
    layers: list[Any] = [*copy.deepcopy(pair), *map(copy.copy, pair), pair[0]]
    assert not same(*map(stream, layers))


class Selections(Dataset[Tensor]):
    """Samples of a layer, as items of a data set."""

    def __init__(self) -> None:
        self.layer = StructuredLayer(Subset(3), "simple", seed=1)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Tensor:
        return self.layer(torch.zeros(60)).detach()


def test_workers_of_a_loader_share_no_numbers_in_any_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    data, found = Selections(), []
    for seed in (10, 11, 20, 21):  # two workers, two epochs; the layer as each gets it
        monkeypatch.setattr("structgrad.estimators.layer.get_worker_info", lambda seed=seed: SimpleNamespace(seed=seed))
        found.append([pickle.loads(pickle.dumps(data))[0]])
    assert not same(*found)


def test_integers_of_other_libraries_are_seeds() -> None:
    assert same(*(stream(layer_of("reinforce", seed=seed)) for seed in (3, np.int64(3))))


@pytest.mark.parametrize("name", ["simple", "reinforce_running_mean", "aimle"])
def test_a_layer_of_scores_without_numbers_or_sparse_ones(name: str) -> None:
    for scores, told in ((torch.zeros(4, device="meta"), "on the device meta"), (torch.zeros(4).to_sparse(), "of layout torch.sparse_coo")):
        with pytest.raises(ValueError, match=f"^`StructuredLayer` got scores {told}"):
            layer_of(name).surrogate(torch.sum, scores.requires_grad_())


# Checkpoints.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_state_that_was_cast_with_the_weights(dtype: torch.dtype) -> None:
    layer, other = (layer_of("reinforce_running_mean", seed=seed) for seed in (1, 2))
    stream(layer)
    other.load_state_dict({name: value.to(dtype) for name, value in layer.state_dict().items()})
    assert torch.equal(stream(layer)[-1], stream(other)[-1])


@pytest.mark.parametrize(
    "damaged", [lambda state: state[:50], lambda state: state[:0], lambda state: state / 2, lambda state: state.to("meta")]
)
def test_a_damaged_state_is_refused(damaged: Any) -> None:
    layer = layer_of("reinforce")
    with pytest.raises(ValueError, match=r"^`StructuredLayer` got an extra state of .* not readable; expected the bytes"):
        layer.set_extra_state(damaged(layer.get_extra_state()))


def read(state: Any) -> dict[str, Any]:
    """The dict of a layer's state, which was the state itself in earlier versions."""
    found: dict[str, Any] = torch.load(io.BytesIO(state.numpy().tobytes()), weights_only=True)
    return found


@pytest.mark.parametrize("name", ["reinforce_running_mean", "reinforce_learned", "aimle", "simple"])
def test_safetensors_and_checkpoints_of_earlier_versions(name: str, tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    layer, saved, old = (layer_of(name, seed=seed) for seed in (1, 2, 3))
    stream(layer)
    safetensors.save_model(layer, str(tmp_path / "layer.safetensors"))
    safetensors.load_model(saved, str(tmp_path / "layer.safetensors"))
    state = layer.state_dict()
    old.load_state_dict({**state, "_extra_state": {key: value for key, value in read(state["_extra_state"]).items() if key != "rank"}})
    expected = stream(layer)[-1]
    assert torch.equal(stream(saved)[-1], expected)
    assert torch.equal(stream(old)[-1], expected)


def test_a_checkpoint_of_a_device_that_is_not_here_loads_with_one_warning() -> None:
    state = read(layer_of("reinforce").get_extra_state()) | {"device": "cuda:99", "generator": torch.arange(16, dtype=torch.uint8)}
    values = []
    for _ in range(2):
        layer = layer_of("reinforce")
        with pytest.warns(
            UserWarning, match="random numbers on cuda:99, which is not available here; the layer goes on with others"
        ) as told:
            layer.set_extra_state(state)
        assert len(told) == 1
        values.append(stream(layer)[-1])
    assert torch.equal(*values)

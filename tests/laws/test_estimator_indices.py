"""A loss of indices gives the estimates of the same loss of dense structures, or is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, PathwiseEstimator, StructuredLayer, make_estimator, of_indices
from structgrad.estimators.surrogates import OfStructures
from structgrad.oracles import Alignment, Categorical, IndependentCategoricals, LinearChain, Subset, TiedChain
from tests.helpers import seeded

COMPACT = (
    *("reinforce[num_samples=3]", "rloo[num_samples=3]", "vargrad[num_samples=3]", "reinforce_constant", "reinforce_running_mean"),
    *("reinforce_greedy", "reinforce_sampled", "reinforce_optimal[pilots=4]", "reinforce_learned", "reinforce_normalised"),
)
"""Estimators that make no dense structure for such a loss."""

ORACLES = {
    "linear_chain": (LinearChain(), (3, 2, 2)),
    "tied_chain": (TiedChain(), (5, 2)),
    "subset": (Subset(2), (5,)),
    "categorical": (Categorical(), (4,)),
    "categories": (IndependentCategoricals(), (3, 2)),
}


def of_structures(oracle: Any, event: tuple[int, ...]) -> Any:
    """A loss of dense structures by other means than indices."""
    weights = torch.randn(event, generator=seeded(7), dtype=torch.float64)
    if isinstance(oracle, TiedChain):  # of its places alone, which are what indices say
        weights[3:] = 0

    def loss(z: Tensor) -> Tensor:
        total = (z * weights).flatten(z.ndim - len(event)).sum(-1)
        return total + total.square()

    return loss


def of_compact(oracle: Any, event: tuple[int, ...]) -> Any:
    """The same loss of indices, by looking weights up."""
    weights = torch.randn(event, generator=seeded(7), dtype=torch.float64)

    def loss(indices: Tensor) -> Tensor:
        if isinstance(oracle, LinearChain):
            before = torch.nn.functional.pad(indices[..., :-1], (1, 0))
            taken = weights[torch.arange(event[0]), before, indices]
        elif isinstance(oracle, TiedChain | IndependentCategoricals):
            taken = weights[torch.arange(3), indices]
        else:
            taken = weights[indices]
        total = taken.sum(-1) if oracle.index_ndim else taken
        return total + total.square()

    return of_indices(loss)


def scores_for(event: tuple[int, ...]) -> Tensor:
    return torch.randn(2, *event, generator=seeded(1), dtype=torch.float64)


@pytest.mark.parametrize("name", ["linear_chain", "subset", "categories"])
def test_every_estimator_gives_the_same_or_refuses(name: str) -> None:
    oracle, event = ORACLES[name]
    scores, served = scores_for(event), 0
    for called in ESTIMATORS:
        estimator = make_estimator(called)
        if estimator.incompatibility(oracle, event) is not None:
            continue
        if isinstance(estimator, PathwiseEstimator) or estimator.inside_hull or estimator.evaluations().loss_gradients > 0:
            with pytest.raises(
                ValueError, match=rf"^`{called}` got a loss that takes indices; expected one of structures, because it needs"
            ):
                estimator.gradient(of_compact(oracle, event), oracle, scores, generator=seeded())
            continue
        found = []
        for loss in (of_structures(oracle, event), of_compact(oracle, event)):
            leaf = scores.clone().requires_grad_()
            value = estimator.surrogate(loss, oracle, leaf, generator=seeded())
            value.sum().backward()
            found.append((value.detach(), leaf.grad))
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10, msg=lambda text, called=called: f"{called}: {text}")
        served += 1
    assert served >= len(COMPACT)


@pytest.mark.parametrize("called", COMPACT)
def test_the_family_makes_no_dense_structures(called: str, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, event = ORACLES["linear_chain"]
    monkeypatch.setattr(OfStructures, "__call__", lambda self, structures: pytest.fail("got dense structures"))
    estimate = make_estimator(called).gradient(of_compact(oracle, event), oracle, scores_for(event), generator=seeded())
    assert estimate.shape == (2, *event)


def test_counts_of_errors_have_the_dtype_of_dense_ones() -> None:
    oracle, event = ORACLES["categories"]
    gold, scores = torch.tensor([0, 1, 1]), scores_for(event)
    wrong = of_indices(lambda indices: (indices != gold).sum(-1))
    found = make_estimator("reinforce").surrogate(wrong, oracle, scores, generator=seeded())
    assert found.dtype == torch.float64
    assert make_estimator("exact").surrogate(wrong, oracle, scores.float(), generator=seeded()).dtype == torch.float32


@pytest.mark.parametrize("called", ["rloo[num_samples=3]", "reinforce_greedy", "reinforce_ppo[num_samples=3]"])
@pytest.mark.parametrize("name", ["linear_chain", "tied_chain", "alignment"])
def test_layers_with_lengths(called: str, name: str) -> None:
    """What a loss sees of an item ends with it: -1 beyond, also where padding makes the event larger."""
    oracle, event = (Alignment(), (3, 4)) if name == "alignment" else ORACLES[name]
    lengths = torch.tensor([[3, 2], [1, 4]]) if name == "alignment" else torch.tensor([2, 1])
    weights = torch.randn(event, generator=seeded(7), dtype=torch.float64).flatten()

    def loss(indices: Tensor) -> Tensor:
        parts = oracle._parts(indices, event)
        return torch.where(parts < 0, 0, weights[parts.clamp(min=0)]).sum(-1)

    found = []
    for each in (of_indices(loss), lambda z: (z.flatten(z.ndim - len(event)) * weights).sum(-1)):
        leaf = scores_for(event).requires_grad_()
        value = StructuredLayer(oracle, called, seed=3).surrogate(each, leaf, lengths=lengths)
        value.sum().backward()
        found.append((value.detach(), leaf.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_a_layer_that_hands_on_structures_refuses() -> None:
    oracle, event = ORACLES["linear_chain"]
    with pytest.raises(ValueError, match=r"^`ste` got a loss that takes indices; expected one of structures"):
        StructuredLayer(oracle, "ste").surrogate(of_compact(oracle, event), scores_for(event))


def test_an_attribute_says_the_same() -> None:
    oracle, event = ORACLES["linear_chain"]

    class Wrong:
        takes_indices = True

        def __call__(self, indices: Tensor) -> Tensor:
            return (indices != 0).sum(-1)

    estimates = [
        make_estimator("rloo").gradient(loss, oracle, scores_for(event), generator=seeded())
        for loss in (Wrong(), of_indices(lambda tags: (tags != 0).sum(-1)))
    ]
    assert torch.equal(*estimates)

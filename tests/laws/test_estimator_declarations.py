"""What an estimator declares about itself."""

from __future__ import annotations

import dataclasses
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Estimator, Identity, Loss, Reinforce, make_estimator
from structgrad.estimators.supervised_training import Perceptron
from structgrad.oracles import Categorical, EnumerableOracle, Oracle, SamplingOracle
from tests.estimator_cases import LOSSES, STATEFUL, a_case_for, estimators, numbers, pairs
from tests.helpers import OracleCase, seeded, structures

OBJECTIVES = ("expected", "perturbed", "argmax", "relaxed", "sparse")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_registry_holds_it_under_its_name(name: str) -> None:
    assert ESTIMATORS[name].name == name
    assert name == name.lower()
    assert make_estimator(name) == ESTIMATORS[name]()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_it_declares_what_it_is(name: str) -> None:
    kind = ESTIMATORS[name]
    assert kind.objective in OBJECTIVES
    assert all(issubclass(need, Oracle) for need in kind.needs)
    assert kind.version >= 1
    assert kind.references or name == "exact"
    assert (kind.objective == "relaxed") <= kind.inside_hull
    assert (kind.objective == "argmax") <= kind.deterministic
    assert (kind.objective == "perturbed") <= (make_estimator(name).evaluations().perturbations > 0)


def test_what_extends_a_core_estimator_is_none_unless_it_says_so() -> None:
    kind = ESTIMATORS["rloo"]
    assert kind.tier == "core"
    assert type("Own", (kind,), {}).tier == "extended"
    assert type("Own", (kind,), {"tier": "core"}).tier == "core"
    assert {kind.tier for kind in ESTIMATORS.values()} == {"core", "extended"}


@estimators
def test_it_is_a_frozen_dataclass_of_options(name: str) -> None:
    estimator = make_estimator(name)
    assert dataclasses.is_dataclass(estimator)
    assert type(estimator).__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(estimator):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(estimator, field.name, getattr(estimator, field.name))
        assert not isinstance(getattr(estimator, field.name), torch.Tensor)


@estimators
def test_it_is_a_value(name: str) -> None:
    """Equal to its equals, hashable, and whole after a trip to another process."""
    estimator = make_estimator(name)
    assert estimator == make_estimator(name)
    assert hash(estimator) == hash(make_estimator(name))
    assert pickle.loads(pickle.dumps(estimator)) == estimator
    assert estimator != make_estimator("exact[chunk=3]")


@estimators
def test_use_leaves_no_trace(name: str) -> None:
    estimator, case = make_estimator(name), a_case_for(name)
    before = dict(vars(estimator))
    estimator.gradient(LOSSES["smooth"](case), case.oracle, numbers(3, *case.event), generator=seeded())
    assert vars(estimator) == before


@pairs
def test_only_what_says_so_leaves_the_structures(name: str, case: OracleCase) -> None:
    estimator = make_estimator(name)
    inside = []

    def loss(z: torch.Tensor) -> torch.Tensor:
        distances = (z.detach().reshape(-1, 1, *case.event) - structures(case)).flatten(2).abs().sum(-1)
        inside.append(bool((distances.amin(-1) > 0).any()))
        return LOSSES["smooth"](case)(z)

    estimator.gradient(loss, case.oracle, 0.3 * numbers(10, *case.event), generator=seeded())
    assert any(inside) == estimator.inside_hull


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("spigot[step_size=0.3]", 0.3),
        ("spigot_steps[step_size=0.3, inner_steps=2]", 0.6),
        ("spigot_ce[step_size=0.5, inner_steps=3]", 1.5),
        ("spigot_eg[step_size=0.5, inner_steps=3]", 1.5),
        ("aimle[beta=2.5, divide_by_lambda=False]", 2.5),
        ("aimle[beta=2.5]", 1.0),
        ("imle[lambda=2.5]", 2.5),
        ("imle[lambda=2.5, divide_by_lambda=True]", 1.0),
        *((name, 1.0) for name in ESTIMATORS),
    ],
)
def test_the_scale(name: str, scale: float) -> None:
    assert make_estimator(name).scale == scale


def test_an_estimator_without_state_is_warm() -> None:
    for name in ESTIMATORS:
        estimator, case = make_estimator(name), a_case_for(name)
        warmed = estimator.warmed_up(LOSSES["smooth"](case), case.oracle, numbers(*case.event), generator=seeded())
        assert (warmed == estimator) == (name not in STATEFUL)


def gradient_of(estimator: Estimator[Any]) -> Tensor:
    weights, scores = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.3, -0.2, 0.5])
    return estimator.gradient(lambda z: (z * weights).sum(-1), Categorical(), scores, generator=seeded())


def test_a_structure_of_a_mixin_is_the_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling:
        def structure(self, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
            doubled: Tensor = 2 * super().structure(oracle, scores, generator=generator)  # type: ignore[misc]
            return doubled

    class Doubled(Doubling, Identity):
        name = "doubled"

    torch.testing.assert_close(gradient_of(Doubled()), 2 * gradient_of(Identity()))
    monkeypatch.setattr(Identity, "structure", lambda self, oracle, scores, *, generator: 3 * scores)
    torch.testing.assert_close(gradient_of(Identity()), 3 * torch.tensor([1.0, -2.0, 0.5]))


def test_one_that_does_not_say_what_it_costs_is_refused() -> None:
    class Free(Estimator[Any]):
        name = "free"

        def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
            return loss(scores)

    with pytest.raises(ValueError, match=r"^`free` does not say what an estimate costs; expected a class attribute"):
        Free().evaluations()


def test_what_a_class_declares_stays() -> None:
    class Both(Reinforce, name="both"):
        needs = (SamplingOracle, EnumerableOracle)
        references = ("kept",)

    class Named(Reinforce, references=("kept",)):
        name = "named"

    class Renamed(Both, name="renamed"):
        pass

    assert Renamed.needs == Both.needs
    assert Both.references == Named.references == ("kept",)
    assert Renamed.references == ()


def test_a_loss_gets_the_options_that_it_has() -> None:
    @dataclass(frozen=True)
    class Noted(Perceptron, name="noted"):
        note: str = ""

    scores, gold = torch.tensor([0.3, -0.2, 0.5]), torch.tensor([0.0, 1.0, 0.0])
    assert torch.equal(
        Noted("mine")._against(Categorical(), scores, gold, seeded()), Perceptron()._against(Categorical(), scores, gold, seeded())
    )

"""What an estimator declares about itself."""

import copy
import dataclasses
import pickle
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Estimator, Identity, Loss, Noise, Reinforce, make_estimator
from structgrad.estimators.supervised_training import Perceptron
from structgrad.oracles import Categorical, EnumerableOracle, Oracle, PolicyOracle, SamplingOracle
from structgrad.suites.audit.cases import FLAT, AuditEffort, Case, Structure, off_structures
from structgrad.suites.audit.result import subject_of
from tests.estimator_cases import EACH_NAME, LOSSES, NAMES, STATEFUL, a_case_for, fitting, numbers
from tests.helpers import seeded, structures

OBJECTIVES = ("expected", "perturbed", "argmax", "relaxed", "sparse")


def test_what_extends_a_core_estimator_is_none_unless_it_says_so() -> None:
    kind = ESTIMATORS["rloo"]
    assert kind.tier == "core"
    assert type("Own", (kind,), {}).tier == "extended"
    assert type("Own", (kind,), {"tier": "core"}).tier == "core"
    assert {kind.tier for kind in ESTIMATORS.values()} == {"core", "extended"}


SCALES = {
    "spigot[step_size=0.3]": 0.3,
    "spigot_steps[step_size=0.3, inner_steps=2]": 0.6,
    "spigot_ce[step_size=0.5, inner_steps=3]": 1.5,
    "spigot_eg[step_size=0.5, inner_steps=3]": 1.5,
    "aimle[beta=2.5, divide_by_lambda=False]": 2.5,
    "aimle[beta=2.5]": 1.0,
    "imle[lambda=2.5]": 2.5,
    "imle[lambda=2.5, divide_by_lambda=True]": 1.0,
    **dict.fromkeys(ESTIMATORS, 1.0),
}


def test_the_scale() -> None:
    assert {name: make_estimator(name).scale for name in SCALES} == SCALES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_value_that_declares_what_it_is(name: str) -> None:
    """A frozen dataclass of options: equal to its equals, hashable, whole after a trip to another process or a copy."""
    estimator, kind = make_estimator(name), type(make_estimator(name))
    assert ESTIMATORS[kind.name] is kind
    assert kind.name == name.lower().partition("[")[0]
    assert name not in ESTIMATORS or estimator == kind()
    assert kind.objective in OBJECTIVES
    assert all(issubclass(need, Oracle) for need in kind.needs)
    assert kind.version >= 1
    assert kind.references or name.startswith("exact")
    assert (kind.objective == "relaxed") <= kind.inside_hull
    assert (kind.objective == "argmax") <= kind.deterministic
    assert (kind.objective == "perturbed") <= (estimator.evaluations().perturbations > 0)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for field in dataclasses.fields(estimator):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(estimator, field.name, getattr(estimator, field.name))
        assert not isinstance(getattr(estimator, field.name), torch.Tensor)
    assert hash(estimator) == hash(make_estimator(name))
    for other in (make_estimator(name), pickle.loads(pickle.dumps(estimator)), copy.deepcopy(estimator)):
        assert other == estimator
    assert estimator != make_estimator("exact[chunk=3]")
    if name in ESTIMATORS:  # without state it is warm
        case = a_case_for(name)
        warmed = estimator.warmed_up(LOSSES["smooth"](case), case.oracle, numbers(*case.event), generator=seeded())
        assert (warmed == estimator) == (name not in STATEFUL)


@pytest.mark.parametrize("entry", ESTIMATORS)
def test_the_declared_costs_and_points_of_the_loss(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes over structures and noise, which the law of the audit does not count; and `inside_hull` where it is declared in vain."""
    draws = Counter[str]()
    for method in ("perturb", "draw"):
        monkeypatch.setattr(Noise, method, counting(draws, getattr(Noise, method)))
    for name in [each for each in EACH_NAME if each.partition("[")[0] == entry]:
        case, estimator = fitting(name)[-1], make_estimator(name)
        structure, listed = Structure(str(case), case.oracle, case.event), structures(case)
        size, decisions, parts = len(listed), int(listed[0].sum()), case.event[-1]
        draws.clear()
        audited = Case(subject_of(estimator), structure, AuditEffort())
        observed = audited.observed(audited.scores(FLAT, 16))
        declared, counts = estimator.evaluations(), observed.counts
        alternatives = declared.alternatives * decisions * (1 if PolicyOracle in estimator.needs else parts - 1)
        expected = {
            "losses": declared.losses
            + declared.enumerations * size
            + declared.completions * decisions
            + declared.alternatives
            + alternatives
            + declared.swap_losses * (parts * (parts - 1) // 2 + 1),
            "enumerated": size * (declared.enumerations + declared.listings * estimator.lists(case.oracle, case.event)),
            "argmax": declared.argmax + (decisions * declared.completions if entry == "step_greedy" else 0),
            "samples": declared.samples + (decisions * declared.completions if entry == "step_sampled" else 0),
            "projections": declared.projections,
            "kbest": min(declared.kbest, size),
            "perturbations": declared.perturbations,
        }
        if entry == "step_local_expectation":
            expected["samples"] += alternatives
        found = {key: counts[key] for key in expected} | {"perturbations": draws["rows"] / observed.rows}
        if declared.support_losses:
            assert 0 < found.pop("losses") <= size
            expected.pop("losses")
        assert found == expected, name
        assert any(off_structures(point, structure) for point in observed.points) == estimator.inside_hull, name


def counting(draws: Counter[str], original: Any) -> Any:
    """A method of noise that counts the rows which it draws; calls within a call are a part of it."""

    def call(self: Any, oracle: Any, scores: Tensor, **named: Any) -> Tensor:
        draws["depth"] += 1
        result: Tensor = original(self, oracle, scores, **named)
        draws["depth"] -= 1
        if not draws["depth"]:
            draws["rows"] += scores.shape[: scores.ndim - oracle.event_ndim].numel()
        return result

    return call


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

"""An estimator says which capability an oracle lacks, and what it declares is all that it needs."""

from __future__ import annotations

import abc
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, Estimator, PathwiseEstimator, make_estimator
from structgrad.oracles import (
    ORACLES,
    Categorical,
    EnumerableOracle,
    FactorisedOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    PolicyOracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
    SubsetOracle,
)
from tests.estimator_cases import ALL_CASES, CASES, LOSSES, fitting, numbers
from tests.helpers import OracleCase, seeded

MISSING = {
    "exact": "exact needs MarginalOracle and EnumerableOracle, which the oracle part_of_categorical does not offer",
    "rloo": "rloo needs SamplingOracle, which the oracle part_of_categorical does not offer",
    "spigot": "spigot needs ProjectionOracle, which the oracle part_of_categorical does not offer",
    "structured_attention": "structured_attention needs MarginalOracle, which the oracle part_of_categorical does not offer",
}
"""What an oracle lacks that knows its best structure alone."""

METHODS: dict[type[Oracle], tuple[str, ...]] = {
    Oracle: ("count", "_check_event", "_argmax"),
    MarginalOracle: ("_log_partition",),
    SamplingOracle: ("_log_partition", "_sample", "_noise_size"),
    ProjectionOracle: ("_project",),
    EnumerableOracle: ("_unrank",),
    KBestOracle: ("_kbest",),
    FactorisedOracle: ("_log_partition", "_sample", "_noise_size"),
}


def with_capabilities(*capabilities: type[Oracle]) -> Any:
    """The categorical oracle, cut down to some capabilities."""
    methods = {method for capability in (Oracle, *capabilities) for method in METHODS[capability]}
    body: dict[str, Any] = {method: getattr(Categorical, method) for method in methods}
    body |= {"name": "part_of_categorical", "event_ndim": 1, "event_shape": Categorical.event_shape}
    kind: Any = abc.ABCMeta("PartOfCategorical", capabilities or (Oracle,), body)
    return kind()


ON_CATEGORICAL = [
    name
    for name in ESTIMATORS
    if make_estimator(name).incompatibility(Categorical(), (5,)) is None and set(ESTIMATORS[name].needs) <= set(METHODS)
]
NEEDS_ARGMAX_ALONE = [name for name, kind in ESTIMATORS.items() if set(kind.needs) <= {Oracle}]


@pytest.mark.parametrize("name", MISSING)
def test_the_sentence_names_what_is_missing(name: str) -> None:
    assert make_estimator(name).incompatibility(with_capabilities()) == MISSING[name]


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if name not in NEEDS_ARGMAX_ALONE])
def test_whatever_is_called_gives_the_reason(name: str) -> None:
    """Before anything is computed, and not from deep inside."""
    estimator, oracle, scores = make_estimator(name), with_capabilities(), numbers(4, 5)
    reason = estimator.incompatibility(oracle)
    assert reason is not None
    message = re.escape(f"{reason}; choose another pair")
    with pytest.raises(ValueError, match=message):
        estimator.gradient(LOSSES["smooth"](CASES[0]), oracle, scores, generator=seeded())
    with pytest.raises(ValueError, match=message):
        estimator.surrogate(LOSSES["smooth"](CASES[0]), oracle, scores, generator=seeded())
    if isinstance(estimator, PathwiseEstimator):
        with pytest.raises(ValueError, match=message):
            estimator.structure(oracle=oracle, scores=scores, generator=seeded())


@pytest.mark.parametrize("name", ON_CATEGORICAL)
def test_what_is_needed_is_enough(name: str) -> None:
    estimator, case = make_estimator(name), CASES[0]
    needs = tuple(need for need in estimator.needs if need is not Oracle)
    oracle = with_capabilities(*needs)
    assert estimator.incompatibility(oracle) is None
    found = estimator.gradient(LOSSES["smooth"](case), oracle, numbers(4, *case.event), generator=seeded())
    expected = estimator.gradient(LOSSES["smooth"](case), case.oracle, numbers(4, *case.event), generator=seeded())
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [name for name in ON_CATEGORICAL if name not in NEEDS_ARGMAX_ALONE])
def test_what_is_needed_is_not_too_much(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of the declared operations the estimate would fail; what the structures are besides is no operation."""
    estimator, case = make_estimator(name), CASES[0]
    for dropped in set(estimator.needs) - {FactorisedOracle, SubsetOracle}:
        kept = tuple(need for need in estimator.needs if need is not dropped)
        oracle = with_capabilities(*(kept or ((MarginalOracle,) if dropped is SamplingOracle else ())))
        assert estimator.incompatibility(oracle) == f"{name} needs {dropped.__name__}, which the oracle part_of_categorical does not offer"
        with monkeypatch.context() as patch:
            patch.setattr(Estimator, "incompatibility", lambda *_: None)
            with pytest.raises(AttributeError):
                estimator.gradient(LOSSES["smooth"](case), oracle, numbers(4, *case.event), generator=seeded())


FITTING = [(name, case) for name in ESTIMATORS for case in fitting(name, ALL_CASES)]


@pytest.mark.parametrize("pair", FITTING, ids=[f"{name}-{case}" for name, case in FITTING])
def test_every_possible_pair_gives_an_estimate(pair: tuple[str, OracleCase]) -> None:
    """One by one, in every run: other laws take each estimator to some structure."""
    name, case = pair
    loss = LOSSES["smooth"](case)
    estimate = make_estimator(name).gradient(loss, case.oracle, numbers(2, *case.event), generator=seeded())
    assert estimate.isfinite().all()


def test_what_needs_no_special_structures_serves_every_oracle() -> None:
    special = {FactorisedOracle, SubsetOracle, PolicyOracle, RelaxedOracle}
    for name, kind in ESTIMATORS.items():
        if not special & set(kind.needs):
            assert [str(case) for case in ALL_CASES if make_estimator(name).incompatibility(case.oracle, case.event)] == [], name
    assert {type(row.oracle) for row in ALL_CASES} == set(ORACLES.values())


@dataclass(frozen=True)
class Three(Oracle):
    """A third party's oracle: one of three, by argmax alone."""

    name: ClassVar[str] = "three"
    event_ndim: ClassVar[int] = 1

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return (3,)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return 3

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        assert event_shape == (3,)

    def _argmax(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(rows.argmax(-1), 3)


@pytest.mark.parametrize("name", NEEDS_ARGMAX_ALONE)
def test_a_third_party_oracle_with_argmax_alone(name: str) -> None:
    scores = numbers(5, 3)
    estimate = make_estimator(name).gradient(lambda z: (z * numbers(3, seed=1)).sum(-1), Three(), scores, generator=seeded())
    assert estimate.shape == scores.shape
    assert estimate.isfinite().all()


class ThreeThatCannotBeHashed(Three):
    """As a dataclass is where it is not frozen."""

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", NEEDS_ARGMAX_ALONE)
def test_an_oracle_need_not_be_hashable(name: str) -> None:
    estimator, scores, loss = make_estimator(name), numbers(5, 3), lambda z: (z * numbers(3, seed=1)).sum(-1)
    found = estimator.gradient(loss, ThreeThatCannotBeHashed(), scores, generator=seeded())
    assert torch.equal(found, estimator.gradient(loss, Three(), scores, generator=seeded()))

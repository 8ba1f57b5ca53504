"""An estimator says which capability an oracle lacks, and what it declares is all that it needs."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import (
    ORACLES,
    Categorical,
    EnumerableOracle,
    MarginalOracle,
    Oracle,
    ProjectionOracle,
    SamplingOracle,
)
from tests.estimator_cases import ALL_CASES, CASES, LOSSES, estimators, numbers
from tests.helpers import OracleCase, seeded

MISSING = {
    "exact": "MarginalOracle and EnumerableOracle",
    "reinforce": "SamplingOracle",
    "reinforce_constant": "SamplingOracle",
    "reinforce_running_mean": "SamplingOracle",
    "reinforce_greedy": "SamplingOracle",
    "rloo": "SamplingOracle",
    "ste": None,
    "ste_marginals": "MarginalOracle",
    "ste_sample": "SamplingOracle",
    "simple": "SamplingOracle",
    "st_gumbel": "MarginalOracle",
    "perturb_and_map": None,
    "perturb_and_parse": "MarginalOracle",
    "spigot": "ProjectionOracle",
    "imle": None,
    "structured_attention": "MarginalOracle",
    "sparsemap": "ProjectionOracle",
    "sparsemap_marginalisation": "ProjectionOracle",
}
"""What an oracle lacks that knows its best structure alone."""

METHODS: dict[type[Oracle], tuple[str, ...]] = {
    Oracle: ("count", "_check_event", "_argmax"),
    MarginalOracle: ("_log_partition",),
    SamplingOracle: ("_log_partition", "_sample", "_noise_size"),
    ProjectionOracle: ("_project",),
    EnumerableOracle: ("_unrank",),
}


def with_capabilities(*capabilities: type[Oracle]) -> Any:
    """The categorical oracle, cut down to some capabilities."""
    methods = {method for capability in (Oracle, *capabilities) for method in METHODS[capability]}
    body: dict[str, Any] = {method: getattr(Categorical, method) for method in methods}
    body |= {"name": "part_of_categorical", "event_ndim": 1, "event_shape": Categorical.event_shape}
    kind: Any = abc.ABCMeta("PartOfCategorical", capabilities or (Oracle,), body)
    return kind()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_sentence_names_what_is_missing(name: str) -> None:
    reason = make_estimator(name).incompatibility(with_capabilities())
    missing = MISSING[name]
    assert reason == (None if missing is None else f"{name} needs {missing}, which the oracle part_of_categorical does not offer")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_needed_is_enough(name: str) -> None:
    estimator, case = make_estimator(name), CASES[0]
    needs = tuple(need for need in estimator.needs if need is not Oracle)
    oracle = with_capabilities(*needs)
    assert estimator.incompatibility(oracle) is None
    found = estimator.gradient(LOSSES["smooth"](case), oracle, numbers(4, *case.event), generator=seeded())
    expected = estimator.gradient(LOSSES["smooth"](case), case.oracle, numbers(4, *case.event), generator=seeded())
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", [name for name, missing in MISSING.items() if missing])
def test_what_is_needed_is_not_too_much(name: str) -> None:
    """Without any one of the declared capabilities the estimate fails."""
    estimator, case = make_estimator(name), CASES[0]
    for dropped in estimator.needs:
        kept = tuple(need for need in estimator.needs if need is not dropped)
        oracle = with_capabilities(*(kept or ((MarginalOracle,) if dropped is SamplingOracle else ())))
        assert estimator.incompatibility(oracle) == f"{name} needs {dropped.__name__}, which the oracle part_of_categorical does not offer"
        with pytest.raises(AttributeError):
            estimator.gradient(LOSSES["smooth"](case), oracle, numbers(4, *case.event), generator=seeded())


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
@estimators
def test_every_oracle_of_this_package_serves_every_estimator(name: str, case: OracleCase) -> None:
    assert make_estimator(name).incompatibility(case.oracle) is None
    loss = LOSSES["smooth"](case)
    estimate = make_estimator(name).gradient(loss, case.oracle, numbers(2, *case.event), generator=seeded())
    assert estimate.isfinite().all()
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


@pytest.mark.parametrize("name", [name for name, missing in MISSING.items() if missing is None])
def test_a_third_party_oracle_with_argmax_alone(name: str) -> None:
    scores = numbers(5, 3)
    estimate = make_estimator(name).gradient(lambda z: (z * numbers(3, seed=1)).sum(-1), Three(), scores, generator=seeded())
    assert estimate.shape == scores.shape
    assert estimate.isfinite().all()

"""An estimator says which capability an oracle lacks, and what it declares is all that it needs."""

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
from tests.helpers import seeded

MISSING = {
    "exact": "exact needs MarginalOracle and EnumerableOracle, which the oracle part_of_categorical does not offer",
    "rloo": "rloo needs SamplingOracle, which the oracle part_of_categorical does not offer",
    "spigot": "spigot needs ProjectionOracle, which the oracle part_of_categorical does not offer",
    "structured_attention": "structured_attention needs MarginalOracle, which the oracle part_of_categorical does not offer",
}
"""What an oracle lacks that knows its best structure alone."""

METHODS: dict[type[Oracle], tuple[str, ...]] = {
    Oracle: ("count",),
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
    body |= {"name": "part_of_categorical", "axes": ("length",)}
    body["_argmax"] = lambda self, rows: torch.nn.functional.one_hot(rows.argmax(-1), rows.shape[-1])
    kind: Any = abc.ABCMeta("PartOfCategorical", capabilities or (Oracle,), body)
    return kind()


ON_CATEGORICAL = [
    name
    for name in ESTIMATORS
    if make_estimator(name).incompatibility(Categorical(), (5,)) is None and set(ESTIMATORS[name].needs) <= set(METHODS)
]
NEEDS_ARGMAX_ALONE = [name for name, kind in ESTIMATORS.items() if set(kind.needs) <= {Oracle}]


def test_the_sentence_names_what_is_missing() -> None:
    assert {name: make_estimator(name).incompatibility(with_capabilities()) for name in MISSING} == MISSING


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_declared_to_be_needed_is_what_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is called gives the reason, before anything is computed; and without any declared operation the estimate would fail."""
    estimator, case, scores = make_estimator(name), CASES[0], numbers(4, 5)
    loss, reason = LOSSES["smooth"](case), estimator.incompatibility(with_capabilities())
    assert (reason is None) == (name in NEEDS_ARGMAX_ALONE)
    if reason is not None:
        calls = [estimator.gradient, estimator.surrogate, *([estimator.structure] if isinstance(estimator, PathwiseEstimator) else [])]
        for call in calls:
            given = {"oracle": with_capabilities(), "scores": scores, "generator": seeded()}
            with pytest.raises(ValueError, match=re.escape(f"{reason}; choose another pair")):
                call(**given, **({} if call.__name__ == "structure" else {"loss": loss}))
    if name not in ON_CATEGORICAL:
        return
    enough = with_capabilities(*(need for need in estimator.needs if need is not Oracle))
    assert estimator.incompatibility(enough) is None
    found, expected = (estimator.gradient(loss, oracle, scores, generator=seeded()) for oracle in (enough, case.oracle))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    # What the structures are besides is no operation.
    for dropped in set(estimator.needs) - {Oracle, FactorisedOracle, SubsetOracle}:
        kept = tuple(need for need in estimator.needs if need is not dropped)
        oracle = with_capabilities(*(kept or ((MarginalOracle,) if dropped is SamplingOracle else ())))
        assert estimator.incompatibility(oracle) == f"{name} needs {dropped.__name__}, which the oracle part_of_categorical does not offer"
        with monkeypatch.context() as patch:
            patch.setattr(Estimator, "incompatibility", lambda *_: None)
            with pytest.raises(AttributeError):
                estimator.gradient(loss, oracle, scores, generator=seeded())


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_possible_pair_gives_an_estimate(name: str) -> None:
    """In every run: other laws take each estimator to some structure."""
    for case in fitting(name, ALL_CASES):
        scores = numbers(2, *case.event)
        assert make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, scores, generator=seeded()).isfinite().all(), str(case)


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
    axes: ClassVar[tuple[str, ...]] = ("length",)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return 3

    def _argmax(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(rows.argmax(-1), 3)


class ThreeThatCannotBeHashed(Three):
    """As a dataclass is where it is not frozen."""

    __hash__ = None  # type: ignore[assignment]


def test_a_third_party_oracle_with_argmax_alone() -> None:
    """It need not be hashable."""
    loss, scores = (lambda z: (z * numbers(3, seed=1)).sum(-1)), numbers(5, 3)
    for name in NEEDS_ARGMAX_ALONE:
        estimate = make_estimator(name).gradient(loss, Three(), scores, generator=seeded())
        assert estimate.shape == scores.shape
        assert estimate.isfinite().all()
        assert torch.equal(make_estimator(name).gradient(loss, ThreeThatCannotBeHashed(), scores, generator=seeded()), estimate), name

"""A call like the last one is not checked again."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from structgrad.estimators import Estimator, Evaluations, make_estimator
from structgrad.oracles import Categorical, EnumerableOracle, Subset

SCORES = torch.zeros(2, 4)


def loss(z: torch.Tensor) -> torch.Tensor:
    return z[..., 0]


def call(estimator: Estimator, oracle: object, scores: torch.Tensor = SCORES, **more: object) -> torch.Tensor:
    return estimator.surrogate(loss, oracle, scores, **{"generator": torch.Generator()} | more)


def test_what_was_checked_is_not_kept_alive() -> None:
    estimator, oracle = make_estimator("rloo"), Categorical()
    call(estimator, oracle)
    kept = weakref.ref(estimator), weakref.ref(oracle)
    del estimator, oracle
    gc.collect()
    assert [one() for one in kept] == [None, None]


def test_a_repeated_call_with_other_arguments_is_checked() -> None:
    estimator, oracle = make_estimator("rloo"), Subset(2)
    for _ in range(2):
        call(estimator, oracle)
    with pytest.raises(ValueError, match="got None as generator"):
        call(estimator, oracle, generator=None)
    with pytest.raises((TypeError, ValueError), match="generator"):
        estimator.surrogate(loss, oracle, SCORES)
    with pytest.raises(ValueError, match="got n=1 parts"):
        call(estimator, oracle, SCORES[:, :1])


def test_an_estimator_that_changes_is_checked_again() -> None:
    class Changing(Estimator[Categorical], name="changing"):
        objective = "expected"
        num_samples = 1

        def evaluations(self) -> Evaluations:
            return Evaluations()

        def surrogate(self, loss, oracle, scores, *, generator):
            return torch.zeros(len(scores)) if self.num_samples == 1 else torch.zeros(self.num_samples)

    estimator, oracle = Changing(), Categorical()
    call(estimator, oracle)
    estimator.num_samples = 10**13
    with pytest.raises(ValueError, match="choose a smaller num_samples"):
        call(estimator, oracle)


def test_an_option_of_the_name_limit_may_mean_something_else() -> None:
    @dataclass(frozen=True)
    class Clipped(Estimator[EnumerableOracle], name="clipped"):
        objective: ClassVar = "expected"
        limit: float = 0.5

        def evaluations(self) -> Evaluations:
            return Evaluations()

        def surrogate(self, loss, oracle, scores, *, generator):
            return scores.sum(-1).clamp(max=self.limit)

    assert call(Clipped(), Categorical()).tolist() == [0, 0]

"""Under `torch.func` the structures of pathwise estimators, the mappings of attention and supervised losses are what they are without."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch.autograd.functional import hessian, jacobian

from structgrad.estimators import ESTIMATORS, csoftmax, csparsemax, entmax, make_estimator
from structgrad.estimators.supervised import SUPERVISED_LOSSES
from structgrad.oracles import SeedBlocks
from tests.estimator_cases import PATHWISE, a_case_for, numbers, oracles, pairs_of
from tests.estimators.test_attention import FUNCTIONS as MAPPINGS
from tests.helpers import OracleCase, seeded
from tests.oracle_operations import assert_same


def assert_transformed(make: Callable[[torch.Generator], Callable[[Tensor], Tensor]], scores: Tensor, what: str) -> None:
    """Mapped rows [b, *event], their gradients and a Jacobian are those of a batch, for a function of scores that may draw numbers."""
    weights, first = numbers(*scores.shape[1:], seed=5), 1 - scores.ndim

    def value(compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda rows: (compute(rows) * weights).flatten(first).sum(-1)

    leaf = scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(value(make(seeded()))(leaf).sum(), leaf)
    assert_same(func.vmap(make(seeded()), randomness="different")(scores), make(seeded())(scores), what)
    assert_same(func.vmap(func.grad(value(make(seeded()))), randomness="different")(scores), expected, what)
    total = value(make(seeded()))
    assert_same(func.grad(lambda rows: total(rows).sum())(scores), expected, what)
    exact = jacobian(lambda row: make(seeded())(row), scores[0])
    assert_same(func.jacrev(make(seeded()))(scores[0]), exact, what)


@pairs_of(PATHWISE)
def test_structures_of_mapped_rows_are_those_of_a_batch(name: str, case: OracleCase) -> None:
    estimator: Any = make_estimator(name)
    scores = numbers(3, *case.event)
    assert_transformed(lambda generator: lambda rows: estimator.structure(case.oracle, rows, generator=generator), scores, name)
    seeds = [SeedBlocks((3, 1, 4), 1) for _ in range(2)]
    mapped = func.vmap(lambda row: estimator.structure(case.oracle, row, generator=seeds[0]), randomness="different")
    assert_same(mapped(scores), estimator.structure(case.oracle, scores, generator=seeds[1]), name)


def test_a_surrogate_is_not_transformed() -> None:
    for name in ESTIMATORS:
        estimator, case = make_estimator(name), a_case_for(name)
        surrogate = lambda row, estimator=estimator, case=case: estimator.surrogate(torch.sum, case.oracle, row, generator=seeded())  # noqa: E731
        for transform in (func.vmap, func.grad):
            with pytest.raises(ValueError, match=r"got its surrogate called under a transform of torch\.func; expected plain tensors"):
                transform(surrogate)(numbers(*case.event))


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_mappings_of_mapped_rows_are_those_of_a_batch(mapping: str) -> None:
    compute, scores, weights = MAPPINGS[mapping], numbers(3, 6), numbers(6, seed=3)
    assert_transformed(lambda generator: compute, scores, mapping)
    assert_same(func.jacfwd(compute)(scores[0]), jacobian(compute, scores[0]), mapping)

    def value(row: Tensor) -> Tensor:
        return (compute(row) * weights).sin().sum()

    assert_same(func.hessian(value)(scores[0]), hessian(value, scores[0]), mapping, 1e-9)


def test_bounds_and_exponents_are_mapped_or_not() -> None:
    scores, bounds, alpha = numbers(4, 6), numbers(4, 6, seed=1).abs() + 0.3, torch.tensor([1.2, 1.5, 2.0, 3.0]).double()
    for mapping in (csoftmax, csparsemax):
        assert_same(func.vmap(mapping)(scores, bounds), mapping(scores, bounds), mapping.__name__)
        assert_same(func.vmap(mapping, in_dims=(0, None))(scores, bounds[0]), mapping(scores, bounds[0]), mapping.__name__)
        repeated = mapping(scores[:1].expand_as(scores), bounds)
        assert_same(func.vmap(mapping, in_dims=(None, 0))(scores[0], bounds), repeated, mapping.__name__)
    assert_same(func.vmap(entmax)(scores, alpha), entmax(scores, alpha), "entmax")
    assert_same(func.vmap(entmax, in_dims=(None, 0))(scores, alpha), torch.stack([entmax(scores, each) for each in alpha]), "entmax")
    expected = jacobian(lambda each: entmax(scores, each), alpha)
    assert_same(func.jacrev(lambda each: entmax(scores, each))(alpha), expected, "entmax")


@oracles
def test_supervised_losses_of_mapped_rows_are_those_of_a_batch(case: OracleCase) -> None:
    scores, targets = numbers(3, *case.event), case.oracle.argmax(numbers(3, *case.event, seed=4))
    for name, loss in SUPERVISED_LOSSES.items():
        random, leaf = name == "perturbed_fenchel_young_loss", scores.clone().requires_grad_()

        def of_rows() -> Callable[[Tensor, Tensor], Tensor]:
            return partial(loss, case.oracle, **({"generator": seeded()} if random else {}))  # noqa: B023

        losses = of_rows()(leaf, targets)
        (expected,) = torch.autograd.grad(losses.sum(), leaf)
        assert_same(func.vmap(of_rows(), randomness="different")(scores, targets), losses, name)
        assert_same(func.vmap(func.grad(of_rows()), randomness="different")(scores, targets), expected, name)

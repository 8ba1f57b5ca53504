"""Every operation takes any batch: none, an empty one, several dimensions; with and without lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import GENERIC_CASES, OracleCase, make_scores
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, assert_same, operations_of

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
lengths = pytest.mark.parametrize("lengths", ["none", "one", "each"])


def lengths_of(case: OracleCase, batch: tuple[int, ...], kind: str) -> dict[str, Tensor]:
    """No lengths, those of the event for all items together, or lengths of their own."""
    limits = case.oracle.length_limits(case.event)
    whole = torch.tensor(limits if len(limits) > 1 else limits[0])
    if kind == "none":
        return {}
    if kind == "one":
        return {"lengths": whole}
    each = whole - torch.arange(torch.Size(batch).numel()).reshape(-1, *[1] * whole.ndim) % 2
    return {"lengths": each.clamp(min=1).reshape((*batch, *whole.shape))}


def computed(case: OracleCase, operation: str, scores: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    """A result and its gradient, 0 where it has none."""
    leaf = scores.clone().requires_grad_()
    result = OPERATIONS[operation](case.oracle, leaf, **named)
    if operation not in DIFFERENTIABLE:
        return result.detach(), torch.zeros_like(scores)
    (gradient,) = torch.autograd.grad(result.nan_to_num(neginf=0).sin().sum(), leaf, materialize_grads=True)
    return result.detach(), gradient


@lengths
@cases
def test_several_batch_dimensions_are_one(case: OracleCase, lengths: str) -> None:
    scores = make_scores(case, 1.0, rows=6)
    for operation in operations_of(case.oracle):
        expected = computed(case, operation, scores, **lengths_of(case, (6,), lengths))
        found = computed(case, operation, scores.reshape(2, 3, *case.event), **lengths_of(case, (2, 3), lengths))
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs.unflatten(0, (2, 3)), operation)


@lengths
@cases
def test_no_batch_is_a_batch_of_one(case: OracleCase, lengths: str) -> None:
    scores = make_scores(case, 1.0, rows=1)
    for operation in operations_of(case.oracle):
        expected = computed(case, operation, scores, **lengths_of(case, (1,), lengths))
        found = computed(case, operation, scores[0], **lengths_of(case, (), lengths))
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs[0], operation)


@pytest.mark.parametrize("batch", [(0,), (2, 0, 3)], ids=str)
@lengths
@cases
def test_an_empty_batch_gives_empty_results(case: OracleCase, lengths: str, batch: tuple[int, ...]) -> None:
    for operation in operations_of(case.oracle):
        full, _ = computed(case, operation, make_scores(case, 1.0, rows=1))
        found, gradient = computed(case, operation, torch.zeros(*batch, *case.event), **lengths_of(case, batch, lengths))
        assert found.shape == (*batch, *full.shape[1:]), operation
        assert gradient.shape == (*batch, *case.event), operation


@lengths
@cases
def test_the_parts_of_a_projection_have_the_shape_of_the_batch(case: OracleCase, lengths: str) -> None:
    for batch in ((), (0,), (3,), (2, 0), (2, 3)):
        scores = torch.zeros(*batch, *case.event)
        solution = case.oracle.project(scores, **lengths_of(case, batch, lengths))
        assert solution.atoms.shape == (*solution.weights.shape, *case.event)
        assert solution.weights.shape[:-1] == solution.gap.shape == solution.support.shape == batch

"""Ignored entries are never read, and are 0 in every result and gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers import ORACLE_CASES, OracleCase, make_scores, read_parts, seeded

CASES = [case for case in ORACLE_CASES if not bool(read_parts(case).all())]
OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "entropy": lambda oracle, scores: oracle.entropy(scores),
    "log_prob": lambda oracle, scores: oracle.log_prob(oracle.argmax(scores), scores),
    "sample": lambda oracle, scores: oracle.sample(scores, 20, generator=seeded()),
    "project_mean": lambda oracle, scores: oracle.project(scores).mean,
    "project_weights": lambda oracle, scores: oracle.project(scores).weights,
}


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_the_read_mask_is_the_union_of_all_structures(case: OracleCase, device: torch.device) -> None:
    mask = case.oracle.read_mask(case.event, device)
    assert mask.device.type == device.type
    assert torch.equal(mask.cpu(), read_parts(case))


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ignored_entries_are_never_read(case: OracleCase, operation: str, junk: float) -> None:
    scores = make_scores(case, "masked", rows=6)
    ignored = ~read_parts(case)
    compute = OPERATIONS[operation]
    assert torch.equal(compute(case.oracle, scores.masked_fill(ignored, junk)), compute(case.oracle, scores.masked_fill(ignored, 0)))


@pytest.mark.parametrize("operation", ["argmax", "marginals", "sample", "project_mean"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ignored_entries_are_zero_in_results(case: OracleCase, operation: str) -> None:
    ignored = ~read_parts(case)
    result = OPERATIONS[operation](case.oracle, make_scores(case, 1.0).masked_fill(ignored, math.nan))
    assert bool((result[..., ignored] == 0).all())
    solution = case.oracle.project(make_scores(case, 0.05))
    assert bool((solution.atoms[..., ignored] == 0).all())


@pytest.mark.parametrize("operation", ["log_partition", "marginals", "entropy", "log_prob", "project_mean", "project_weights"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ignored_entries_are_zero_in_gradients(case: OracleCase, operation: str) -> None:
    ignored = ~read_parts(case)
    scores = make_scores(case, 1.0, rows=4).masked_fill(ignored, math.nan).requires_grad_()
    result = OPERATIONS[operation](case.oracle, scores)
    (first,) = torch.autograd.grad(result.square().sum(), scores, create_graph=True)
    assert first.isfinite().all()
    assert bool((first[:, ignored] == 0).all())
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.square().sum(), scores)
        assert second.isfinite().all()
        assert bool((second[:, ignored] == 0).all())

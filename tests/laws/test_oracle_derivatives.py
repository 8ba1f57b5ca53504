"""Derivatives of every differentiable operation agree with finite differences and with the enumerated covariance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, launched_rows, make_scores, structures

OPERATIONS = ("log_partition", "marginals", "entropy")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_first_and_second_derivatives(case: OracleCase, operation: str) -> None:
    scores = make_scores(case, 1.0, rows=2).requires_grad_()
    compute = getattr(case.oracle, operation)
    assert gradcheck(compute, (scores,), fast_mode=True)
    assert gradgradcheck(compute, (scores,), fast_mode=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_derivatives_next_to_forbidden_parts(case: OracleCase, operation: str) -> None:
    forbidden = make_scores(case, "masked", rows=5) == -math.inf
    compute = getattr(case.oracle, operation)

    def finite(scores: Tensor) -> Tensor:
        result: Tensor = compute(scores.masked_fill(forbidden, -math.inf))
        return result[case.oracle.feasible(scores.masked_fill(forbidden, -math.inf))]

    scores = make_scores(case, 1.0, rows=5).requires_grad_()
    assert gradcheck(finite, (scores,), fast_mode=True)
    assert gradgradcheck(finite, (scores,), fast_mode=True)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_log_prob_is_twice_differentiable(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=2).requires_grad_()
    every = structures(case)[:3].unsqueeze(1)
    assert gradcheck(lambda theta: case.oracle.log_prob(every, theta), (scores,), fast_mode=True)
    assert gradgradcheck(lambda theta: case.oracle.log_prob(every, theta), (scores,), fast_mode=True)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_third_derivatives(case: OracleCase) -> None:
    scores = make_scores(case, 1.0, rows=1).requires_grad_()

    def product(theta: Tensor) -> Tensor:
        (result,) = torch.autograd.grad(case.oracle.marginals(theta).square().sum(), theta, create_graph=True)
        return result

    assert gradgradcheck(product, (scores,), fast_mode=True)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_a_plain_backward_keeps_no_graph(case: OracleCase) -> None:
    scores = make_scores(case, 1.0).requires_grad_()
    (gradient,) = torch.autograd.grad(case.oracle.marginals(scores).square().sum(), scores)
    assert not gradient.requires_grad


@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if case.potentials is None], ids=str)
def test_a_log_partition_and_its_gradient_take_one_kernel(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = make_scores(case, 1.0, rows=4).requires_grad_()
    sizes = launched_rows(monkeypatch)
    case.oracle.log_partition(scores).sum().backward()
    assert len(sizes) == (case.oracle.kernel is not None)

"""Every floating dtype is accepted and preserved; half precision is computed in float32."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.helpers import GENERIC_CASES, ORACLE_CASES, OracleCase, make_scores, seeded, structures
from tests.oracle_operations import OPERATIONS, operations_of

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    """Along a direction that does not depend on the value: of a log-partition of 30 half precision keeps no digit behind the point."""
    direction = torch.linspace(-1, 1, value.numel()).sin().reshape(value.shape).to(value.dtype)
    (found,) = torch.autograd.grad(value, leaf, direction, retain_graph=True)
    return found


def results(case: OracleCase, scores: Tensor) -> dict[str, Tensor]:
    """One result per operation; differentiable ones first as values, then as gradients."""
    oracle, leaf = case.oracle, scores.detach().clone().requires_grad_()
    solution = oracle.project(leaf)
    values = {
        "log_partition": oracle.log_partition(leaf),
        "marginals": oracle.marginals(leaf),
        "entropy": oracle.entropy(leaf),
        "log_prob": oracle.log_prob(oracle.argmax(leaf), leaf),
        "mean": solution.mean,
        "weights": solution.weights,
    }
    feasible = oracle.feasible(leaf)
    gradients = {f"{name} gradient": gradient(value[feasible], leaf) for name, value in values.items()}
    plain = {
        "argmax": oracle.argmax(leaf),
        "sample": oracle.sample(leaf, 5, generator=seeded()),
        "gap": solution.gap,
        "atoms": solution.atoms,
    }
    return {name: value.detach() for name, value in (values | gradients | plain).items()}


@pytest.mark.parametrize("regime", [1.0, 5.0, "masked"], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_results_keep_the_dtype_of_the_scores(case: OracleCase, dtype: torch.dtype, regime: float | str) -> None:
    for name, value in results(case, make_scores(case, regime).to(dtype)).items():
        assert value.dtype == dtype, name
        assert not value.isnan().any(), name


@pytest.mark.parametrize("regime", [1.0, 5.0, "masked"], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_half_precision_is_computed_in_float32(case: OracleCase, dtype: torch.dtype, regime: float | str) -> None:
    scores = make_scores(case, regime).to(dtype)
    half, single = results(case, scores), results(case, scores.float())
    for name, value in half.items():
        if name.endswith("gradient"):
            torch.testing.assert_close(value.float(), single[name], rtol=0.05, atol=0.03 * float(structures(case).max()), msg=name)
        else:
            assert torch.equal(value, single[name].to(dtype)), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_every_operation_is_computed_in_float32(case: OracleCase, dtype: torch.dtype) -> None:
    """Near 20, where half precision has few numbers."""
    scores = (20 + 0.3 * make_scores(case, 1.0)).to(dtype)
    whole = [name for name in operations_of(case.oracle) if not name.startswith(("samples", "project_", "kbest", "step"))]
    calls = {name: partial(OPERATIONS[name], case.oracle) for name in whole}
    calls["argmax_of"] = case.oracle.argmax_of
    if hasattr(case.oracle, "relaxed_sample"):
        calls["a low temperature"] = lambda theta: case.oracle.relaxed_sample(theta, 1e-3, generator=seeded())
    for name, call in calls.items():
        found = call(scores)
        assert torch.equal(found, call(scores.float()).to(found.dtype)), name


@pytest.mark.parametrize("regime", [1.0, 5.0, 50.0, "masked"], ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_float32_is_close_to_float64(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime).float()
    single, double = results(case, scores), results(case, scores.double())
    names = ["log_partition", "marginals", "entropy", "log_prob", "mean", "weights", "marginals gradient", "mean gradient"]
    size = scores[scores > -math.inf].abs().max().item()
    for name in names:
        torch.testing.assert_close(single[name].double(), double[name], rtol=1e-5, atol=4e-6 * max(size, 1), msg=name)


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_a_view_that_negates_is_read_as_what_it_is(case: OracleCase) -> None:
    """As `.conj().imag` gives it."""
    scores = make_scores(case, 1.0).requires_grad_()
    view = torch.complex(torch.zeros_like(scores), -scores).conj().imag
    assert view.is_neg()
    assert torch.equal(case.oracle.argmax(view), case.oracle.argmax(scores))
    found, expected = (torch.autograd.grad(case.oracle.log_partition(theta).sum(), scores)[0] for theta in (view, scores))
    assert torch.equal(found, expected)

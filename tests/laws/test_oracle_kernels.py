"""What compiled kernels compute is what their torch references compute, and they are what runs on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import kernels
from tests.helpers import ORACLE_CASES, OracleCase, make_scores, seeded

COMPILED = [case for case in ORACLE_CASES if case.oracle.kernel is not None]
REGIMES = (0.05, 1.0, 10.0, 50.0, 1000.0, "ties", "masked", "masked_ties")

cases = pytest.mark.parametrize("case", COMPILED, ids=str)
PULLED_BACK = [case for case in COMPILED if case.oracle.kernel != "softmax"]
"""Of categories torch has the derivatives of marginals."""
regimes = pytest.mark.parametrize("regime", REGIMES, ids=str)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def both(compute: Callable[[Tensor], tuple[Tensor, ...]], scores: Tensor, *expected: str) -> Iterator[tuple[Tensor, Tensor]]:
    """What kernels and references make of the same scores; fails where one of the expected kernels did not run, or any ran for the
    references.

    The references compute in float64 whatever the dtype of the scores: in float32 it is they that would be inexact at large scores.
    """
    with kernels.recorded() as functions:
        compiled = compute(scores)
    assert set(expected) <= {function.__name__ for function in functions}, "the compiled path was not taken"
    with kernels.recorded() as functions, kernels.disabled():
        references = compute(scores.double())
    assert not functions, "the reference runs compiled code"
    return zip(compiled, references, strict=True)


def assert_equal(compiled: Tensor, reference: Tensor, size: float) -> None:
    """To 1e-10 in float64 and 1e-5 in float32, of numbers of this size."""
    tolerance = 1e-10 if compiled.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(compiled.double(), reference, rtol=tolerance, atol=tolerance * max(size, 1.0))


def greatest(scores: Tensor) -> float:
    """The largest sum of scores that a structure may have, roughly."""
    return float(scores[scores > -math.inf].abs().max()) * scores[0].numel()


@cases
@regimes
@dtypes
def test_argmax(case: OracleCase, regime: float | str, dtype: torch.dtype) -> None:
    scores = make_scores(case, regime).to(dtype)
    feasible = case.oracle.feasible(scores)
    ((compiled, reference),) = both(lambda rows: (case.oracle.argmax(rows),), scores, "argmax")
    assert compiled.dtype == dtype
    natural = case.oracle.natural_parameters(scores.double())
    totals = [torch.where(z[feasible] != 0, natural[feasible], 0).flatten(1).sum(-1) for z in (compiled, reference)]
    torch.testing.assert_close(*totals, rtol=1e-12, atol=(1e-12 if dtype == torch.float64 else 1e-6) * greatest(scores))


@cases
@regimes
@dtypes
def test_log_partition_and_marginals(case: OracleCase, regime: float | str, dtype: torch.dtype) -> None:
    scores = make_scores(case, regime).to(dtype)
    # That of a policy is 0 without any sum.
    summed = [] if case.potentials else ["log_partition"]
    ((compiled, reference),) = both(lambda rows: (case.oracle.log_partition(rows),), scores, *summed)
    assert compiled.dtype == dtype
    assert torch.equal(compiled > -math.inf, reference > -math.inf)
    feasible = reference > -math.inf
    assert_equal(compiled[feasible], reference[feasible], size=1.0)
    ((marginals, references), (entropies, twin_entropies)) = both(
        lambda rows: (case.oracle.marginals(rows), case.oracle.entropy(rows)), scores, "marginals"
    )
    assert_equal(marginals, references, size=1.0)
    # The entropy is a difference of the log-partition and the expected score.
    assert_equal(entropies, twin_entropies, size=greatest(scores))


@pytest.mark.parametrize("case", PULLED_BACK, ids=str)
@regimes
@dtypes
def test_derivatives_of_the_marginals(case: OracleCase, regime: float | str, dtype: torch.dtype) -> None:
    scores = make_scores(case, regime).to(dtype)
    direction = torch.randn(scores.shape, dtype=torch.float64)

    def product(rows: Tensor) -> tuple[Tensor, ...]:
        leaf = rows.clone().requires_grad_()
        return torch.autograd.grad(case.oracle.marginals(leaf), leaf, direction.to(rows))

    ((compiled, reference),) = both(product, scores, "covariance_product")
    assert_equal(compiled, reference, size=1.0)


@cases
@regimes
@dtypes
def test_samples(case: OracleCase, regime: float | str, dtype: torch.dtype) -> None:
    scores = make_scores(case, regime).to(dtype)
    ((compiled, reference),) = both(lambda rows: (case.oracle.sample(rows, 20, generator=seeded()),), scores, "sample")
    assert compiled.dtype == dtype
    assert torch.equal(compiled.double(), reference)


@regimes
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_projections(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime)
    with kernels.recorded() as functions:
        case.oracle.project(scores)
    assert functions, "the compiled path was not taken"

    def project(rows: Tensor) -> tuple[Tensor, ...]:
        solution = case.oracle.project(rows)
        return solution.mean, solution.gap.isinf(), solution.gap.masked_fill(solution.gap.isinf(), 0)

    (means, infeasible, gaps) = both(project, scores)
    assert_equal(*means, size=greatest(scores))
    assert torch.equal(*infeasible)
    assert all(bool((gap <= 1e-9 * max(greatest(scores), 1.0)).all()) for gap in gaps)


@cases
@pytest.mark.parametrize("operation", ["log_partition", "marginals", "covariance_product", "sample"])
@pytest.mark.parametrize("regime", [0.05, 1.0, 10.0, "ties", "equal", "masked"], ids=str)
def test_the_range_suffices_at_ordinary_scores(
    case: OracleCase, operation: str, regime: float | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the references would be compared with themselves."""
    left: list[int] = []
    computed = kernels.Kernel.computed

    def watched(kernel: kernels.Kernel, inputs: Any, outputs: Any, reference: Any) -> Any:
        return computed(kernel, inputs, outputs, lambda *rows: left.append(len(rows[0])) or reference(*rows))

    monkeypatch.setattr(kernels.Kernel, "computed", watched)
    scores = make_scores(case, regime).requires_grad_()
    if operation == "log_partition" and case.potentials:
        pytest.skip("the log-partition of a policy is 0 without any sum")
    if operation == "covariance_product" and case not in PULLED_BACK:
        pytest.skip("torch has it")
    with kernels.recorded() as functions:
        if operation == "sample":
            case.oracle.sample(scores, generator=seeded())
        elif operation == "log_partition":
            case.oracle.log_partition(scores)
        else:
            marginals = case.oracle.marginals(scores if operation == "covariance_product" else scores.detach())
            if operation == "covariance_product":
                marginals.square().sum().backward()
    assert functions
    assert not left

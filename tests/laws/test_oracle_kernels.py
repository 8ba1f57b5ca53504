"""Compiled kernels compute what their torch references compute, at any scale, and they are what runs on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import kernels
from structgrad.suites.problems.named import BUILT_IN_PROBLEMS
from tests.helpers import ORACLE_CASES, OracleCase, make_scores, seeded

REGIMES = (0.05, 1.0, 10.0, 50.0, 1000.0, "ties", "masked", "masked_ties")
ORDINARY = (0.05, 1.0, 10.0, "ties", "equal", "masked")

cases = pytest.mark.parametrize("case", [case for case in ORACLE_CASES if case.oracle.kernel is not None], ids=str)

Compute = Callable[[Tensor], tuple[Tensor, ...]]


def operations(case: OracleCase) -> dict[str, Compute]:
    """By the kernel that serves them; of categories torch has the derivatives of marginals, and the log-partition of a policy is no sum."""

    def product(rows: Tensor) -> tuple[Tensor, ...]:
        leaf = rows.clone().requires_grad_()
        direction = torch.randn(rows.shape, generator=seeded(), dtype=torch.float64)
        return torch.autograd.grad(case.oracle.marginals(leaf), leaf, direction.to(rows))

    summed: dict[str, Compute] = {} if case.potentials else {"log_partition": lambda rows: (case.oracle.log_partition(rows),)}
    pulled: dict[str, Compute] = {} if case.oracle.kernel == "softmax" else {"covariance_product": product}
    return {
        "argmax": lambda rows: (case.oracle.argmax(rows),),
        "marginals": lambda rows: (case.oracle.marginals(rows), case.oracle.entropy(rows)),
        "sample": lambda rows: (case.oracle.sample(rows, 20, generator=seeded()),),
        **summed,
        **pulled,
    }


def greatest(scores: Tensor) -> float:
    """The largest sum of scores that a structure may have, roughly."""
    return float(scores[scores > -math.inf].abs().max()) * scores[0].numel()


def assert_equal(compiled: Tensor, reference: Tensor, size: float = 1.0) -> None:
    """To 1e-10 in float64 and 1e-5 in float32, of numbers of this size."""
    tolerance = 1e-10 if compiled.dtype == torch.float64 else 1e-5
    torch.testing.assert_close(compiled.double(), reference, rtol=tolerance, atol=tolerance * max(size, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@cases
def test_kernels_compute_what_references_do(case: OracleCase, dtype: torch.dtype) -> None:
    """References compute in float64 whatever the dtype of the scores: in float32 it is they that would be inexact at large scores."""
    for regime in REGIMES:
        scores = make_scores(case, regime).to(dtype)
        feasible, natural = case.oracle.feasible(scores), case.oracle.natural_parameters(scores.double())
        for name, compute in operations(case).items():
            with kernels.recorded() as functions:
                compiled = compute(scores)
            assert name in {function.__name__ for function in functions}, "the compiled path was not taken"
            with kernels.recorded() as functions, kernels.disabled():
                references = compute(scores.double())
            assert not functions, "the reference runs compiled code"
            assert {each.dtype for each in compiled} == {dtype}
            if name == "argmax":  # of structures that tie, either
                totals = [torch.where(z[feasible] != 0, natural[feasible], 0).flatten(1).sum(-1) for z in (compiled[0], references[0])]
                torch.testing.assert_close(*totals, rtol=1e-12, atol=(1e-12 if dtype == torch.float64 else 1e-6) * greatest(scores))
            elif name == "sample":
                assert torch.equal(compiled[0].double(), references[0])
            elif name == "log_partition":
                assert torch.equal(compiled[0] > -math.inf, references[0] > -math.inf)
                assert_equal(compiled[0][feasible], references[0][feasible])
            else:
                assert_equal(compiled[0], references[0])
                # The entropy is a difference of the log-partition and the expected score.
                for ours, theirs in zip(compiled[1:], references[1:], strict=True):
                    assert_equal(ours, theirs, size=greatest(scores))


@cases
def test_projections(case: OracleCase) -> None:
    for regime in REGIMES:
        scores = make_scores(case, regime)
        with kernels.recorded() as functions:
            compiled = case.oracle.project(scores)
        assert functions, "the compiled path was not taken"
        with kernels.recorded() as functions, kernels.disabled():
            reference = case.oracle.project(scores)
            assert_equal(compiled.mean, reference.mean, size=greatest(scores))
        assert not functions, "the reference runs compiled code"
        assert torch.equal(compiled.gap.isinf(), reference.gap.isinf())
        for solution in (compiled, reference):
            assert bool((solution.gap[~solution.gap.isinf()] <= 1e-9 * max(greatest(scores), 1.0)).all())


@cases
def test_the_range_suffices_at_ordinary_scores(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the references would be compared with themselves."""
    left: list[int] = []
    computed = kernels.Kernel.computed

    def watched(kernel: kernels.Kernel, inputs: Any, outputs: Any, reference: Any, **given: int) -> Any:
        return computed(kernel, inputs, outputs, lambda *rows: left.append(len(rows[0])) or reference(*rows), **given)

    monkeypatch.setattr(kernels.Kernel, "computed", watched)
    for regime in ORDINARY:
        for compute in operations(case).values():
            compute(make_scores(case, regime))
        assert not left, regime


# Processes.


@pytest.mark.sweep
def test_every_structure_is_measured_alike_cold_and_warm(tmp_path: Path) -> None:
    """What is computed does not depend on which kernels the process compiled, which it loaded from the cache, and in what order.

    The small form is in `tests/oracles/test_compilation.py`: one kernel of which copies differ.
    """

    def in_a_process(names: list[str]) -> dict[str, str]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.fresh_process", *names]
        environment, root = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, Path(__file__).parents[2]
        found = subprocess.run(command, check=True, timeout=3600, env=environment, cwd=root, capture_output=True, text=True)
        result: dict[str, str] = json.loads(found.stdout)
        return result

    names = list(BUILT_IN_PROBLEMS)
    compiled, loaded, reversed_ = (in_a_process(order) for order in (names, names, names[::-1]))
    assert {name.partition(" ")[0] for name in compiled} == set(names)
    assert [name for name in compiled if loaded[name] != compiled[name]] == []
    assert [name for name in compiled if reversed_[name] != compiled[name]] == []

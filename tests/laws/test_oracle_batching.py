"""A batch is a loop of single calls, and expanded rows are materialised rows that cost one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, IndependentCategoricals, kernels
from tests.helpers import GENERIC_CASES, OracleCase, enumerate_truth, launched_rows, make_scores, seeded, structure_indices

OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "entropy": lambda oracle, scores: oracle.entropy(scores),
    "log_prob": lambda oracle, scores: oracle.log_prob(oracle.argmax(scores), scores),
    "project_mean": lambda oracle, scores: oracle.project(scores).mean,
    "project_norm": lambda oracle, scores: oracle.project(scores).weights.square().sum(-1),
    "project_gap": lambda oracle, scores: oracle.project(scores).gap,
    "feasible": lambda oracle, scores: oracle.feasible(scores),
}
DIFFERENTIABLE = ("log_partition", "marginals", "entropy", "log_prob", "project_mean", "project_norm")
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "all": ((1,), (4,)),
    "first": ((1, 3), (2, 3)),
    "last": ((2, 1), (2, 3)),
    "middle": ((2, 1, 2), (2, 3, 2)),
    "both": ((1, 2, 1), (2, 2, 3)),
}


def expanded_scores(case: OracleCase, regime: float | str, layout: str) -> Tensor:
    small, large = LAYOUTS[layout]
    rows = make_scores(case, regime, rows=4)[: max(small) * (2 if layout == "middle" else 1)]
    return rows.reshape(*small, *case.event).expand(*large, *case.event)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_expanded_rows_give_the_values_of_materialised_ones(case: OracleCase, operation: str, layout: str) -> None:
    scores = expanded_scores(case, 1.0, layout)
    expected = OPERATIONS[operation](case.oracle, scores.contiguous())
    found = OPERATIONS[operation](case.oracle, scores)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("operation", DIFFERENTIABLE)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_expanded_rows_have_gradients_of_their_own(case: OracleCase, operation: str, layout: str) -> None:
    def derivatives(leaf: Tensor) -> tuple[Tensor, Tensor]:
        result = OPERATIONS[operation](case.oracle, leaf)
        rates = torch.randn(result.shape, generator=seeded(), dtype=torch.float64)
        (first,) = torch.autograd.grad((rates * result).sum(), leaf, create_graph=True)
        if not first.requires_grad:
            return first, torch.zeros_like(first)
        (second,) = torch.autograd.grad((torch.randn(first.shape, generator=seeded(1), dtype=torch.float64) * first).sum(), leaf)
        return first, second

    scores = expanded_scores(case, 1.0, layout)
    found = derivatives(scores.detach().requires_grad_())
    expected = derivatives(scores.clone(memory_format=torch.contiguous_format).requires_grad_())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == scores.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", ["_argmax", "_log_partition", "_sample", "_project"])
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_expanded_rows_are_computed_once(case: OracleCase, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = getattr(type(case.oracle), method)

    def counted(self: Any, rows: Tensor, *rest: Any) -> Any:
        sizes.append(len(rows))
        return original(self, rows, *rest)

    monkeypatch.setattr(type(case.oracle), method, counted)
    expanded = make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 500, *case.event)
    with kernels.disabled():
        every_operation(case.oracle, expanded)
        # The log-partition of a policy is 0 without any sum, and that of categories a closed form, expanded as its rows are.
        closed = method == "_log_partition" and isinstance(case.oracle, Categorical | IndependentCategoricals)
        assert sizes or closed or (case.potentials and method == "_log_partition")
        assert max(sizes, default=2) == 2
        assert not closed or case.oracle.log_partition(expanded).stride(1) == 0


@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_kernels_get_expanded_rows_once(case: OracleCase, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = launched_rows(monkeypatch)
    every_operation(case.oracle, make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 500, *case.event))
    if case.oracle.kernel is not None:
        assert sizes
        # The projection takes every category as a row.
        assert max(sizes) == (2 * case.event[0] if isinstance(case.oracle, IndependentCategoricals) else 2)


def every_operation(oracle: Any, scores: Tensor) -> None:
    oracle.argmax(scores)
    oracle.log_partition(scores)
    oracle.log_partition(scores.requires_grad_()).sum().backward()
    oracle.sample(scores, generator=seeded())
    _ = oracle.project(scores).mean


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_samples_of_expanded_rows_follow_their_own_row(case: OracleCase, layout: str) -> None:
    scores = expanded_scores(case, 5.0, layout)
    samples = case.oracle.sample(scores, 3000, generator=seeded())
    assert samples.shape == (3000, *scores.shape)
    torch.testing.assert_close(samples.mean(0), case.oracle.marginals(scores.contiguous()), rtol=0, atol=0.05)
    indices = structure_indices(case, samples).flatten(1)
    chances = enumerate_truth(case, scores.contiguous()).probabilities
    assert bool((chances.T.gather(0, indices) > 1e-9).all())

"""A batch is its rows: in any shape, also empty or expanded, in any company and with any number of threads; with and without lengths."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, IndependentCategoricals, SeedBlocks, kernels
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, OracleCase, launched_rows, make_scores, seeded
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, operations_of

cases = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)

LAYOUTS = (((1,), (4,)), ((1, 3), (2, 3)), ((2, 1, 2), (2, 3, 2)), ((1, 2, 1), (2, 2, 3)))
"""Batches, and what `expand` makes of them."""

PLACES = {1: (0,), 3: (1,), 64: (0, 31, 63)}
"""By batch size: where an item stands."""


def lengths_of(case: OracleCase, batch: tuple[int, ...], kind: str) -> dict[str, Tensor]:
    """No lengths, those of the event for all items together, or lengths of their own."""
    limits = case.oracle.length_limits(case.event)
    whole = torch.tensor(limits if len(limits) > 1 else limits[0])
    if kind in ("none", "one"):
        return {} if kind == "none" else {"lengths": whole}
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


@pytest.mark.parametrize("lengths", ["none", "one", "each"])
@cases
def test_any_shape_of_the_batch(case: OracleCase, lengths: str) -> None:
    scores = make_scores(case, 1.0, rows=6)
    for operation in sampled(operations_of(case.oracle), 10):
        flat = computed(case, operation, scores, **lengths_of(case, (6,), lengths))
        shaped = computed(case, operation, scores.reshape(2, 3, *case.event), **lengths_of(case, (2, 3), lengths))
        one = computed(case, operation, scores[:1], **lengths_of(case, (1,), lengths))
        alone = computed(case, operation, scores[0], **lengths_of(case, (), lengths))
        for of_flat, of_shaped, of_one, of_alone in zip(flat, shaped, one, alone, strict=True):
            assert_same(of_shaped, of_flat.unflatten(0, (2, 3)), operation)
            assert_same(of_alone, of_one[0], operation)
        for batch in ((0,), (2, 0, 3)):
            found, gradient = computed(case, operation, torch.zeros(*batch, *case.event), **lengths_of(case, batch, lengths))
            assert found.shape == (*batch, *flat[0].shape[1:]), operation
            assert gradient.shape == (*batch, *case.event), operation
    for batch in ((), (3,), (2, 0), (2, 3)):
        solution = case.oracle.project(torch.zeros(*batch, *case.event), **lengths_of(case, batch, lengths))
        assert solution.atoms.shape == (*solution.weights.shape, *case.event)
        assert solution.weights.shape[:-1] == solution.gap.shape == solution.support.shape == batch


@cases
def test_expanded_rows_are_materialised_ones(case: OracleCase) -> None:
    """Every row has a gradient of its own, to the second derivative."""

    def results(operation: str, leaf: Tensor) -> Iterator[Tensor]:
        result = OPERATIONS[operation](case.oracle, leaf)
        yield result.detach()
        for seed in range(2 if operation in DIFFERENTIABLE else 0):
            rates = torch.randn(result.shape, generator=seeded(seed), dtype=torch.float64)
            (result,) = torch.autograd.grad((rates * result).sum(), leaf, create_graph=True)
            yield result.detach()
            if not result.requires_grad:
                return

    for small, large in sampled(LAYOUTS, 2):
        rows = make_scores(case, 1.0, rows=4)[: torch.Size(small).numel()]
        scores = rows.reshape(*small, *case.event).expand(*large, *case.event)
        for operation in sampled(operations_of(case.oracle), 12):
            found = results(operation, scores.detach().requires_grad_())
            expected = results(operation, scores.clone(memory_format=torch.contiguous_format).requires_grad_())
            for ours, theirs in zip(found, expected, strict=True):
                assert_same(ours, theirs, operation, 1e-11)


@pytest.mark.parametrize("kind", ["compiled", "reference"])
@cases
def test_expanded_rows_are_computed_once(case: OracleCase, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, sizes = case.oracle, launched_rows(monkeypatch)
    expanded = make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 500, *case.event)

    def watch(method: str) -> None:
        original = getattr(type(oracle), method)

        def counted(self: Any, rows: Tensor, *rest: Any) -> Any:
            sizes.append(len(rows))
            return original(self, rows, *rest)

        monkeypatch.setattr(type(oracle), method, counted)

    for method in ("_argmax", "_log_partition", "_sample", "_project") if kind == "reference" else ():
        watch(method)
    with kernels.disabled() if kind == "reference" else nullcontext():
        oracle.argmax(expanded)
        if isinstance(oracle, Categorical | IndependentCategoricals) and kind == "reference":
            assert oracle.log_partition(expanded).stride(1) == 0  # a closed form, expanded as its rows are
        else:
            oracle.log_partition(expanded)
            oracle.log_partition(expanded.detach().requires_grad_()).sum().backward()
        oracle.sample(expanded, generator=seeded())
        _ = oracle.project(expanded).mean
    if kind == "reference" or oracle.kernel is not None:
        assert sizes
        # The compiled projection takes every category as a row.
        each = case.event[0] if kind == "compiled" and isinstance(oracle, IndependentCategoricals) else 1
        assert max(sizes) <= 2 * each


@pytest.mark.parametrize("kind", ["compiled", "reference"])
@cases
def test_an_item_is_alone_in_any_company(case: OracleCase, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to peaked rows, masked ones, an infeasible one, and scores of every scale; gradients too."""
    monkeypatch.setattr(kernels, "GRAIN", 1)  # kernels take every thread that they may have
    regimes: tuple[float | str, ...] = (1000.0, "masked", 0.05, "ties", 50.0)
    neighbours = torch.stack([make_scores(case, regime, rows=13, seed=1) for regime in regimes], 1).flatten(0, 1)
    names = [
        name for name in ("argmax", "log_partition", "marginals", "entropy", "project", "sample") if name in operations_of(case.oracle)
    ]

    def results(operation: str, scores: Tensor) -> tuple[Tensor, ...]:
        if operation in RANDOM:  # one stream per row, equal at every place where the item may stand
            places = {place for each in PLACES.values() for place in each}
            streams = SeedBlocks(tuple(7 if row in places else 100 + row for row in range(len(scores))), 1)
            return (case.oracle.sample(scores, 5, generator=streams).movedim(0, 1),)
        return computed(case, operation, scores) if operation in ("marginals", "entropy") else (OPERATIONS[operation](case.oracle, scores),)

    with kernels.disabled() if kind == "reference" else nullcontext():
        for item in (make_scores(case, 1.0, rows=3)[2], make_scores(case, "masked", rows=3)[2]):
            for operation in names:
                torch.set_num_threads(1)
                alone = results(operation, item.unsqueeze(0))
                for rows, places in PLACES.items():
                    scores = neighbours[:rows].clone()
                    scores[list(places)] = item
                    for threads in (1, 2) if kind == "compiled" and rows > 3 else (1,):
                        torch.set_num_threads(threads)
                        for found, expected in zip(results(operation, scores), alone, strict=True):
                            for place in places:
                                assert_same(found[place], expected[0], operation)

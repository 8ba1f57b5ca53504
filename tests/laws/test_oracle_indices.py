"""Compact structures say what dense ones say, bit for bit, and cost neither samples nor ties."""

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import (
    Alignment,
    Constituency,
    Grammar,
    LinearChain,
    SeedBlocks,
    SpanningTree,
    Subset,
    TiedChain,
    TiedSemiMarkov,
    kernels,
)
from structgrad.oracles.capabilities import SamplingOracle
from tests.covering import sampled
from tests.helpers import GENERIC_CASES, ORACLE_CASES, RAGGED_CASES, REGIMES, OracleCase, make_scores, seeded, structures
from tests.laws.test_oracle_lengths import lengths_of, padded_scores

cases = pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
generic = pytest.mark.parametrize("case", GENERIC_CASES, ids=str)


def assert_says(oracle: Any, indices: Tensor, dense: Tensor) -> None:
    """Indices are those of the dense structures, and the way back gives these."""
    event = tuple(dense.shape[dense.ndim - oracle.event_ndim :])
    assert indices.dtype == torch.int64
    assert indices.shape == (*dense.shape[: dense.ndim - oracle.event_ndim], *oracle.index_shape(event))
    assert len(oracle.index_shape(event)) == oracle.index_ndim
    assert torch.equal(oracle.dense(indices, event, dtype=dense.dtype), dense)
    assert torch.equal(oracle.indices(dense), indices)


@cases
def test_says_what_dense_structures_say(case: OracleCase) -> None:
    oracle, k = case.oracle, min(3, len(structures(case)))
    for regime in sampled(REGIMES, 4):
        scores = make_scores(case, regime)
        assert_says(oracle, oracle.argmax(scores, as_indices=True), oracle.argmax(scores))
        drawn, dense = (oracle.sample(scores, 5, generator=seeded(), as_indices=as_indices) for as_indices in (True, False))
        assert_says(oracle, drawn, dense)
        assert bool((drawn[:, ~oracle.feasible(scores)] == -1).all())
        assert_says(oracle, oracle.kbest(scores, k, as_indices=True), oracle.kbest(scores, k))


@generic
def test_any_dtype_batch_and_expanded_rows_with_and_without_kernels(case: OracleCase) -> None:
    oracle, masked, wide = (
        case.oracle,
        make_scores(case, "masked_ties"),
        make_scores(case, 1.0, rows=2).unsqueeze(1).expand(2, 3, *case.event),
    )
    for compiled in (True, False):
        for scores in (masked, masked.float(), masked.bfloat16(), wide, wide[0, 0], wide[:0], wide[:, 0]):
            with nullcontext() if compiled else kernels.disabled():
                assert_says(oracle, oracle.argmax(scores, as_indices=True), oracle.argmax(scores))
                for count in (None, 3):
                    assert_says(oracle, *(oracle.sample(scores, count, generator=seeded(), as_indices=form) for form in (True, False)))
                assert_says(oracle, *(oracle.kbest(scores, 2, as_indices=form) for form in (True, False)))
    blocks = wide[:, 0].repeat(2, *[1] * (wide.ndim - 2))
    assert_says(oracle, *(oracle.sample(blocks, 3, generator=SeedBlocks((5, 6), 2), as_indices=form) for form in (True, False)))


@pytest.mark.parametrize("case", RAGGED_CASES, ids=str)
def test_there_are_none_beyond_an_item(case: OracleCase) -> None:
    oracle, plain, lengths = case.oracle, padded_scores(case, 1.0), lengths_of(case)
    kept = plain.isnan() | (torch.rand(plain.shape, generator=seeded(1)) > 0.4)
    for scores in (plain, torch.where(kept, plain, -math.inf)):
        assert_says(oracle, *(oracle.argmax(scores, lengths=lengths, as_indices=form) for form in (True, False)))
        drawn, dense = (oracle.sample(scores, 4, generator=seeded(), lengths=lengths, as_indices=form) for form in (True, False))
        assert_says(oracle, drawn, dense)
        assert_says(oracle, *(oracle.kbest(scores, 2, lengths=lengths, as_indices=form) for form in (True, False)))
        # What is said beyond an item is not read; inside of it, -1 may say that nothing ends there.
        inner = oracle._indices_are_parts or isinstance(oracle, (TiedSemiMarkov, Grammar))
        junk = drawn if inner else torch.where(drawn < 0, 0, drawn)
        feasible = oracle.feasible(scores, lengths=lengths)
        for method in (oracle.score, oracle.log_prob):
            found = method(junk, scores, lengths=lengths, as_indices=True)[:, feasible]
            torch.testing.assert_close(found, method(dense, scores, lengths=lengths)[:, feasible], rtol=1e-12, atol=1e-12)


@cases
def test_scores_of_indices_are_those_of_structures(case: OracleCase) -> None:
    """With their gradients, also where they broadcast."""
    oracle, weights = case.oracle, torch.randn(7, 6, generator=seeded(2), dtype=torch.float64)
    for regime in ("masked", 5.0):
        scores = make_scores(case, regime)
        indices, dense = (oracle.sample(scores, 7, generator=seeded(), as_indices=form) for form in (True, False))
        for method in (oracle.score, oracle.log_prob):
            found = []
            for z, form in ((indices, {"as_indices": True}), (dense, {})):
                leaf = scores.clone().requires_grad_()
                values = method(z, leaf, **form)
                (gradient,) = torch.autograd.grad((torch.where(values > -math.inf, values, 0) * weights).sum(), leaf)
                found.append((values.detach(), gradient))
            for one, other in zip(*found, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    deep = scores.reshape(2, 3, *case.event)
    found = oracle.log_prob(indices.unflatten(1, (2, 3)), deep, as_indices=True)
    torch.testing.assert_close(found, oracle.log_prob(dense.unflatten(1, (2, 3)), deep), rtol=1e-12, atol=1e-12)
    indices, dense = indices[:3], dense[:3]
    for rows, some in ((scores, 0), (scores[:1], slice(None)), (scores[0], slice(None)), (scores[:3].unsqueeze(1), slice(None))):
        found, expected = oracle.log_prob(indices[some], rows, as_indices=True), oracle.log_prob(dense[some], rows)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_ignored_entries_are_not_read() -> None:
    for oracle, event in ((LinearChain(), (3, 2, 2)), (Constituency(), (4, 4)), (SpanningTree(), (4, 4))):
        dense = oracle.argmax(torch.zeros(event))
        junk = torch.where(oracle.read_mask(event), dense, 1)
        assert torch.equal(oracle.indices(junk), oracle.argmax(torch.zeros(event), as_indices=True))


@generic
def test_operations_are_wholes_for_transforms(case: OracleCase) -> None:
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=3)
    mapped = torch.func.vmap(lambda row: oracle.argmax(row, as_indices=True))(scores)
    assert torch.equal(mapped, oracle.argmax(scores, as_indices=True))
    drawn = torch.func.vmap(lambda row: oracle.sample(row, 5, generator=seeded(), as_indices=True), randomness="different")(scores)
    assert torch.equal(drawn, oracle.sample(scores, 5, generator=seeded(), as_indices=True).movedim(1, 0))
    expected = oracle.log_prob(drawn.movedim(0, 1), scores, as_indices=True).movedim(1, 0)
    one = torch.func.vmap(lambda z, row: oracle.log_prob(z, row, as_indices=True))(drawn, scores)
    torch.testing.assert_close(one, expected, rtol=1e-12, atol=1e-12)
    slope = torch.func.vmap(torch.func.grad(lambda row, z: oracle.log_prob(z, row, as_indices=True).sum()))(scores, drawn)
    leaf = scores.clone().requires_grad_()
    oracle.log_prob(drawn.movedim(0, 1), leaf, as_indices=True).sum().backward()
    torch.testing.assert_close(slope, leaf.grad, rtol=1e-10, atol=1e-10)
    dense = torch.func.vmap(lambda z: oracle.dense(z, case.event, dtype=torch.float64))(drawn)
    assert torch.equal(dense, oracle.dense(drawn, case.event, dtype=torch.float64))
    assert torch.equal(torch.func.vmap(oracle.indices)(dense), drawn)


def test_a_form_of_ones_own_is_the_parts() -> None:
    """An oracle that states nothing lists the parts of its structures."""

    class Own(type(Subset(2))):  # type: ignore[misc]
        kernel = None
        _most_parts = SamplingOracle._most_parts

    oracle, scores = Own(2), torch.tensor([3.0, 1.0, 2.0])
    assert oracle.argmax(scores, as_indices=True).tolist() == [0, 2, -1]
    assert oracle.sample(scores, generator=seeded(), as_indices=True).shape == (3,)


def test_no_dense_sample_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel writes indices; and the gradient of many samples is that of their row."""
    sizes: list[int] = []
    original = kernels.launch

    def launched(function: Any, arrays: Any, *rest: Any) -> None:
        sizes.extend(array.size for array in arrays)
        original(function, arrays, *rest)

    monkeypatch.setattr(kernels, "launch", launched)
    for oracle, scores in (
        (LinearChain(), torch.zeros(2, 9, 5, 5)),
        (TiedChain(), torch.zeros(2, 14, 5)),
        (Alignment(), torch.zeros(2, 5, 5)),
    ):
        sizes.clear()
        oracle.sample(scores, 8, generator=seeded(), as_indices=True)
        assert max(sizes) < 8 * scores.numel()


def test_refuses_counts_without_a_form() -> None:
    class Counted(type(Subset(2))):  # type: ignore[misc]
        def binary_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
            return torch.zeros(event_shape, dtype=torch.bool, device=device)

    for call in (lambda oracle: oracle.indices(torch.ones(3)), lambda oracle: oracle.dense(torch.tensor([0, 1]), (3,))):
        with pytest.raises(ValueError, match=r"got the oracle subset, which counts parts and states no compact form; expected 0/1 parts"):
            call(Counted(2))

"""An item with a length is the item alone, whatever lies in its padding."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators.learned_baseline import PooledNetwork, readable
from structgrad.oracles import (
    Categorical,
    PolicyOracle,
    Subset,
)
from structgrad.oracles.capabilities.ragged import of_lengths
from structgrad.oracles.distributions import StructureDistribution
from tests.covering import sampled
from tests.helpers import ORACLE_CASES, RAGGED_CASES, SCALES, OracleCase, seeded, structures
from tests.oracle_cases import TABLE
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, method_of, operations_of, with_lengths

SIZES = (4, 2, 3, 2, 4, 3)
ROWS = {repr(row.oracle): row for row in TABLE}
cases = pytest.mark.parametrize("case", RAGGED_CASES, ids=str)


def lengths_of(case: OracleCase) -> Tensor:
    """One length per row, or two where the oracle takes two."""
    return torch.tensor(ROWS[repr(case.oracle)].lengths)


def item_event(case: OracleCase, length: Any) -> tuple[int, ...]:
    """The event shape of an item alone."""
    first = ROWS[repr(case.oracle)].item(length)
    return (*first, *case.event[len(first) :])


def lines_behind(case: OracleCase) -> int:
    """Number of lines of transitions behind the padding, which belong to every item."""
    return ROWS[repr(case.oracle)].tail(case.event)


def inside(case: OracleCase, row: int) -> tuple[slice | Tensor, ...]:
    """Where an item alone lies in an event: at the first places of every axis, but for transitions, which come behind the padding."""
    item = item_event(case, lengths_of(case)[row].tolist())
    if behind := lines_behind(case):
        return (torch.cat([torch.arange(item[0] - behind), torch.arange(case.event[0] - behind, case.event[0])]),)
    return tuple(map(slice, item))


def outside(case: OracleCase, row: int) -> Tensor:
    mask = torch.ones(case.event, dtype=torch.bool)
    mask[inside(case, row)] = False
    return mask


def padded_scores(case: OracleCase, scale: float, junk: float = math.nan) -> Tensor:
    """Rows whose padding holds junk."""
    scores = scale * torch.randn(len(SIZES), *case.event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for row in range(len(SIZES)):
        scores[row][outside(case, row)] = junk
    return scores


def alone(case: OracleCase, scores: Tensor, row: int) -> Tensor:
    return scores[row][inside(case, row)]


TESTED_ELSEWHERE = {"pad", "check_lengths", "sample", "sample_distinct", "relaxed_sample", "length_mask", "unpadded", "masked"}
"""Operations with lengths that have laws of their own, here or beside the laws of the operation, and what they are made of."""

ALONE = tuple(name for name in OPERATIONS if name not in (*RANDOM, "relaxed_value"))
"""Operations of an item alone: a relaxed value takes a constant off for every maximum of the padding."""


def test_every_operation_with_lengths_has_a_law() -> None:
    offered = set().union(*(with_lengths(type(case.oracle)) for case in RAGGED_CASES))
    assert offered == TESTED_ELSEWHERE | {method_of(name) for name in ALONE} | {"relaxed_value"}
    assert {type(case.oracle) for case in RAGGED_CASES} == {type(case.oracle) for case in ORACLE_CASES}


@cases
def test_equals_the_item_alone(case: OracleCase) -> None:
    """At every scale; gradients too, which are 0 in the padding."""
    weights = torch.randn(case.event, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for scale in (1.0, *sampled([scale for scale in SCALES if scale != 1], 1)):
        scores = padded_scores(case, scale)
        for operation in operations_of(case.oracle, ALONE):
            if lines_behind(case) and operation == "project_weights":
                continue  # faces of its polytope are no simplices: other atoms give the same mean
            learns = operation in DIFFERENTIABLE and scale == 1
            leaf = scores.clone().requires_grad_(learns)
            together = OPERATIONS[operation](case.oracle, leaf, lengths=lengths_of(case))
            if learns:
                (gradient,) = torch.autograd.grad(together.sum() if together.ndim == 1 else (together * weights).sum(), leaf)
            for row in range(len(SIZES)):
                item = alone(case, scores, row).requires_grad_(learns)
                single = OPERATIONS[operation](case.oracle, item)
                found = together[row] if single.ndim == 0 else together[row][inside(case, row)]
                assert_same(found, single, operation, 1e-10 * max(1.0, scale))
                nothing = -math.inf if operation == "max_marginals" else 0
                assert single.ndim == 0 or bool((together[row][outside(case, row)] == nothing).all()), operation
                if learns:
                    weighted = single if single.ndim == 0 else (single * weights[inside(case, row)]).sum()
                    (expected,) = torch.autograd.grad(weighted, item)
                    assert_same(gradient[row][inside(case, row)], expected, operation, 1e-9)
                    assert not gradient[row][outside(case, row)].any(), operation


@cases
def test_a_learned_baseline_reads_no_padding(case: OracleCase) -> None:
    oracle, scores, lengths = case.oracle, padded_scores(case, 1.0), lengths_of(case)
    for each_state in (False, True) if isinstance(oracle, PolicyOracle) else (False,):
        network = PooledNetwork(oracle.event_ndim, torch.Generator().manual_seed(1), each_state=each_state)
        network.out.data.fill_(1.0)
        together = network(readable(of_lengths(oracle, lengths), oracle.pad(scores, lengths)))
        for row in range(len(SIZES)):
            expected = network(readable(oracle, alone(case, scores, row)))
            found = together[row][tuple(slice(size) for size in expected.shape)]
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@cases
def test_samples_and_atoms_are_structures_of_the_item_alone(case: OracleCase) -> None:
    """Samples have its law; and what a structure has in the padding is not read."""
    scores, lengths = padded_scores(case, 1.0), lengths_of(case)
    samples = case.oracle.sample(scores, 20_000, generator=torch.Generator().manual_seed(0), lengths=lengths)
    solution = case.oracle.project(0.3 * scores, lengths=lengths)
    spoilt = samples[0].clone()
    for row, length in enumerate(lengths.tolist()):
        marginals, mean = case.oracle.marginals(alone(case, scores, row)), samples[:, row].mean(0)
        counted = samples[:, row][(slice(None), *inside(case, row))]
        variance = torch.where(marginals <= 1, marginals * (1 - marginals), 0).maximum(counted.var(0)).clamp(min=0)
        assert bool(((mean[inside(case, row)] - marginals).abs() <= 5 * variance.div(20_000).sqrt() + 1e-12).all())
        assert not mean[outside(case, row)].any()
        short = OracleCase(case.oracle, item_event(case, length))
        listed = {tuple(z.flatten().tolist()) for z in structures(short)}
        for atom in (*solution.atoms[row][solution.weights[row] > 0], *samples[:20, row]):
            assert tuple(atom[inside(case, row)].flatten().tolist()) in listed
            assert not atom[outside(case, row)].any()
        spoilt[row][outside(case, row)] = 1
    found = case.oracle.log_prob(spoilt, scores, lengths=lengths)
    for row in range(len(SIZES)):
        expected = case.oracle.log_prob(spoilt[row][inside(case, row)], alone(case, scores, row))
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


@cases
def test_the_whole_length_one_length_for_all_and_infeasible_items(case: OracleCase) -> None:
    scores, lengths = padded_scores(case, 1.0, junk=0.5), lengths_of(case)
    longest = torch.tensor(case.oracle.length_limits(case.event)).squeeze()
    full, two = longest.expand(len(scores), *longest.shape), torch.full_like(longest, 2)
    torch.testing.assert_close(case.oracle.marginals(scores, lengths=full), case.oracle.marginals(scores))
    one, many = (case.oracle.marginals(scores, lengths=lengths) for lengths in (two, two.expand(len(scores), *two.shape)))
    assert torch.equal(one, many)
    best, leaf = case.oracle.argmax(scores, lengths=lengths), scores.clone().requires_grad_()
    replaced, marginals = (case.oracle.marginals(leaf, lengths=lengths, at=at) for at in (best, None))
    assert torch.equal(replaced, best)
    along = torch.linspace(-1, 1, scores.numel(), dtype=torch.float64).reshape(scores.shape)
    for found, expected in zip(*(torch.autograd.grad(value, leaf, along) for value in (replaced, marginals)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    scores = torch.zeros_like(scores)
    scores[::2] = -math.inf  # though their padding has a completion
    best, indices = (case.oracle.argmax(scores, lengths=lengths, as_indices=compact) for compact in (False, True))
    expected = [False, True] * (len(lengths) // 2)
    assert best.flatten(1).any(-1).tolist() == (indices.reshape(len(lengths), -1) >= 0).any(-1).tolist() == expected


def test_a_length_below_k_is_infeasible() -> None:
    scores, lengths = torch.zeros(2, 5), torch.tensor([1, 5])
    assert Subset(2).feasible(scores, lengths=lengths).tolist() == [False, True]
    assert not Subset(2).sample(scores, generator=torch.Generator(), lengths=lengths)[0].any()


@cases
def test_an_item_of_no_length_is_the_empty_structure(case: OracleCase) -> None:
    """But where a structure takes some parts: of none there is no such choice."""
    lengths, scores = lengths_of(case), torch.randn(len(SIZES), *case.event, generator=torch.Generator().manual_seed(0)).double()
    lengths[1], leaf, oracle = 0, scores.clone().requires_grad_(), case.oracle
    log_partition = oracle.log_partition(leaf, lengths=lengths)
    assert log_partition[1].item() == pytest.approx(-math.inf if isinstance(oracle, Categorical | Subset) else 0, abs=1e-14)
    oracle.entropy(leaf, lengths=lengths).sum().backward()
    assert leaf.grad is not None
    drawn = oracle.sample(scores, 3, generator=torch.Generator().manual_seed(0), lengths=lengths)
    parts = (
        oracle.marginals(scores, lengths=lengths),
        oracle.argmax(scores, lengths=lengths),
        oracle.project(scores, lengths=lengths).mean,
    )
    assert not any(each[1].any() for each in (leaf.grad, drawn.movedim(0, 1), *parts))
    assert (oracle.argmax(scores, lengths=lengths, as_indices=True)[1] == -1).all()
    others = [0, 2, 3, 4, 5]
    torch.testing.assert_close(log_partition[others], oracle.log_partition(scores[others], lengths=lengths[others]))


@cases
def test_a_mask_of_items_gives_lengths_and_one_of_parts_forbids(case: OracleCase) -> None:
    oracle, lengths, scores = case.oracle, lengths_of(case), padded_scores(case, 1.0)
    limits, several = oracle.length_limits(case.event), lengths.reshape(len(SIZES), -1).unbind(-1)
    masks = tuple(torch.arange(limit) < length.unsqueeze(-1) for limit, length in zip(limits, several, strict=True))
    given: list[Any] = [masks if len(masks) > 1 else masks[0].long()]
    given += [torch.cat([torch.ones(len(SIZES), 1), given[0]], -1).long()] if oracle.rooted else []
    for mask in given:
        found, sizes = oracle.masked(scores, mask)
        assert sizes is None if oracle.event_ndim == 1 else torch.equal(sizes, lengths)
        for name in operations_of(oracle, ("argmax", "marginals", "log_partition", "project", "free_parts")):
            expected = OPERATIONS[name](oracle, scores, lengths=lengths)
            assert_same(OPERATIONS[name](oracle, found, lengths=sizes), expected, name)
        law = StructureDistribution(oracle, scores, mask=mask, validate_args=False)
        torch.testing.assert_close(law.entropy(), oracle.entropy(scores, lengths=lengths))
    allowed, scores = torch.rand(case.event, generator=seeded()) > 0.2, padded_scores(case, 1.0, junk=0.5)
    for mask in (allowed[None], allowed.expand_as(scores), *([allowed] if oracle.event_ndim != 2 else [])):
        found, sizes = oracle.masked(scores, mask, lengths=lengths)
        assert torch.equal(found, torch.where(allowed, scores, -math.inf))
        assert sizes is lengths

"""An item with a length is the item alone, whatever lies in its padding."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.estimators.learned_baseline import PooledNetwork, readable
from structgrad.oracles import (
    Alignment,
    Assignment,
    Categorical,
    Constituency,
    IndependentCategoricals,
    LinearChain,
    PolicyOracle,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
)
from structgrad.oracles.capabilities.ragged import of_lengths
from tests.derived_cases import BY_NAME, DERIVED_CASES
from tests.helpers import (
    ORACLE_CASES,
    SCALES,
    OracleCase,
    binary_trees,
    derivations,
    lines_behind,
    monotone_paths,
    one_hots,
    permutations,
    products,
    projective_trees,
    shift_reduce_policy,
    spanning_trees,
    structures,
    subsets,
    tag_sequences,
    tied_item,
    tied_tag_sequences,
)
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, assert_same, method_of, operations_of, with_lengths

CASES = (
    OracleCase(Categorical(), (5,), one_hots),
    OracleCase(IndependentCategoricals(), (4, 3), products),
    OracleCase(Subset(2), (6,), subsets),
    OracleCase(LinearChain(), (4, 3, 3), tag_sequences),
    OracleCase(TiedChain(), (7, 3), tied_tag_sequences),
    OracleCase(Alignment(), (4, 4), monotone_paths),
    OracleCase(Constituency(), (5, 5), binary_trees),
    OracleCase(ProjectiveTree(single_root=True), (5, 5), projective_trees),
    OracleCase(ProjectiveTree(single_root=False), (5, 5), projective_trees),
    OracleCase(SpanningTree(single_root=True), (5, 5), spanning_trees),
    OracleCase(SpanningTree(single_root=False), (5, 5), spanning_trees),
    OracleCase(Assignment(), (4, 4), permutations),
    OracleCase(ShiftReduce(), (5, 5, 2), derivations),
    OracleCase(ShiftReduce("local"), (5, 5, 2), derivations, shift_reduce_policy),
    *(OracleCase(row.oracle, row.ragged, row.listed) for row in DERIVED_CASES),
)
SIZES = (4, 2, 3, 2, 4, 3)
cases = pytest.mark.parametrize("case", CASES, ids=str)
scales = pytest.mark.parametrize("scale", SCALES)
gibbs = pytest.mark.parametrize("case", [case for case in CASES if case.potentials is None], ids=str)
"""Laws of which padded scores keep the law of the item alone: a policy is normalised at every state, padding included."""


def lengths_of(case: OracleCase) -> Tensor:
    """One length per row, or two where the oracle takes two."""
    if case.oracle.name in BY_NAME:
        return torch.tensor(BY_NAME[case.oracle.name].lengths)
    lengths = torch.tensor(SIZES)
    return torch.stack([lengths, lengths.roll(1)], -1) if isinstance(case.oracle, Alignment) else lengths


def item_event(case: OracleCase, length: Any) -> tuple[int, ...]:
    """The event shape of an item alone."""
    match case.oracle:
        case _ if case.oracle.name in BY_NAME:
            first = BY_NAME[case.oracle.name].item(length)
        case Alignment():
            first = tuple(length)
        case TiedChain():
            first = (length + case.event[1],)
        case Constituency() | Assignment():
            first = (length, length)
        case ProjectiveTree() | SpanningTree() | ShiftReduce():
            first = (length + 1, length + 1)
        case _:
            first = (length,)
    return (*first, *case.event[len(first) :])


def inside(case: OracleCase, row: int) -> tuple[slice | Tensor, ...]:
    """Where an item alone lies in an event: at the first places of every axis, but for transitions, which come behind the padding."""
    if lines_behind(case):
        return (tied_item(case, int(lengths_of(case)[row])),)
    return tuple(slice(size) for size in item_event(case, lengths_of(case)[row].tolist()))


def outside(case: OracleCase, row: int) -> Tensor:
    mask = torch.ones(case.event, dtype=torch.bool)
    mask[inside(case, row)] = False
    return mask


TESTED_ELSEWHERE = {"pad", "check_lengths", "sample", "sample_distinct", "relaxed_sample", "length_mask", "unpadded"}
"""Operations with lengths that have laws of their own, here or beside the laws of the operation, and what they are made of."""

ALONE = tuple(name for name in OPERATIONS if name not in (*RANDOM, "relaxed_value"))
"""Operations of an item alone: a relaxed value takes a constant off for every maximum of the padding."""


def padded_scores(case: OracleCase, scale: float, junk: float = math.nan) -> Tensor:
    """Rows whose padding holds junk."""
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(len(SIZES), *case.event, generator=generator, dtype=torch.float64)
    for row in range(len(SIZES)):
        scores[row][outside(case, row)] = junk
    return scores


def alone(case: OracleCase, scores: Tensor, row: int) -> Tensor:
    return scores[row][inside(case, row)]


@cases
@scales
def test_equals_the_item_alone(case: OracleCase, scale: float) -> None:
    scores = padded_scores(case, scale)
    for operation in operations_of(case.oracle, ALONE):
        if lines_behind(case) and operation == "project_weights":
            continue  # faces of its polytope are no simplices: other atoms give the same mean
        together = OPERATIONS[operation](case.oracle, scores, lengths=lengths_of(case))
        for row in range(len(SIZES)):
            expected = OPERATIONS[operation](case.oracle, alone(case, scores, row))
            found = together[row] if expected.ndim == 0 else together[row][inside(case, row)]
            assert_same(found, expected, operation, 1e-10 * max(1.0, scale))
            assert expected.ndim == 0 or not together[row][outside(case, row)].any(), operation


@cases
def test_a_learned_baseline_reads_no_padding(case: OracleCase) -> None:
    oracle, scores = case.oracle, padded_scores(case, 1.0)
    networks = [PooledNetwork(oracle.event_ndim, torch.Generator().manual_seed(1), each_state=each) for each in (False, True)]
    for network in networks[: 2 if isinstance(oracle, PolicyOracle) else 1]:
        network.out.data.fill_(1.0)
        lengths = lengths_of(case)
        together = network(readable(of_lengths(oracle, lengths), oracle.pad(scores, lengths)))
        for row in range(len(SIZES)):
            item = alone(case, scores, row)
            found, expected = together[row], network(readable(oracle, item))
            torch.testing.assert_close(found[tuple(slice(size) for size in expected.shape)], expected, rtol=1e-12, atol=1e-12)


def test_every_operation_with_lengths_has_a_law() -> None:
    offered = set().union(*(with_lengths(type(case.oracle)) for case in CASES))
    assert offered == TESTED_ELSEWHERE | {method_of(name) for name in ALONE} | {"relaxed_value"}
    assert {type(case.oracle) for case in CASES} == {type(case.oracle) for case in ORACLE_CASES}


@cases
def test_gradients_are_those_of_the_item_alone_and_0_in_the_padding(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0).requires_grad_()
    weights = torch.randn(case.event, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for operation in operations_of(case.oracle, [name for name in DIFFERENTIABLE if name in ALONE]):
        result = OPERATIONS[operation](case.oracle, scores, lengths=lengths_of(case))
        weighted = result.sum() if result.ndim == 1 else (result * weights).sum()
        (gradient,) = torch.autograd.grad(weighted, scores)
        for row in range(len(SIZES)):
            leaf = alone(case, scores, row).detach().requires_grad_()
            single = OPERATIONS[operation](case.oracle, leaf)
            weighted = single if single.ndim == 0 else (single * weights[inside(case, row)]).sum()
            (expected,) = torch.autograd.grad(weighted, leaf)
            assert_same(gradient[row][inside(case, row)], expected, operation, 1e-9)
            assert not gradient[row][outside(case, row)].any(), operation


@cases
def test_samples_follow_the_law_of_the_item_alone(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    samples = case.oracle.sample(scores, 20_000, generator=torch.Generator().manual_seed(0), lengths=lengths_of(case))
    for row in range(len(SIZES)):
        marginals = case.oracle.marginals(alone(case, scores, row))
        mean = samples[:, row].mean(0)
        error, counted = (mean[inside(case, row)] - marginals).abs(), samples[:, row][(slice(None), *inside(case, row))]
        variance = torch.where(marginals <= 1, marginals * (1 - marginals), 0).maximum(counted.var(0))
        assert bool((error <= 5 * variance.clamp(min=0).div(20_000).sqrt() + 1e-12).all())
        assert not mean[outside(case, row)].any()


@cases
def test_log_prob_reads_no_padding(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    samples = case.oracle.sample(scores, generator=torch.Generator().manual_seed(0), lengths=lengths_of(case))
    for row in range(len(SIZES)):
        samples[row][outside(case, row)] = 1
    found = case.oracle.log_prob(samples, scores, lengths=lengths_of(case))
    for row in range(len(SIZES)):
        expected = case.oracle.log_prob(samples[row][inside(case, row)], alone(case, scores, row))
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


@cases
def test_atoms_are_structures_of_the_item_alone(case: OracleCase) -> None:
    solution = case.oracle.project(padded_scores(case, 0.3), lengths=lengths_of(case))
    for row, length in enumerate(lengths_of(case).tolist()):
        short = OracleCase(case.oracle, item_event(case, length), case.listed)
        listed = {tuple(z.flatten().tolist()) for z in structures(short)}
        for atom, weight in zip(solution.atoms[row], solution.weights[row], strict=True):
            if weight > 0:
                assert tuple(atom[inside(case, row)].flatten().tolist()) in listed
                assert not atom[outside(case, row)].any()


@gibbs
def test_padded_scores_hold_one_completion(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    padded = case.oracle.pad(scores, lengths_of(case))
    whole = OracleCase(case.oracle, tuple(padded.shape[1:]), case.listed)
    possible = (structures(whole).flatten(1) @ (padded == -math.inf).double().flatten(1).T == 0).sum(0)
    for row, length in enumerate(lengths_of(case).tolist()):
        assert int(possible[row]) == case.oracle.count(item_event(case, length))
    torch.testing.assert_close(case.oracle.log_partition(padded), case.oracle.log_partition(scores, lengths=lengths_of(case)))


@cases
def test_the_whole_length_and_one_length_for_all(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0, junk=0.5)
    longest = torch.tensor(case.oracle.length_limits(case.event)).squeeze()
    full = longest.expand(len(scores), *longest.shape)
    torch.testing.assert_close(case.oracle.marginals(scores, lengths=full), case.oracle.marginals(scores))
    two = torch.full_like(longest, 2)
    one, many = (case.oracle.marginals(scores, lengths=lengths) for lengths in (two, two.expand(len(scores), *two.shape)))
    assert torch.equal(one, many)


def test_a_length_below_k_is_infeasible() -> None:
    scores = torch.zeros(2, 5)
    lengths = torch.tensor([1, 5])
    assert Subset(2).feasible(scores, lengths=lengths).tolist() == [False, True]
    assert not Subset(2).sample(scores, generator=torch.Generator(), lengths=lengths)[0].any()


@pytest.mark.parametrize("case", [case for case in CASES if lengths_of(case).ndim == 1], ids=str)
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (
            torch.tensor([1, 2]),
            r"got lengths: torch.int64 of shape \(2,\); expected an integer tensor of shape \(6,\), one length per item",
        ),
        (torch.ones(6), r"got lengths: torch.float32 of shape \(6,\); expected an integer tensor"),
        ([1] * 6, "got lengths: list; expected an integer tensor"),
        (torch.ones(6, dtype=torch.bool), "got lengths: torch.bool of shape .*; expected an integer tensor"),
        (torch.ones(6, dtype=torch.int64, device="meta"), "got lengths on meta for scores on cpu; expected one device: move them by"),
        (torch.tensor([0, 1, 1, 1, 1, 1]), r"^`lengths` must be between 1 and \d for scores of shape \(6, .*\), got 0(\.|$)"),
        (torch.tensor([1, 1, 1, 1, 1, 99]), r"^`lengths` must be between 1 and \d for scores of shape \(6, .*\), got 99(\.|$)"),
    ],
)
def test_refuses_lengths_that_do_not_fit(case: OracleCase, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.oracle.argmax(padded_scores(case, 1.0, junk=0.0), lengths=lengths)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.ones(6, dtype=torch.int64), r"of shape \(6,\); expected an integer tensor of shape \(6, 2\), 2 lengths per item"),
        (torch.tensor([1, 5]), r"^`lengths` must be between \[1, 1\] and \[3, 4\] for scores of shape \(6, 3, 4\), got \[1, 5\]$"),
    ],
)
def test_an_alignment_has_two_lengths(lengths: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Alignment().argmax(torch.zeros(6, 3, 4), lengths=lengths)


@cases
def test_the_best_structure_of_an_infeasible_item_is_zero(case: OracleCase) -> None:
    """Though its padding has a completion."""
    lengths = lengths_of(case)
    scores = torch.zeros(len(lengths), *case.event, dtype=torch.float64)
    scores[::2] = -math.inf
    best, indices = (case.oracle.argmax(scores, lengths=lengths, as_indices=compact) for compact in (False, True))
    assert (
        best.flatten(1).any(-1).tolist() == (indices.reshape(len(lengths), -1) >= 0).any(-1).tolist() == [False, True] * (len(lengths) // 2)
    )

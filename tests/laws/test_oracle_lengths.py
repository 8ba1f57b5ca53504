"""An item with a length is the item alone, whatever lies in its padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset
from tests.helpers import SCALES, OracleCase, one_hots, structures, subsets, tag_sequences

CASES = (
    OracleCase(Categorical(), (5,), one_hots),
    OracleCase(Subset(2), (6,), subsets),
    OracleCase(LinearChain(), (4, 3, 3), tag_sequences),
)
LENGTHS = torch.tensor([4, 2, 3, 2, 4, 3])
cases = pytest.mark.parametrize("case", CASES, ids=str)
scales = pytest.mark.parametrize("scale", SCALES)

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "argmax": lambda oracle, scores, **kw: oracle.argmax(scores, **kw),
    "log_partition": lambda oracle, scores, **kw: oracle.log_partition(scores, **kw),
    "marginals": lambda oracle, scores, **kw: oracle.marginals(scores, **kw),
    "entropy": lambda oracle, scores, **kw: oracle.entropy(scores, **kw),
    "feasible": lambda oracle, scores, **kw: oracle.feasible(scores, **kw).double(),
    "project": lambda oracle, scores, **kw: oracle.project(scores, **kw).mean,
    "support": lambda oracle, scores, **kw: oracle.project(scores, **kw).support.double(),
    "gap": lambda oracle, scores, **kw: oracle.project(scores, **kw).gap,
}
operations = pytest.mark.parametrize("operation", OPERATIONS)


def padded_scores(case: OracleCase, scale: float, junk: float = math.nan) -> Tensor:
    """Rows whose padding holds junk."""
    generator = torch.Generator().manual_seed(0)
    scores = scale * torch.randn(len(LENGTHS), *case.event, generator=generator, dtype=torch.float64)
    for row, length in enumerate(LENGTHS.tolist()):
        scores[row, length:] = junk
    return scores


def alone(case: OracleCase, scores: Tensor, row: int) -> Tensor:
    return scores[row, : int(LENGTHS[row])]


@cases
@scales
@operations
def test_equals_the_item_alone(case: OracleCase, scale: float, operation: str) -> None:
    compute, scores = OPERATIONS[operation], padded_scores(case, scale)
    together = compute(case.oracle, scores, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = compute(case.oracle, alone(case, scores, row))
        found = together[row] if expected.ndim == 0 else together[row, :length]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        if expected.ndim:
            assert not together[row, length:].any()


@cases
@pytest.mark.parametrize("operation", ["log_partition", "marginals", "entropy", "project"])
def test_gradients_are_those_of_the_item_alone_and_0_in_the_padding(case: OracleCase, operation: str) -> None:
    compute, scores = OPERATIONS[operation], padded_scores(case, 1.0).requires_grad_()
    weights = torch.randn(case.event, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = compute(case.oracle, scores, lengths=LENGTHS)
    weighted = result.sum() if result.ndim == 1 else (result * weights).sum()
    (gradient,) = torch.autograd.grad(weighted, scores)
    for row, length in enumerate(LENGTHS.tolist()):
        leaf = alone(case, scores, row).detach().requires_grad_()
        single = compute(case.oracle, leaf)
        (expected,) = torch.autograd.grad(single if single.ndim == 0 else (single * weights[:length]).sum(), leaf)
        torch.testing.assert_close(gradient[row, :length], expected, rtol=1e-9, atol=1e-11)
        assert not gradient[row, length:].any()


@cases
def test_samples_follow_the_law_of_the_item_alone(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    samples = case.oracle.sample(scores, 20_000, generator=torch.Generator().manual_seed(0), lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        marginals = case.oracle.marginals(alone(case, scores, row))
        error = (samples[:, row, :length].mean(0) - marginals).abs()
        assert bool((error <= 5 * (marginals * (1 - marginals) / 20_000).sqrt() + 1e-12).all())
        assert not samples[:, row, length:].any()


@cases
def test_log_prob_reads_no_padding(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    samples = case.oracle.sample(scores, generator=torch.Generator().manual_seed(0), lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        samples[row, length:] = 1
    found = case.oracle.log_prob(samples, scores, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = case.oracle.log_prob(samples[row, :length], alone(case, scores, row))
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


@cases
def test_atoms_are_structures_of_the_item_alone(case: OracleCase) -> None:
    solution = case.oracle.project(padded_scores(case, 0.3), lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        short: Any = OracleCase(case.oracle, (length, *case.event[1:]), case.listed)
        listed = {tuple(z.flatten().tolist()) for z in structures(short)}
        for atom, weight in zip(solution.atoms[row], solution.weights[row], strict=True):
            if weight > 0:
                assert tuple(atom[:length].flatten().tolist()) in listed
                assert not atom[length:].any()


@cases
def test_padded_scores_hold_one_completion(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0)
    padded = case.oracle.pad(scores, LENGTHS)
    possible = (structures(case).flatten(1) @ (padded == -math.inf).double().flatten(1).T == 0).sum(0)
    for row, length in enumerate(LENGTHS.tolist()):
        assert int(possible[row]) == case.oracle.count((length, *case.event[1:]))
    torch.testing.assert_close(case.oracle.log_partition(padded), case.oracle.log_partition(scores, lengths=LENGTHS))


@cases
def test_the_whole_length_and_one_length_for_all(case: OracleCase) -> None:
    scores = padded_scores(case, 1.0, junk=0.5)
    full = torch.full((len(scores),), case.event[0])
    torch.testing.assert_close(case.oracle.marginals(scores, lengths=full), case.oracle.marginals(scores))
    one, many = (case.oracle.marginals(scores, lengths=lengths) for lengths in (torch.tensor(2), torch.full((len(scores),), 2)))
    assert torch.equal(one, many)


def test_a_length_below_k_is_infeasible() -> None:
    scores = torch.zeros(2, 5)
    lengths = torch.tensor([1, 5])
    assert Subset(2).feasible(scores, lengths=lengths).tolist() == [False, True]
    assert not Subset(2).sample(scores, generator=torch.Generator(), lengths=lengths)[0].any()


@cases
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (torch.tensor([1, 2]), r"got lengths: torch.int64 of shape \(2,\); expected an integer tensor of shape \(6,\)"),
        (torch.ones(6), r"got lengths: torch.float32 of shape \(6,\); expected an integer tensor"),
        ([1] * 6, "got lengths: list; expected an integer tensor"),
        (torch.tensor([0, 1, 1, 1, 1, 1]), "got lengths from 0 to 1; expected 1 to"),
        (torch.tensor([1, 1, 1, 1, 1, 99]), "got lengths from 1 to 99; expected 1 to"),
    ],
)
def test_refuses_lengths_that_do_not_fit(case: OracleCase, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        case.oracle.argmax(padded_scores(case, 1.0, junk=0.0), lengths=lengths)

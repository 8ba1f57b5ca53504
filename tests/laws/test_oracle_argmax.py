"""`argmax` is the best of the enumeration."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import torch

from structgrad.oracles import Categorical, Subset, kernels
from tests.helpers import ORACLE_CASES, OracleCase, enumerate_truth, make_scores, seeded, structures


@pytest.mark.parametrize("regime", ["ties", "equal", "masked_ties"])
@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if isinstance(case.oracle, Categorical | Subset)], ids=str)
def test_ties_go_to_the_lowest_index(case: OracleCase, regime: str, device: torch.device) -> None:
    scores = make_scores(case, regime, rows=12)
    truth = enumerate_truth(case, scores)
    first = structures(case)[truth.structure_scores.numpy().argmax(1)]
    best = case.oracle.argmax(scores.to(device)).cpu()
    assert torch.equal(best[truth.feasible], first[truth.feasible])


@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_argmax_carries_no_gradient(case: OracleCase) -> None:
    assert not case.oracle.argmax(make_scores(case, 1.0).requires_grad_()).requires_grad


@pytest.mark.parametrize("path", ["kernels", "references"])
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_an_infeasible_item_gives_the_zero_tensor(case: OracleCase, path: str, device: torch.device) -> None:
    """Zeros, as `kbest` gives; indices are -1. Infeasible scores are found by enumeration."""
    oracle, scores = case.oracle, make_scores(case, 1.0, rows=40)
    kept = torch.rand(scores.shape, generator=seeded()) < torch.linspace(0, 1, 40).reshape(-1, *[1] * len(case.event))
    scores = scores.masked_fill(~kept, -math.inf)
    feasible = enumerate_truth(case, scores).feasible
    assert not feasible[0]
    with kernels.disabled() if path == "references" else nullcontext():
        for rows in (scores, scores.float(), scores.half(), scores.flip(0).unsqueeze(1).expand(-1, 2, *case.event).flip(0)):
            moved = rows.to(device)
            best, indices = oracle.argmax(moved).cpu(), oracle.argmax(moved, as_indices=True).cpu()
            some = best.flatten(-len(case.event)).any(-1)
            expected = feasible.reshape(-1, *[1] * (some.ndim - 1)).expand(some.shape)
            assert torch.equal(some | (expected & oracle._holds_empty(case.event)), expected)
            assert bool(((best != 0) & (rows == -math.inf)).sum() == 0)
            assert torch.equal(oracle.dense(indices, case.event, dtype=best.dtype), best)
            assert bool((indices[~expected] == -1).all())
        assert torch.equal(oracle.argmax_of(oracle.natural_parameters(scores)).flatten(1).any(-1), oracle.argmax(scores).flatten(1).any(-1))

"""Sparsemax over structures, and the value of differentiable dynamic programming."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import SparsemaxMarginalisation, TopKSparsemax, make_estimator, smoothed_maximum
from structgrad.oracles import LinearChain
from tests.catalogue.walks import WALKS, sparsemax
from tests.estimator_cases import CASES, LOSSES, numbers
from tests.helpers import OracleCase, enumerate_truth, make_scores, seeded, structures


def gradient(name: str, case: OracleCase, kind: str, scores: Tensor) -> Tensor:
    return make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())


def test_a_policy_is_ranked_by_its_probabilities() -> None:
    """``top_k_sparsemax`` and ``sparsemax_marginalisation`` take the sparsemax of what `kbest` ranks by: log-probabilities."""
    case = next(case for case in CASES if case.potentials is not None)
    scores = numbers(4, *case.event)
    weights = [sparsemax(row)[1] for row in enumerate_truth(case, scores).probabilities.log().numpy()]
    loss, space = LOSSES["smooth"](case), structures(case)
    expected = torch.from_numpy(np.stack(weights)) @ loss(space)
    for estimator in (SparsemaxMarginalisation(), TopKSparsemax()):
        value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 7])
def test_the_loss_sees_the_support_alone(rows: int) -> None:
    """Slots that a row does not need repeat its best structure."""
    case = CASES[3]
    scores, seen = numbers(rows, *case.event), []

    def loss(z: Tensor) -> Tensor:
        seen.append(z)
        return LOSSES["smooth"](case)(z)

    for estimator in (SparsemaxMarginalisation(), TopKSparsemax(k=8)):
        seen.clear()
        estimator.surrogate(loss, case.oracle, scores, generator=seeded())
        sizes = [int((sparsemax(row)[1] > 0).sum()) for row in enumerate_truth(case, scores).structure_scores.numpy()]
        assert [len(z) for z in seen] == [max(sizes)]
        best = case.oracle.argmax(scores)
        for row, size in enumerate(sizes):
            assert torch.equal(seen[0][0, row], best[row])
            assert len(seen[0][:, row].unique(dim=0)) == size


def test_a_list_may_be_longer_than_the_space() -> None:
    case = CASES[0]
    torch.testing.assert_close(
        gradient("top_k_sparsemax[k=1000]", case, "smooth", numbers(5)), gradient("sparsemax_marginalisation", case, "smooth", numbers(5))
    )


RELAXED = tuple(case for case in CASES if type(case.oracle) in WALKS and case.potentials is None)
"""Cases whose scores are natural parameters, in which the value is convex."""


cases = pytest.mark.parametrize("case", RELAXED, ids=str)
omegas = pytest.mark.parametrize("omega", ["l2", "entropy"])


@cases
@omegas
@pytest.mark.parametrize("regime", [0.05, 1.0, 10.0, "masked"], ids=str)
def test_the_gradient_of_the_value_is_the_expected_walk(case: OracleCase, omega: str, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    value = smoothed_maximum(case.oracle, scores, omega)
    feasible = case.oracle.feasible(scores)
    assert torch.equal(value.detach() > -math.inf, feasible)
    (found,) = torch.autograd.grad(value[feasible].sum(), scores)
    torch.testing.assert_close(found, case.oracle.relax(scores.detach(), omega), rtol=1e-10, atol=1e-11)


@cases
def test_with_entropy_the_value_is_the_log_partition(case: OracleCase) -> None:
    scores = numbers(5, *case.event)
    found = smoothed_maximum(case.oracle, scores, "entropy")
    torch.testing.assert_close(found, enumerate_truth(case, scores).log_partition, rtol=1e-12, atol=1e-12)


@omegas
def test_the_value_of_padded_items(omega: str) -> None:
    scores, lengths = numbers(3, 5, 2, 2), torch.tensor([1, 3, 5])
    found = smoothed_maximum(LinearChain(), scores, omega, lengths=lengths)  # type: ignore[arg-type]
    single = [smoothed_maximum(LinearChain(), row[:size], omega) for row, size in zip(scores, lengths.tolist(), strict=True)]  # type: ignore[arg-type]
    # Each position of the padding is one more maximum, without a choice.
    constant = (5 - lengths) / 2 if omega == "l2" else 0
    torch.testing.assert_close(found + constant, torch.stack(single))


@omegas
def test_float32_and_half_precision(omega: str) -> None:
    scores = numbers(4, 3, 2, 2)
    exact = smoothed_maximum(LinearChain(), scores, omega)  # type: ignore[arg-type]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        found = smoothed_maximum(LinearChain(), scores.to(dtype), omega)  # type: ignore[arg-type]
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)

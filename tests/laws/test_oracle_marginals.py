"""`marginals` are the expected structure, and the gradient of `log_partition` in the natural parameters."""

from __future__ import annotations

import re

import pytest
import torch

from structgrad.oracles import LinearChain, Subset
from tests.helpers import ORACLE_CASES, REGIMES, OracleCase, make_scores, shared_parts, structures


@pytest.mark.parametrize("case", [case for case in ORACLE_CASES if case.potentials is None], ids=str)
def test_equal_scores_make_every_structure_equally_likely(case: OracleCase) -> None:
    marginals = case.oracle.marginals(7.5 * shared_parts(case).double())
    torch.testing.assert_close(marginals, structures(case).mean(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@pytest.mark.parametrize("case", ORACLE_CASES, ids=str)
def test_a_structure_in_their_place_has_their_derivative(case: OracleCase, regime: float | str) -> None:
    scores = make_scores(case, regime).requires_grad_()
    best = case.oracle.argmax(scores.detach())
    along = torch.linspace(-1.0, 2.0, best.numel(), dtype=torch.float64).reshape(best.shape)
    replaced = case.oracle.marginals(scores, at=best)
    assert torch.equal(replaced, best)
    found, expected = (torch.autograd.grad(value, scores, along)[0] for value in (replaced, case.oracle.marginals(scores)))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_a_structure_in_their_place_is_one_of_lengths_transforms_and_higher_derivatives() -> None:
    oracle, lengths = LinearChain(), torch.tensor([2, 4])
    scores = torch.linspace(-2.0, 2.0, 72, dtype=torch.float64).sin().reshape(2, 4, 3, 3).requires_grad_()
    best = oracle.argmax(scores.detach(), lengths=lengths)
    along = torch.cos(scores.detach())
    seconds = []
    for value in (oracle.marginals(scores, lengths=lengths, at=best), oracle.marginals(scores, lengths=lengths)):
        (first,) = torch.autograd.grad(value, scores, along, create_graph=True)
        seconds.append((first.detach(), torch.autograd.grad(first.square().sum(), scores)[0]))
    torch.testing.assert_close(*seconds)
    rows = scores.detach()
    jacobians = [torch.func.jacrev(torch.func.vmap(at))(rows, rows) for at in (lambda z, _: oracle.marginals(z), _at_best)]
    torch.testing.assert_close(*jacobians)
    assert torch.equal(oracle.marginals(rows[:1], at=best), best)


def _at_best(scores: torch.Tensor, point: torch.Tensor) -> torch.Tensor:
    return LinearChain().marginals(scores, at=LinearChain().argmax(point))


@pytest.mark.parametrize("shape", [(3, 4), (2, 5), (2, 1)])
def test_what_takes_their_place_has_to_be_like_the_scores(shape: tuple[int, ...]) -> None:
    expected = re.escape(f"`marginals` got at of shape {shape} for scores of shape (2, 4); expected one like them")
    with pytest.raises(ValueError, match=expected):
        Subset(2).marginals(torch.zeros(2, 4), at=torch.zeros(shape))


@pytest.mark.parametrize("at", [[1.0, 1.0, 0.0, 0.0], 1])
def test_what_takes_their_place_has_to_be_a_tensor(at: object) -> None:
    with pytest.raises(ValueError, match=rf"^`marginals` got at of type {type(at).__name__}; expected a tensor like the scores, "):
        Subset(2).marginals(torch.zeros(4), at=at)  # type: ignore[arg-type]

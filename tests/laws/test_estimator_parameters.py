"""The gradient in the loss's own parameters is right, so that a whole model trains on a surrogate."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import make_estimator
from tests.catalogue.values import value_of
from tests.estimator_cases import numbers, pairs
from tests.helpers import OracleCase, seeded

ROWS = 3


class Decoder(nn.Module):
    """A network with a target per batch row; it keeps the structures that it saw."""

    def __init__(self, case: OracleCase) -> None:
        super().__init__()
        size = int(torch.ones(case.event).sum())
        self.first = nn.Parameter(numbers(4, size))
        self.second = nn.Parameter(numbers(4, seed=1))
        self.target = numbers(ROWS, seed=2)
        self.event_ndim = len(case.event)
        self.seen: list[Tensor] = []

    def forward(self, z: Tensor) -> Tensor:
        self.seen.append(z.detach())
        hidden = (z.flatten(z.ndim - self.event_ndim) @ self.first.mT).tanh()
        return (hidden @ self.second - self.target).square()


@pytest.mark.parametrize("scores_require_grad", [True, False])
@pairs
def test_the_decoder_gets_the_gradient_of_the_objective(name: str, case: OracleCase, scores_require_grad: bool) -> None:
    estimator, decoder = make_estimator(name), Decoder(case)
    scores = numbers(ROWS, *case.event).requires_grad_(scores_require_grad)
    rates = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    value = estimator.surrogate(decoder, case.oracle, scores, generator=seeded())
    found = torch.autograd.grad((rates * value).sum(), [decoder.first, decoder.second])
    expected_value = value_of(estimator, case, scores.detach(), decoder.seen, decoder)
    expected = torch.autograd.grad((rates * expected_value).sum(), [decoder.first, decoder.second])
    torch.testing.assert_close(value, expected_value, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)
        assert ours.abs().sum() > 0


@pairs
def test_gradient_gives_the_decoder_nothing(name: str, case: OracleCase) -> None:
    decoder = Decoder(case)
    make_estimator(name).gradient(decoder, case.oracle, numbers(ROWS, *case.event), generator=seeded())
    assert all(parameter.grad is None for parameter in decoder.parameters())

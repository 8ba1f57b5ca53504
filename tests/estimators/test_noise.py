"""Noise on scores: where it goes, and where it does not."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import Gumbel, Noise, Normal, SumOfGamma
from tests.estimator_cases import numbers, oracles
from tests.helpers import OracleCase, read_parts, seeded

noises = pytest.mark.parametrize("noise", [Gumbel(), Gumbel(2.0), Normal(0.5), SumOfGamma(k=2)], ids=str)


@noises
@oracles
def test_ignored_entries_and_forbidden_parts_stay_what_they_are(noise: Noise, case: OracleCase) -> None:
    scores = numbers(50, *case.event)
    forbidden = (numbers(50, *case.event, seed=1) > 1) & read_parts(case)
    scores = scores.masked_fill(forbidden, -math.inf)
    noisy = noise.perturb(case.oracle, scores, generator=seeded())
    assert bool((noisy[forbidden] == -math.inf).all())
    assert torch.equal(noisy[:, ~read_parts(case)], scores[:, ~read_parts(case)])
    assert bool((noisy != scores)[~forbidden & read_parts(case)].all())


@noises
@oracles
def test_every_part_of_every_row_has_noise_of_its_own(noise: Noise, case: OracleCase) -> None:
    zeros = torch.zeros(1, *case.event, dtype=torch.float64).expand(30, *case.event)
    drawn = noise.perturb(case.oracle, zeros, generator=seeded())[:, read_parts(case)]
    assert len(drawn.unique()) == drawn.numel()


@noises
@oracles
def test_noise_depends_on_the_seed_alone(noise: Noise, case: OracleCase) -> None:
    scores = numbers(5, *case.event)
    first = noise.perturb(case.oracle, scores, generator=seeded(1)) - scores
    again = noise.perturb(case.oracle, 3 * scores, generator=seeded(1)) - 3 * scores
    other = noise.perturb(case.oracle, scores, generator=seeded(2)) - scores
    torch.testing.assert_close(first, again)
    assert not torch.allclose(first, other)


@noises
@oracles
def test_noise_has_the_dtype_of_the_scores_and_passes_gradients(noise: Noise, case: OracleCase) -> None:
    scores = numbers(5, *case.event).float().requires_grad_()
    noisy = noise.perturb(case.oracle, scores, generator=seeded())
    assert noisy.dtype == torch.float32
    (found,) = torch.autograd.grad(noisy.sum(), scores)
    assert torch.equal(found, torch.ones_like(scores))


def test_gumbel_noise_is_finite_at_the_ends_of_the_uniform() -> None:
    drawn = Gumbel()._draw((200_000,), seeded(), torch.device("cpu"))
    assert drawn.isfinite().all()
    assert float(drawn.min()) > -3.7
    assert float(drawn.max()) < 37

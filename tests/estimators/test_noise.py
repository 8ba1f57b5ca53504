"""Noise: its laws, moments and scores, its dtype, its ends, and the generator that it is drawn from."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from structgrad.estimators import (
    Gumbel,
    Noise,
    Normal,
    SmoothNoise,
    SumOfGamma,
)
from structgrad.estimators.noise import NOISES, gamma_sum_quantile
from structgrad.oracles import Categorical, SeedBlocks
from structgrad.oracles.random_streams import RowGenerator
from tests.estimator_cases import numbers, oracles
from tests.helpers import OracleCase, read_parts, seeded

NOISE = (Gumbel(), Gumbel(2.0), Normal(0.5), SumOfGamma(k=2))


@oracles
def test_noise_of_scores(case: OracleCase) -> None:
    """Every free part of every row has noise of its own, in the dtype of the scores; the other entries stay; gradients pass."""
    read, zeros = read_parts(case), torch.zeros(1, *case.event, dtype=torch.float64).expand(30, *case.event)
    scores = numbers(50, *case.event)
    forbidden = (numbers(50, *case.event, seed=1) > 1) & read
    scores = scores.masked_fill(forbidden, -math.inf)
    for noise in NOISE:
        noisy = noise.perturb(case.oracle, scores, generator=seeded())
        assert bool((noisy[forbidden] == -math.inf).all())
        assert torch.equal(noisy[:, ~read], scores[:, ~read])
        assert bool((noisy != scores)[~forbidden & read].all())
        drawn = noise.perturb(case.oracle, zeros, generator=seeded())[:, read]
        assert len(drawn.unique()) == drawn.numel()
        leaf = numbers(5, *case.event).float().requires_grad_()
        noisy = noise.perturb(case.oracle, leaf, generator=seeded())
        assert noisy.dtype == torch.float32
        (found,) = torch.autograd.grad(noisy.sum(), leaf)
        assert torch.equal(found, torch.ones_like(leaf))


class Ends(RowGenerator):
    """Serves the least and the greatest uniform."""

    def uniforms(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        return torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64, device=device).expand(rows, width).clone()


@pytest.mark.parametrize(
    ("noise", "least", "greatest"),
    [
        (Gumbel(2.0), -2 * math.log(54 * math.log(2)), 2 * 53 * math.log(2)),
        (Normal(0.5), 0.5 * stats.norm.ppf(2.0**-54), 0.5 * stats.norm.isf(2.0**-53)),
        (SumOfGamma(k=2, terms=1), stats.gamma.ppf(2.0**-54, 0.5, scale=2) / 2, stats.gamma.isf(2.0**-53, 0.5, scale=2) / 2),
    ],
    ids=str,
)
def test_noise_is_finite_at_the_ends_of_the_uniform(noise: Noise, least: float, greatest: float) -> None:
    drawn = noise.draw(Categorical(), torch.zeros(1, 2, dtype=torch.float64), generator=Ends())
    assert drawn[0].tolist() == pytest.approx([least, greatest], rel=1e-8)


SUMS = [(1.0, 1), (0.2, 1), (3.0, 1), (1.0, 2), (1.0, 10), (1.0, 60)]


@pytest.mark.parametrize(("shape", "terms"), SUMS)
def test_quantiles_of_sums_of_gamma_variables(shape: float, terms: int) -> None:
    """One term is a gamma variable; with shape 1 the sum is s times the greatest of s exponential variables (Rényi)."""
    u = torch.cat([torch.tensor([2.0**-54, 1e-12, 1 - 1e-12, 1 - 2.0**-53], dtype=torch.float64), torch.linspace(0.001, 0.999, 999)])
    found = gamma_sum_quantile(u.double(), shape, terms).numpy()
    p = u.double().numpy()
    expected = stats.gamma.ppf(p, shape) if terms == 1 else -terms * np.log(-np.expm1(np.log(p) / terms))
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize(("shape", "terms"), [(0.2, 10), (0.5, 4), (3.0, 5), (0.01, 3), (20.0, 7)])
def test_sums_of_gamma_variables_have_their_law(shape: float, terms: int) -> None:
    """Two samples, one of them by scipy, and the exact mean and variance by midpoints of the probabilities."""
    random, scales = np.random.default_rng(0), terms / np.arange(1, terms + 1)
    theirs = (stats.gamma.rvs(shape, size=(20_000, terms), random_state=random) * scales).sum(-1)
    ours = gamma_sum_quantile(torch.from_numpy(random.random(20_000)).clamp(min=1e-15), shape, terms)
    assert stats.ks_2samp(theirs, ours.numpy()).pvalue > 1e-3
    middles = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    values = gamma_sum_quantile(middles, shape, terms)
    assert float(values.mean()) == pytest.approx(shape * scales.sum(), rel=1e-3)
    assert float(values.var()) == pytest.approx(shape * (scales**2).sum(), rel=1e-2)


@pytest.mark.parametrize(
    ("noise", "law"),
    [(Gumbel(2.0), stats.gumbel_r(scale=2)), (Normal(0.5), stats.norm(scale=0.5)), (SumOfGamma(), None)],
    ids=["gumbel", "normal", "sum_of_gamma"],
)
def test_blocks_draw_noise_of_the_same_law(noise: Noise, law: Any) -> None:
    """With one term or k = 1, Sum-of-Gamma is ``max`` of exponential variables less ``log s``."""
    drawn = noise.draw(Categorical(), torch.zeros(128, 40, dtype=torch.float64), generator=SeedBlocks((7,), 128)).flatten().numpy()
    cdf = law.cdf if law else lambda x: (-np.expm1(-np.maximum(x + math.log(10), 0))) ** 10
    assert stats.kstest(drawn, cdf).pvalue > 1e-3


def test_laws_share_their_uniforms() -> None:
    """Noise increases with its uniform, so that laws are comparable at common random numbers."""
    zeros = torch.zeros(200, dtype=torch.float64)
    orders = [noise.draw(Categorical(), zeros, generator=seeded()).argsort() for noise in (Gumbel(), Normal(3.0), SumOfGamma(k=4))]
    assert torch.equal(orders[0], orders[1])
    assert torch.equal(orders[0], orders[2])


@pytest.mark.parametrize("noise", NOISES.values(), ids=lambda kind: str(kind.name))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_noisy_scores_of_half_precision_do_not_tie(noise: type[Noise], dtype: torch.dtype) -> None:
    """Rounded to bfloat16, the first of 16 equal scores of 64 was chosen in .080 of all draws, the last in .050."""
    scores = torch.full((20_000, 16), 64.0, dtype=dtype)
    noisy = noise().perturb(Categorical(), scores, generator=seeded())
    assert noisy.dtype == torch.float32
    assert torch.equal(noisy, noise().perturb(Categorical(), scores.float(), generator=seeded()))
    shares = torch.bincount(noisy.argmax(-1), minlength=16) / len(noisy)
    assert float((shares - 1 / 16).square().sum()) * len(noisy) * 16 < 50  # chi-squared of 15 degrees of freedom


@pytest.mark.parametrize("law", [Normal(), Normal(2.5), Gumbel(), Gumbel(0.4)], ids=str)
def test_the_score_of_noise(law: SmoothNoise) -> None:
    """It is the derivative of minus the log-density."""
    scale: float = law.scale  # type: ignore[attr-defined]
    values = torch.linspace(-2, 6, 41, dtype=torch.float64, requires_grad=True)
    log_density = {"normal": -((values / scale) ** 2) / 2, "gumbel": -values / scale - (-values / scale).exp()}[law.name]
    (expected,) = torch.autograd.grad(-log_density.sum(), values)
    torch.testing.assert_close(law.score(values.detach()), expected, rtol=1e-12, atol=1e-12)

"""Toys of the papers on bits and categories, compared with exact values by enumeration or in closed form.

* REBAR, RELAX, ARM and DisARM: one bit of logit 1 and the loss ``(b − t)²`` with t close to ½. The quantity is the natural logarithm of the
  variance of the gradient in the logit. Both bits cost almost the same, so that the relaxed loss is no help.
* Gumbel-Rao: it keeps the mean of straight-through Gumbel-softmax, and loses variance as K grows.
* ReinMax: independent bits with the loss ``|b − .45|^p``, a sum, so that one bit suffices. The quantity is the relative bias.

References:
    Tucker et al. 2017 (REBAR), section 5; Grathwohl et al. 2018 (RELAX), section 5.1; Yin & Zhou 2019 (ARM), section 4; Dong, Mnih & Tucker
    2020 (DisARM), section 6; Paulus, Maddison & Krause 2021, section 5; Liu et al. 2023 (ReinMax), section 5.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ARM, DisARM, Estimator, GumbelRao, Rebar, Reinforce, ReinMax, Relax, Simple, StraightThroughGumbel
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.seeds import generator

REPLICATES = 20_000
BIT = torch.tensor([0.0, 1.0], dtype=torch.float64)


def estimates(estimator: Estimator[Any], loss: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    rows = scores.expand(REPLICATES, len(scores))
    return estimator.gradient(loss, Categorical(), rows, generator=generator(0, "published_toys", estimator.name))


def log_variances_of_a_bit(target: float) -> dict[str, float]:
    """In closed form: ``Δ`` is the difference of the losses, ``q = min(σ, 1 − σ)`` half of the chance that an antithetic pair differs."""
    sigma = 1 / (1 + math.exp(-1))
    one, zero, q = (1 - target) ** 2, target**2, 1 - sigma
    square = ((one - zero) * q * (1 - q)) ** 2
    variances = {
        "reinforce": sigma * (one * (1 - sigma)) ** 2 + (1 - sigma) * (zero * sigma) ** 2 - square,
        "arm": (one - zero) ** 2 * 2 * (0.125 - (0.5 - q) ** 3) / 3 - square,
        "disarm": (one - zero) ** 2 * q * (1 - q) ** 2 / 2 - square,
    }
    return {name: math.log(variance) for name, variance in variances.items()}


def test_log_variances_in_figures() -> None:
    """Values at t = .45: ``.0103``, ``3.6e-4`` and ``3.3e-4``."""
    expected = {"reinforce": 0.010345, "arm": 3.6452e-4, "disarm": 3.3214e-4}
    assert {name: math.exp(value) for name, value in log_variances_of_a_bit(0.45).items()} == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("target", [0.45, 0.499])
def test_variances_on_one_bit(target: float) -> None:
    """Training lowers the variance of RELAX; that of REBAR falls to that of REINFORCE alone."""

    def loss(z: Tensor) -> Tensor:
        return (z[..., 1] - target).square()

    def log_variance(estimator: Estimator[Any]) -> float:
        return math.log(float(estimates(estimator, loss, BIT)[:, 1].var()))

    def tuned(estimator: Rebar) -> Rebar:
        stream = generator(0, "published_toys", "tuning")
        return estimator.tuned(loss, Categorical(), BIT.expand(64, 2), generator=stream, steps=200)

    torch.manual_seed(0)
    control = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1), nn.Flatten(-2)).double()
    found = {estimator.name: log_variance(estimator) for estimator in (Reinforce(), ARM(), DisARM())}
    assert found == pytest.approx(log_variances_of_a_bit(target), abs=0.05)
    rebar = log_variance(tuned(Rebar()))
    assert rebar < log_variance(Rebar())
    assert rebar == pytest.approx(found["reinforce"], abs=0.1)
    assert log_variance(tuned(Relax(control=control))) < found["reinforce"] - 2


def test_gumbel_rao_keeps_the_mean_and_loses_variance() -> None:
    for estimator in (StraightThroughGumbel(), GumbelRao()):
        assert float(estimates(estimator, lambda z: z[..., 0], torch.zeros(2).double())[:, 0].mean()) == pytest.approx(1 / 6, abs=0.005)
    matrix = torch.randn(3, 3, generator=generator(0, "published_toys", "quadratic"), dtype=torch.float64)

    def variance(estimator: Estimator[Any]) -> float:
        return float(estimates(estimator, lambda z: ((z - 1 / 3) @ matrix).square().sum(-1), torch.zeros(3).double()).var(0).sum())

    straight = variance(StraightThroughGumbel(0.1))
    one, ten, hundred = (variance(GumbelRao(0.1, count)) / straight for count in (1, 10, 100))
    assert one == pytest.approx(1.0, abs=0.1)
    # v(K) = a + b/K with a + b = 1.
    assert (one - hundred) * 0.9 / 0.99 == pytest.approx(one - ten, abs=0.05)
    assert hundred < 0.3


def test_reinmax_is_exact_for_the_quadratic_alone() -> None:
    def bias(estimator: Estimator[Any], power: float) -> float:
        scores = torch.tensor([0.0, 0.5], dtype=torch.float64)
        return measure(estimator, Categorical(), lambda z: (z[..., 1] - 0.45).abs().pow(power), scores).metrics["relative_bias"].value

    assert bias(ReinMax(), 2.0) < 1e-12
    for power in (1.5, 3.0):
        assert 0.1 < bias(ReinMax(), power) < bias(Simple(), power)

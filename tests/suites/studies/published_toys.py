"""Toys of the papers on bits and categories.

* REBAR, RELAX, ARM and DisARM: one bit of logit φ and the loss ``(b − t)²`` with t close to ½. The quantity is the natural logarithm of
  the variance of the gradient in φ. REBAR and RELAX are tuned first. Both bits cost almost the same, so that the relaxed loss is no help.
* Gumbel-Rao: a quadratic loss of three classes. It keeps the mean of straight-through Gumbel-softmax, and loses variance as K grows.
* ReinMax: independent bits with the loss ``|b − .45|^p``, a sum, so that one bit suffices. The quantity is the relative bias.

The papers show curves, and print no numbers. The column ``exact`` is by enumeration or in closed form.

References:
    Tucker et al. 2017 (REBAR), section 5; Grathwohl et al. 2018 (RELAX), section 5.1; Yin & Zhou 2019 (ARM), section 4; Dong, Mnih & Tucker
    2020 (DisARM), section 6; Paulus, Maddison & Krause 2021, section 5; Liu et al. 2023 (ReinMax), section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from structgrad.estimators import ARM, DisARM, Estimator, GumbelRao, Rebar, Reinforce, ReinMax, Relax, Simple, StraightThroughGumbel
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias import measure
from structgrad.suites.statistics.seeds import generator
from structgrad.suites.truth import exact_truth

REPLICATES = 20_000
TUNING_STEPS, TUNING_ROWS = 200, 64

Row = tuple[str, str, str, float, float | None]


def reproduce() -> pd.DataFrame:
    """One row per estimator and setting: the measured number, and the exact value if there is one."""
    rows = [*bit_rows(0.45), *bit_rows(0.499), *gumbel_rao_rows(), *reinmax_rows()]
    return pd.DataFrame(rows, columns=["setting", "estimator", "quantity", "measured", "exact"]).astype({"measured": float, "exact": float})


def bit_rows(target: float, logit: float = 1.0) -> list[Row]:
    """Log-variances on one bit."""
    scores = torch.tensor([0.0, logit], dtype=torch.float64)
    exact = log_variances_of_a_bit(target, logit)

    def loss(z: Tensor) -> Tensor:
        return (z[..., 1] - target).square()

    def log_variance(estimator: Estimator[Any]) -> float:
        rows = scores.expand(REPLICATES, 2)
        estimates = estimator.gradient(loss, Categorical(), rows, generator=generator(0, "published_toys", estimator.name))
        return math.log(float(estimates[:, 1].var()))

    def tuned(estimator: Rebar) -> Rebar:
        stream, rows = generator(0, "published_toys", "tuning"), scores.expand(TUNING_ROWS, 2)
        return estimator.tuned(loss, Categorical(), rows, generator=stream, steps=TUNING_STEPS)

    estimators: dict[str, Estimator[Any]] = {
        "reinforce": Reinforce(),
        "arm": ARM(),
        "disarm": DisARM(),
        "rebar": Rebar(),
        "rebar, tuned": tuned(Rebar()),
        "relax, tuned": tuned(Relax(control=network())),
    }
    setting = f"(b − {target})², φ = {logit:g}"
    return [(setting, name, "log variance", log_variance(estimator), exact.get(name)) for name, estimator in estimators.items()]


def log_variances_of_a_bit(target: float, logit: float) -> dict[str, float]:
    """Log-variances in closed form.

    ``Δ`` is the difference of the losses, and ``q = min(σ, 1 − σ)`` half of the chance that an antithetic pair differs.
    """
    sigma = 1 / (1 + math.exp(-logit))
    one, zero, q = (1 - target) ** 2, target**2, min(sigma, 1 - sigma)
    square = ((one - zero) * q * (1 - q)) ** 2
    variances = {
        "reinforce": sigma * (one * (1 - sigma)) ** 2 + (1 - sigma) * (zero * sigma) ** 2 - square,
        "arm": (one - zero) ** 2 * 2 * (0.125 - (0.5 - q) ** 3) / 3 - square,
        "disarm": (one - zero) ** 2 * q * (1 - q) ** 2 / 2 - square,
    }
    return {name: math.log(variance) for name, variance in variances.items()}


def network() -> nn.Module:
    """Ten hidden units, as in the authors' toy; the same weights in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1), nn.Flatten(-2)).double()


def gumbel_rao_rows() -> list[Row]:
    """The mean on two classes of equal scores, and the variance relative to ST-GS on a quadratic loss of three."""
    rows: list[Row] = []
    for name, estimator in (("st_gumbel", StraightThroughGumbel()), ("gumbel_rao, K = 10", GumbelRao())):
        found = _estimates(estimator, lambda z: z[..., 0], torch.zeros(2, dtype=torch.float64))
        rows.append(("L = z_0, θ = (0, 0), τ = 1", name, "mean", float(found[:, 0].mean()), 1 / 6))
    stream = generator(0, "published_toys", "quadratic")
    matrix = torch.randn(3, 3, generator=stream, dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return ((z - 1 / 3) @ matrix).square().sum(-1)

    scores = torch.zeros(3, dtype=torch.float64)
    straight = float(_estimates(StraightThroughGumbel(0.1), loss, scores).var(0).sum())
    for count in (1, 10, 100):
        ratio = float(_estimates(GumbelRao(0.1, count), loss, scores).var(0).sum()) / straight
        exact = 1.0 if count == 1 else None
        rows.append(("‖Q(z − ⅓)‖², θ = 0, τ = 0.1", f"gumbel_rao, K = {count}", "variance / that of ST-GS", ratio, exact))
    return rows


def reinmax_rows() -> list[Row]:
    """Relative biases on the polynomial toy."""
    rows: list[Row] = []
    for power in (1.5, 2.0, 3.0):

        def loss(z: Tensor, power: float = power) -> Tensor:
            return (z[..., 1] - 0.45).abs().pow(power)

        scores = torch.tensor([0.0, 0.5], dtype=torch.float64)
        truth = exact_truth(loss, Categorical(), scores)
        for name, estimator in (("simple", Simple()), ("reinmax", ReinMax())):
            found = measure(estimator, Categorical(), loss, scores, truth=truth)
            exact = found.metrics["relative_bias"].value
            error = _estimates(estimator, loss, scores).mean(0) - truth.gradient
            rows.append((f"|b − .45|^{power:g}, φ = 0.5", name, "relative bias", float(error.norm() / truth.gradient.norm()), exact))
    return rows


def _estimates(estimator: Estimator[Any], loss: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    rows = scores.expand(REPLICATES, len(scores))
    return estimator.gradient(loss, Categorical(), rows, generator=generator(0, "published_toys", estimator.name))

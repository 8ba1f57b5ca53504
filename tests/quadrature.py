"""Exact means over one or two random numbers: nodes and weights, and noise that is dealt in place of random numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import Estimator, Gumbel, Loss
from structgrad.suites.truth.replay import scripted


def pieces(cuts: Sequence[float], nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights between neighbouring cuts: exact for polynomials of degree 2·nodes − 1 on every piece."""
    places, weights = np.polynomial.legendre.leggauss(nodes)
    ends = np.unique(np.asarray(cuts, dtype=float))
    half, middle = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
    return (middle[:, None] + half[:, None] * places).ravel(), (half[:, None] * weights).ravel()


def logistic_numbers(width: float = 0.5) -> tuple[Tensor, Tensor]:
    """Values of a logistic variable with their probabilities, for smooth integrands: the log-ratio of two exponentials."""
    x, weights = pieces(np.linspace(-44, 44, round(88 / width) + 1), 8)
    return torch.from_numpy(x), torch.from_numpy(weights * 0.25 / np.cosh(x / 2) ** 2)


def product(values: Sequence[Tensor], weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Independent variables together: ``[rows, variables]`` and ``[rows]``."""
    places = torch.tensor(list(itertools.product(*[value.tolist() for value in values])), dtype=torch.float64)
    joint = torch.tensor(list(itertools.product(*[weight.tolist() for weight in weights])), dtype=torch.float64)
    return places, joint.prod(-1)


def bits_of_ratios(x: Tensor) -> Tensor:
    """Gumbel noise ``[..., 2]`` of a bit whose exponentials have the log-ratio x = log E_0/E_1: only the ratio counts."""
    return torch.stack([-torch.nn.functional.logsigmoid(x), -torch.nn.functional.logsigmoid(-x)], -1)


def deal_gumbels(monkeypatch: pytest.MonkeyPatch, values: Tensor) -> None:
    """Gumbel noise is dealt from ``[rows, draws, *event]`` from now on, draw by draw, over and over."""
    dealt = itertools.cycle(values.unbind(1))
    monkeypatch.setattr(Gumbel, "_quantile", lambda self, uniform: next(dealt).reshape(uniform.shape))


def deal_uniforms(monkeypatch: pytest.MonkeyPatch, values: Tensor, name: str = "random_uniform") -> None:
    """Uniforms of antithetic samples are ``[rows, *bits]`` from now on."""
    monkeypatch.setattr(f"structgrad.estimators.antithetic.{name}", lambda batch, shape, **named: values.reshape(*batch, *shape))


def estimates_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor, samples: Tensor | int) -> Tensor:
    """One estimate per row of noise that was dealt; samples ``[rows, *event]`` are dealt too, or drawn where there is but their number."""
    if isinstance(samples, Tensor):
        oracle, samples = scripted(oracle, samples.unsqueeze(0)), len(samples)
    return estimator.gradient(loss, oracle, scores.expand(samples, *scores.shape), generator=torch.Generator())


def moments(estimates: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Mean and trace of the covariance."""
    mean = torch.einsum("r,r...->...", weights, estimates)
    return mean, float(weights @ (estimates - mean).flatten(1).square().sum(-1))

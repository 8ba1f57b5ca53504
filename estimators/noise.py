"""Noise on scores: Gumbel, normal and Sum-of-Gamma."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..oracles import registry
from ..oracles.capabilities import Oracle
from ..oracles.capabilities.base import at_least_single
from ..oracles.options import Configured, Positive, Within
from ..oracles.random_streams import gumbel_quantile, inner_uniform
from .base import check_call
from .gamma_sums import MOST_TERMS, gamma_sum_quantile


class Noise(Configured, abc.ABC):
    """Independent noise on every part of a structure, in float64: the tails of float32 uniforms end too early.

    It is made of one uniform per part by the inverse of its distribution function, and so increases with it.
    """

    name: ClassVar[str]

    @abc.abstractmethod
    def _quantile(self, uniform: Tensor) -> Tensor:
        """The value that the noise does not exceed with these probabilities, strictly inside (0, 1); it may overwrite them."""

    def perturb(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """``θ + ε``: ``[*batch, *event]``, independent over batch rows; nothing is added to ignored entries.

        In the dtype of the scores, and at least in float32: rounded to half precision, noisy scores would tie.
        """
        return at_least_single(scores) + self.draw(oracle, scores, generator=generator).to(torch.promote_types(scores.dtype, torch.float32))

    def draw(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """ε alone: float64 ``[*batch, *event]``, 0 in ignored entries."""
        check_call("Noise.draw", oracle=oracle, scores=scores, generator=generator)
        batch_dims = scores.ndim - oracle.event_ndim
        batch, event = tuple(scores.shape[:batch_dims]), tuple(scores.shape[batch_dims:])
        drawn = self._quantile(inner_uniform(batch, event, generator=generator, device=scores.device))
        # Noise is finite, so that a product serves as a choice, in a third of the time.
        return drawn * oracle.read_mask(event, scores.device)


class SmoothNoise(Noise):
    """Noise of a differentiable density f, whose score says how means over the noise depend on where it is centred.

    ``∇_θ E F(θ + σε) = E F(θ + σε) ν(ε) / σ`` with ``ν = −(log f)'``, for every function F, smooth or not.
    """

    @abc.abstractmethod
    def score(self, noise: Tensor) -> Tensor:
        """``ν(ε)``, elementwise; its mean is 0."""


@dataclass(frozen=True)
class Gumbel(SmoothNoise):
    """Gumbel noise of location 0: mean ``0.5772·scale``, variance ``π²/6·scale²``.

    For `categorical`, ``argmax(θ + ε)`` at scale 1 is an exact sample of the softmax; for other structures it is not one of the Gibbs law.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> noisy = Gumbel().perturb(Categorical(), torch.zeros(100_000, 2), generator=torch.Generator().manual_seed(0))
        >>> round(float(noisy.mean()), 1)
        0.6
    """

    scale: Positive = 1.0
    name: ClassVar[str] = "gumbel"

    def _quantile(self, uniform: Tensor) -> Tensor:
        gumbel = gumbel_quantile(uniform)
        return gumbel if self.scale == 1 else gumbel.mul_(self.scale)

    def score(self, noise: Tensor) -> Tensor:
        """``(1 − e^{−ε/s}) / s`` at scale s."""
        return -torch.expm1(-noise / self.scale) / self.scale


@dataclass(frozen=True)
class Normal(SmoothNoise):
    """Normal noise of mean 0.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> noise = Normal(scale=2.0)
        >>> noisy = noise.perturb(Categorical(), torch.zeros(100_000, 2), generator=torch.Generator().manual_seed(0))
        >>> round(float(noisy.var()), 1)
        4.0
        >>> noise.score(torch.tensor([1.0, -2.0]))
        tensor([ 0.2500, -0.5000])
    """

    scale: Positive = 1.0
    name: ClassVar[str] = "normal"

    def _quantile(self, uniform: Tensor) -> Tensor:
        normal: Tensor = torch.special.ndtri(uniform)
        return normal.mul_(self.scale)

    def score(self, noise: Tensor) -> Tensor:
        """``ε / s²`` at scale s."""
        return noise / self.scale**2


@dataclass(frozen=True)
class SumOfGamma(Noise):
    """Sum-of-Gamma noise (Niepert et al. 2021, section 3.2): the sum over k ones of a structure is close to one Gumbel variable.

    ``(τ/k)·[Σ_{i=1}^{s} Gamma(1/k, scale k/i) − log s]``, of mean ``τ(H_s − log s)/k`` and variance ``τ²·Σ i⁻²/k``.

    Args:
        k: number of ones in a structure.
        scale: τ.
        terms: s, the length of the series.

    Example:
        >>> from structgrad.oracles import Subset
        >>> noise = SumOfGamma(k=5, scale=1.0, terms=10)
        >>> noisy = noise.perturb(Subset(5), torch.zeros(100_000, 10), generator=torch.Generator().manual_seed(0))
        >>> round(float(noisy.mean()), 1), round(float(noisy.var()), 2)
        (0.1, 0.31)
    """

    k: Positive = 1.0
    scale: Positive = 1.0
    terms: Annotated[int, Within(least=1, most=MOST_TERMS)] = 10
    name: ClassVar[str] = "sum_of_gamma"

    def _quantile(self, uniform: Tensor) -> Tensor:
        total = gamma_sum_quantile(uniform, 1 / self.k, self.terms).mul_(self.k / self.terms)
        return total.sub_(math.log(self.terms)).mul_(self.scale / self.k)


NOISES: dict[str, type[Noise]] = {"gumbel": Gumbel, "normal": Normal, "sum_of_gamma": SumOfGamma}
"""The classes of noise by their names."""

AnyNoise = Annotated[Noise, "a noise: gumbel, normal or sum_of_gamma"]
AnySmoothNoise = Annotated[SmoothNoise, "a noise of known density: gumbel or normal"]


def make_noise(text: str) -> Noise:
    """The noise of a name such as ``gumbel`` or ``sum_of_gamma/k=5/scale=1``.

    Example:
        >>> make_noise("normal/scale=2")
        Normal(scale=2.0)
    """
    kind, _, options = text.partition("/")
    noise: Noise = registry.build(f"{kind}[{options.replace('/', ',')}]", NOISES, "noise")
    return noise

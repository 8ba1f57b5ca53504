"""Noise that is added to scores: Gumbel and Sum-of-Gamma."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..oracles.base import Oracle
from ..oracles.random_streams import draw_rows


class Noise(abc.ABC):
    """Independent noise on every part of a structure, drawn in float64: the tails of float32 uniforms end too early."""

    name: ClassVar[str]

    @abc.abstractmethod
    def _draw(self, size: tuple[int, ...], stream: torch.Generator, device: torch.device) -> Tensor: ...

    def perturb(self, oracle: Oracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        """``θ + ε``: ``[*batch, *event]``, independent over batch rows; nothing is added to ignored entries."""
        batch_dims = scores.ndim - oracle.event_ndim
        batch, event = tuple(scores.shape[:batch_dims]), tuple(scores.shape[batch_dims:])
        drawn = draw_rows(batch, event, lambda size, stream: self._draw(size, stream, scores.device), generator)
        return scores + torch.where(oracle.read_mask(event, scores.device), drawn, 0).to(scores.dtype)


@dataclass(frozen=True)
class Gumbel(Noise):
    """Gumbel noise of location 0: mean ``0.5772·scale``, variance ``π²/6·scale²``.

    For `categorical`, ``argmax(θ + ε)`` at scale 1 is an exact sample of the softmax; for other structures it is not one of the Gibbs law.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> noisy = Gumbel().perturb(Categorical(), torch.zeros(100_000, 2), generator=torch.Generator().manual_seed(0))
        >>> round(float(noisy.mean()), 1)
        0.6
    """

    scale: float = 1.0
    name: ClassVar[str] = "gumbel"

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"`Gumbel` got scale={self.scale}; expected a positive number")

    def _draw(self, size: tuple[int, ...], stream: torch.Generator, device: torch.device) -> Tensor:
        return self.scale * gumbel_variables(size, stream, device)


def gumbel_variables(size: tuple[int, ...], stream: torch.Generator, device: torch.device) -> Tensor:
    """Float64 Gumbel variables of location 0 and scale 1, from one stream."""
    uniform = torch.rand(size, generator=stream, dtype=torch.float64, device=device).clamp(min=2.0**-54)
    return -(-uniform.log()).log()


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
        >>> round(float(noisy.mean()), 2), round(float(noisy.var()), 2)
        (0.13, 0.31)
    """

    k: float = 1.0
    scale: float = 1.0
    terms: int = 10
    name: ClassVar[str] = "sum_of_gamma"

    def __post_init__(self) -> None:
        if not (self.k > 0 and self.scale > 0 and self.terms >= 1):
            raise ValueError(f"`SumOfGamma` got {self}; expected k > 0, scale > 0 and terms >= 1")

    def _draw(self, size: tuple[int, ...], stream: torch.Generator, device: torch.device) -> Tensor:
        shape = torch.full((*size, self.terms), 1 / self.k, dtype=torch.float64, device=device)
        steps = torch.arange(1, self.terms + 1, dtype=torch.float64, device=device)
        gammas = torch._standard_gamma(shape, generator=stream) * (self.k / steps)
        return (self.scale / self.k) * (gammas.sum(-1) - math.log(self.terms))


NOISES: dict[str, type[Noise]] = {"gumbel": Gumbel, "sum_of_gamma": SumOfGamma}

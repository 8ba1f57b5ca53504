"""Noise on scores: Gumbel, normal and Sum-of-Gamma."""

import abc
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..oracles import registry
from ..oracles.capabilities import Oracle
from ..oracles.numerics import made_once
from ..oracles.options import Configured, Positive, Within
from ..oracles.random_streams import gumbel_quantile, inner_uniform
from .base import check_call

MOST_TERMS = 200  # a table takes seconds then; its cost grows with the square


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
        return scores + self.draw(oracle, scores, generator=generator).to(torch.promote_types(scores.dtype, torch.float32))

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
        >>> Normal(scale=2.0).score(torch.tensor([1.0, -2.0]))
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


INTERVALS = 2048  # of the table, in the logit of the probability; the relative error of a quantile is below 1e-8
ENDS = (-37.5, 36.8)  # logits of the table: just beyond those of 2⁻⁵⁴ and of 1 − 2⁻⁵³
NEWTON = 4  # steps from a coarse interpolation to the quantiles of the table: a fifth would change nothing


def gamma_sum_quantile(uniform: Tensor, shape: float, terms: int) -> Tensor:
    """The x with ``P(X ≤ x) = u`` for ``X = Σ_{i=1}^{s} Gamma(a, scale s/i)``.

    Args:
        uniform: float64 numbers in [2⁻⁵⁴, 1 − 2⁻⁵³].
        shape: a.
        terms: s.

    Example:
        One term is a gamma variable; with shape 1 that is an exponential one, of median log 2.

        >>> gamma_sum_quantile(torch.tensor([0.5], dtype=torch.float64), 1.0, 1)
        tensor([0.6931], dtype=torch.float64)
    """
    table = _table(shape, terms, uniform.device)
    step = (ENDS[1] - ENDS[0]) / INTERVALS
    place = uniform.logit().sub_(ENDS[0]).div_(step)
    interval = place.floor().clamp_(0, INTERVALS - 1)
    within = place.sub_(interval)
    first, second, third, last = table[interval.long()].unbind(-1)
    return torch.addcmul(first, within, torch.addcmul(second, within, torch.addcmul(third, within, last))).exp_()


@made_once
def _table(shape: float, terms: int, device: torch.device) -> Tensor:
    """Coefficients [intervals, 4] of cubics that meet the log-quantile and its derivative at both ends of an interval."""
    law = _Law(shape, terms)
    logits = np.linspace(*ENDS, INTERVALS + 1)
    lowest = (ENDS[0] - 2 - np.log(law.at_most[0] or 1.0) + law.special.gammaln(law.least + 1)) / law.least
    lowest = min(lowest, np.log(law.mean) - 1)
    log_x = np.union1d(np.linspace(lowest, np.log(law.mean), 300), np.log(np.linspace(law.mean * 1e-2, law.last, 500)))
    with np.errstate(divide="ignore", invalid="ignore"):
        known = law.logit(log_x)[0]
    usable = np.isfinite(known)
    values = np.interp(logits, known[usable], log_x[usable])
    for _ in range(NEWTON):
        value, slope = law.logit(values)
        values = values + (logits - value) / slope
    slopes = (ENDS[1] - ENDS[0]) / INTERVALS / law.logit(values)[1]
    rise = values[1:] - values[:-1]
    third, last = 3 * rise - 2 * slopes[:-1] - slopes[1:], slopes[:-1] + slopes[1:] - 2 * rise
    return torch.from_numpy(np.stack([values[:-1], slopes[:-1], third, last], -1)).to(device)


class _Law:
    """The distribution of X as a mixture of gamma distributions of shapes ``s a + n`` and scale 1."""

    def __init__(self, shape: float, terms: int) -> None:
        from scipy import special  # takes a second to import, and few need it

        self.special = special
        self.least = shape * terms
        self.mean = shape * terms * float(np.sum(1 / np.arange(1, terms + 1)))
        weights = _mixture(shape, terms)
        # So many Poisson probabilities that those beyond are nothing at the last quantile, some 37 scales of the first term away.
        last = self.mean + 40 * terms + 12 * (self.mean * terms) ** 0.5
        weights = np.pad(weights, (0, max(0, int(last + 12 * last**0.5 + 40) - len(weights))))
        self.at_most, self.above = weights.cumsum(), np.append(weights[::-1].cumsum()[-2::-1], 0.0)
        self.places = self.least + np.arange(len(weights))
        self.densities, self.factorials = weights * self.places, special.gammaln(self.places + 1)
        self.last = last

    def logit(self, log_x: Any) -> tuple[Any, Any]:
        """``log P(X ≤ x)/P(X > x)`` and its derivative in ``log x``, for an array of ``log x``."""
        below, above, density = np.concatenate([self._sums(part) for part in np.array_split(log_x, -(-len(log_x) // 32))], -1)
        return np.log(below) - np.log(above), density / (below * above)

    def _sums(self, log_x: Any) -> Any:
        x = np.exp(log_x)
        # Poisson probabilities further from their mean are below 1e-30.
        ends = (x.min() - 12 * x.min() ** 0.5 - 40, x.max() + 12 * x.max() ** 0.5 + 40)
        near = slice(*np.searchsorted(self.places, ends))
        poisson = np.exp(np.outer(log_x, self.places[near]) - x[:, None] - self.factorials[near])
        above = self.special.gammaincc(self.least, x) + poisson @ self.above[near]
        return np.stack([poisson @ self.at_most[near], above, poisson @ self.densities[near]])


def _mixture(shape: float, terms: int) -> Any:
    """Probabilities of K = 0, 1, ..., until they are nothing: ``n p_n = Σ_{j=1}^{n} r_j p_{n−j}`` with ``r_j = a Σ_i (1 − i/s)^j``."""
    ratios = 1 - np.arange(1, terms) / terms
    weights, rates, n, largest = np.ones(1), np.zeros(0), 0, 1.0
    while n == 0 or weights[n] > 1e-35 * largest or weights[n] > weights[n - 1]:
        n += 1
        if n > len(rates):
            powers = np.arange(n, 2 * n + 64)
            rates = np.append(rates, shape * (ratios ** powers[:, None]).sum(-1))
            weights = np.append(weights[:n], np.zeros(len(powers)))
        weights[n] = rates[:n] @ weights[n - 1 :: -1] / n
        largest = max(largest, weights[n])
        if largest > 1e200:
            weights, largest = weights * 1e-200, largest * 1e-200
    found = weights[: n + 1]
    return found / found.sum()

"""The exact gradient of ``E_{z∼p_θ} L(z)``, by streamed enumeration in float64.

The sums are those of deviations from the best structure: ``∇ E L = Cov(L, z)``, and a covariance does not change when a constant is
subtracted from either side, while its rounding error does: the plain formula ``E[L z] − E[L] E[z]`` loses up to 12 digits where the scores
are peaked or the loss has a large offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Loss, check_call
from ...oracles.capabilities import EnumerableOracle, Oracle
from .comoments import ROUNDOFF, CoMoments
from .limits import check_cap
from .loss_checks import checked
from .space import Space

CAP = 2_000_000
"""The largest space that is enumerated unless a caller asks for more."""

UNKNOWN = "none"
"""The method of a truth without a gradient."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Exact properties of one instance, all in float64.

    Attributes:
        gradient: ``∇ E L``, ``[*event]``.
        value: ``E L``. ``loss_variance``: ``Var L``.
        log_partition: A(θ). ``entropy``: in nats. ``marginals``: μ, ``[*event]``.
        count: number of structures. ``support``: how many have positive probability; nan where that is not known.
        kurtosis: of the score-function estimate with baseline ``E L``, by part, ``[*event]``; ``inf`` where it has no variance, and where
            it was not asked for.
        kurtosis_along: the same along the gradient. Where a kurtosis is large, few samples carry the variance and a t-test misleads.
        method: how the gradient was found: ``enumeration``, the closed form, or `UNKNOWN`, where it is not known and stands at 0.
        error: a bound on ‖computed − exact gradient‖, of the losses as the loss computes them; ``inf`` where none is known.
        chunk: structures at a time; the last digits depend on it. 0 where nothing was enumerated.
    """

    gradient: Tensor
    value: float
    loss_variance: float
    log_partition: float
    entropy: float
    marginals: Tensor
    count: int
    support: float
    kurtosis: Tensor
    kurtosis_along: float
    method: str = "enumeration"
    error: float = math.inf
    chunk: int = 0

    @property
    def loss_deviation(self) -> float:
        """The standard deviation of the loss; 0 where it is not known."""
        return math.sqrt(self.loss_variance) if self.loss_variance > 0 else 0.0


def exact_truth(  # noqa: PLR0913 - what to enumerate, and three limits on the work
    loss: Loss, oracle: EnumerableOracle | str, scores: Tensor, *, cap: int = CAP, chunk: int | None = None, kurtosis: bool = True
) -> Truth:
    """Enumerate all structures: once for the gradient, and once more for the kurtosis of the score function.

    The error bound is that of the summation, to first order in the unit roundoff u: with κ(z) for what the weight of a structure can lose,
    ``u ‖E[(κ + N) |L − E L| |d|] + E[(κ + N) |L − E L|] E|d|‖`` and what merging adds, where d is the deviation from the best structure and
    N, about 100, what a sum of a chunk can lose. A space on the CPU takes about a microsecond a structure, and memory for a chunk.

    Args:
        loss: ``[..., *event] -> [...]``; evaluated in float64 on structures only.
        oracle: an enumerable oracle or its name.
        scores: ``[*event]``.
        cap: refuse spaces that are larger.
        chunk: structures at a time, for what fits the cache of a core when None.
        kurtosis: False leaves the kurtosis out, and takes less than half of the time.

    Raises:
        ValueError: more structures than the cap, or no feasible structure.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> losses = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
        >>> truth = exact_truth(lambda z: z @ losses, Categorical(), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))
        >>> truth.gradient
        tensor([-0.0390, -0.3454,  0.3843], dtype=torch.float64)
        >>> round(truth.value, 4), truth.count, truth.error < 1e-13
        (1.1102, 3, True)
    """
    loss, structures, scores = check_call("exact_truth", loss=loss, oracle=oracle, scores=scores)
    space = Space(loss, structures, scores, chunk)
    check_cap("exact_truth", space, cap)
    sums = space.sums(0, space.count)
    return truth_of(space, sums, space.powers(0, space.count, sums) if kurtosis else None)


def truth_of(space: Space, sums: CoMoments, powers: Tensor | None) -> Truth:
    """The truth from the sums over all structures; kurtosis is ``inf`` without powers."""
    # Not chunk by chunk: that would wait for the device.
    checked(torch.stack([sums.loss + sums.rest, (sums.square / sums.weight).abs().sqrt()]))
    gradient, error = pulled_back(space.oracle, space.scores, space.covariance(sums), float(sums.covariance_error().norm()))
    kurtosis = torch.full_like(sums.flips, math.inf) if powers is None else _kurtosis(powers[:, :-1])
    return Truth(
        gradient=gradient,
        value=float(sums.loss + sums.rest),
        loss_variance=float(sums.square / sums.weight),
        log_partition=float(space.pivot_score + (sums.top + sums.weight.log())),
        entropy=float(sums.weight.log() + (sums.top - sums.score)),
        marginals=space.marginals(sums),
        count=space.count,
        support=int(sums.support),
        kurtosis=space.spread(kurtosis, math.inf),
        kurtosis_along=math.inf if powers is None else float(_kurtosis(powers[:, -1])),
        error=error,
        chunk=space.chunk,
    )


def _kurtosis(powers: Tensor) -> Tensor:
    """From second and fourth central moments [2, ...]."""
    squares, fourths = powers
    return torch.where(squares > 0, fourths / squares.square().clamp(min=1e-300), math.inf)


def pulled_back(oracle: Oracle, scores: Tensor, gradient: Tensor, error: float) -> tuple[Tensor, float]:
    """The gradient in the scores from that in the natural parameters, and its error: another one for a locally normalised policy.

    The derivative of ``a − log Σ exp a`` at two actions has norm at most √2, and takes a handful of operations.
    """
    with torch.enable_grad():
        leaf = scores.clone().requires_grad_()
        potentials = oracle.natural_parameters(leaf)
        if potentials is leaf:
            return gradient, error
        (result,) = torch.autograd.grad(potentials, leaf, gradient)
    return result, 2 * error + 16 * ROUNDOFF * float(gradient.norm())


@dataclass(frozen=True, eq=False)
class Target:
    """What estimators are measured on: an instance whose exact gradient is known.

    Attributes:
        oracle: the structures. ``loss``: ``[..., *event] -> [...]``. ``scores``: ``[*event]``, in the dtype that estimators run in.
        truth: of these scores.
    """

    oracle: Any
    loss: Loss
    scores: Tensor
    truth: Truth

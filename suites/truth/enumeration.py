"""The exact gradient of ``E_{z∼p_θ} L(z)``, by streamed enumeration in float64.

The sums are those of deviations from the best structure: ``∇ E L = Cov(L, z)``, and a covariance does not change when a constant is
subtracted from either side, while its rounding error does: the plain formula ``E[L z] − E[L] E[z]`` loses up to 12 digits where the scores
are peaked or the loss has a large offset.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Loss
from ...oracles.base import EnumerableOracle

CHUNK = 8192
"""Structures per step: fits the cache of one core."""

CAP = 2_000_000
"""The largest space that is enumerated unless a caller asks for more."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Exact properties of one instance, all in float64.

    Attributes:
        gradient: ``∇ E L``, ``[*event]``.
        value: ``E L``. ``loss_variance``: ``Var L``.
        log_partition: A(θ). ``entropy``: in nats. ``marginals``: μ, ``[*event]``.
        count: number of structures. ``support``: how many have positive probability.
        kurtosis: of the score-function estimate with baseline ``E L``, by part, ``[*event]``; ``inf`` where it has no variance.
        kurtosis_along: the same along the gradient. Where a kurtosis is large, few samples carry the variance and a t-test misleads.
        method: how it was computed. ``error``: a bound on the norm of the error of the gradient.
    """

    gradient: Tensor
    value: float
    loss_variance: float
    log_partition: float
    entropy: float
    marginals: Tensor
    count: int
    support: int
    kurtosis: Tensor
    kurtosis_along: float
    method: str = "enumeration"
    error: float = 0.0


def exact_truth(loss: Loss, oracle: EnumerableOracle, scores: Tensor, *, cap: int = CAP, chunk: int = CHUNK) -> Truth:
    """Enumerate all structures, twice: for the gradient, and for the kurtosis of the score function.

    Args:
        loss: ``[..., *event] -> [...]``; evaluated in float64 on structures only.
        oracle: lists the structures.
        scores: ``[*event]``.
        cap: refuse spaces that are larger.
        chunk: structures at a time; memory is O(chunk · parts) whatever the size of the space.

    Raises:
        ValueError: more structures than the cap, or no feasible structure.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> losses = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
        >>> truth = exact_truth(lambda z: z @ losses, Categorical(), torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64))
        >>> truth.gradient
        tensor([-0.0390, -0.3454,  0.3843], dtype=torch.float64)
        >>> round(truth.value, 4), truth.count
        (1.1102, 3)
    """
    theta = scores.detach().double()
    if theta.ndim != oracle.event_ndim:
        raise ValueError(f"`exact_truth` got scores of shape {tuple(scores.shape)}; expected one instance, [*event]")
    count = oracle.count(tuple(theta.shape))
    if count > cap:
        raise ValueError(
            f"`exact_truth` got a space of {count:.3g} structures; expected at most {cap:.3g}, choose smaller sizes or raise the cap"
        )
    parameters = oracle._potentials(theta)
    stream = _Stream(loss, oracle, parameters, chunk)
    sums = _first_pass(stream)
    squares, fourths, along = _second_pass(stream, sums)
    signed = sums.comoment / sums.weight
    return Truth(
        gradient=_pulled_back(oracle, theta, signed.reshape(theta.shape)),
        value=float(stream.pivot_loss + sums.loss),
        loss_variance=float(sums.loss_square / sums.weight),
        log_partition=float(stream.pivot_score + sums.weight.log()),
        entropy=float(sums.weight.log() - sums.score),
        marginals=(stream.pivot + sums.deviation).reshape(theta.shape),
        count=count,
        support=sums.support,
        kurtosis=torch.where(squares > 0, fourths / squares.square().clamp(min=1e-300), math.inf).reshape(theta.shape),
        kurtosis_along=float(along[1] / along[0].square()) if along[0] > 0 else math.inf,
    )


def _pulled_back(oracle: EnumerableOracle, theta: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the scores from that in the natural parameters of the law: another one for a locally normalised policy."""
    with torch.enable_grad():
        leaf = theta.clone().requires_grad_()
        parameters = oracle._potentials(leaf)
        if parameters is leaf:
            return gradient
        (result,) = torch.autograd.grad(parameters, leaf, gradient)
    return result


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


class _Stream:
    """Chunks of the space as deviations from the best structure: (weights, deviations, relative losses, relative scores)."""

    def __init__(self, loss: Loss, oracle: EnumerableOracle, theta: Tensor, chunk: int) -> None:
        self.loss, self.oracle, self.chunk = loss, oracle, chunk
        self.event = tuple(theta.shape)
        self.forbidden = (theta == -math.inf).flatten()
        self.theta = torch.where(self.forbidden, 0, theta.flatten())
        best = oracle.argmax(theta)
        self.pivot = best.flatten()
        if bool((self.pivot * self.forbidden).any()) or not bool(oracle.free_parts(theta).any()):
            raise ValueError("`exact_truth` got scores that forbid every structure; expected at least one feasible structure")
        self.pivot_score = self.theta @ self.pivot
        self.pivot_loss = self._losses(best.unsqueeze(0))[0]

    def _losses(self, structures: Tensor) -> Tensor:
        with torch.no_grad():
            return self.loss(structures).double()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        total = self.oracle.count(self.event)
        for start in range(0, total, self.chunk):
            stop = min(start + self.chunk, total)
            structures = self.oracle.enumerate(self.event, start, stop, dtype=torch.float64, device=self.theta.device)
            deviations = structures.flatten(1) - self.pivot
            scores = deviations @ self.theta
            # The best structure has relative score 0, so weights cannot overflow, and their sum is at least 1.
            weights = torch.where(structures.flatten(1) @ self.forbidden.double() > 0, 0, scores.exp())
            yield weights, deviations, self._losses(structures) - self.pivot_loss, scores


@dataclass
class _Sums:
    """Weighted means and co-moments, merged chunk by chunk (Chan, Golub & LeVeque 1983)."""

    weight: Tensor
    loss: Tensor
    score: Tensor
    deviation: Tensor
    comoment: Tensor
    loss_square: Tensor
    support: int

    def merged(self, other: _Sums) -> _Sums:
        total = self.weight + other.weight
        share = other.weight / total
        cross = self.weight * share
        step, shift = other.loss - self.loss, other.deviation - self.deviation
        return _Sums(
            weight=total,
            loss=self.loss + step * share,
            score=self.score + (other.score - self.score) * share,
            deviation=self.deviation + shift * share,
            comoment=self.comoment + other.comoment + step * shift * cross,
            loss_square=self.loss_square + other.loss_square + step * step * cross,
            support=self.support + other.support,
        )


def _first_pass(stream: _Stream) -> _Sums:
    sums: _Sums | None = None
    for weights, deviations, losses, scores in stream:
        weight = weights.sum()
        if weight == 0:
            continue
        mean_loss = weights @ losses / weight
        centred = weights * (losses - mean_loss)
        part = _Sums(
            weight=weight,
            loss=mean_loss,
            score=torch.where(weights > 0, weights * scores, 0).sum() / weight,
            deviation=weights @ deviations / weight,
            comoment=centred @ deviations,
            loss_square=centred @ losses,
            support=int((weights > 0).sum()),
        )
        sums = part if sums is None else sums.merged(part)
    assert sums is not None, "the pivot has weight 1"
    return sums


def _second_pass(stream: _Stream, sums: _Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Second and fourth central moments of ``(L − E L)(z − μ)``: by part, and along the gradient."""
    gradient = sums.comoment / sums.weight
    squares, fourths, along = torch.zeros_like(gradient), torch.zeros_like(gradient), gradient.new_zeros(2)
    for weights, deviations, losses, _ in stream:
        estimates = (losses - sums.loss).unsqueeze(-1) * (deviations - sums.deviation) - gradient
        probabilities = weights / sums.weight
        square = estimates.square()
        squares += probabilities @ square
        fourths += probabilities @ square.square()
        projected = (estimates @ gradient).square()
        along += torch.stack([probabilities @ projected, probabilities @ projected.square()])
    return squares, fourths, along

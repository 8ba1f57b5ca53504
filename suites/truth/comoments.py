"""Weighted means and co-moments of parts and losses: partial sums that merge in any order, each with a bound on its own rounding error.

Sums are taken of deviations: of parts from those of one structure, the pivot, of losses from their mean. A part deviates or does not, so
the deviations are 0 and 1, and their mean is small where the pivot is likely. Weights are relative to the greatest of their range.

Errors are counted in units of `ROUNDOFF` and to first order (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.3):
beside each number runs what its terms, summed by size, can have lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...oracles import kernels

ROUNDOFF = 2.0**-53
"""Half the distance of 1 from the next float64."""

BLOCK = 64
"""Terms that are summed one after the other, at worst; their sums are summed again."""

FORBIDDEN = 1e300
"""The size of the term of a forbidden part: no sum of sizes reaches it."""

TOGETHER = 64
"""Partial sums that wait to be merged."""

SCALARS = ("top", "weight", "support", "score", "loss", "rest", "square", "weight_error", "loss_error")
VECTORS = ("flips", "comoment", "flips_error", "comoment_error")
"""Of `CoMoments`, in the order of the arrays of `structgrad.suites.truth.summation`."""

_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, eq=False)
class CoMoments:
    """Sums over structures with weights ``exp(score − top)``; any batch dimensions, those of vectors come last.

    Attributes:
        top: the greatest score, relative to that of the pivot; -inf where no structure is feasible. ``weight``: the sum of the weights.
        support: how many structures are feasible. ``score``: the mean score, relative to the pivot.
        loss, rest: the mean loss is their sum, so that losses with a large offset keep their digits.
        flips: mean of the deviations, ``[..., parts]``. ``comoment``: sum of ``weight · (loss − mean) · deviation``, ``[..., parts]``.
        square: sum of ``weight · (loss − mean)²``.
        weight_error, loss_error, flips_error, comoment_error: bounds, in units of `ROUNDOFF`.

    References:
        Chan, Golub & LeVeque 1983, "Algorithms for computing the sample variance".
    """

    top: Tensor
    weight: Tensor
    support: Tensor
    score: Tensor
    loss: Tensor
    rest: Tensor
    flips: Tensor
    comoment: Tensor
    square: Tensor
    weight_error: Tensor
    loss_error: Tensor
    flips_error: Tensor
    comoment_error: Tensor

    @classmethod
    def compiled(cls, structures: Tensor, losses: Tensor, pivot: Tensor, places: Tensor, columns: Tensor) -> CoMoments:
        """The sums over one chunk on the CPU, in a fraction of the time of `of`.

        Args:
            structures: uint8 ``[c, parts]``.
            losses: ``[c]``.
            pivot: uint8 ``[p]``.
            places: int64 ``[p]``, where the parts lie that are read.
            columns: ``[2, p]``, what a deviation adds to the score, and to the sizes of its terms (`FORBIDDEN` for a forbidden part).
        """
        from . import summation  # here, because it loads the compiler

        scalars, vectors = np.empty(9), np.empty((4, len(pivot)))
        read = [given.numpy() for given in (structures, losses.contiguous(), pivot, places, columns)]
        summation.sum_chunk(*read, scalars, vectors, BLOCK, FORBIDDEN)
        return cls._of_arrays(scalars, vectors)

    @classmethod
    def _of_arrays(cls, scalars: np.ndarray, vectors: np.ndarray) -> CoMoments:
        """From [9] and [4, p], `SCALARS` and `VECTORS`."""
        single, several = torch.from_numpy(scalars).unbind(), torch.from_numpy(vectors).unbind()
        return cls(**dict(zip(SCALARS, single, strict=True)), **dict(zip(VECTORS, several, strict=True)))

    @classmethod
    def of(cls, flips: Tensor, losses: Tensor, scores: Tensor, slack: Tensor) -> CoMoments:
        """The sums over one chunk.

        Args:
            flips: ``[c, parts]``, 1 where a part differs from the pivot.
            losses: ``[c]``.
            scores: ``[c]``, relative to the pivot; -inf where a structure is not feasible.
            slack: ``[c]``, bounds on the relative errors of ``exp(score)``.
        """
        feasible = scores > -torch.inf
        top = scores.amax()
        weights = (scores - torch.where(top > -torch.inf, top, 0)).exp()
        weight = weights.sum()
        scale = weight.clamp(min=_TINY)
        losses = torch.where(feasible, losses, 0)
        loss = weights @ losses / scale
        errors = losses - loss
        # Whatever the rounded mean is, it is one: what is left is carried along.
        rest = weights @ errors / scale
        weighted = weights * errors
        doubtful = weights * (slack + _terms(len(losses)))
        doubtful_errors = doubtful * errors.abs()
        plain, crossed, plain_error, crossed_error = _products(torch.stack([weights, weighted, doubtful, doubtful_errors]), flips)
        mean, weight_error, loss_error = plain / scale, doubtful.sum(), doubtful_errors.sum()
        return cls(
            top=top, weight=weight, support=feasible.sum().double(), score=weights @ torch.where(feasible, scores, 0) / scale,
            loss=loss, rest=rest, flips=mean, comoment=crossed - weighted.sum() * mean, square=weighted @ errors - weight * rest.square(),
            weight_error=weight_error, loss_error=loss_error / scale, flips_error=(plain_error + weight_error * mean) / scale,
            comoment_error=crossed_error + loss_error * mean,
        )  # fmt: skip

    def merged(self, other: CoMoments) -> CoMoments:
        """The sums over both ranges; associative and commutative up to rounding."""
        top = torch.maximum(self.top, other.top)
        a, b = self._below(top), other._below(top)
        weight = a.weight + b.weight
        # Both as quotients: one less the other would have no digits where it is small.
        keep, share = a.weight / weight.clamp(min=_TINY), b.weight / weight.clamp(min=_TINY)
        cross = a.weight * share
        step, shift = (b.loss - a.loss) + (b.rest - a.rest), b.flips - a.flips
        # Relative errors of the two weights, and of the few operations that follow.
        doubt = a._doubt() + b._doubt() + 8
        heavier = b.weight > a.weight
        flips = _column(keep) * a.flips + _column(share) * b.flips
        crossed = shift * _column(step * cross)
        crossed_error = shift.abs() * _column(cross * (a.loss_error + b.loss_error))
        crossed_error = crossed_error + (a.flips_error + b.flips_error) * _column(cross * step.abs()) + crossed.abs() * _column(doubt)
        return CoMoments(
            top=top, weight=weight, support=a.support + b.support, score=keep * a.score + share * b.score,
            loss=torch.where(heavier, b.loss, a.loss), rest=torch.where(heavier, b.rest - step * keep, a.rest + step * share),
            flips=flips, comoment=a.comoment + b.comoment + crossed, square=a.square + b.square + step.square() * cross,
            weight_error=a.weight_error + b.weight_error + weight,
            loss_error=keep * a.loss_error + share * b.loss_error + step.abs() * share * keep * doubt,
            flips_error=_column(keep) * a.flips_error + _column(share) * b.flips_error
            + shift.abs() * _column(share * keep * doubt) + 4 * flips,
            comoment_error=a.comoment_error + b.comoment_error + crossed_error + 2 * (a.comoment.abs() + b.comoment.abs()),
        )  # fmt: skip

    def _below(self, top: Tensor) -> CoMoments:
        """The same with weights relative to a greater score."""
        distance = torch.where(self.top > -torch.inf, top - self.top, 0)
        factor = (-distance).exp()
        return replace(
            self, weight=self.weight * factor, comoment=self.comoment * _column(factor), square=self.square * factor,
            weight_error=(self.weight_error + (distance + 3) * self.weight) * factor,
            comoment_error=(self.comoment_error + _column(distance + 3) * self.comoment.abs()) * _column(factor),
        )  # fmt: skip

    def _doubt(self) -> Tensor:
        return self.weight_error / self.weight.clamp(min=_TINY)

    def covariance(self) -> Tensor:
        """Of the loss with the deviations: ``[..., parts]``."""
        return self.comoment / _column(self.weight)

    def covariance_error(self) -> Tensor:
        """A bound on the absolute errors of `covariance`."""
        return ROUNDOFF * (self.comoment_error / _column(self.weight) + self.covariance().abs() * _column(self._doubt() + 2))


class Pile:
    """Partial sums in the order of their ranges, merged in a balanced tree: memory and rounding grow with the logarithm of their number."""

    def __init__(self) -> None:
        self._levels: list[list[CoMoments]] = [[]]

    def add(self, part: CoMoments) -> None:
        """Put the sums over the next range on the pile."""
        for level in self._levels:
            level.append(part)
            if len(level) < TOGETHER:
                return
            part = merge(level)
            level.clear()
        self._levels.append([part])

    def total(self) -> CoMoments:
        """The sums over all ranges."""
        return merge([part for level in reversed(self._levels) for part in level])


def merge(parts: Sequence[CoMoments]) -> CoMoments:
    """Merge neighbours, then their neighbours, and so on; the order of the parts fixes every digit of the result.

    Raises:
        ValueError: no parts.
    """
    if not parts:
        raise ValueError("`merge` got no partial sums; expected at least one")
    if parts[0].top.ndim == 0 and kernels.enabled(parts[0].top):
        return _merged_compiled(parts)
    stacked = CoMoments(*(torch.stack([getattr(part, field.name) for part in parts]) for field in fields(CoMoments)))
    number = len(parts)
    while number > 1:
        pairs, rest = number // 2 * 2, _taken(stacked, slice(number // 2 * 2, number))
        joined = _taken(stacked, slice(0, pairs, 2)).merged(_taken(stacked, slice(1, pairs, 2)))
        stacked = CoMoments(*(torch.cat([getattr(joined, field.name), getattr(rest, field.name)]) for field in fields(CoMoments)))
        number = number - number // 2
    return CoMoments(*(getattr(stacked, field.name)[0] for field in fields(CoMoments)))


def _merged_compiled(parts: Sequence[CoMoments]) -> CoMoments:
    """What `merge` does on the CPU, bit for bit and without a tensor for every intermediate; the exponentials are torch's there too."""
    from . import summation  # here, because it loads the compiler

    scalars, vectors = (
        torch.stack([getattr(part, name) for part in parts for name in names]).unflatten(0, (len(parts), -1)).numpy()
        for names in (SCALARS, VECTORS)
    )
    distances = np.empty((len(parts) - 1, 2))
    summation.level_distances(scalars[:, summation.TOP].copy(), distances)
    factors = (-torch.from_numpy(distances)).exp()
    summation.merge_levels(scalars, vectors, distances, factors.numpy())
    return CoMoments._of_arrays(scalars[0], vectors[0])


def _taken(stacked: CoMoments, places: slice) -> CoMoments:
    return CoMoments(*(getattr(stacked, field.name)[places] for field in fields(CoMoments)))


def _column(scalars: Tensor) -> Tensor:
    return scalars.unsqueeze(-1)


def _terms(number: int) -> int:
    """What a sum of so many terms can lose, and the three operations before it."""
    return min(number, BLOCK) + -(-number // BLOCK) + 3


def _products(rows: Tensor, flips: Tensor) -> Tensor:
    """``rows @ flips``, [r, c] by [c, parts], in blocks of `BLOCK` terms."""
    missing = -len(flips) % BLOCK if len(flips) > BLOCK else 0
    if len(flips) <= BLOCK:
        return rows @ flips
    if missing:
        rows, flips = pad(rows, (0, missing)), pad(flips, (0, 0, 0, missing))
    blocks = flips.reshape(-1, BLOCK, flips.shape[-1])
    return torch.bmm(rows.reshape(len(rows), -1, BLOCK).transpose(0, 1), blocks).sum(0)

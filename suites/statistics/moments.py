"""Streaming, mergeable moments of gradient estimates, in float64 and O(dimension) memory at any number of replicates."""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from .interval import BATCHES as BATCHES

CACHED_NUMBERS = 2**15  # numbers that are added at a time on a CPU: larger tensors leave its cache

_SUMS = ("square", "along", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed")

FULL_COVARIANCE = 256  # up to this many parts the whole covariance is accumulated; above, batch means replace it

ROUNDING = 1e-13  # parts of an estimate count as 0 below this share of its largest one: zeros that rounding has moved


def signs_of(rows: Tensor) -> Tensor:
    """The signs of the parts of estimates ``[r, d]``: −1, 0 or 1."""
    size = rows.abs()
    return rows.sign() * (size >= ROUNDING * size.amax(-1, keepdim=True))


@dataclass
class Moments:
    """Moments of the errors ``ĝ − g`` of estimates, in batches.

    Errors, not estimates, are accumulated: their mean is small, so no digits cancel. Batches are merged by Chan's formula, in any order.
    Replicates have weight 1. The outcomes of an exact law have their probabilities as weights, and one batch.
    """

    gradient: Tensor  # [d], exact
    information: Tensor | None  # Fisher's, [d, d], or None
    count: Tensor  # [batches] weights
    mean: Tensor  # [batches, d] mean error
    square: Tensor  # [batches, d] centred sums of squares
    along: Tensor  # [batches] centred sums of squares of the error along the gradient
    zero: Tensor  # [batches] estimates that are exactly 0
    nonzero: Tensor  # [batches, d] number of estimates with a part that is not 0
    signs: Tensor  # [batches, d] sum of the signs of a part
    descents: Tensor  # [batches] estimates with ``⟨ĝ, g⟩ > 0``
    cosines: Tensor  # [batches] sum of their cosines with g, 0 for an estimate of 0
    quartics: Tensor  # [batches] sum of ``‖ĝ‖⁴``
    informed: Tensor  # [batches] sum of ``ĝ'Fĝ``; 0 without F
    products: Tensor | None  # [d, d] sums of products, centred within batches; None above `FULL_COVARIANCE` parts

    @classmethod
    def empty(cls, gradient: Tensor, information: Tensor | None = None, *, batches: int = BATCHES) -> Self:
        """No estimates yet, of errors against an exact gradient (flattened to [d]); ``information`` [d, d] is that of Fisher."""
        exact = gradient.flatten().double()
        size, zeros = len(exact), exact.new_zeros
        by_part = ("mean", "square", "nonzero", "signs")
        sums: dict[str, Any] = {name: zeros(batches, size) if name in by_part else zeros(batches) for name in ("count", "mean", *_SUMS)}
        return cls(exact, information, **sums, products=zeros(size, size) if size <= FULL_COVARIANCE else None)

    def add(self, estimates: Tensor, batches: int | Sequence[int] = 0, weights: Tensor | None = None) -> None:
        """Add estimates ``[r, *event]`` with weights [r], by default 1, to a batch, or each to its own; weights of 0 are left out."""
        flat = estimates.flatten(1).double()
        parts = (flat, torch.as_tensor(batches, device=flat.device).expand(len(flat)), flat.new_ones(len(flat)))
        if weights is not None:
            parts = (flat[weights != 0], parts[1][weights != 0], weights[weights != 0])
        if len(parts[0]):
            limit = max(CACHED_NUMBERS // flat.shape[1], 1) if flat.device.type == "cpu" else len(flat)
            for some in zip(*(part.split(limit) for part in parts), strict=True):
                self._add(*some)

    def _add(self, rows: Tensor, batches: Tensor, weights: Tensor) -> None:
        """Add rows ``[r, d]`` with weights [r] to batches by number [r]."""
        first, last = int(batches.min()), int(batches.max())
        place, errors = batches - first, rows - self.gradient

        def sums(numbers: Tensor) -> Tensor:
            """Sums by batch; a product with a matrix would carry an infinite estimate into the other batches as NaN."""
            return numbers.new_zeros(last - first + 1, *numbers.shape[1:]).index_add_(0, place, numbers * weights.unsqueeze(-1))

        count = sums(torch.ones_like(weights).unsqueeze(-1)).squeeze(-1)
        mean = sums(errors) / count.clamp(min=1e-300).unsqueeze(-1)
        centred = errors - mean[place]
        along, square, signs = rows @ self.direction, torch.linalg.vecdot(rows, rows), signs_of(rows)
        moving, cosine = signs.abs(), torch.where(square > 0, along / square.sqrt(), 0)
        singles = [(centred @ self.direction).square(), (moving.sum(-1) == 0).double(), (along > 0).double(), cosine, square.square()]
        if self.information is not None:
            singles.append(torch.linalg.vecdot(rows @ self.information, rows))
        names = ("along", "zero", "descents", "cosines", "quartics", "informed")[: len(singles)]
        found = dict(zip(names, sums(torch.stack(singles, -1)).unbind(-1), strict=True))
        found |= {"square": sums(centred.square()), "nonzero": sums(moving), "signs": sums(signs)}
        products = None if self.products is None else centred.mT @ (centred * weights.unsqueeze(-1))
        self._merge(slice(first, last + 1), count, mean, found, products)

    def _merge(self, index: slice, count: Tensor, mean: Tensor, sums: dict[str, Tensor], products: Tensor | None) -> None:
        """Add the moments of further estimates to some batches, by Chan's formula."""
        step = mean - self.mean[index]
        share = count / (self.count[index] + count).clamp(min=1e-300)
        cross = self.count[index] * share
        for name, further in sums.items():
            getattr(self, name)[index].add_(further)
        self.count[index].add_(count)
        self.mean[index].addcmul_(step, share.unsqueeze(-1))
        self.square[index].addcmul_(step.square(), cross.unsqueeze(-1))
        self.along[index].addcmul_((step @ self.direction).square(), cross)
        if self.products is not None and products is not None:
            self.products.add_(products).addmm_(step.mT, step * cross.unsqueeze(-1))

    def merged(self, other: Self) -> Self:
        """The moments of both sets of replicates, of errors against the same gradient."""
        both = copy.deepcopy(self)
        both._merge(slice(None), other.count, other.mean, {name: getattr(other, name) for name in _SUMS}, other.products)
        return both

    @functools.cached_property
    def direction(self) -> Tensor:
        """``g / ‖g‖``, 0 without a gradient."""
        return self.gradient / self.gradient.norm().clamp(min=1e-300)  # type: ignore[no-any-return]

    @property
    def total(self) -> int:
        """The number of replicates."""
        return int(self.count.sum())

    @property
    def total_mean(self) -> Tensor:
        """The mean error of all batches, [d]."""
        return self.count @ self.mean / self.count.sum().clamp(min=1e-300)

    @property
    def trace(self) -> float:
        """The trace of the covariance of one replicate."""
        return float(self.square.sum() + self.count @ (self.mean - self.total_mean).square().sum(-1)) / max(self.total - 1, 1)

    @property
    def comoment(self) -> Tensor | None:
        """Centred sums of products over all batches, [d, d]; None above `FULL_COVARIANCE` parts."""
        between = self.mean - self.total_mean
        return None if self.products is None else self.products + between.mT @ (between * self.count.unsqueeze(-1))

    def state(self) -> dict[str, Tensor | None]:
        """All fields except the Fisher information."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "information"}

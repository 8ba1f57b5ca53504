"""Streaming, mergeable moments of gradient estimates, in float64 and O(dimension) memory at any number of replicates."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...oracles import kernels
from .interval import BATCHES as BATCHES

"""Accumulators per cell. Intervals are delete-one-batch jackknives over them; 32 lose about 1 % of width against many more."""

FULL_COVARIANCE = 256
"""Up to this many parts the whole covariance is accumulated; above, what needs it is estimated from the batch means."""

STATE_VERSION = 1
"""Of `Moments.state`; another one is not read."""


@dataclass
class Moments:
    """Moments of the errors ``ĝ − g`` of replicates, in `BATCHES` batches.

    Errors, not estimates, are accumulated: their mean is small, so no digits cancel. Batches are merged by Chan's formula, in any order.

    Attributes:
        gradient: [d], exact.
        count: [batches] replicates. ``mean``: [batches, d] mean error. ``square``: [batches, d] centred sums of squares.
        along: [batches] centred sums of squares of the error along the gradient.
        zero: [batches] estimates that are exactly 0. ``nonzero``: [batches, d] how often a part is not 0.
        signs: [batches, d] sum of the signs of a part.
        descents: [batches] estimates with ``⟨ĝ, g⟩ > 0``. ``cosines``: [batches] sum of their cosines with g, 0 for an estimate of 0.
        quartics: [batches] sum of ``‖ĝ‖⁴``.
        informed: [batches] sum of ``ĝ'Fĝ``; 0 without F.
        information: F, [d, d], or None.
        comoment: [d, d] centred sums of products over all batches, or None above `FULL_COVARIANCE` parts.
        total: replicates in ``comoment``. ``total_mean``: [d], their mean.

    Example:
        >>> moments = Moments.empty(torch.tensor([1.0, 0.0]))
        >>> moments.add(torch.tensor([[2.0, 0.0], [0.0, 0.0]]), batch=0)
        >>> moments.mean[0], int(moments.zero[0])
        (tensor([0., 0.], dtype=torch.float64), 1)
    """

    gradient: Tensor
    count: Tensor
    mean: Tensor
    square: Tensor
    along: Tensor
    zero: Tensor
    nonzero: Tensor
    signs: Tensor
    descents: Tensor
    cosines: Tensor
    quartics: Tensor
    informed: Tensor
    information: Tensor | None
    comoment: Tensor | None
    total: int
    total_mean: Tensor

    @classmethod
    def empty(cls, gradient: Tensor, information: Tensor | None = None) -> Moments:
        """No replicates yet, of errors against an exact gradient (flattened to [d]); ``information`` [d, d] is that of Fisher."""
        exact = gradient.flatten().double()
        size, zeros = exact.shape[0], exact.new_zeros
        return cls(
            gradient=exact,
            count=zeros(BATCHES),
            mean=zeros(BATCHES, size),
            square=zeros(BATCHES, size),
            along=zeros(BATCHES),
            zero=zeros(BATCHES),
            nonzero=zeros(BATCHES, size),
            signs=zeros(BATCHES, size),
            descents=zeros(BATCHES),
            cosines=zeros(BATCHES),
            quartics=zeros(BATCHES),
            informed=zeros(BATCHES),
            information=information,
            comoment=zeros(size, size) if size <= FULL_COVARIANCE else None,
            total=0,
            total_mean=zeros(size),
        )

    def add(self, estimates: Tensor, batch: int) -> None:
        """Take one block of replicates ``[r, *event]`` into a batch."""
        self.add_blocks(estimates, [(0, len(estimates), batch)])

    def add_blocks(self, estimates: Tensor, blocks: Sequence[tuple[int, int, int]]) -> None:
        """Take blocks of replicates ``[r, *event]``: the first row of each, the end of its rows, and its batch."""
        flat = estimates.reshape(estimates.shape[0], -1)
        if kernels.enabled(flat[:0].double()):
            self._add_compiled(flat, blocks)
        else:
            for first, end, batch in blocks:
                self._add(flat[first:end].double(), batch)

    def _add_compiled(self, flat: Tensor, blocks: Sequence[tuple[int, int, int]]) -> None:
        """What `_add` does on the CPU, in a fraction of the time; parts that are never anything but 0 are left out."""
        from .kernels import block_moments  # here, because it loads the compiler

        size, most = flat.shape[1], max(end - first for first, end, _ in blocks)
        sums = [self.count, self.mean, self.square, self.nonzero, self.signs]
        sums += [self.along, self.zero, self.descents, self.cosines, self.quartics, self.total_mean]
        centred, products = self._space("centred", most * size), self._space("products", 0 if self.comoment is None else size * size)
        moving, mean, nothing = np.empty(size, np.int64), np.empty(size), np.empty((0, 0))
        given = (nothing if self.information is None else self.information.numpy(), self.informed.numpy())
        comoment = nothing if self.comoment is None else self.comoment.numpy()
        fixed = (self._exact.numpy(), *(each.numpy() for each in sums), *given, comoment, moving, mean, centred.numpy(), products.numpy())
        estimates = flat.detach().double().contiguous().numpy()
        table, done = np.array(blocks, np.int64), 0
        while done < len(blocks):
            before = self.total
            reached, parts = block_moments.add_blocks(estimates, table, done, before, *fixed)
            self.total += sum(end - first for first, end, _ in blocks[done:reached])
            done = reached
            if reached < len(blocks):
                self._add_products(estimates, blocks[reached], moving[:parts], mean[:parts])
                done += 1

    def _add_products(self, estimates: np.ndarray, block: tuple[int, int, int], moving: np.ndarray, mean: np.ndarray) -> None:
        """Add what takes products of parts, of a block of few parts or of many; its centred errors lie in their space."""
        from .kernels import block_moments

        (first, end, batch), parts, total_mean = block, len(moving), self.total_mean.numpy()
        rows = end - first
        if self.comoment is None:
            if self.information is not None:
                self.informed[batch] += _informed(self.information, torch.from_numpy(estimates[first:end]), torch.from_numpy(mean), None)
            block_moments.add_mean(moving, mean, rows, self.total, total_mean)
        else:
            errors, products = self._spaces["centred"][: rows * parts].view(rows, parts), self._spaces["products"]
            torch.mm(errors.mT, errors, out=products[: parts * parts].view(parts, parts))
            information = np.empty((0, 0)) if self.information is None else self.information.numpy()
            block_moments.add_block(
                products.numpy(), self._exact.numpy(), moving, mean, rows, self.total, batch, information, self.informed.numpy(),
                self.comoment.numpy(), total_mean,
            )  # fmt: skip
        self.total += rows

    @functools.cached_property
    def _exact(self) -> Tensor:
        """The gradient, and its direction: [2, d]."""
        return torch.stack([self.gradient, self.direction])

    def _space(self, name: str, numbers: int) -> Tensor:
        """Memory that the last block has used: pages that were never touched before take longer than what is done with them."""
        known: Tensor | None = self._spaces.get(name)
        if known is None or len(known) < numbers:
            known = self._spaces[name] = self.gradient.new_empty(numbers)
        return known

    @functools.cached_property
    def _spaces(self) -> dict[str, Tensor]:
        return {}

    def _add(self, flat: Tensor, batch: int) -> None:
        errors = flat - self.gradient
        rows = errors.shape[0]
        mean = errors.mean(0)
        centred = errors - mean
        old = self.count[batch].clone()
        step = mean - self.mean[batch]
        weight = old * rows / (old + rows)
        self.count[batch] += rows
        self.mean[batch] += step * (rows / (old + rows))
        self.square[batch] += centred.square().sum(0) + step.square() * weight
        self.along[batch] += (centred @ self.direction).square().sum() + (step @ self.direction).square() * weight
        self._add_signs(flat, batch)
        self._add_estimates(flat, batch)
        products = centred.mT @ centred if self.comoment is not None else None
        if self.information is not None:
            self.informed[batch] += _informed(self.information, flat, mean + self.gradient, products)
        self._add_comoment(products, mean, rows)

    def add_round(self, blocks: Tensor, first: int) -> None:
        """Take blocks ``[m, r, *event]``, at most one per batch, into the batches from ``first`` on: what `add` does, in one pass.

        A GPU takes as long for one block as for all of them. The last digits are those of a merge, not those of `add`.
        """
        flat = blocks.flatten(2).double()
        number, rows = flat.shape[:2]
        places = torch.arange(first, first + number, device=flat.device) % BATCHES
        errors = flat - self.gradient
        mean = errors.mean(1)
        centred = errors - mean.unsqueeze(1)
        along, square, signs = flat @ self.direction, torch.linalg.vecdot(flat, flat), flat.sign()
        moving = signs.abs()
        found = {
            "count": torch.full_like(mean[:, 0], rows),
            "mean": mean,
            "square": centred.square().sum(1),
            "along": (centred @ self.direction).square().sum(1),
            "zero": (moving.sum(-1) == 0).sum(1).double(),
            "nonzero": moving.sum(1),
            "signs": signs.sum(1),
            "descents": (along > 0).sum(1).double(),
            "cosines": torch.where(square > 0, along / square.sqrt(), 0).sum(1),
            "quartics": square.square().sum(1),
        }
        if self.information is not None:
            found["informed"] = torch.linalg.vecdot(flat @ self.information, flat).sum(1)
        other = Moments.empty(self.gradient, self.information)
        for name, values in found.items():
            getattr(other, name)[places] = values
        other.total, other.total_mean = number * rows, mean.mean(0)
        if other.comoment is not None:
            spread = errors.flatten(0, 1) - other.total_mean
            other.comoment = spread.mT @ spread
        vars(self).update(vars(self.merged(other)))

    @property
    def direction(self) -> Tensor:
        """``g / ‖g‖``, 0 where there is no gradient."""
        unit: Tensor = self.gradient / self.gradient.norm().clamp(min=1e-300)
        return unit

    def _add_signs(self, flat: Tensor, batch: int) -> None:
        """Signs as numbers: sums of these are several times faster than counts of comparisons."""
        signs = flat.sign()
        moving = signs.abs()
        self.signs[batch] += signs.sum(0)
        self.nonzero[batch] += moving.sum(0)
        self.zero[batch] += (moving.sum(-1) == 0).sum()

    def _add_estimates(self, flat: Tensor, batch: int) -> None:
        along, square = flat @ self.direction, torch.linalg.vecdot(flat, flat)
        self.descents[batch] += (along > 0).sum()
        self.cosines[batch] += torch.where(square > 0, along / square.sqrt(), 0).sum()
        self.quartics[batch] += square.square().sum()

    def _add_comoment(self, products: Tensor | None, mean: Tensor, rows: int) -> None:
        step = mean - self.total_mean
        if self.comoment is not None and products is not None:
            self.comoment += products
            self.comoment.addr_(step, step, alpha=self.total * rows / (self.total + rows))
        self.total_mean = self.total_mean + step * (rows / (self.total + rows))
        self.total += rows

    def merged(self, other: Moments) -> Moments:
        """The moments of both sets of replicates."""
        if not torch.equal(self.gradient, other.gradient):
            raise ValueError("`merged` got moments of errors against different gradients; expected the same exact gradient")
        total = (self.count + other.count).clamp(min=1)
        share = (other.count / total).unsqueeze(-1)
        cross = self.count * other.count / total
        step = other.mean - self.mean
        jump = other.total_mean - self.total_mean
        everything = max(self.total + other.total, 1)
        comoment = None
        if self.comoment is not None and other.comoment is not None:
            comoment = self.comoment + other.comoment + torch.outer(jump, jump) * (self.total * other.total / everything)
        return Moments(
            gradient=self.gradient,
            mean=self.mean + step * share,
            square=self.square + other.square + step.square() * cross.unsqueeze(-1),
            along=self.along + other.along + (step @ self.direction).square() * cross,
            information=self.information,
            comoment=comoment,
            total=self.total + other.total,
            total_mean=self.total_mean + jump * (other.total / everything),
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMS},
        )

    def state(self) -> bytes:
        """Everything but the Fisher information, as the bytes of an ``npz`` file: what `from_state` goes on from."""
        stream = io.BytesIO()
        arrays = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "information"}
        kept: dict[str, Any] = {
            name: value.cpu().numpy() if isinstance(value, Tensor) else value for name, value in arrays.items() if value is not None
        }
        np.savez(stream, version=STATE_VERSION, **kept)
        return stream.getvalue()

    @classmethod
    def from_state(cls, state: bytes, gradient: Tensor, information: Tensor | None = None) -> Moments:
        """The moments that `state` described.

        Args:
            state: the bytes.
            gradient: the exact gradient that the replicates to come are compared with.
            information: [d, d], that of Fisher.

        Raises:
            ValueError: the state is of another version, or of errors against another gradient.
        """
        moments = cls.empty(gradient, information)
        with np.load(io.BytesIO(state), allow_pickle=False) as arrays:
            version = int(arrays["version"])
            if version != STATE_VERSION:
                raise ValueError(f"`from_state` got a state of version {version}; expected {STATE_VERSION}, measure anew")
            if not np.array_equal(arrays["gradient"], moments.gradient.cpu().numpy()):
                raise ValueError("`from_state` got moments of errors against another gradient; expected the same exact gradient")
            for field in fields(cls):
                if field.name in arrays and field.name != "total":
                    setattr(moments, field.name, torch.from_numpy(arrays[field.name]).to(moments.gradient.device))
            moments.total = int(arrays["total"])
        return moments


_SUMS = ("count", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed")
"""What merging adds up."""


def _informed(information: Tensor, flat: Tensor, mean: Tensor, products: Tensor | None) -> Tensor:
    """``Σ ĝ'Fĝ`` over rows; where the products of centred rows are there anyway, at the price of one of them."""
    if products is None:
        total: Tensor = torch.linalg.vecdot(flat @ information, flat).sum()
    else:
        total = (information * products).sum() + len(flat) * (mean @ information @ mean)
    return total

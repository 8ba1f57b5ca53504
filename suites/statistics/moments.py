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

from .interval import BATCHES as BATCHES

CACHED_NUMBERS = 2**15
"""Numbers that are added at a time on a CPU: larger tensors leave its cache."""

FULL_COVARIANCE = 256
"""Up to this many parts the whole covariance is accumulated; above, batch means replace it."""

STATE_VERSION = 1
"""The version of `Moments.state`; another one is not read."""


@dataclass
class Moments:
    """Moments of the errors ``ĝ − g`` of replicates, in `BATCHES` batches.

    Errors, not estimates, are accumulated: their mean is small, so no digits cancel. Batches are merged by Chan's formula, in any order.

    Attributes:
        gradient: [d], exact.
        count: [batches] replicates. ``mean``: [batches, d] mean error. ``square``: [batches, d] centred sums of squares.
        along: [batches] centred sums of squares of the error along the gradient.
        zero: [batches] estimates that are exactly 0. ``nonzero``: [batches, d] number of estimates with a part that is not 0.
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
        """Add blocks of replicates ``[r, *event]``: the first row of each, the end of its rows, and its batch."""
        flat = estimates.reshape(estimates.shape[0], -1).double()
        limit = CACHED_NUMBERS // flat.shape[1] if flat.device.type == "cpu" else len(flat)
        group: list[tuple[int, int, int]] = []
        for block in blocks:
            # Blocks that follow one another, of one size, and of different batches are added at once.
            if group:
                size, end = group[0][1] - group[0][0], group[-1][1]
                fits = block[1] - group[0][0] <= limit and block[2] not in [batch for *_, batch in group]
                if block[0] != end or block[1] - block[0] != size or not fits:
                    self._add(flat[group[0][0] : end].unflatten(0, (len(group), size)), [batch for *_, batch in group])
                    group = []
            group.append(block)
        if group:
            rows = flat[group[0][0] : group[-1][1]]
            self._add(rows.unflatten(0, (len(group), -1)), [batch for *_, batch in group])

    def _add(self, blocks: Tensor, batches: list[int]) -> None:
        """Add blocks ``[m, r, d]`` to different batches."""
        rows, index = blocks.shape[1], torch.tensor(batches, device=blocks.device)
        errors = blocks - self.gradient
        mean = errors.mean(1)
        centred = errors - mean.unsqueeze(1)
        along, square, signs = blocks @ self.direction, torch.linalg.vecdot(blocks, blocks), blocks.sign()
        moving = signs.abs()
        before, step = self.count[index], mean - self.mean[index]
        share = rows / (before + rows)
        cross = before * share
        self.count[index] += rows
        self.mean[index] += step * share.unsqueeze(-1)
        self.square[index] += centred.square().sum(1) + step.square() * cross.unsqueeze(-1)
        self.along[index] += (centred @ self.direction).square().sum(1) + (step @ self.direction).square() * cross
        self.zero[index] += (moving.sum(-1) == 0).sum(1)
        self.nonzero[index] += moving.sum(1)
        self.signs[index] += signs.sum(1)
        self.descents[index] += (along > 0).sum(1)
        self.cosines[index] += torch.where(square > 0, along / square.sqrt(), 0).sum(1)
        self.quartics[index] += square.square().sum(1)
        products = None if self.comoment is None else centred.mT @ centred
        if self.information is None:
            pass
        elif products is None:
            self.informed[index] += torch.linalg.vecdot(blocks @ self.information, blocks).sum(1)
        else:
            middle = mean + self.gradient
            self.informed[index] += (self.information * products).sum((1, 2)) + rows * torch.linalg.vecdot(
                middle @ self.information, middle
            )
        number, whole = len(blocks) * rows, mean.mean(0)
        jump, between = whole - self.total_mean, mean - whole
        if self.comoment is not None and products is not None:
            self.comoment += products.sum(0)
            self.comoment.addmm_(between.mT, between, alpha=rows).addr_(jump, jump, alpha=self.total * number / (self.total + number))
        self.total_mean = self.total_mean + jump * (number / (self.total + number))
        self.total += number

    @functools.cached_property
    def direction(self) -> Tensor:
        """``g / ‖g‖``, 0 without a gradient."""
        unit: Tensor = self.gradient / self.gradient.norm().clamp(min=1e-300)
        return unit

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
        """Everything except the Fisher information, as the bytes of an ``npz`` file, which `from_state` reads."""
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
                raise ValueError(f"`from_state` got a state of version {version}; expected {STATE_VERSION}, measure again")
            if not np.array_equal(arrays["gradient"], moments.gradient.cpu().numpy()):
                raise ValueError("`from_state` got moments of errors against another gradient; expected the same exact gradient")
            for field in fields(cls):
                if field.name in arrays and field.name != "total":
                    setattr(moments, field.name, torch.from_numpy(arrays[field.name]).to(moments.gradient.device))
            moments.total = int(arrays["total"])
        return moments


_SUMS = ("count", "zero", "nonzero", "signs", "descents", "cosines", "quartics", "informed")
"""The fields that merging adds up."""

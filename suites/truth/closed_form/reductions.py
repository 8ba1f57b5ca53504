"""Counts as they are on the structures that are feasible: constant ones taken out, several made one, affine functions made linear."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ....oracles.capabilities import Oracle
from ...problems.forms import CountForm, LinearForm

LARGEST_RANGE = 2**20
"""The largest number of values of all counts together."""


class Count(NamedTuple):
    """A function of one count: ``values[k]``, k = ⟨weights, z⟩.

    weights: int64 [*event]. values: float64 [size]; what no structure has holds any value.
    """

    weights: Tensor
    values: Tensor


def reduced(form: CountForm, oracle: Oracle, parameters: Tensor) -> Count | LinearForm | None:
    """The simplest form that is the same on all feasible structures; None where the counts have too many values.

    Args:
        form: of a loss.
        oracle: of the structures.
        parameters: natural parameters [*event]; their -inf say which parts are forbidden.
    """
    read = oracle.read_mask(tuple(parameters.shape), parameters.device)
    weights = [torch.where(read, count.to(parameters.device).round().long(), 0) for count in form.counts]
    ranges = [_range(oracle, count, parameters) for count in weights]
    several = [i for i, (low, high) in enumerate(ranges) if low < high]
    if math.prod(ranges[i][1] + 1 for i in several) > LARGEST_RANGE:
        return None
    joint, size = torch.zeros_like(parameters, dtype=torch.int64), 1
    for i in several:
        joint, size = joint * (ranges[i][1] + 1) + weights[i], size * (ranges[i][1] + 1)
    values = form.function(*_unjoined(torch.arange(size, device=parameters.device), ranges)).double().expand(size)
    if not several:
        return LinearForm(torch.zeros_like(parameters), float(values[0]))
    return _linear(joint, values, ranges[several[0]]) if len(several) == 1 else Count(joint, values)


def _range(oracle: Oracle, count: Tensor, parameters: Tensor) -> tuple[int, int]:
    """The least and the greatest value over the feasible structures."""
    allowed = parameters > -math.inf
    extremes = []
    for sign in (-1, 1):
        rows = torch.where(allowed, sign * count, -math.inf).to(parameters.dtype).unsqueeze(0)
        extremes.append(int((oracle.argmax_of(rows)[0] * count).sum()))
    return extremes[0], extremes[1]


def _unjoined(joint: Tensor, ranges: list[tuple[int, int]]) -> list[Tensor]:
    """The counts of joint ones, clamped to where structures are; constant ones as they are."""
    counts = []
    for low, high in reversed(ranges):
        counts.append((joint % (high + 1)).clamp(low, high) if low < high else torch.full_like(joint, high))
        joint = joint // (high + 1) if low < high else joint
    return counts[::-1]


def _linear(weights: Tensor, values: Tensor, between: tuple[int, int]) -> Count | LinearForm:
    """A linear form where the values are those of a straight line, up to their own rounding."""
    low, high = between
    slope = (values[high] - values[low]) / (high - low)
    line = values[low] + slope * torch.arange(high - low + 1, device=values.device)
    rounding = 8 * torch.finfo(values.dtype).eps * values[low : high + 1].abs().max()
    if bool(((values[low : high + 1] - line).abs() <= rounding).all()):
        return LinearForm(slope * weights, float(values[low] - slope * low))
    return Count(weights, values)

"""Logarithmic axes with a place for 0, for whatever draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from .text import ZERO


@dataclass(frozen=True)
class LogScale:
    """A logarithmic axis over the data, with a place for 0 below its smallest value; ends are logarithms to base 10."""

    bottom: float
    top: float
    has_zero: bool

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """The axis of some numbers."""
        finite = [value for value in values if math.isfinite(value)]
        positive = [math.log10(value) for value in finite if value > ZERO] or [0.0]
        span = max(positive) - min(positive)
        spare = max(0.05 * span, 0.08, (1 - span) / 2)
        return cls(min(positive) - spare, max(positive) + spare, any(value <= ZERO for value in finite))

    @property
    def zero(self) -> float:
        """Where 0 is drawn."""
        return self.bottom - 2 * self._gap()

    def _gap(self) -> float:
        return 0.06 * (self.top - self.bottom)

    def place(self, value: float) -> float:
        """Where a value is drawn: at its logarithm, or at the place of 0."""
        return math.log10(value) if value > ZERO else self.zero

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and labels: decades, or every second and fifth of one on a short axis."""
        decades = range(math.floor(self.bottom), math.ceil(self.top) + 1, max(1, round((self.top - self.bottom) / 5)))
        digits = (1, 2, 5) if self.top - self.bottom < 2.2 else (1,)
        pairs = [(decade + math.log10(digit), label(digit, decade)) for decade in decades for digit in digits]
        inside = [pair for pair in pairs if self.bottom <= pair[0] <= self.top]
        shown = [(self.zero, "0"), *inside] if self.has_zero else inside
        return [place for place, _ in shown], [text for _, text in shown]

    def limits(self) -> tuple[float, float]:
        """Of the axis."""
        return self.zero - self._gap() if self.has_zero else self.bottom, self.top


def label(digit: int, exponent: int) -> str:
    """``10⁻⁴``, or the plain number where that is short."""
    if -3 <= exponent <= 3:
        return f"{digit * 10.0**exponent:g}"
    factor = "" if digit == 1 else f"{digit}·"
    return f"{factor}10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

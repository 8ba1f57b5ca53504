"""Logarithmic axes of a panel."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....suites.scale import LogScale
from .panel import DASHED, Panel


@dataclass(frozen=True)
class Scale(LogScale):
    """A logarithmic axis that a panel can wear."""

    def dress(self, panel: Panel, axis: str) -> None:
        """Give a panel this axis, ``x`` or ``y``, with a dashed line between 0 and the logarithmic part."""
        own = panel.x if axis == "x" else panel.y
        own.first, own.last = self.limits()
        own.ticks = tuple(zip(*self.ticks(), strict=True))
        if self.has_zero:
            rule, ends = [self.bottom - self._gap()] * 2, [-math.inf, math.inf]
            xs, ys = (rule, ends) if axis == "x" else (ends, rule)
            panel.line(xs, ys, width=0.8, opacity=0.4, dashes=DASHED)

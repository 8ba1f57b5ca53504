"""Lines of a simulation's report, each with what is required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

FEWEST = 1000
"""A rate of fewer trials is judged by its interval: one hit more or less would decide."""


@dataclass(frozen=True)
class SimulationLine:
    """One number of one simulation.

    Attributes:
        what: name of the number. ``where``: instance, estimator and replicates.
        value: the number. ``trials``: of which it is a rate; None where it is none.
        least, most: what is required of it; None where nothing is.
        noisy: whether only a value that lies outside with certainty (its 99.9 % binomial interval does) violates what is required.
    """

    what: str
    where: str
    value: float
    trials: int | None = None
    least: float | None = None
    most: float | None = None
    noisy: bool = False

    @property
    def judged_by_interval(self) -> bool:
        """Whether the interval decides, and not the rate itself."""
        return self.trials is not None and (self.noisy or self.trials < FEWEST)

    @property
    def violated(self) -> bool:
        """Whether the number is outside of what is required."""
        low = high = self.value
        if self.trials and self.judged_by_interval:
            low, high = binomial_interval(self.value, self.trials, level=0.999)
        return (self.least is not None and not high >= self.least) or (self.most is not None and not low <= self.most)

    def cells(self) -> tuple[str, str, str, str, str]:
        """As text: what, where, the number, its interval with the trials, what is required."""
        interval = ""
        if self.trials:
            low, high = binomial_interval(self.value, self.trials)
            interval = f"{low:.4f} to {high:.4f} of {self.trials}"
        wanted = [f"{sign} {bound:g}" for sign, bound in (("≥", self.least), ("≤", self.most)) if bound is not None]
        # Numbers of rounding size depend on the machine.
        text = "< 1e-12" if 0 < abs(self.value) < 1e-12 else f"{self.value:.5g}"
        return self.what, self.where, text, interval, ", ".join(wanted) + (" (99.9 %)" if self.judged_by_interval and wanted else "")


def binomial_interval(rate: float, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a rate.

    Example:
        >>> low, high = binomial_interval(0.0, 300)
        >>> low, round(high, 4)
        (0.0, 0.0122)
    """
    hits, tail = round(rate * trials), (1 - level) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.isf(tail, hits + 1, trials - hits))
    return low, high


@dataclass(frozen=True)
class Part:
    """One simulation: cells that are simulated independently, and the lines made of all of them.

    Attributes:
        title: heading. ``text``: what is simulated and what is required.
        cells: plain values. ``simulate``: ``(cell, repetitions) -> result``, from seeds that depend on the cell alone.
        lines: from the results by cell.
        repetitions: of every cell, by default.
    """

    title: str
    text: str
    cells: Sequence[Any]
    simulate: Callable[[Any, int], Any]
    lines: Callable[[Mapping[Any, Any]], list[SimulationLine]]
    repetitions: int

"""Measurements: what one estimator at one score tensor was found to do, as values, as a table and as a fragment for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.base import Estimator
from ..base import estimator_name, loss_name, oracle_name
from ..fragments import FragmentTable, IntervalAxis, fragment, metric_heading, shortened, small
from ..frames import table
from ..metrics import METRICS, unit_of
from ..problems.sized import size_text
from ..statistics.interval import Interval
from ..text import estimate, exponential
from ..truth.references import own_reference
from .testing.bias_tests import Verdict

if TYPE_CHECKING:
    import pandas as pd

FRAME_COLUMNS = (
    "estimator",
    "oracle",
    "loss",
    "log_count",
    "metric",
    "unit",
    "value",
    "low",
    "high",
    "interval",
    "reference",
    "tier",
    "replicates",
    "sampling",
    "verdict",
    "p_value",
    "seed",
)
"""Of `Measurement.frame`: these of the result table of a run, with its types."""

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("error, relative to the exact gradient", ("relative_bias", "relative_variance", "relative_mse")),
    ("error, absolute", ("absolute_bias", "absolute_variance")),
    ("direction and scale", ("gain", "cosine", "rho", "rho_16", "descent_probability")),
)
"""What a notebook shows of a measurement: metrics that share an axis."""


@dataclass(frozen=True)
class MeasuredPair:
    """What was measured: names with options, and the size of the item.

    Attributes:
        estimator, oracle, loss: names; that of a function is its own.
        sizes: as ``n=5``, or the shape of the scores where the oracle's sizes do not follow from it.
        count: number of structures. ``seed``: of everything random.
        own: the reference of the estimator's own objective, ``perturbed``, ``relaxed`` or ``expected``.
    """

    estimator: str
    oracle: str
    loss: str
    sizes: str
    count: int
    seed: int
    own: str

    @classmethod
    def of(cls, estimator: Estimator[Any], problem: tuple[Any, Any, tuple[int, ...]], count: int, seed: int) -> MeasuredPair:
        """From what `measure` is given: the problem is an oracle, a loss and the shape of its scores."""
        oracle, loss, event = problem
        names = estimator_name(estimator), oracle_name(oracle), loss_name(loss)
        return cls(*names, size_text(oracle, event), count, seed, str(own_reference(estimator)))


@dataclass(frozen=True, repr=False)
class Measurement:
    """What `measure` finds: metrics with intervals, how they were found, and the verdict of the test for bias.

    Attributes:
        metrics: against the exact gradient of the expected loss.
        tier: how they were found. ``replicates``: None for the exact tier.
        verdict: of the test for bias; ``broken``, with the ``reason``, where estimates are NaN or infinite: then no metric has a value.
        p_value: of the test (Bonferroni over directions), None for an exact tier and where no direction could be tested.
        sampling: ``converged`` or ``budget``; empty where nothing was sampled.
        against: metrics of the bias against the reference that was given.
        batches: metrics with each batch of the replicates left out. ``first``: (replicates, metric, interval) of the first of them alone.
        pair: what was measured; equal measurements have equal numbers.

    Example:
        >>> import torch
        >>> from structgrad.estimators import Reinforce
        >>> from structgrad.oracles import Subset
        >>> from structgrad.suites import measure
        >>> found = measure(Reinforce(), Subset(2), lambda z: z[..., 0] ** 2, torch.zeros(4, dtype=torch.float64))
        >>> found
        <Measurement of reinforce on subset[k=2]: relative bias 0, relative variance 5, unbiased-exact>
        >>> round(float(found.frame.set_index("metric").loc["relative_variance", "value"]), 6)
        5.0
    """

    metrics: dict[str, Interval]
    tier: Literal["exact", "mc"]
    replicates: int | None
    verdict: Verdict
    p_value: float | None = None
    sampling: Literal["", "converged", "budget"] = ""
    against: dict[str, Interval] = field(default_factory=dict)
    batches: dict[str, tuple[float, ...]] = field(default_factory=dict)
    first: tuple[tuple[int, str, Interval], ...] = ()
    pair: MeasuredPair | None = field(default=None, compare=False)
    reason: str = ""

    def __repr__(self) -> str:
        """One line."""
        whose = "" if self.pair is None else f" of {self.pair.estimator} on {self.pair.oracle}"
        if self.reason:
            return f"<Measurement{whose}: {self.verdict}, {self.reason}>"
        shown = [name for name in SECTIONS[0][1][:2] if name in self.metrics]
        numbers = [f"{METRICS[name].label} {estimate(self.metrics[name])}" for name in shown]
        return f"<Measurement{whose}: {', '.join([*numbers, self.verdict])}>"

    @property
    def frame(self) -> pd.DataFrame:
        """A row per finding, with the columns `FRAME_COLUMNS`: ``low`` and ``high`` end its 95 % interval; NA where there is none.

        Rows with an empty ``reference`` compare with nothing, ``expected`` with the exact gradient, others with the reference that
        was given.
        """
        return table(FRAME_COLUMNS, self._records())

    def _records(self) -> Iterator[dict[str, Any]]:
        known: dict[str, Any] = {"tier": self.tier, "replicates": self.replicates, "sampling": self.sampling}
        if self.pair is not None:
            known |= {name: getattr(self.pair, name) for name in ("estimator", "oracle", "loss", "seed")}
            known["log_count"] = math.log(self.pair.count)
        own = "" if self.pair is None else self.pair.own
        for metrics, reference in ((self.metrics, "expected"), (self.against, own)):
            for metric, found in metrics.items():
                tested = metric == "relative_bias" and metrics is self.metrics
                numbers = {"value": found.value, "low": found.low, "high": found.high, "interval": found.method}
                test = {"verdict": self.verdict, "p_value": self.p_value} if tested else {}
                compared = "" if metric in METRICS and METRICS[metric].undirected else reference
                yield {**known, "metric": metric, "unit": unit_of(metric), "reference": compared, **numbers, **test}

    def _repr_html_(self) -> str:
        """A table of the main metrics, each with its interval on the axis of its section."""
        own = ("error, relative to the gradient of its own objective", tuple(self.against))
        sections = [*((self.metrics, section) for section in SECTIONS), (self.against, own)]
        rows = [
            row
            for metrics, (title, names) in sections
            for row in _section(title, {name: metrics[name] for name in names if name in metrics})
        ]
        hidden = set(self.metrics) - {name for _, names in SECTIONS for name in names}
        notes = [f"{len(hidden)} more metrics are in .frame."] if hidden else []
        return fragment(
            self._title(), self._facts(), [FragmentTable("", ("metric", small("unit"), "value [95 % interval]", ""), rows)], notes
        )

    def _title(self) -> str:
        if self.pair is None:
            return "<b>Measurement</b>"
        estimator, oracle, loss = map(shortened, (self.pair.estimator, self.pair.oracle, self.pair.loss))
        return f"<b>{estimator}</b> on {oracle}, loss {loss}"

    def _facts(self) -> list[str]:
        size: list[str] = []
        if self.pair is not None:
            count = exponential(math.log(self.pair.count))
            size = [self.pair.sizes, f"{count} structures", "1 instance", f"seed {self.pair.seed}"]
        how = "exact, without replicates" if self.tier == "exact" else f"{self.replicates} replicates ({self.sampling})"
        test = "" if self.p_value is None else f", p {'< 1e-16' if self.p_value < 1e-16 else f'= {self.p_value:.2g}'}"
        return [*size, f"{self.verdict}: {self.reason}"] if self.reason else [*size, how, f"bias: {self.verdict}{test}"]


def _section(title: str, found: dict[str, Interval]) -> list[tuple[str, ...]]:
    """The heading of some metrics with the axis that they share, and a row for each; nothing where there is none."""
    if not found:
        return []
    axis = IntervalAxis.of(next(iter(found)), found.values())
    rows = [(metric_heading(name), small(unit_of(name)), estimate(one), axis.mark(one)) for name, one in found.items()]
    return [(small(title), "", "", axis.heading()), *rows]

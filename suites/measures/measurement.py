"""Measurements of one estimator at one score tensor, as values and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ...estimators.base import Estimator
from ..base import estimator_name, loss_name, oracle_name
from ..frames import table
from ..metrics import METRICS, label_of, unit_of
from ..problems.sized import size_text
from ..statistics.interval import Interval
from ..text import estimate, exponential
from ..truth.references import own_reference
from .bias_tests import Verdict

if TYPE_CHECKING:
    import pandas as pd

_PAIR = ("estimator", "oracle", "loss", "log_count")
_NUMBERS = ("metric", "unit", "value", "low", "high", "interval")
FRAME_COLUMNS = (*_PAIR, *_NUMBERS, "reference", "tier", "replicates", "sampling", "verdict", "p_value", "seed")
"""The columns of `Measurement.frame`, a subset of those of the result table of a run, with its types."""


@dataclass(frozen=True)
class MeasuredPair:
    """Names with options of the measured objects, and the size of the item.

    Attributes:
        estimator, oracle, loss: names, for a function its own.
        sizes: as ``n=5``, or the shape of the scores if sizes do not follow from it.
        count: number of structures. ``seed``: of everything random.
        own: the reference of the estimator's own objective, ``perturbed``, ``relaxed`` or ``expected``.
    """

    estimator: str = ""
    oracle: str = ""
    loss: str = ""
    sizes: str = ""
    count: int = 1
    seed: int = 0
    own: str = ""

    @classmethod
    def of(cls, estimator: Estimator[Any], problem: tuple[Any, Any, tuple[int, ...]], count: int, seed: int) -> MeasuredPair:
        """Make it from the arguments of `measure`; the problem is an oracle, a loss and the shape of its scores."""
        oracle, loss, event = problem
        names = estimator_name(estimator), oracle_name(oracle), loss_name(loss)
        return cls(*names, size_text(oracle, event), count, seed, str(own_reference(estimator)))


@dataclass(frozen=True, repr=False)
class Measurement:
    """The result of `measure`: metrics with intervals, their tier, and the verdict of the test for bias.

    Attributes:
        metrics: against the exact gradient of the expected loss.
        tier: ``exact`` or ``mc``. ``replicates``: None for the exact tier.
        verdict: of the test for bias; ``broken``, with the ``reason``, if estimates are NaN or infinite: then no metric has a value.
        p_value: of the test (Bonferroni over directions); None for an exact tier, or if no direction could be tested.
        sampling: ``converged`` or ``budget``; empty without sampling.
        against: metrics of the bias against the reference that was given.
        batches: metrics with each batch of the replicates left out. ``first``: (replicates, metric, interval) of the first of them alone.
        pair: the measured objects; equal measurements have equal numbers.

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
    pair: MeasuredPair = field(default=MeasuredPair(), compare=False)
    reason: str = ""

    def __repr__(self) -> str:
        """One line."""
        shown = [
            f"{METRICS[name].label} {estimate(self.metrics[name])}"
            for name in ("relative_bias", "relative_variance")
            if name in self.metrics
        ]
        said = f"{self.verdict}, {self.reason}" if self.reason else ", ".join([*shown, self.verdict])
        return f"<Measurement of {self.pair.estimator} on {self.pair.oracle}: {said}>"

    @property
    def frame(self) -> pd.DataFrame:
        """A row per finding, with the columns `FRAME_COLUMNS`: ``low`` and ``high`` end its 95 % interval; NA without one.

        Rows with an empty ``reference`` compare with nothing, ``expected`` with the exact gradient, others with the reference that
        was given.
        """
        return table(FRAME_COLUMNS, self._records())

    def _records(self) -> Iterator[dict[str, Any]]:
        known: dict[str, Any] = {name: getattr(self, name) for name in ("tier", "replicates", "sampling")}
        known |= {name: getattr(self.pair, name) for name in ("estimator", "oracle", "loss", "seed")}
        known["log_count"] = math.log(self.pair.count)
        for metrics, reference in ((self.metrics, "expected"), (self.against, self.pair.own)):
            for metric, found in metrics.items():
                numbers = {"value": found.value, "low": found.low, "high": found.high, "interval": found.method}
                tested = metric == "relative_bias" and metrics is self.metrics
                test = {"verdict": self.verdict, "p_value": self.p_value} if tested else {}
                compared = "" if metric in METRICS and METRICS[metric].undirected else reference
                yield {**known, "metric": metric, "unit": unit_of(metric), "reference": compared, **numbers, **test}

    def _repr_html_(self) -> str:
        """A line about the pair, and a table of all metrics."""
        import pandas as pd

        facts = [f"{self.pair.estimator} on {self.pair.oracle}", f"loss {self.pair.loss}", self.pair.sizes]
        facts += [f"{exponential(math.log(self.pair.count))} structures", f"seed {self.pair.seed}"]
        facts += ["exact, without replicates" if self.tier == "exact" else f"{self.replicates} replicates ({self.sampling})"]
        facts += [f"{self.verdict}: {self.reason}" if self.reason else f"bias: {self.verdict}"]
        own = f"against {self.pair.own}"
        found = [(name, "", one) for name, one in self.metrics.items()] + [(name, own, one) for name, one in self.against.items()]
        rows = [(f"{label_of(name)} {against}".replace("_", " "), unit_of(name), estimate(one)) for name, against, one in found]
        shown = pd.DataFrame(rows, columns=["metric", "unit", "value [95 % interval]"])
        return f"<p>{escape(' · '.join(facts))}</p>{shown.to_html(index=False, border=0)}"

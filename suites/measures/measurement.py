"""Measurements of one estimator at one score tensor, as values and as a table."""

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ..base import table
from ..metrics import METRICS, label_of, unit_of
from ..statistics.interval import Interval
from ..text import estimate, exponential
from .bias_tests import Verdict

if TYPE_CHECKING:
    import pandas as pd

FRAME_COLUMNS = (  # the columns of `Measurement.frame`, a subset of those of the result table of a run, with its types
    *("estimator", "oracle", "loss", "log_count", "metric", "unit", "value", "low", "high", "interval"),
    *("reference", "tier", "replicates", "sampling", "verdict", "p_value", "seed"),
)


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
        batches: metrics with each batch of the replicates left out.
        pair: names with options of ``estimator``, ``oracle`` and ``loss``, the ``seed``, ``log_count`` of the structures, their ``sizes``,
            and the reference of the estimator's ``own`` objective. Equal measurements have equal numbers.

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
    pair: dict[str, Any] = field(default_factory=dict, compare=False)
    reason: str = ""

    def __repr__(self) -> str:
        """One line."""
        known = [name for name in ("relative_bias", "relative_variance") if name in self.metrics]
        shown = ", ".join([*(f"{METRICS[name].label} {estimate(self.metrics[name])}" for name in known), self.verdict])
        said = f"{self.verdict}, {self.reason}" if self.reason else shown
        return f"<Measurement of {self.pair['estimator']} on {self.pair['oracle']}: {said}>"

    @property
    def frame(self) -> "pd.DataFrame":
        """A row per finding, with the columns `FRAME_COLUMNS`: ``low`` and ``high`` end its 95 % interval; NA without one.

        Rows with an empty ``reference`` compare with nothing, ``expected`` with the exact gradient, others with the reference that
        was given.
        """
        records, known = [], {**self.pair, "tier": self.tier, "replicates": self.replicates, "sampling": self.sampling}
        for metrics, reference in ((self.metrics, "expected"), (self.against, self.pair["own"])):
            for metric, found in metrics.items():
                numbers = {"value": found.value, "low": found.low, "high": found.high, "interval": found.method}
                tested = metric == "relative_bias" and metrics is self.metrics
                test = {"verdict": self.verdict, "p_value": self.p_value} if tested else {}
                compared = "" if metric in METRICS and METRICS[metric].undirected else reference
                records.append({**known, "metric": metric, "unit": unit_of(metric), "reference": compared, **numbers, **test})
        return table(FRAME_COLUMNS, records)

    def _repr_html_(self) -> str:
        import pandas as pd

        pair = self.pair
        facts = (
            f"{pair['estimator']} on {pair['oracle']} · loss {pair['loss']} · {pair['sizes']} · "
            f"{exponential(pair['log_count'])} structures · seed {pair['seed']} · "
            + ("exact, without replicates" if self.tier == "exact" else f"{self.replicates} replicates ({self.sampling})")
            + (f" · {self.verdict}: {self.reason}" if self.reason else f" · bias: {self.verdict}")
        )
        found = [(name, "", one) for name, one in self.metrics.items()]
        found += [(name, f" against {pair['own']}", one) for name, one in self.against.items()]
        rows = [((label_of(name) + against).replace("_", " "), unit_of(name), estimate(one)) for name, against, one in found]
        shown = pd.DataFrame(rows, columns=["metric", "unit", "value [95 % interval]"])
        return f"<p>{escape(facts)}</p>{shown.to_html(index=False, border=0)}"

"""Suites: measurements of the estimators of a problem, as findings, and of one estimator at one score tensor, as values and as a table.

They do not depend on grids, workers or files.
"""

import abc
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch

from ...estimators.base import Estimator
from ..base import Instance, NonFiniteError, Problem, table
from ..metrics import METRICS, label_of, unit_of
from ..statistics.interval import ABSENT, Interval
from ..text import estimate, exponential, reason_of
from ..truth import Truth
from ..truth.closed_form import UnknownTruthError, known_truth, law_alone
from .bias_tests import Verdict

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finding:
    """One metric of one estimator, as a suite found it."""

    estimator: str
    metric: str  # a key of `METRICS`
    value: float | None  # with its 95 % interval, by the method ``interval``; None without one
    low: float | None = None
    high: float | None = None
    interval: str = ""
    instance: str = ""  # the item; empty for a finding about the whole problem
    setting: str = ""  # the point of a sweep, such as ``length=20``
    size: float | None = None  # the swept quantity as a number
    reference: str = ""  # the objective of the gradient that it was compared with; empty without one
    tier: str = ""  # ``exact`` or ``mc``, with the number of ``replicates``; empty if it is no expectation
    replicates: int | None = None
    batches: tuple[float, ...] = ()  # the value with each of 32 batches of the replicates left out, for comparisons; empty without batches
    sampling: str = ""  # ``converged`` or ``budget``; empty without sampling
    verdict: str = ""  # of the test for bias; ``broken`` if estimates are NaN or infinite
    p_value: float | None = None
    status: Literal["ok", "skipped", "error"] = "ok"
    reason: str = ""  # of an estimator, or a point of a sweep, without a value

    @classmethod
    def of(cls, estimator: str, metric: str, found: Interval, **known: Any) -> Self:
        """A finding of an interval. The method of an absent one gives the reason."""
        reason = ABSENT.get(found.method, "")
        return cls(estimator, metric, found.value, found.low, found.high, "" if reason else found.method, reason=reason, **known)

    @classmethod
    def failed(cls, estimator: str, metric: str, error: Exception, **known: Any) -> Self:
        """A finding of an estimator that raised an error, or is ``broken`` because it returned NaN or infinity."""
        verdict = "broken" if isinstance(error, NonFiniteError) else ""
        return cls(estimator, metric, None, status="error", reason=reason_of(error), verdict=verdict, **known)


@dataclass(frozen=True)
class Effort:
    """The amount of work of a measurement; the presets are `EFFORTS`."""

    replicates: int = 4096  # of the first look
    most_replicates: int = 65_536  # the budget of one estimator on one instance, as ``seconds``
    seconds: float = 20.0
    cap: int = 2_000_000  # the largest space that is enumerated
    replay_cap: int = 200_000  # the largest number of tuples of samples that is dealt out
    alpha: float = 1e-3  # level of one test for bias
    equivalence: float = 0.02  # a bias below this share of ‖g‖ counts as none
    rounds: int = 40  # timed calls of each contender


EFFORTS: dict[str, Effort] = {  # the presets by name
    "quick": Effort(replicates=512, most_replicates=512, seconds=5.0, cap=200_000, replay_cap=4_000, equivalence=0.05, rounds=10),
    "standard": Effort(most_replicates=8192, seconds=10.0),
    "thorough": Effort(most_replicates=1_048_576, seconds=300.0, cap=10_000_000, equivalence=0.01, rounds=160),
}


@dataclass(frozen=True)
class Context:
    """The settings of a suite, as in `Sampling`. Random streams are keyed by the seed and by names, never by estimator or order."""

    seed: int = 0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    batch_size: int = 4096
    tier: Literal["auto", "exact", "mc"] = "auto"
    effort: Effort = field(default_factory=Effort)
    scratch: Path | None = None  # a folder of the cell for checkpoints

    def truth(self, problem: Problem, instance: Instance) -> Truth:
        """The exact gradient of an instance, computed once per process: by enumeration up to the cap, by the form of the loss beyond."""
        return _truth(problem.oracle, instance, self.device, self.effort.cap)

    def law(self, problem: Problem, instance: Instance) -> Truth:
        """The truth of an instance; if its gradient is unknown, the law of the structures alone."""
        try:
            return self.truth(problem, instance)
        except UnknownTruthError:
            return _law_alone(problem.oracle, instance, self.device)


@functools.lru_cache(maxsize=256)
def _truth(oracle: Any, instance: Instance, device: str, cap: int) -> Truth:
    return known_truth(instance.loss, oracle, instance.scores.to(device), cap=cap)


@functools.lru_cache(maxsize=256)
def _law_alone(oracle: Any, instance: Instance, device: str) -> Truth:
    return law_alone(oracle, instance.scores.to(device))


class Suite(abc.ABC):
    """A set of related metrics of estimators, such as bias and variance, or times."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line
    partial: ClassVar[bool] = False  # whether it still measures some of its metrics if it has a `limitation`
    order: ClassVar[int] = 2  # cells of a lower order are measured first, and cells of a higher one use their cached results
    # The kind of its problems: ``tasks``, such as ``task:clusters``; ``learnt``, along a run, such as ``learnt:clusters``; ``scores`` of
    # items, which the second kind has too; or ``references`` of the first two.
    measures: ClassVar[str] = "scores"
    dtype: ClassVar[str] = ""  # overrides the dtype of the plan; empty takes that of the plan
    exclusive: ClassVar[bool] = False  # whether it measures time or memory, and must be alone on the machine
    together: ClassVar[bool] = False  # whether estimators of a problem are interleaved in one cell; else each has a cell of its own
    version: ClassVar[int] = 1  # raised when a change moves the measured values

    @abc.abstractmethod
    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Findings for every estimator, which fits all instances; an instance with a `limitation` gets a finding ``skipped`` with it."""

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """The reason why an instance is not measured, or in part only, known before measuring; None if it is measured."""
        if self.measures in ("tasks", "references") and context.device != "cpu":
            return f"models are trained on the CPU, and the plan has the device {context.device}"
        return None


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

        pair, bias = self.pair, f"{self.verdict}: {self.reason}" if self.reason else f"bias: {self.verdict}"
        size = f"{pair['sizes']} · {exponential(pair['log_count'])} structures"
        how = "exact, without replicates" if self.tier == "exact" else f"{self.replicates} replicates ({self.sampling})"
        facts = f"{pair['estimator']} on {pair['oracle']} · loss {pair['loss']} · {size} · seed {pair['seed']} · {how} · {bias}"
        rows = [
            ((label_of(name) + against).replace("_", " "), unit_of(name), estimate(one))
            for metrics, against in ((self.metrics, ""), (self.against, f" against {pair['own']}"))
            for name, one in metrics.items()
        ]
        shown = pd.DataFrame(rows, columns=["metric", "unit", "value [95 % interval]"])
        return f"<p>{escape(facts)}</p>{shown.to_html(index=False, border=0)}"

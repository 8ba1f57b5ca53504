"""Suites: questions that are put to the estimators of a problem, answered by findings.

A suite knows nothing of grids, workers, files and tables; a runner asks it for findings, and turns each into a row.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from ...estimators.base import Estimator
from ..base import Instance, NonFiniteError, Problem
from ..text import reason_of
from ..truth import Truth
from ..truth.closed_form import UnknownTruthError, known_truth, law_alone, unknown_because

Reference = Literal["expected", "perturbed", "relaxed", "argmax"]
"""Whose gradient an estimate was compared with."""


@dataclass(frozen=True)
class Finding:
    """One metric of one estimator, as a suite found it.

    Attributes:
        estimator: the key of the mapping that the suite was given.
        metric: a key of `METRICS`. ``value, low, high``: with its 95 % interval; None where there is none.
        interval: how it was made: ``jackknife``, ``profile``, ``order-statistic``, ``wilson``, ``bootstrap``, ``t`` or ``fit``; or empty.
        instance: the item; empty for a finding about the whole problem.
        setting: the point of a sweep, such as ``length=20`` or ``kl=0.03,samples=16``; empty where nothing is swept.
        size: the swept quantity as a number, for fits and figures.
        reference: whose gradient it was compared with; empty where nothing was.
        tier: ``exact`` or ``mc``; empty for what is no expectation.
        replicates: independent estimates behind it; None for the exact tier.
        batches: the value with each of 32 batches of the replicates left out, for comparisons; empty where there are none.
        sampling: ``converged`` or ``budget``; empty where nothing was sampled.
        verdict, p_value: of the test for bias; ``broken`` where estimates are NaN or infinite.
        status, reason: ``ok``; or ``skipped`` or ``error`` and why, where one contender of several, or one point of a sweep, has no value.
    """

    estimator: str
    metric: str
    value: float | None
    low: float | None = None
    high: float | None = None
    interval: str = ""
    instance: str = ""
    setting: str = ""
    size: float | None = None
    reference: str = ""
    tier: str = ""
    replicates: int | None = None
    batches: tuple[float, ...] = ()
    sampling: str = ""
    verdict: str = ""
    p_value: float | None = None
    status: Literal["ok", "skipped", "error"] = "ok"
    reason: str = ""

    @classmethod
    def failed(cls, estimator: str, metric: str, error: Exception, **known: Any) -> Finding:
        """That an estimator raised an error, or is ``broken`` because it returned NaN or infinity."""
        verdict = "broken" if isinstance(error, NonFiniteError) else ""
        return cls(estimator, metric, None, status="error", reason=reason_of(error), verdict=verdict, **known)


@dataclass(frozen=True)
class Effort:
    """How much work goes into an answer; the presets are `EFFORTS`.

    Attributes:
        replicates: of the first look. ``most_replicates, seconds``: the budget of one estimator on one instance.
        cap: the largest space that is enumerated. ``replay_cap``: the largest number of tuples of samples that is dealt out.
        alpha: level of one test for bias. ``equivalence``: a bias below this share of ‖g‖ counts as none.
        rounds: timed calls of each contender.
    """

    replicates: int = 4096
    most_replicates: int = 65_536
    seconds: float = 20.0
    cap: int = 2_000_000
    replay_cap: int = 200_000
    alpha: float = 1e-3
    equivalence: float = 0.02
    rounds: int = 40


EFFORTS: dict[str, Effort] = {
    "quick": Effort(replicates=512, most_replicates=512, seconds=5.0, cap=200_000, replay_cap=4_000, equivalence=0.05, rounds=10),
    "standard": Effort(most_replicates=8192, seconds=10.0),
    "thorough": Effort(most_replicates=1_048_576, seconds=300.0, cap=10_000_000, equivalence=0.01, rounds=160),
}
"""By the names of the presets."""


@dataclass(frozen=True)
class Context:
    """What a suite may use beside the problem: a root seed, where it computes, how much work it may do.

    Attributes:
        seed: everything random is keyed by it and by stable names, never by estimator, worker or order.
        dtype: in which estimators run; truth and moments are float64.
        batch_size: rows per launch; no estimate depends on it, and sums over estimates but in rounding.
        tier: ``auto`` is exact where it can be, ``mc`` forces replicates.
        scratch: a folder of the cell's own for what it may go on from after a kill; None where nothing is kept.
    """

    seed: int = 0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    batch_size: int = 4096
    tier: Literal["auto", "exact", "mc"] = "auto"
    effort: Effort = field(default_factory=Effort)
    scratch: Path | None = None

    def truth(self, problem: Problem, instance: Instance) -> Truth:
        """The exact gradient of an instance, computed once per process: by enumeration up to the cap, by the form of the loss beyond."""
        return _truth(problem.oracle, instance, self.device, self.effort.cap)

    def law(self, problem: Problem, instance: Instance) -> Truth:
        """The same for what does not ask for the gradient: where that is not known, the law of the structures alone."""
        try:
            return self.truth(problem, instance)
        except UnknownTruthError:
            return _law_alone(problem.oracle, instance, self.device)

    def unknown(self, problem: Problem, instance: Instance) -> str | None:
        """Why there is no `truth` of an instance, told without computing it; None where there is one."""
        return unknown_because(instance.loss, problem.oracle, instance.scores, cap=self.effort.cap)


@functools.lru_cache(maxsize=256)
def _truth(oracle: Any, instance: Instance, device: str, cap: int) -> Truth:
    return known_truth(instance.loss, oracle, instance.scores.to(device), cap=cap)


@functools.lru_cache(maxsize=256)
def _law_alone(oracle: Any, instance: Instance, device: str) -> Truth:
    return law_alone(oracle, instance.scores.to(device))


class Suite(abc.ABC):
    """A question, such as "how biased, how variable, how fast?".

    Attributes:
        name: registry name. ``summary``: one line.
        exclusive: whether it measures time or memory, and must be alone on the machine.
        together: whether the estimators of a problem are measured side by side in one cell; else each has a cell of its own.
        version: raised when a change moves the measured values.
        partial: whether it measures some of its metrics where it has a `limitation`, and not nothing.
        dtype: in which it computes whatever the plan says; empty where that decides.
        order: cells of a lower order are measured first; those of a higher one use what they leave in the cache.
        measures: which problems: ``tasks``, such as ``task:clusters``; ``learnt`` ones, along a run, such as ``learnt:clusters``; or
            ``scores`` of items, which the latter have too; ``references`` of the first two.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    partial: ClassVar[bool] = False
    order: ClassVar[int] = 2
    measures: ClassVar[str] = "scores"
    dtype: ClassVar[str] = ""
    exclusive: ClassVar[bool] = False
    together: ClassVar[bool] = False
    version: ClassVar[int] = 1

    @abc.abstractmethod
    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Answer for every estimator of a problem; each of them serves all its instances.

        An instance with a `limitation` gets a finding ``skipped`` with it.
        """

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """Why an instance is not measured, or in part only, as one sentence that is known before anything is measured; None where it is."""
        return None

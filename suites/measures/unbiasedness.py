"""Is an estimator that claims to be unbiased unbiased?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...estimators.base import Estimator
from ..base import Instance, NonFiniteError, Problem
from ..statistics.interval import ABSENT
from ..statistics.intervals import UNRESOLVED
from ..statistics.metrics import estimated_metrics, exact_metrics
from ..statistics.testing.equivalence import gain_bound
from ..truth import Target
from .bias import VANISHING, exact_summary, exact_verdict
from .replicates import Sampling, draw_moments, launches, warmed
from .suite import Context, Finding, Suite
from .testing.bias_tests import Evidence, decide
from .testing.e_process import BiasBets
from .testing.group_sequential import Outcome, sequential_test
from .testing.ranges import RANGED, score_function_ranges


class Unbiasedness(Suite):
    """Tests every estimator that claims to be unbiased for the expected loss; one that claims nothing has nothing to be tested.

    Where samples can be replayed, the mean of the shipped code is known exactly and there is no test: its relative bias is below 1e-9 or it
    is ``biased``. This covers peaked instances too. Others are tested on replicates, which says something on flat instances only, of a
    normalised entropy of 0.9 and more: on peaked ones most directions fail the filter for rare structures, and it stays ``unresolved``.

    A run over many cells adjusts the ``bias_p_value`` findings by `holm`.
    """

    name: ClassVar[str] = "unbiasedness"
    summary: ClassVar[str] = "tests of the estimators that claim to be unbiased: exact by replay, else sequential with confirmation"
    version: ClassVar[int] = 2

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """``relative_bias`` with its verdict; of sampled estimators also ``bias_p_value`` and the upper bounds."""
        for name, estimator in estimators.items():
            if self.concerns(estimator):
                for instance in problem.instances:
                    reason = self.limitation(problem, instance, context)
                    if reason is None:
                        try:
                            yield from _Examination(name, estimator, problem, instance, context).findings()
                        except NonFiniteError as error:
                            yield Finding.failed(name, "relative_bias", error, instance=instance.name, reference="expected")
                    else:
                        yield Finding(name, "relative_bias", None, instance=instance.name, status="skipped", reason=reason)

    def concerns(self, estimator: Estimator[Any]) -> bool:
        """Whether it claims to be unbiased for the expected loss."""
        return estimator.unbiased and estimator.objective == "expected"

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """No exact gradient to compare with."""
        return context.unknown(problem, instance)


@dataclass(frozen=True, eq=False)
class _Examination:
    """One estimator on one instance."""

    name: str
    estimator: Estimator[Any]
    problem: Problem
    instance: Instance
    context: Context

    def findings(self) -> Iterator[Finding]:
        target, sampling = self._target(), self._sampling()
        summary = exact_summary(self.estimator, target, sampling, self.context.effort.replay_cap)
        if summary is not None:
            bias = exact_metrics(summary, floor=VANISHING * target.truth.loss_deviation)["relative_bias"].value
            yield replace(self._finding("relative_bias", bias), tier="exact", verdict=exact_verdict(summary, target.truth, sampling.dtype))
        elif self.context.tier == "exact":
            raise ValueError(f"`unbiasedness` got tier='exact' for {self.name}, which cannot be replayed; expected tier='auto' or 'mc'")
        else:
            yield from self._sampled(warmed(self.estimator, target, sampling), target, sampling)

    def _sampled(self, estimator: Estimator[Any], target: Target, sampling: Sampling) -> Iterator[Finding]:
        def draw(slot: str, replicates: int) -> Any:
            return draw_moments(estimator, target, replace(sampling, replicates=replicates), slot=slot)

        effort = self.context.effort
        outcome = sequential_test(draw, target.truth, effort, sampling.dtype)
        # The ranges that bets need take every structure.
        ranged = effort.strict and type(estimator) in RANGED and target.truth.count <= effort.cap
        capital = self._capital(estimator, target, sampling) if ranged else None
        # Capital of 1/α² is as rare under the hypothesis as a rejection and its confirmation.
        if capital is not None and capital >= effort.alpha**-2:
            verdict = decide(Evidence(rejected=True, bound=outcome.bound), equivalence=effort.equivalence)
            outcome = replace(outcome, verdict=verdict, sampling="converged")
        for finding in self._of_outcome(outcome, capital):
            yield replace(
                finding,
                tier="mc",
                replicates=outcome.moments.total,
                sampling=outcome.sampling,
                verdict=outcome.verdict,
                p_value=outcome.p_value,
            )

    def _of_outcome(self, outcome: Outcome, capital: float | None) -> Iterator[Finding]:
        bias = UNRESOLVED if outcome.bound is None else estimated_metrics(outcome.moments, resolved=True)["relative_bias"]
        reason = ABSENT.get(bias.method, "")
        yield replace(
            self._finding("relative_bias", bias.value), low=bias.low, high=bias.high, interval="" if reason else "profile", reason=reason
        )
        yield self._finding("bias_p_value", outcome.p_value)
        yield self._finding("relative_bias_bound", outcome.bound)
        yield self._finding("gain_error_bound", None if outcome.bound is None else gain_bound(outcome.moments))
        if capital is not None:
            yield self._finding("bias_e_value", capital)

    def _capital(self, estimator: Estimator[Any], target: Target, sampling: Sampling) -> float:
        """The capital of the bets, which may end at any time."""
        effort, start = self.context.effort, time.monotonic()
        bets = BiasBets(target.truth.gradient, score_function_ranges(estimator, target))
        for _, estimates in launches(estimator, target, sampling, (0, effort.most_replicates), "bets"):
            bets.update(estimates)
            if bets.e_value >= effort.alpha**-2 or time.monotonic() - start > effort.seconds:
                break
        return bets.e_value

    def _finding(self, metric: str, value: float | None) -> Finding:
        return Finding(self.name, metric, value, instance=self.instance.name, reference="expected")

    def _target(self) -> Target:
        scores = self.instance.scores.to(self.context.device)
        return Target(
            self.problem.oracle, self.instance.loss, scores.to(self.context.dtype), self.context.truth(self.problem, self.instance)
        )

    def _sampling(self) -> Sampling:
        return Sampling(
            replicates=self.context.effort.replicates,
            seed=self.context.seed,
            key=("unbiasedness", self.problem.name, self.problem.stage, self.instance.name),
            batch_size=self.context.batch_size,
            tier="mc" if self.context.tier in ("mc", "sobol") else "auto",
            dtype=self.context.dtype,
        )

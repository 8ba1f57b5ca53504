"""Known changes planted into estimators: the mean or the spread of their estimates is scaled, around the exact gradient."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structgrad.estimators import make_estimator
from structgrad.estimators.base import Estimator, Loss, with_gradient
from structgrad.estimators.exact import ExactMarginalisation
from structgrad.suites.base import Problem, Row
from structgrad.suites.comparison.gating import GateResult, gate
from structgrad.suites.comparison.timing import TimeComparison
from structgrad.suites.measures.bias import Bias
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.problems import load
from structgrad.suites.running.planning.plan import Plan
from structgrad.suites.running.rows import RowWriter

ESTIMATORS = ("reinforce", "rloo", "st_gumbel", "imle")
PROBLEMS = (("categorical_regimes", "h=0.95"), ("categorical_regimes", "h=0.1"), ("subset_regimes", "h=0.4"))
"""From light tails to heavy ones."""

MOMENTS = ("relative_bias", "relative_bias_squared", "gain", "relative_variance", "relative_mse")
"""What a planted change is to be found by; that it leaves no part exactly 0 is an artefact."""


@dataclass(frozen=True)
class Change:
    """What is planted into an estimator: ``E ĝ`` times ``scale``, and the covariance times ``spread``.

    The mean that deviations are stretched around is the exact gradient: the planted change is exact for unbiased estimators, and for others
    it moves the bias too.
    """

    scale: float = 1.0
    spread: float = 1.0

    @property
    def name(self) -> str:
        """For people."""
        parts = [f"{what} × {value:g}" for what, value in (("mean", self.scale), ("variance", self.spread)) if value != 1]
        return ", ".join(parts) or "nothing"

    def planted(self, estimator: Estimator[Any], oracle: Any) -> Estimator[Any]:
        """The estimator with the change in it; it has the same name and declares the same."""
        if self == Change():
            return estimator
        change, kind, enumerated = self, type(estimator), oracle

        class Planted(kind):  # type: ignore[misc, valid-type]
            def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
                estimate = estimator.gradient(loss, oracle, scores.detach(), generator=generator)
                centre = ExactMarginalisation().gradient(loss, enumerated, scores.detach(), generator=generator)
                changed = change.scale * (centre + change.spread**0.5 * (estimate - centre))
                return with_gradient(scores.new_zeros(scores.shape[: scores.ndim - oracle.event_ndim]), scores, changed)

        planted: Estimator[Any] = Planted(**vars(estimator))
        return planted


def measured(problem: Problem, estimators: Mapping[str, Estimator[Any]], seed: int, replicates: int) -> list[Row]:
    """What the suite ``bias`` finds by replicates, with random numbers of a seed, on scores that are always the same."""
    effort = Effort(replicates=replicates, most_replicates=replicates)
    context = Context(seed=seed, tier="mc", effort=effort)
    writer = RowWriter(Plan(seed=seed), problem, "bias", "simulated")
    return list(writer.rows(Bias().findings(problem, estimators, context), context))


@functools.lru_cache
def _problem(name: str, stage: str) -> Problem:
    """Kept, and with it its exact gradient."""
    return load(name, stage, instances=1, data=None)


@functools.lru_cache(maxsize=512)
def run_of(seed: int, replicates: int, planted: str, change: Change) -> list[Row]:
    """All problems and estimators, one of them with a change."""
    rows: list[Row] = []
    for name, stage in PROBLEMS:
        problem = _problem(name, stage)
        chosen = {key: make_estimator(key) for key in ESTIMATORS}
        chosen[planted] = change.planted(chosen[planted], problem.oracle)
        rows += measured(problem, chosen, seed, replicates)
    return rows


@dataclass(frozen=True)
class Result:
    """Over many gates.

    Attributes:
        gates: how many. ``failed``: how many of them failed. ``found``: in how many the planted estimator was among what failed.
        others: in how many anything else was.
    """

    gates: int
    failed: int
    found: int
    others: int


def simulate(change: Change, *, gates: int, replicates: int, paired: bool, planted: str = "rloo") -> Result:
    """Gates between measurements with and without a change.

    Args:
        change: into one estimator.
        gates: how many.
        replicates: of every cell.
        paired: whether both sides draw the same random numbers.
        planted: the estimator.
    """
    failed = found = others = 0
    for number in range(gates):
        seeds = (number + 1, number + (1 if paired else 2))
        base, head = run_of(seeds[0], replicates, planted, Change()), run_of(seeds[1], replicates, planted, change)
        fails = failing(gate(base, head))
        failed += bool(fails)
        found += any((planted, metric) in fails for metric in MOMENTS)
        others += any(estimator != planted for estimator, _ in fails)
    return Result(gates, failed, found, others)


def failing(result: GateResult) -> set[tuple[str, str]]:
    """The estimators that a gate fails on, each with a metric."""
    return {(item.key.estimator, item.key.metric) for item in result.failures if not isinstance(item, TimeComparison)}

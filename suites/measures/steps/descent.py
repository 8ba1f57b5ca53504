"""Descent along estimates: steps of equal size, a common trajectory, and training on their own for the same loss evaluations."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...base import Instance, Problem
from ...statistics.interval import ABSENT
from ...statistics.metrics import Interval, estimated_metrics
from ...statistics.moments import BATCHES, Moments
from ...truth.loss_checks import examine_loss
from ..draws import Draws, estimates
from ..suite import Context, Finding, Suite
from .equal_steps import Rays, equal_step, natural_direction, relative_decrease
from .regret import steps_of, trained
from .structure_table import StructureTable, too_many
from .trajectory import ENTROPIES, Stop, flat_start, trajectory

DIVERGENCES = (0.001, 0.03, 0.3)
"""Mean KL divergences of one step."""

AVERAGED = (1, 16)
"""Estimates that one step averages."""

REPLICATES = 512
"""Of every estimator at every stop of the trajectory."""

AT_A_STOP = ("relative_bias", "relative_variance", "cosine", "rho")


@dataclass(frozen=True)
class DescentAmount:
    """How much work an effort buys: steps whose decrease is averaged, loss evaluations of a run of training, and seeds."""

    steps: int
    training: int
    seeds: int

    @classmethod
    def of(cls, context: Context) -> DescentAmount:
        """240, 120 and 8 at standard effort, a quarter at quick effort, but for seeds."""
        rounds = context.effort.rounds
        return cls(max(16, min(256, 6 * rounds)), max(10, min(300, 3 * rounds)), max(4, min(8, rounds // 5)))


class Descent(Suite):
    """What estimates are worth in descent, where ``E L`` is known exactly.

    `kl_decrease` compares with the step of the exact gradient of the same mean KL divergence; `kl_decrease_natural`, the ceiling, does not
    depend on the estimator and is repeated for each. Along the descent of the exact gradient, from a flat start to stops by entropy, all
    estimators are measured at the same scores. `regret` is that of training by the estimator itself, with a budget of loss evaluations that
    allows ``steps``. Estimators share their random numbers.
    """

    name: ClassVar[str] = "descent"
    summary: ClassVar[str] = (
        "decrease of the loss by steps of equal size, errors along a common trajectory, regret of training for the same loss evaluations"
    )
    together: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """All three, instance by instance; where a space is too large for them, a finding that says so."""
        for instance in problem.instances:
            reason = self.limitation(problem, instance, context)
            if reason is not None:
                yield from (
                    Finding(name, "kl_decrease", None, instance=instance.name, status="skipped", reason=reason) for name in estimators
                )
                continue
            scores = instance.scores.to(context.device)
            examine_loss(instance.loss, problem.oracle, scores)
            table = StructureTable.of(problem.oracle, instance.loss, scores)
            yield from _DescentInstance(problem, instance, table, context).findings(estimators)

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """A space too large for a table."""
        return too_many(problem.oracle, tuple(instance.scores.shape))


@dataclass(frozen=True, eq=False)
class _DescentInstance:
    """An instance at which estimators are measured side by side."""

    problem: Problem
    instance: Instance
    table: StructureTable
    context: Context

    def findings(self, estimators: Mapping[str, Estimator[Any]]) -> Iterator[Finding]:
        """Of every estimator; one that raises is out of what follows."""
        alive = dict(estimators)
        for part in (self._steps, self._stops):
            for name in list(alive):
                try:
                    yield from part(name, alive[name])
                except Exception as error:  # any user-supplied code may run here
                    del alive[name]
                    yield Finding.failed(name, "kl_decrease", error, instance=self.instance.name)
        yield from self._regrets(alive)

    def _draws(self, scores: Tensor, *key: str) -> Draws:
        names = ("descent", self.problem.name, self.problem.stage, self.instance.name, *key)
        rows = self.table.shaped(scores.flatten().unsqueeze(0))[0].to(self.context.dtype)
        return Draws(self.problem.oracle, self.instance.loss, rows, self.context, names)

    def _finding(self, name: str, metric: str, found: Interval, kind: str, **values: Any) -> Finding:
        return Finding(
            name, metric, found.value, found.low, found.high, kind if found.low is not None else "", self.instance.name,
            reason=ABSENT.get(found.method, ""), **values,
        )  # fmt: skip

    # Steps of equal size.

    @functools.cached_property
    def _here(self) -> Tensor:
        return torch.where(self.table.free, self.table.scores, 0)

    @functools.cached_property
    def _exact(self) -> dict[float, tuple[float, Interval]]:
        """By divergence: the decrease of the exact gradient's step, and that of the natural gradient's, relative to it."""
        gradient = self.table.gradient(self._here)
        natural = Rays(self.table, self._here, natural_direction(self.table, self._here, gradient).unsqueeze(0))
        own = Rays(self.table, self._here, gradient.unsqueeze(0))
        exact = {divergence: _decrease(own, divergence) for divergence in DIVERGENCES}
        return {d: (exact[d], relative_decrease(equal_step(natural, d), exact[d])) for d in DIVERGENCES}

    def _steps(self, name: str, estimator: Estimator[Any]) -> Iterator[Finding]:
        number, once = DescentAmount.of(self.context).steps, estimator.deterministic
        draws = self._draws(self.table.scores, "steps")
        found = estimates(draws.warmed(estimator), draws, 1 if once else number * max(AVERAGED))
        for divergence, (_, ceiling) in self._exact.items():
            swept: dict[str, Any] = {"setting": f"kl={divergence:g}", "size": divergence, "reference": "expected"}
            yield self._finding(name, "kl_decrease_natural", ceiling, "", tier="exact", **swept)
        tier: dict[str, Any] = {"tier": "exact"} if once else {"tier": "mc", "replicates": number}
        for averaged in AVERAGED:
            rays = Rays(self.table, self._here, found if once else found.unflatten(0, (number, -1))[:, :averaged].mean(1))
            for divergence, (exact, _) in self._exact.items():
                value = relative_decrease(equal_step(rays, divergence), exact)
                swept = {"setting": f"kl={divergence:g},samples={averaged}", "size": divergence, "reference": "expected"}
                yield self._finding(name, "kl_decrease", value, "t", **swept, **tier)

    # A common trajectory.

    @functools.cached_property
    def _start(self) -> Tensor:
        return flat_start(self.table, self._draws(self.table.scores, "start").generator("noise"))

    @functools.cached_property
    def _trajectory(self) -> dict[float, Stop]:
        return {stop.entropy: stop for stop in trajectory(self.table, self._start)}

    def _stops(self, name: str, estimator: Estimator[Any]) -> Iterator[Finding]:
        for entropy in ENTROPIES:
            where: dict[str, Any] = {"setting": f"h={entropy:g}", "size": entropy}
            if entropy not in self._trajectory:
                reason = "the descent of the exact gradient does not come to this entropy"
                yield Finding(name, "rho", None, instance=self.instance.name, status="skipped", reason=reason, **where)
                continue
            tier: dict[str, Any] = {"tier": "exact"} if estimator.deterministic else {"tier": "mc", "replicates": REPLICATES}
            for metric, value in self._at_stop(estimator, self._trajectory[entropy]).items():
                kind = "profile" if "bias" in metric else "jackknife"
                yield self._finding(name, metric, value, kind, reference="expected", **where, **tier)

    def _at_stop(self, estimator: Estimator[Any], stop: Stop) -> dict[str, Interval]:
        draws = self._draws(stop.scores, "trajectory", f"{stop.entropy:g}")
        found = estimates(draws.warmed(estimator), draws, 1 if estimator.deterministic else REPLICATES)
        metrics = exact_errors(found[0], stop.gradient) if estimator.deterministic else sampled_errors(found, stop.gradient)
        first = float(self.table.gradient(self._start).norm())
        share = float(stop.gradient.norm()) / first if first else 0.0
        return metrics | {"bias_of_start": _scaled(metrics["relative_bias"], share)}

    # Training for the same loss evaluations.

    def _regrets(self, estimators: Mapping[str, Estimator[Any]]) -> Iterator[Finding]:
        amount, draws = DescentAmount.of(self.context), self._draws(self._start, "regret")
        for name, estimator in estimators.items():
            try:
                warmed = draws.warmed(estimator)
                found = trained(warmed, draws, self.table, steps_of(warmed, draws, amount.training), amount.seeds)
            except Exception as error:  # any user-supplied code may run here
                yield Finding.failed(name, "regret", error, instance=self.instance.name)
                continue
            tier: dict[str, Any] = {"tier": "exact"} if estimator.deterministic else {"tier": "mc", "replicates": amount.seeds}
            yield self._finding(name, "regret", found.regret, "t", **tier)
            yield self._finding(name, "steps", Interval(float(found.steps)), "")


def _decrease(rays: Rays, divergence: float) -> float:
    found = equal_step(rays, divergence)
    return 0.0 if found is None else float(found.decrease.mean())


def exact_errors(estimate: Tensor, gradient: Tensor) -> dict[str, Interval]:
    """Metrics of an estimate without noise; empty where they are not defined."""
    norm, length, along = float(gradient.norm()), float(estimate.norm()), float(estimate @ gradient)
    cosine = Interval(along / (norm * length) if norm * length else None)
    bias = float((estimate - gradient).norm())
    return {
        "relative_bias": Interval(bias / norm if norm else None),
        "relative_variance": Interval(0.0 if norm else None),
        "cosine": cosine,
        "rho": cosine,
    }


def sampled_errors(found: Tensor, gradient: Tensor) -> dict[str, Interval]:
    """Metrics of independent estimates ``[n, parts]``."""
    moments = Moments.empty(gradient)
    for batch, rows in enumerate(found.tensor_split(BATCHES)):
        moments.add(rows, batch)
    metrics = estimated_metrics(moments)
    return {metric: metrics[metric] for metric in AT_A_STOP}


def _scaled(found: Interval, factor: float) -> Interval:
    value, low, high = (None if bound is None else bound * factor for bound in (found.value, found.low, found.high))
    return Interval(value, low, high, found.method)

"""Descent along estimates: steps of equal size, and training by each estimator for the same loss evaluations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ..base import Instance, Problem
from ..statistics.interval import ABSENT
from ..statistics.metrics import Interval
from ..statistics.selection import student_mean
from ..statistics.work import GRADIENT_WORK
from ..truth.loss_checks import examine_loss
from .draws import Draws, estimates
from .equal_steps import Rays, StructureTable, equal_step, natural_direction, relative_decrease, too_many
from .suite import Context, Finding, Suite

DIVERGENCES = (0.001, 0.03, 0.3)
"""Mean KL divergences of one step."""

NUM_AVERAGED = (1, 16)
"""Estimates that one step averages."""

STEP_LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Step sizes, as root mean square length of the first step: estimators differ in scale."""

NUM_PROBES = 128
"""Estimates whose scale sets the step sizes."""

MAX_ABS_SCORE = 1e12
"""The greatest score in training; a run beyond it has diverged."""


@dataclass(frozen=True)
class DescentAmount:
    """Work of an effort: steps whose decrease is averaged, loss evaluations of a run of training, and seeds."""

    steps: int
    training: int
    seeds: int

    @classmethod
    def of(cls, context: Context) -> DescentAmount:
        """240, 120 and 8 at standard effort; a quarter at quick effort, except seeds."""
        rounds = context.effort.rounds
        return cls(max(16, min(256, 6 * rounds)), max(10, min(300, 3 * rounds)), max(4, min(8, rounds // 5)))


class Descent(Suite):
    """The value of estimates in descent, if ``E L`` is known exactly.

    `kl_decrease` compares with the step of the exact gradient of the same mean KL divergence; `kl_decrease_natural`, the ceiling, does not
    depend on the estimator and is repeated for each. `regret` is that of training by the estimator itself from a flat start, with a budget
    of loss evaluations that allows ``steps``. Estimators share their random numbers.
    """

    name: ClassVar[str] = "descent"
    summary: ClassVar[str] = "decrease of the loss by steps of equal size, regret of training for the same loss evaluations"
    together: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Steps and training, instance by instance; a skipped finding for a space that is too large."""
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
        """Findings of every estimator; one that raises is left out of the rest."""
        alive = dict(estimators)
        for name in list(alive):
            try:
                yield from self._steps(name, alive[name])
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
        """The decrease of the exact gradient's step by divergence, and that of the natural gradient's relative to it."""
        gradient = self.table.gradient(self._here)
        natural = Rays(self.table, self._here, natural_direction(self.table, self._here, gradient).unsqueeze(0))
        own = Rays(self.table, self._here, gradient.unsqueeze(0))
        exact = {divergence: _decrease(own, divergence) for divergence in DIVERGENCES}
        return {d: (exact[d], relative_decrease(equal_step(natural, d), exact[d])) for d in DIVERGENCES}

    def _steps(self, name: str, estimator: Estimator[Any]) -> Iterator[Finding]:
        number, once = DescentAmount.of(self.context).steps, estimator.deterministic
        draws = self._draws(self.table.scores, "steps")
        found = estimates(draws.warmed(estimator), draws, 1 if once else number * max(NUM_AVERAGED))
        for divergence, (_, ceiling) in self._exact.items():
            swept: dict[str, Any] = {"setting": f"kl={divergence:g}", "size": divergence, "reference": "expected"}
            yield self._finding(name, "kl_decrease_natural", ceiling, "", tier="exact", **swept)
        tier: dict[str, Any] = {"tier": "exact"} if once else {"tier": "mc", "replicates": number}
        for averaged in NUM_AVERAGED:
            rays = Rays(self.table, self._here, found if once else found.unflatten(0, (number, -1))[:, :averaged].mean(1))
            for divergence, (exact, _) in self._exact.items():
                value = relative_decrease(equal_step(rays, divergence), exact)
                swept = {"setting": f"kl={divergence:g},samples={averaged}", "size": divergence, "reference": "expected"}
                yield self._finding(name, "kl_decrease", value, "t", **swept, **tier)

    # Training for the same loss evaluations.

    def _regrets(self, estimators: Mapping[str, Estimator[Any]]) -> Iterator[Finding]:
        amount = DescentAmount.of(self.context)
        draws = self._draws(flat_start(self.table, self._draws(self.table.scores, "start").generator("noise")), "regret")
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


def flat_start(table: StructureTable, generator: torch.Generator) -> Tensor:
    """Scores ``[parts]`` of almost the uniform law; a little noise breaks ties of the best structure."""
    noise = torch.randn(table.scores.shape, generator=generator, dtype=torch.float64, device=table.scores.device)
    return torch.where(table.free, 0.01 * noise, 0)


@dataclass(frozen=True)
class Trained:
    """The result of training.

    Attributes:
        regret: ``(E L − min L) / (E L at the start − min L)`` of the best step size, the mean over seeds; empty if all diverge.
        rate: that step size.
        steps: number of steps.
    """

    regret: Interval
    rate: float
    steps: int


class _CountedLoss:
    """A loss that counts its evaluations; those that may be differentiated count as three."""

    def __init__(self, draws: Draws) -> None:
        self.draws, self.evaluations = draws, 0

    def __call__(self, z: Tensor) -> Tensor:
        self.evaluations += z.numel() // self.draws.scores.numel() * (1 + GRADIENT_WORK * z.requires_grad)
        return self.draws.loss(z)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.draws.loss, name)


def steps_of(estimator: Estimator[Any], draws: Draws, budget: int) -> int:
    """Training steps within a budget of loss evaluations, at least one.

    The evaluations of one estimate are counted and not timed: numbers do not depend on the machine or its load.
    """
    loss = _CountedLoss(draws)
    estimator.gradient(loss, draws.oracle, draws.scores, generator=draws.generator("work"))
    return max(1, round(budget / max(loss.evaluations, 1)))


def trained(estimator: Estimator[Any], draws: Draws, table: StructureTable, steps: int, seeds: int) -> Trained:
    """Train from the scores of ``draws``, with every step size of a grid and several seeds.

    Args:
        estimator: warmed up.
        draws: the flat start, and the streams.
        table: for the exact ``E L``.
        steps: of plain descent.
        seeds: independent runs; one if nothing is random.
    """
    seeds = 1 if estimator.deterministic else seeds
    start = draws.scores.double().flatten()
    scale = math.sqrt(float(estimates(estimator, draws, NUM_PROBES).square().sum(-1).mean()))
    rates = torch.tensor(STEP_LENGTHS, dtype=torch.float64, device=start.device) / max(scale, 1e-300)
    rows = start.expand(len(STEP_LENGTHS) * seeds, -1).clone()
    alive = torch.ones(len(rows), dtype=torch.bool, device=start.device)
    generator = draws.generator("training")
    for _ in range(steps):
        scores = table.shaped(rows).to(draws.scores.dtype)
        found = estimator.gradient(draws.loss, draws.oracle, scores, generator=generator).double().flatten(1)
        moved = rows - rates.repeat_interleave(seeds).unsqueeze(-1) * found
        # The oracle would refuse unbounded scores: their run has diverged, and ends.
        alive &= (moved.abs() < MAX_ABS_SCORE).all(-1)
        rows = torch.where(alive.unsqueeze(-1), moved, rows)
    regrets = torch.where(alive, _regrets(table, start, rows), math.inf).reshape(len(STEP_LENGTHS), seeds)
    best = int(regrets.mean(-1).argmin())
    return Trained(
        student_mean(regrets[best].cpu().numpy()) if bool(regrets[best].isfinite().all()) else Interval(None), float(rates[best]), steps
    )


def _regrets(table: StructureTable, start: Tensor, rows: Tensor) -> Tensor:
    """Regrets of scores [b, parts]: [b]; 0 if the start is optimal."""
    first = float(table.expected(start.unsqueeze(0))[0]) - table.least
    reached = table.expected(rows) - table.least
    return reached / first if first > 0 else torch.zeros_like(reached)

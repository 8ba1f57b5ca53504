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
from ..statistics.interval import Interval
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
            known: dict[str, Any] = {"instance": instance.name}
            if (reason := self.limitation(problem, instance, context)) is not None:
                yield from (Finding(name, "kl_decrease", None, status="skipped", reason=reason, **known) for name in estimators)
                continue
            scores = instance.scores.to(context.device)
            examine_loss(instance.loss, problem.oracle, scores)
            here, alive = (
                _DescentInstance(problem, instance, StructureTable.of(problem.oracle, instance.loss, scores), context),
                dict(estimators),
            )
            # One that raises is left out of the rest.
            for metric, part in (("kl_decrease", here.steps), ("regret", here.regret)):
                for name, estimator in list(alive.items()):
                    try:
                        yield from part(name, estimator)
                    except Exception as error:  # any user-supplied code may run here
                        del alive[name]
                        yield Finding.failed(name, metric, error, **known)

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

    def _draws(self, scores: Tensor, *key: str) -> Draws:
        names = ("descent", self.problem.name, self.problem.stage, self.instance.name, *key)
        rows = self.table.shaped(scores.flatten().unsqueeze(0))[0].to(self.context.dtype)
        return Draws(self.problem.oracle, self.instance.loss, rows, self.context, names)

    def _tier(self, estimator: Estimator[Any], replicates: int) -> dict[str, Any]:
        tier = {"tier": "exact"} if estimator.deterministic else {"tier": "mc", "replicates": replicates}
        return {"instance": self.instance.name, **tier}

    @functools.cached_property
    def _here(self) -> Tensor:
        return torch.where(self.table.free, self.table.scores, 0)

    @functools.cached_property
    def _exact(self) -> dict[float, tuple[float, Interval]]:
        """The decrease of the exact gradient's step by divergence, and that of the natural gradient's relative to it."""
        gradient = self.table.gradient(self._here)
        directions = gradient, natural_direction(self.table, self._here, gradient)
        own, natural = (Rays(self.table, self._here, direction.unsqueeze(0)) for direction in directions)
        found = {}
        for divergence in DIVERGENCES:
            step = equal_step(own, divergence)
            exact = 0.0 if step is None else float(step.decrease.mean())
            found[divergence] = exact, relative_decrease(equal_step(natural, divergence), exact)
        return found

    def steps(self, name: str, estimator: Estimator[Any]) -> Iterator[Finding]:
        """Steps of equal size: 240 at standard effort, a quarter at quick effort."""
        number, once = max(16, min(256, 6 * self.context.effort.rounds)), estimator.deterministic
        draws = self._draws(self.table.scores, "steps")
        found = estimates(draws.warmed(estimator), draws, 1 if once else number * max(NUM_AVERAGED))
        known: dict[str, Any] = {"instance": self.instance.name, "reference": "expected"}
        for divergence, (_, ceiling) in self._exact.items():
            swept: dict[str, Any] = {"setting": f"kl={divergence:g}", "size": divergence, "tier": "exact"}
            yield Finding.of(name, "kl_decrease_natural", ceiling, **known, **swept)
        known |= self._tier(estimator, number)
        for averaged in NUM_AVERAGED:
            rays = Rays(self.table, self._here, found if once else found.unflatten(0, (number, -1))[:, :averaged].mean(1))
            for divergence, (exact, _) in self._exact.items():
                value = relative_decrease(equal_step(rays, divergence), exact)
                yield Finding.of(name, "kl_decrease", value, setting=f"kl={divergence:g},samples={averaged}", size=divergence, **known)

    def regret(self, name: str, estimator: Estimator[Any]) -> Iterator[Finding]:
        """Training for the same loss evaluations: 120 and 8 seeds at standard effort, a quarter and 4 seeds at quick effort."""
        rounds = self.context.effort.rounds
        budget, seeds = max(10, min(300, 3 * rounds)), max(4, min(8, rounds // 5))
        draws = self._draws(flat_start(self.table, self._draws(self.table.scores, "start").generator("noise")), "regret")
        warmed = draws.warmed(estimator)
        steps = steps_of(warmed, draws, budget)
        yield Finding.of(name, "regret", trained(warmed, draws, self.table, steps, seeds), **self._tier(estimator, seeds))
        yield Finding(name, "steps", float(steps), instance=self.instance.name)


def flat_start(table: StructureTable, generator: torch.Generator) -> Tensor:
    """Scores ``[parts]`` of almost the uniform law; a little noise breaks ties of the best structure."""
    noise = torch.randn(table.scores.shape, generator=generator, dtype=torch.float64, device=table.scores.device)
    return torch.where(table.free, 0.01 * noise, 0)


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


def trained(estimator: Estimator[Any], draws: Draws, table: StructureTable, steps: int, seeds: int) -> Interval:
    """The regret of training from the scores of ``draws`` with the best of the step sizes; without a value if all diverge.

    Args:
        estimator: warmed up.
        draws: the flat start, and the streams.
        table: for the exact ``E L``.
        steps: of plain descent.
        seeds: independent runs, whose mean it is; one if nothing is random.

    Returns:
        ``(E L − min L) / (E L at the start − min L)``; 0 if the start is optimal.
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
    first, reached = float(table.expected(start.unsqueeze(0))[0]) - table.least, table.expected(rows) - table.least
    regrets = torch.where(alive, reached / first if first > 0 else 0, math.inf).reshape(len(STEP_LENGTHS), seeds)
    best = regrets[regrets.mean(-1).argmin()]
    return student_mean(best.cpu().numpy()) if bool(best.isfinite().all()) else Interval(None)

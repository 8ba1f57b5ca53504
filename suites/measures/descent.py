"""Training by each estimator for the same loss evaluations, where ``E L`` is known from a table of all structures."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...oracles.magnitudes import counted
from ..base import Instance, NonFiniteError, Problem
from ..statistics.interval import Interval
from ..statistics.seeds import generator
from ..statistics.selection import GRADIENT_WORK, student_mean
from ..truth.loss_checks import checked, examine_loss, values
from ..truth.replay import hooked
from .draws import Draws, estimates
from .suite import Context, Finding, Suite

CAP = 20_000  # the largest space that is tabled: steps are many, and each takes the whole table
CHUNK = 2**21  # entries of one block of log-probabilities
STEP_LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # step sizes, as root mean square length of the first step: estimators differ in scale
NUM_PROBES = 128  # estimates whose scale sets the step sizes
MAX_ABS_SCORE = 1e12  # the greatest score in training; a run beyond it has diverged


@dataclass(frozen=True, eq=False)
class StructureTable:
    """The feasible structures of an instance, with their losses; all in float64."""

    oracle: Any  # whose structures they are
    structures: Tensor  # ``[s, parts]``
    losses: Tensor  # ``[s]``
    scores: Tensor  # ``[*event]``, the instance's own
    free: Tensor  # ``[*event]`` bool, the parts that may move: read, and not forbidden

    @classmethod
    def of(cls, oracle: Any, loss: Loss, scores: Tensor) -> Self:
        """The table of an instance of at most `CAP` structures."""
        event, theta = tuple(scores.shape), scores.detach().double()
        structures = oracle.enumerate(event, 0, oracle.count(event), dtype=torch.float64, device=theta.device)
        structures = structures[structures.flatten(1) @ (theta == -math.inf).flatten().double() == 0]
        losses = checked(values(loss, structures, oracle.event_ndim))
        return cls(oracle, structures.flatten(1), losses, theta, oracle.free_parts(theta))

    def shaped(self, rows: Tensor) -> Tensor:
        """[b, parts] -> [b, *event], with the scores of forbidden parts at -inf."""
        return torch.where(self.free | (self.scores > -math.inf), rows.reshape(-1, *self.scores.shape), self.scores)

    def expected(self, rows: Tensor) -> Tensor:
        """E L of scores [b, parts]: [b]."""
        found = []
        for block in rows.split(max(1, CHUNK // len(self.losses))):
            parameters = self.oracle.natural_parameters(self.shaped(block)).flatten(1)
            # No structure of the table holds a forbidden part.
            logits = torch.where(parameters > -math.inf, parameters, 0) @ self.structures.mT
            found.append(torch.softmax(logits, -1) @ self.losses)
        return torch.cat(found)

    def flat_start(self, stream: torch.Generator) -> Tensor:
        """Scores ``[*event]`` of almost the uniform law; a little noise breaks ties of the best structure."""
        noise = torch.randn(self.scores.numel(), generator=stream, dtype=torch.float64, device=self.scores.device)
        return self.shaped(torch.where(self.free.flatten(), 0.01 * noise, 0))[0]


class Descent(Suite):
    """The regret of training by each estimator from a flat start, with a budget of loss evaluations, if ``E L`` is known exactly.

    Estimators share their random numbers. The budget is 120 evaluations and 8 seeds at standard effort, a quarter and 4 seeds at quick
    effort. Evaluations are counted, not timed: numbers do not depend on the machine or its load.
    """

    name: ClassVar[str] = "descent"
    summary: ClassVar[str] = "regret of training for the same loss evaluations"
    together: ClassVar[bool] = True
    version: ClassVar[int] = 3

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        rounds = context.effort.rounds
        budget, seeds = max(10, min(300, 3 * rounds)), max(4, min(8, rounds // 5))
        for instance in problem.instances:
            at = instance.name
            if (reason := self.limitation(problem, instance, context)) is not None:
                yield from (Finding(name, "regret", None, instance=at, status="skipped", reason=reason) for name in estimators)
                continue
            scores = instance.scores.to(context.device)
            examine_loss(instance.loss, problem.oracle, scores)
            table = StructureTable.of(problem.oracle, instance.loss, scores)
            key = (self.name, problem.name, problem.stage, at)
            start = table.flat_start(generator(context.seed, *key, "start", "noise", device=context.device)).to(context.dtype)
            draws = Draws(problem.oracle, instance.loss, start, context, (*key, "regret"))
            for name, estimator in estimators.items():
                known: dict[str, Any] = {"tier": "exact"} if estimator.deterministic else {"tier": "mc", "replicates": seeds}
                try:
                    warmed = draws.warmed(estimator)
                    steps = steps_of(warmed, draws, budget)
                    yield Finding.of(name, "regret", trained(warmed, draws, table, steps, seeds), instance=at, **known)
                    yield Finding(name, "steps", float(steps), instance=at)
                except Exception as error:  # any user-supplied code may run here
                    yield Finding.failed(name, "regret", error, instance=at)

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        count = problem.oracle.count(tuple(instance.scores.shape))
        return None if count <= CAP else f"`descent` got a space of {counted(count)} structures; expected at most {counted(CAP)}"


def steps_of(estimator: Estimator[Any], draws: Draws, budget: int) -> int:
    """Training steps within a budget of loss evaluations, at least one; those that may be differentiated count as three."""
    evaluations = 0

    def counted(_: str, loss: Loss, z: Tensor) -> Tensor:
        nonlocal evaluations
        evaluations += z.numel() // draws.scores.numel() * (1 + GRADIENT_WORK * z.requires_grad)
        return loss(z)

    estimator.gradient(hooked(draws.loss, ("__call__",), counted), draws.oracle, draws.scores, generator=draws.generator("work"))
    return max(1, round(budget / max(evaluations, 1)))


def trained(estimator: Estimator[Any], draws: Draws, table: StructureTable, steps: int, seeds: int) -> Interval:
    """The regret of plain descent from the scores of ``draws``, the mean over seeds with the best of the step sizes.

    It is ``(E L − min L) / (E L at the start − min L)``: 0 if the start is optimal, and without a value if all step sizes diverge.
    """
    seeds = 1 if estimator.deterministic else seeds
    start = draws.scores.double().flatten()
    scale = math.sqrt(float(estimates(estimator, draws, NUM_PROBES).square().sum(-1).mean()))
    rates = torch.tensor(STEP_LENGTHS, dtype=torch.float64, device=start.device) / max(scale, 1e-300)
    rows = start.expand(len(STEP_LENGTHS) * seeds, -1).clone()
    alive = torch.ones(len(rows), dtype=torch.bool, device=start.device)
    stream = draws.generator("training")
    for step in range(steps):
        scores = table.shaped(rows).to(draws.scores.dtype)
        found = estimator.gradient(draws.loss, draws.oracle, scores, generator=stream).double().flatten(1)
        if bad := int(found.isnan().any(-1).sum()):
            raise NonFiniteError(f"`{estimator.name}` returned NaN in {bad} of {len(rows)} runs of training, at step {step + 1} of {steps}")
        moved = rows - rates.repeat_interleave(seeds).unsqueeze(-1) * found
        # The oracle would refuse unbounded scores: their run has diverged, and ends.
        alive &= (moved.abs() < MAX_ABS_SCORE).all(-1)
        rows = torch.where(alive.unsqueeze(-1), moved, rows)
    least = table.losses.min()
    first, reached = float(table.expected(start.unsqueeze(0))[0] - least), table.expected(rows) - least
    regrets = torch.where(alive, reached / first if first > 0 else 0, math.inf).reshape(len(STEP_LENGTHS), seeds)
    best = regrets[regrets.mean(-1).argmin()]
    return student_mean(best.cpu().numpy()) if bool(best.isfinite().all()) else Interval(None)

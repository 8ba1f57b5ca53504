"""Training by every estimator on its own, for the same loss evaluations, with the best of a grid of step sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...statistics.metrics import Interval
from ...statistics.work import GRADIENT_WORK
from ..draws import Draws, estimates
from ..sparsity import mean_interval
from .structure_table import StructureTable

LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Step sizes, as root mean square length of the first step: estimators differ in scale."""

PROBE = 128
"""Estimates whose scale sets the step sizes."""

FARTHEST = 1e12
"""A score beyond this has left the range of training."""


@dataclass(frozen=True)
class Trained:
    """What training reached.

    Attributes:
        regret: ``(E L − min L) / (E L at the start − min L)``, the mean over seeds, of the best step size; empty where all diverge.
        rate: that step size.
        steps: how many were made.
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

    The evaluations of one estimate are counted and not timed: numbers do not depend on the machine, nor on what else runs there.
    """
    loss = _CountedLoss(draws)
    estimator.gradient(loss, draws.oracle, draws.scores, generator=draws.generator("work"))
    return max(1, round(budget / max(loss.evaluations, 1)))


def trained(estimator: Estimator[Any], draws: Draws, table: StructureTable, steps: int, seeds: int) -> Trained:
    """Train from the scores of ``draws``, with every step size of a grid and several seeds.

    Args:
        estimator: warmed up.
        draws: the flat start, and the streams.
        table: tells the exact ``E L``.
        steps: of plain descent.
        seeds: independent runs; one, where nothing is random.
    """
    seeds = 1 if estimator.deterministic else seeds
    start = draws.scores.double().flatten()
    scale = math.sqrt(float(estimates(estimator, draws, PROBE).square().sum(-1).mean()))
    rates = torch.tensor(LENGTHS, dtype=torch.float64, device=start.device) / max(scale, 1e-300)
    rows = start.expand(len(LENGTHS) * seeds, -1).clone()
    alive = torch.ones(len(rows), dtype=torch.bool, device=start.device)
    generator = draws.generator("training")
    for _ in range(steps):
        scores = table.shaped(rows).to(draws.scores.dtype)
        found = estimator.gradient(draws.loss, draws.oracle, scores, generator=generator).double().flatten(1)
        moved = rows - rates.repeat_interleave(seeds).unsqueeze(-1) * found
        # Scores that leave all bounds would be refused by the oracle: their run is over, and lost.
        alive &= (moved.abs() < FARTHEST).all(-1)
        rows = torch.where(alive.unsqueeze(-1), moved, rows)
    regrets = torch.where(alive, _regrets(table, start, rows), math.inf).reshape(len(LENGTHS), seeds)
    best = int(regrets.mean(-1).argmin())
    return Trained(mean_interval(regrets[best]) if bool(regrets[best].isfinite().all()) else Interval(None), float(rates[best]), steps)


def _regrets(table: StructureTable, start: Tensor, rows: Tensor) -> Tensor:
    """Of scores [b, parts]: [b]; 0 where the start is as good as anything."""
    first = float(table.expected(start.unsqueeze(0))[0]) - table.least
    reached = table.expected(rows) - table.least
    return reached / first if first > 0 else torch.zeros_like(reached)

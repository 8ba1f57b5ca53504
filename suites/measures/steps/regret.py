"""Training by every estimator on its own, for the same time, with the best of a grid of step sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator
from ...statistics.metrics import Interval
from ..cost.interleaving import interleave
from ..cost.timing import clock, single_thread
from ..draws import Draws, estimates
from ..sparsity import mean_interval
from .structure_table import StructureTable

LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Step sizes, as root mean square length of the first step: estimators differ in scale."""

PROBE = 128
"""Estimates whose scale sets the step sizes."""

FARTHEST = 1e12
"""A score beyond this has left the range of training."""

MOST = 4
"""A cheap estimator makes at most this many times the steps of the reference."""


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


def costs(estimators: Mapping[str, Estimator[Any]], draws: Draws, *, budget: float) -> dict[str, float]:
    """Median seconds of one training step of `LENGTHS` rows, interleaved; without those that raise."""
    rows = draws.scores.expand(len(LENGTHS), *draws.scores.shape).clone()
    calls = {name: functools.partial(_step, estimator, draws, rows) for name, estimator in estimators.items()}
    with single_thread():
        found = interleave(calls, rounds=1, budget=budget)
    return {name: float(torch.tensor(seconds[:, 0]).median()) for name, seconds in found.seconds.items()}


def _step(estimator: Estimator[Any], draws: Draws, rows: Tensor) -> tuple[float]:
    start = clock(rows.device)
    estimator.gradient(draws.loss, draws.oracle, rows, generator=torch.Generator(rows.device).manual_seed(0))
    return (clock(rows.device) - start,)


def steps_of(seconds: Mapping[str, float], reference: str, steps: int) -> dict[str, int]:
    """How many steps each makes in the time that the reference takes for ``steps``.

    Ratios of seconds are rounded to powers of √2, so that a machine's mood seldom changes what is compared.

    Example:
        >>> steps_of({"reinforce": 1e-3, "rloo": 2.1e-3, "ste": 1e-5}, "reinforce", 100)
        {'reinforce': 100, 'rloo': 50, 'ste': 400}
    """
    base = seconds.get(reference, sorted(seconds.values())[len(seconds) // 2])
    ratios = {name: 2 ** (round(2 * math.log2(base / taken)) / 2) for name, taken in seconds.items()}
    return {name: max(1, round(steps * min(ratio, MOST))) for name, ratio in ratios.items()}


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

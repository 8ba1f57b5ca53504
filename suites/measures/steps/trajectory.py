"""A common trajectory: descent of the exact gradient from a flat start, with stops by entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import scipy
import torch
from torch import Tensor

from .equal_steps import Rays, equal_step
from .structure_table import StructureTable

ENTROPIES = (0.95, 0.7, 0.4, 0.1)
"""Stops, as entropy over the log of the number of structures."""

DIVERGENCE = 0.05
"""KL divergence of one step: the trajectory is that of the gradient flow, whatever the scale of the loss."""

MOST_STEPS = 400


@dataclass(frozen=True, eq=False)
class Stop:
    """A point of the trajectory: scores ``[parts]`` at a normalised entropy, and the exact gradient there."""

    entropy: float
    scores: Tensor
    gradient: Tensor


def flat_start(table: StructureTable, generator: torch.Generator) -> Tensor:
    """Scores ``[parts]`` that prefer nothing, but for a little noise, without which the best structure would be a matter of ties."""
    noise = torch.randn(table.scores.shape, generator=generator, dtype=torch.float64, device=table.scores.device)
    return torch.where(table.free, 0.01 * noise, 0)


def trajectory(table: StructureTable, start: Tensor, entropies: Sequence[float] = ENTROPIES) -> list[Stop]:
    """The stops of the exact gradient's descent from ``start``, as far as they are reached: where losses tie, entropy remains.

    Args:
        table: the structures and their losses.
        start: ``[parts]``, of higher entropy than all stops.
        entropies: of the stops, falling; each is met to machine precision, by a cut of the step that passes it.
    """
    stops: list[Stop] = []
    here = start
    for _ in range(MOST_STEPS):
        moved = _descended(table, here)
        if moved is None:
            break
        while len(stops) < len(entropies) and table.entropy(moved) <= entropies[len(stops)] * table.log_count:
            stops.append(_stop(table, here, moved, entropies[len(stops)]))
        if len(stops) == len(entropies):
            break
        here = moved
    return stops


def _descended(table: StructureTable, scores: Tensor) -> Tensor | None:
    gradient = table.gradient(scores)
    if not float(gradient.norm()) > 1e-12:
        return None
    found = equal_step(Rays(table, scores, gradient.unsqueeze(0)), DIVERGENCE)
    return None if found is None else scores - found.size * gradient


def _stop(table: StructureTable, before: Tensor, after: Tensor, entropy: float) -> Stop:
    def excess(share: float) -> float:
        return table.entropy(before + share * (after - before)) - entropy * table.log_count

    share = scipy.optimize.brentq(excess, 0.0, 1.0, xtol=1e-13) if excess(0.0) > 0 else 0.0
    scores = before + share * (after - before)
    return Stop(entropy, scores, table.gradient(scores))

"""Laws of batches: a row gets what it would get alone, whoever shares the batch and however many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from ....estimators.base import Estimator
from ....oracles.random_streams import SeedBlocks
from ...base import check_finite
from ..cases import FLAT, USUAL, AuditLoss, Structure, random_scores, seeded
from ..confirmation import confirmed
from ..result import Check

ROWS = 6
SINGLES = 160
"""Calls of one row, where only their distribution can be compared."""

_SHRUNK = "the loss is averaged over the batch inside, so that its gradient shrinks as 1/B: differentiate the sum of the losses"
_TOLERANCE: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


def batch_checks(fresh: Callable[[], Estimator[Any]], structure: Structure, *, seed: int, alpha: float) -> Iterator[Check]:
    """The laws ``rows`` and ``batch``."""
    yield _rows(fresh(), structure)
    yield _batch(fresh, structure, seed=seed, alpha=alpha)


def _rows(estimator: Estimator[Any], structure: Structure) -> Check:
    """The first row of two batches that differ in all other rows, their data and scores, under one seed."""
    first, second = random_scores(structure, USUAL, ROWS), random_scores(structure, USUAL, ROWS, "others")
    data, other = torch.linspace(-1, 1, ROWS, dtype=torch.float64), torch.linspace(3, 5, ROWS, dtype=torch.float64)
    second[0], other[0] = first[0], data[0]
    here, there = (
        estimator.gradient(AuditLoss(structure, shift=shift), structure.oracle, scores, generator=seeded(1, "rows"))[0]
        for scores, shift in ((first, data), (second, other))
    )
    if torch.allclose(here, there, equal_nan=True, **_TOLERANCE):
        return Check("rows", structure.name, "holds", "other rows of a batch do not matter")
    cause = "a baseline, a norm or a running value that is taken over the batch: take it for each row"
    return Check("rows", structure.name, "violated", "the estimate of a row changes with the other rows of its batch", cause)


def _batch(fresh: Callable[[], Estimator[Any]], structure: Structure, *, seed: int, alpha: float) -> Check:
    """A row alone against the same row in a batch: exactly where each row has a stream of its own, else by distributions."""
    scores, estimator = random_scores(structure, USUAL, ROWS), fresh()
    streams = SeedBlocks(tuple(range(11, 11 + ROWS)), 1)
    before = streams.get_state()
    together = estimator.gradient(AuditLoss(structure), structure.oracle, scores, generator=streams)
    if not torch.equal(before, streams.get_state()):
        return _by_distribution(fresh, structure, seed=seed, alpha=alpha)
    try:
        alone = _alone(estimator, structure, scores)
    except ValueError as error:
        if "SeedBlocks" not in str(error):
            raise
        return _by_distribution(fresh, structure, seed=seed, alpha=alpha)  # it repeats rows by hand, and samples all of them at once
    if torch.allclose(together, alone, equal_nan=True, **_TOLERANCE):
        return Check("batch", structure.name, "holds", "a row in a batch gets what it gets alone")
    loss = AuditLoss(structure)
    raised = estimator.gradient(lambda z: ROWS * loss(z), structure.oracle, scores, generator=SeedBlocks(tuple(range(11, 11 + ROWS)), 1))
    detail = f"a row gets another estimate in a batch of {ROWS} than alone"
    return Check("batch", structure.name, "violated", detail, _why(together, alone, raised))


def _alone(estimator: Estimator[Any], structure: Structure, scores: Tensor) -> Tensor:
    rows = [
        estimator.gradient(AuditLoss(structure), structure.oracle, scores[row : row + 1], generator=SeedBlocks((11 + row,), 1))
        for row in range(len(scores))
    ]
    return torch.cat(rows)


def _why(together: Tensor, alone: Tensor, raised: Tensor) -> str:
    """Whether a loss that is B times as large, or an estimate that is, makes up for the batch."""
    if torch.allclose(raised, alone, **_TOLERANCE) or torch.allclose(ROWS * together, alone, **_TOLERANCE):
        return _SHRUNK
    if torch.allclose(together / ROWS, alone, **_TOLERANCE):
        return "the estimate grows with the batch: something is summed over its rows"
    return ""


def _by_distribution(fresh: Callable[[], Estimator[Any]], structure: Structure, *, seed: int, alpha: float) -> Check:
    """For numbers that are drawn from the generator as a whole: calls of one row and rows of one call have one distribution."""

    def compared(slot: str, times: int, factor: float = 1.0) -> float:
        singles, rows = _draws(fresh(), structure, (seed, slot, times), factor)
        p_values = [same_distribution(singles @ one, rows @ one) for one in _directions(structure)]
        return min(1.0, len(p_values) * min(p_values))

    p_value = confirmed(lambda slot, times: compared(slot, 2 if times > 1 else 1), alpha)
    cause = _SHRUNK if p_value < alpha and compared("cause", 1, float(SINGLES)) > alpha else ""
    detail = f"rows of a batch of {SINGLES} and rows alone are compared by their distributions, p = {p_value:.2g}"
    return Check("batch", structure.name, "holds", detail, cause, "test", p_value)


def same_distribution(first: Tensor, second: Tensor) -> float:
    """Kolmogorov and Smirnov's test of two samples, in which numbers that differ by rounding are ties.

    Estimates have few values, and a batch is not computed in the order of a row: without it, the last digit would decide.

    Example:
        >>> numbers = torch.arange(4, dtype=torch.float64).repeat(100)
        >>> same_distribution(numbers, numbers + 1e-13), same_distribution(numbers, 2 * numbers) < 1e-6
        (1.0, True)
    """
    size = float(torch.cat([first, second]).abs().max())
    if size == 0:
        return 1.0
    here, there = ((values / (1e-9 * size)).round().numpy() for values in (first, second))
    return float(stats.ks_2samp(here, there).pvalue)


def _draws(estimator: Estimator[Any], structure: Structure, stream: tuple[int, str, int], factor: float) -> tuple[Tensor, Tensor]:
    """Flattened estimates of the same scores: one row per call, and all rows in one call, whose loss is multiplied by a factor."""
    seed, slot, times = stream
    scores, loss = random_scores(structure, FLAT, 1), AuditLoss(structure)
    count, generator = times * SINGLES, seeded(seed, "batch", slot)
    singles = torch.cat([estimator.gradient(loss, structure.oracle, scores, generator=generator) for _ in range(count)])
    rows = [
        estimator.gradient(lambda z: factor * loss(z), structure.oracle, scores.expand(SINGLES, *structure.event), generator=generator)
        for _ in range(times)
    ]
    return check_finite(singles.flatten(1), estimator.name), check_finite(torch.cat(rows).flatten(1), estimator.name)


def _directions(structure: Structure) -> Tensor:
    """A few fixed directions: the linear part of the loss, and random ones."""
    loss = AuditLoss(structure)
    random = torch.randn(3, len(loss.linear), generator=seeded(0, "directions", structure.name), dtype=torch.float64)
    return torch.cat([loss.linear.unsqueeze(0), random])

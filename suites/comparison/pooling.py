"""Pooling of what models learnt: a mean over seeds that two runs share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..base import Row
from .matching import key_of

POOLED = ("accuracy",)
"""Metrics of training that are compared as means over seeds, paired by them: a seed is one draw, and says nothing by itself."""


def pooled(base: Sequence[Row], head: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Both runs with one row in the place of those of all seeds: their mean over the seeds that both have, and without each of them.

    So two runs are compared seed by seed, as estimates are batch by batch. With fewer than two seeds in common rows stay as they are.

    Example:
        >>> names = ("c", "learning", "task:toy", "training", "", "categorical", "cross_entropy", "ste", "ste")
        >>> rows = [Row(*names, instance=f"seed={i}", metric="accuracy", value=value) for i, value in enumerate((0.5, 0.7))]
        >>> found, _ = pooled(rows, rows)
        >>> [(row.instance, row.value, row.batches) for row in found]
        [('', 0.6, (0.7, 0.5))]
    """
    seeds = [_seeds(rows) for rows in (base, head)]
    shared = {place: sorted(set(seeds[0][place]) & set(seeds[1][place])) for place in seeds[0] if place in seeds[1]}
    shared = {place: names for place, names in shared.items() if len(names) > 1}
    return tuple(_pooled(rows, by_place, shared) for rows, by_place in zip((base, head), seeds, strict=True))  # type: ignore[return-value]


Place = tuple[str, ...]


def _place(row: Row) -> Place:
    return (*key_of(replace(row, instance="")),)


def _seeds(rows: Iterable[Row]) -> dict[Place, dict[str, Row]]:
    """Rows of the metrics that are pooled, by place and seed."""
    found: dict[Place, dict[str, Row]] = defaultdict(dict)
    for row in rows:
        if row.suite == "learning" and row.metric in POOLED and row.instance and row.value is not None:
            found[_place(row)][row.instance] = row
    return found


def _pooled(rows: Iterable[Row], seeds: dict[Place, dict[str, Row]], shared: dict[Place, list[str]]) -> list[Row]:
    kept = [row for row in rows if not (row.suite == "learning" and row.metric in POOLED and row.instance and _place(row) in shared)]
    return kept + [_mean([seeds[place][name] for name in names]) for place, names in shared.items()]


def _mean(rows: Sequence[Row]) -> Row:
    values = [row.value for row in rows if row.value is not None]
    total, count = sum(values), len(values)
    without = tuple((total - value) / (count - 1) for value in values)
    return replace(rows[0], instance="", value=total / count, batches=without, tier="mc", replicates=count)

"""What follows from the cells of a whole run, and from no single one: pure functions of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ..base import Row
from ..statistics.multiplicity import holm


def derive(rows: Iterable[Row]) -> list[Row]:
    """All rows of a run: those of its cells with adjusted p-values, and after them what several cells give together."""
    measured = adjusted(list(rows))
    return measured + work_rows(measured)


def adjusted(rows: list[Row]) -> list[Row]:
    """The same rows with Holm's correction over all tests of each suite: a run of hundreds of cells cries wolf no more often than one."""
    families: dict[str, list[int]] = defaultdict(list)
    for position, row in enumerate(rows):
        if row.p_value is not None:
            families[row.suite].append(position)
    result = list(rows)
    for positions in families.values():
        corrected = holm([float(rows[position].p_value or 0.0) for position in positions])
        for position, value in zip(positions, corrected, strict=True):
            result[position] = replace(rows[position], p_adjusted=value)
    return result


def work_rows(rows: list[Row]) -> list[Row]:
    """Variance times seconds, and from how much work on an unbiased estimator beats a biased one; none while no function gives them."""
    return []

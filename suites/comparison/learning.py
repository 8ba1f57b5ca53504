"""Estimators that learnt suspiciously alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..base import Row
from ..metrics import rule_of
from .matching import key_of
from .verdicts import Comparison

Place = tuple[str, str, str]
Points = tuple[tuple[str, str, float | None], ...]

CURVE = "curve_accuracy"
_FEWEST_POINTS = 3


def alike(rows: Iterable[Row]) -> list[Comparison]:
    """Estimators whose curves are the same at every step of every seed: one of them does not do what it says.

    Two deterministic estimators of one objective may well be one function on a structure, and are let be; so are curves that never move.
    """
    curves: dict[Place, list[tuple[str, str, float | None]]] = defaultdict(list)
    first: dict[Place, Row] = {}
    for row in rows:
        if row.suite == "learning" and row.metric == CURVE and row.status == "ok":
            place = (row.problem, row.stage, row.estimator)
            curves[place].append((row.instance, row.setting, row.value))
            first.setdefault(place, row)
    return list(_equal({place: tuple(sorted(points)) for place, points in curves.items()}, first))


def _equal(curves: dict[Place, Points], first: dict[Place, Row]) -> Iterator[Comparison]:
    seen: dict[object, list[Row]] = defaultdict(list)
    for place, points in curves.items():
        row = first[place]
        moves = len({value for _, _, value in points}) >= _FEWEST_POINTS
        for other in seen[place[:2], points] if moves else ():
            if not (row.deterministic and other.deterministic and row.objective == other.objective):
                reason = f"{row.estimator} and {other.estimator} learn the same at every step of every seed; expected them to differ"
                yield Comparison(key_of(replace(row, instance="", setting="")), None, row, rule_of(CURVE), "broken", reason)
        seen[place[:2], points].append(row)

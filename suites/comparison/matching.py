"""Matching of rows: which row of one run belongs to which row of another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..base import FAILED, Row
from ..metrics import Rule, rule_of


class Key(NamedTuple):
    """What a number is about; the same in both runs."""

    suite: str
    problem: str
    stage: str
    instance: str
    loss: str
    estimator: str
    metric: str
    setting: str
    reference: str
    dtype: str
    device: str

    @property
    def cell(self) -> tuple[str, ...]:
        """Estimator on a problem, for people: the unit in which failures come."""
        return self.suite, self.problem, self.stage, self.estimator


@dataclass(frozen=True)
class Pair:
    """A number in two runs; one of them may lack it.

    Attributes:
        key: what it is.
        base, head: the rows; None where a run has none.
        obstacle: why the two cannot be compared; empty where they can.
        failure: in the head, the row that says why there is no number.
    """

    key: Key
    base: Row | None
    head: Row | None
    obstacle: str = ""
    failure: Row | None = None


Machine = Mapping[str, Any]
"""The ``environment`` of a manifest: processor, cores, versions."""

PART_OF_THE_SAME = "replicates="
"""Settings of rows that a part of the replicates gives: they say how intervals converge, and nothing of their own."""


def match(base: Iterable[Row], head: Iterable[Row], machines: tuple[Machine, Machine] = ({}, {})) -> list[Pair]:
    """Pair the rows of two runs, in the order of the head, then what only the base has.

    Rows without a metric (failures, skipped pairs) are no numbers; a failure is the reason why numbers are missing. What is measured in
    another dtype or on another device is paired too, and incomparable.

    Args:
        base: rows of the run that is compared with.
        head: rows of the other run.
        machines: their environments, for what depends on them.

    Example:
        >>> from dataclasses import replace
        >>> row = Row("c", "bias", "toy", "init", "", "subset[k=3]", "mlp", "ste", "ste", metric="gain", value=1.0)
        >>> [(pair.key.metric, pair.obstacle) for pair in match([row], [replace(row, estimator_version=2)])]
        [('gain', 'estimator_version is 1 in the base and 2 in the head')]
    """
    old, new = _by_key(base), _by_key(head)
    for key in [key for key in new if key not in old]:
        twin = _elsewhere(key, old, new)
        if twin is not None:
            old[key] = old.pop(twin)
    keys = [*new, *(key for key in old if key not in new)]
    failures = _failures(head)
    pairs = [_pair(key, old.get(key), new.get(key), machines, failures.get(key.cell)) for key in keys]
    return pairs + list(
        _failed_pairs(_failures(base), failures, {key.cell: row for key, row in old.items()}, {key.cell: row for key, row in new.items()})
    )


def key_of(row: Row) -> Key:
    """What the number of a row is about."""
    return Key(*(getattr(row, name) for name in Key._fields))


def compared(row: Row) -> bool:
    """Whether a row holds a number that is compared at all."""
    return bool(row.metric) and rule_of(row.metric).role != "never" and not row.setting.startswith(PART_OF_THE_SAME)


def _by_key(rows: Iterable[Row]) -> dict[Key, Row]:
    return {key_of(row): row for row in rows if compared(row) and row.status != "skipped"}


_Cells = Mapping[tuple[str, ...], Row]
"""A row of every estimator on every problem."""


def _failures(rows: Iterable[Row]) -> dict[tuple[str, ...], Row]:
    """Why an estimator has no numbers on a problem: the rows of failed cells."""
    return {key_of(row).cell: row for row in rows if row.status in FAILED and not row.metric}


def _failed_pairs(base: _Cells, head: _Cells, old: _Cells, new: _Cells) -> Iterator[Pair]:
    """Failures that no number of the other side stands beside, and those that are mended; a broken cell shows in its numbers."""
    for cell, row in head.items():
        if cell not in old:
            yield Pair(key_of(row), base.get(cell), row)
    for cell, row in base.items():
        if cell not in head and cell in new:
            yield Pair(key_of(row), row, new[cell])


def _elsewhere(key: Key, old: Mapping[Key, Row], new: Mapping[Key, Row]) -> Key | None:
    """The same number in another dtype or on another device, which the head does not have itself."""
    device = next(iter(old)).device if old else key.device
    twins = (key._replace(dtype=dtype, device=place) for dtype in ("float64", "float32") for place in (device, key.device))
    return next((twin for twin in twins if twin in old and twin not in new), None)


def _pair(key: Key, base: Row | None, head: Row | None, machines: tuple[Machine, Machine], failure: Row | None) -> Pair:
    obstacle = "" if base is None or head is None else obstacle_between(base, head, machines, rule_of(key.metric))
    return Pair(key, base, head, obstacle, failure)


_DECLARED = ("schema_version", "suite_version", "oracle_version", "estimator_version", "dtype", "device")
_FACTS = ("log_count", "entropy", "truth_norm")
_MACHINE = ("cpu", "cores", "python", "torch")


def obstacle_between(base: Row, head: Row, machines: tuple[Machine, Machine], rule: Rule) -> str:
    """Why two rows cannot be compared, in one sentence; empty where they can.

    A declared version says that numbers were meant to change. With another seed, built-in problems have other scores, and their numbers
    are no estimates of the same quantity; with the same seed, other scores are a change of the code, and no excuse.
    """
    for name in _DECLARED:
        if getattr(base, name) != getattr(head, name):
            return f"{name} is {getattr(base, name)} in the base and {getattr(head, name)} in the head"
    if base.seed != head.seed:
        for name in _FACTS:
            if not _close(getattr(base, name), getattr(head, name)):
                return f"other scores: the seed is {base.seed} in the base and {head.seed} in the head"
    wanted = {"": (), "torch": ("torch",), "machine": _MACHINE}[rule.needs]
    for name in wanted:
        known = [_fact(machine, name) for machine in machines]
        if None in known or known[0] != known[1]:
            return f"another machine: {name} is {known[0]} in the base and {known[1]} in the head"
    return ""


def _fact(machine: Machine, name: str) -> Any:
    return machine.get("packages", {}).get("torch") if name == "torch" else machine.get(name)


def _close(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-6, abs_tol=1e-12)

"""A plan that is measured in a second, and what two runs of it must agree on."""

from __future__ import annotations

import dataclasses

from structgrad.suites.base import Row
from structgrad.suites.measures.suite import Effort
from structgrad.suites.running.planning.plan import Machine, Plan

HERE = Machine(jobs=0)
FEW = Effort(replicates=256, most_replicates=256, rounds=7)
SMALL = Plan(
    suites=("bias",),
    problems=("categorical_regimes",),
    stages=("init",),
    estimators=("reinforce", "arsm", "ste"),
    instances=2,
    effort=FEW,
)


def broken(*names: str) -> tuple[str, ...]:
    """The names of estimators with which something goes wrong."""
    return tuple(f"tests.suites.broken_estimators:{name}" for name in names)


def comparable(rows: list[Row]) -> list[Row]:
    """Rows without what may differ from run to run: seconds, and what is measured in them."""
    return [dataclasses.replace(row, seconds=None) for row in rows if row.unit != "s" and row.metric != "time_ratio"]


def instances(rows: list[Row]) -> set[str]:
    return {row.instance for row in rows}

"""A plan that is measured in a second, and the part of its rows that is the same in every run."""

import dataclasses
from pathlib import Path

from structgrad.suites.base import Row
from structgrad.suites.measures.suite import Effort
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.store import Store, holds_run
from structgrad.suites.running.work import Cell

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
    """The names of broken estimators."""
    return tuple(f"tests.suites.broken_estimators:{name}" for name in names)


def comparable(rows: list[Row]) -> list[Row]:
    """Rows without seconds and timed metrics, which differ from run to run."""
    return [dataclasses.replace(row, seconds=None) for row in rows if row.unit != "s" and row.metric != "time_ratio"]


def kept(folder: Path) -> dict[str, float]:
    """The finished cells of a run, each with the seconds that it took, which change if it is measured again."""
    if not holds_run(folder):
        return {}
    with Store(folder) as store:
        return {identity: seconds for identity, (_, seconds) in store.known().items()}


def cells_of(folder: Path) -> tuple[Cell, ...]:
    """The cells of the latest plan of a folder."""
    with Store(folder) as store:
        return store.planned().cells


def forget(folder: Path, *identities: str) -> None:
    """Remove finished cells."""
    with Store(folder, write=True) as store:
        store.base.executemany("DELETE FROM cells WHERE identity = ?", [(identity,) for identity in identities])

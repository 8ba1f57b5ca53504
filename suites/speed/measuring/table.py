"""The table of what measuring costs: what ``python -m structgrad.suites.speed --measuring`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from rich.console import Console

from ....estimators import ESTIMATORS
from ...measures.suite import EFFORTS, Context
from ...problems import load
from .rates import SPACES, Rate, enumeration_rate, replicate_rate
from .shares import KINDS, CellShare, cell_share

PROBLEM, STAGE = "linear_chain[n=6,t=5]", "h=0.7"
"""Whose cells are timed."""

REPLICATES = 65_536
"""Replicates that are timed of every estimator."""

CORE = tuple(name for name, kind in ESTIMATORS.items() if kind.tier == "core")

Result = CellShare | Rate


def measuring(names: Sequence[str] = CORE, *, replicates: int = REPLICATES) -> Iterator[tuple[str, Result]]:
    """Shares of a cell and seconds of a replicate of every estimator, and seconds of an enumerated structure.

    Args:
        names: of estimators.
        replicates: of each.
    """
    torch.set_num_threads(1)
    problem, context = load(PROBLEM, STAGE, instances=1, data=None), Context(effort=EFFORTS["standard"])
    for name in names:
        yield "share", cell_share(name, problem, context)
        yield "replicate", replicate_rate(name, replicates)
    for space in SPACES:
        yield "structure", enumeration_rate(space)


def line(kind: str, result: Result) -> str:
    """One result for people."""
    if isinstance(result, CellShare):
        parts = ", ".join(f"{name} {seconds / result.total:.0%}" for name, seconds in result.seconds.items())
        how = result.tier if result.replicates is None else f"{result.replicates:,} replicates"
        measured = f"rest {result.rest:4.0%} of {1e3 * result.total:.3g} ms ({how})"
        return f"{result.case:<20} {kind:<10} {measured}: {parts}, measuring {result.measuring:.0%}"
    unit = {"replicate": "s for 10⁶ replicates", "structure": "s for 10⁶ structures"}[kind]
    return f"{result.case:<20} {kind:<10} {1e6 * result.seconds:.3g} {unit}, {result.ratio:.2f} floors"


def to_frame(results: Sequence[tuple[str, Result]]) -> pd.DataFrame:
    """A row per number, in columns of the table of oracles.

    Of a cell, each kind of work, measuring, and the rest, which is the estimator and measuring, stand as contenders.
    """
    rows = []
    for kind, result in results:
        if isinstance(result, CellShare):
            seconds = result.seconds | {"measuring": result.measuring * result.total, "rest": result.rest * result.total}
            rows += [(result.case, kind, name, seconds[name], result.total) for name in (*KINDS, "measuring", "rest")]
        else:
            rows.append((result.case, kind, "structgrad", result.seconds, result.floor))
    return pd.DataFrame(rows, columns=["case", "operation", "contender", "seconds", "floor"])


def show(console: Console, csv: Path | None) -> None:
    """Print the results as they are found; and write them to a file."""
    results = []
    for kind, result in measuring():
        results.append((kind, result))
        console.print(line(kind, result), highlight=False, soft_wrap=True, markup=False)
        if csv is not None:
            to_frame(results).to_csv(csv, index=False)

"""What a terminal shows of a run: progress while it lasts, a summary at its end. A pipe gets plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from ..suites.base import Progress

MARKS = {"unbiased-exact": ("=", "green"), "equivalent": ("≈", "cyan"), "unresolved": ("?", "yellow"), "biased": ("≠", "")}
LEGEND = "= unbiased-exact, ≈ equivalent, ≠ biased, ? unresolved, ! biased although it declares otherwise"
"""What the marks beside a bias say."""

_PIPED_WIDTH = 240
_QUIET_SECONDS = 5.0


def console() -> Console:
    """Standard output; a pipe gets long lines, not wrapped ones."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


@contextmanager
def progress() -> Iterator[Progress]:
    """A bar on a terminal; elsewhere a plain line now and then. Both go to standard error."""
    if not sys.stderr.isatty():
        yield plain_progress()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda finished, total, name: bar.update(task, completed=finished, total=total, description=name)


def plain_progress(*, quiet: float = _QUIET_SECONDS) -> Progress:
    """A line at the start, at the end, and in between at most once in a while."""
    last = -float("inf")

    def report(finished: int, total: int, name: str) -> None:
        nonlocal last
        if finished == total or time.monotonic() - last >= quiet:
            last = time.monotonic()
            sys.stderr.write(f"{finished}/{total} {name}".rstrip() + "\n")
            sys.stderr.flush()

    return report


def summary(frame: pd.DataFrame) -> dict[str, Table]:
    """A table per problem, by its title: rows are estimators, columns stages, values the medians of relative bias and relative error."""
    from . import tables

    claims = tables.claims(frame)
    problems = tables.order(claims, "problem")
    return {f"{problem}: relative bias | relative MSE": _problem(claims[claims["problem"] == problem]) for problem in problems}


def _problem(claims: pd.DataFrame) -> Table:
    from . import tables

    known = {(row.stage, row.estimator): row for row in tables.records(claims)}
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("estimator", no_wrap=True)
    stages = tables.order(claims, "stage")
    for stage in stages:
        table.add_column(stage, justify="right", no_wrap=True)
    for estimator in tables.order(claims, "estimator"):
        table.add_row(Text(estimator), *(_glance(known.get((stage, estimator))) for stage in stages))
    return table


def _glance(row: Any) -> Text:
    from .tables import number

    if row is None or row.relative_bias is None:
        return Text("")
    mark, colour = ("!", "red") if row.contradicted else MARKS.get(row.verdict, (" ", ""))
    error = number(row.relative_mse.median) if row.relative_mse is not None else ""
    return Text(f"{number(row.relative_bias.median)} {mark} | {error:>7}", style=colour)

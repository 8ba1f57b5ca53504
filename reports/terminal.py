"""What a terminal shows of a run: progress while it lasts, a summary at its end. A pipe gets plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from ..suites.running.progress import Progress, Snapshot

MARKS = {"unbiased-exact": ("=", "green"), "equivalent": ("≈", "cyan"), "unresolved": ("?", "yellow"), "biased": ("≠", "")}
LEGEND = "= unbiased-exact, ≈ equivalent, ≠ biased, ? unresolved, ! biased although it declares otherwise"
"""What the marks beside a bias say."""

_PIPED_WIDTH = 240
_QUIET_SECONDS = 10.0


def console(*, error: bool = False) -> Console:
    """Standard output, or standard error; a pipe gets long lines, not wrapped ones."""
    stream = sys.stderr if error else sys.stdout
    return Console(width=None if stream.isatty() else _PIPED_WIDTH, highlight=False, stderr=error)


@contextmanager
def progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Progress]:
    """A bar and a line per worker on a terminal; elsewhere a plain line now and then. Both go to standard error.

    Args:
        quiet: nothing.
        verbose: a plain line for every cell, on a terminal too.
    """
    if quiet:
        yield lambda snapshot: None
        return
    if verbose or not sys.stderr.isatty():
        yield plain_progress(quiet=0.0 if verbose else _QUIET_SECONDS, named=verbose)
        return
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda snapshot: live.update(display(snapshot))


def display(snapshot: Snapshot) -> Group:
    """The overall bar, and what every worker does, for how long."""
    from rich.progress_bar import ProgressBar

    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=max(snapshot.total, 1), completed=snapshot.finished, width=40), Text(_overall(snapshot)))
    workers = Table.grid(padding=(0, 2))
    for busy in snapshot.busy:
        workers.add_row(Text(busy.worker, style="dim"), Text(duration(busy.seconds), justify="right"), Text(busy.label))
    return Group(bar, workers)


def _overall(snapshot: Snapshot) -> str:
    parts = [
        f"{snapshot.finished}/{snapshot.total} cells",
        *([f"{snapshot.failed} failed"] if snapshot.failed else []),
        *([f"about {duration(snapshot.left)} left"] if snapshot.left and snapshot.finished < snapshot.total else []),
    ]
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> [duration(seconds) for seconds in (4.2, 75, 3700, 200000)]
        ['4 s', '1 min 15 s', '1 h 1 min', '55 h 33 min']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def plain_progress(*, quiet: float = _QUIET_SECONDS, named: bool = False) -> Progress:
    """A line at the start, at the end, and in between at most once in a while; or one for every cell that is finished."""
    last = -float("inf")

    def report(snapshot: Snapshot) -> None:
        nonlocal last
        ending = snapshot.finished == snapshot.total and snapshot.label != ""
        if ending or (time.monotonic() - last >= quiet and (snapshot.label != "" or not named)):
            last = time.monotonic()
            sys.stderr.write(f"{_overall(snapshot)} {snapshot.label}".rstrip() + "\n")
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

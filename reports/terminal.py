"""Runs on a terminal: progress while they last, a summary at their end. A pipe gets plain lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..suites.base import split_loss
from ..suites.running.progress import progress_text
from ..suites.text import COMPILING, duration, number, plural

if TYPE_CHECKING:
    import pandas as pd

    from ..suites.running.progress import Progress, Snapshot

MARKS = {
    "unbiased-exact": ("=", "green"),
    "equivalent": ("≈", "cyan"),
    "unresolved": ("?", "yellow"),
    "unresolved: rare events": ("?", "yellow"),
    "biased": ("≠", ""),
    "broken": ("!", "red"),
}
LEGEND = (
    "= unbiased-exact, ≈ equivalent, ≠ biased, ? unresolved, ! NaN, or biased although it declares otherwise, – no number, "
    "* median of fewer instances: some have no number"
)
"""The meaning of the marks next to a bias."""

_PIPED_WIDTH, _WIDE = 240, 100
_QUIET_SECONDS = 10.0
_KERNEL = "JPY_PARENT_PID"
"""Set where a notebook's kernel has started this process: its terminal cannot go back to a line, and would keep every drawing of a bar."""


def console(*, error: bool = False) -> Console:
    """Standard output, or standard error; a pipe gets long lines, not wrapped ones."""
    stream = sys.stderr if error else sys.stdout
    return Console(width=None if stream.isatty() else _PIPED_WIDTH, highlight=False, stderr=error)


Overview = dict[str, Any]
"""A table of the summary, as JSON: its title, its stages, and a row per estimator (or ``of`` what else) of texts with their styles."""

FEW_PROBLEMS = 3
"""The most problems that are shown with the numbers of every estimator."""

MOST_NAMED = 3
"""The most estimators whose names a cell shows; of more it shows the first and how many others."""

ANSWER_LEGEND = (
    "ρ compares a step along the estimate with one along the exact gradient: 1 is as good, 0 is useless.\n"
    "“or” names estimators that are not significantly different over these instances.\n"
    "h is the entropy level: near 1 all structures are about equally likely, as before training, near 0 a single one is likely."
)


@dataclass(frozen=True)
class Verbosity:
    """How much is told, and where: lines for people go to standard error where standard output belongs to a program.

    Attributes:
        compiled: CPU seconds in which this process has compiled kernels, while it listened for that.
    """

    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    compiled: list[float] = field(default_factory=list, compare=False)

    def console(self) -> Console:
        """Where lines go."""
        return console(error=self.as_json)

    def say(self, text: str, style: str = "", *, important: bool = False, apart: bool = False) -> None:
        """One line, never wrapped, with brackets as they are, set apart from what precedes; only important ones where it is to be quiet."""
        if important or not self.quiet:
            self.console().print("\n" * (apart and not self.quiet) + text, style=style, markup=False, soft_wrap=True)

    def table(self, found: Overview) -> None:
        """A table of the summary."""
        if not self.quiet:
            answers = "of" in found
            shown = Table(
                box=None, padding=(0, 1 if answers and self.console().width < _WIDE else 3, 0, 0), header_style="dim", pad_edge=False
            )
            shown.add_column(found.get("of", "estimator"), no_wrap=not answers, overflow="fold")
            for stage in found["stages"]:
                shown.add_column(stage, justify="left" if answers else "right", no_wrap=not answers, overflow="fold")
            for name, *values in found["rows"]:
                shown.add_row(Text(name), *(Text(text, style=style) for text, style in values))
            self.console().print(f"\n{found['title']}", style="bold", markup=False, soft_wrap=True)
            self.console().print(shown)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Say once, on standard error, that this process compiles kernels, when it begins to, and count how long."""
        from ..oracles.kernels import notices

        said, since = False, 0.0

        def tell(begins: bool) -> None:
            nonlocal said, since
            if begins and not (said or self.quiet):
                console(error=True).print(f"{COMPILING} ...", style="dim", markup=False, soft_wrap=True)
            if not begins:
                self.compiled.append(time.process_time() - since)
            said, since = said or begins, time.process_time()

        with notices.listening(tell):
            yield

    def outcome(self, record: dict[str, Any]) -> None:
        """One line for a program."""
        if self.as_json:
            sys.stdout.write(json.dumps(record) + "\n")


@contextmanager
def progress(*, quiet: bool = False, verbose: bool = False) -> Iterator[Progress]:
    """A bar and a line per worker on a terminal; elsewhere, and below a notebook, a plain line now and then. Both go to standard error.

    Args:
        quiet: nothing.
        verbose: a plain line for every cell, on a terminal too.
    """
    if quiet:
        yield lambda snapshot: None
        return
    if verbose or not sys.stderr.isatty() or _KERNEL in os.environ:
        yield plain_progress(quiet=0.0 if verbose else _QUIET_SECONDS, named=verbose)
        return
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        yield lambda snapshot: live.update(display(snapshot))


def display(snapshot: Snapshot) -> Group:
    """The overall bar, and what every worker does, for how long."""
    from rich.progress_bar import ProgressBar

    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=max(snapshot.total, 1), completed=snapshot.finished, width=40), Text(progress_text(snapshot)))
    workers = Table.grid(padding=(0, 2))
    for busy in snapshot.busy:
        doing = f"{busy.label}: {COMPILING}" if busy.compiling else busy.label
        workers.add_row(Text(busy.worker, style="dim"), Text(duration(busy.seconds), justify="right"), Text(doing))
    return Group(bar, workers)


def plain_progress(*, quiet: float = _QUIET_SECONDS, named: bool = False) -> Progress:
    """A line at the start, at the end, and in between at most once in a while; or one for every cell that is finished.

    Where a compilation begins there is one too.
    """
    last, compiled = -float("inf"), False

    def report(snapshot: Snapshot) -> None:
        nonlocal last, compiled
        ending = snapshot.finished == snapshot.total and snapshot.label != ""
        begins = not compiled and any(busy.compiling for busy in snapshot.busy)
        compiled = compiled or begins
        if ending or begins or (time.monotonic() - last >= quiet and (snapshot.label != "" or not named)):
            last = time.monotonic()
            sys.stderr.write(f"{progress_text(snapshot)} {snapshot.label}".rstrip() + "\n")
            sys.stderr.flush()

    return report


def summary(frame: pd.DataFrame) -> list[Overview]:
    """The best estimators, a table per loss, and of few problems a table each with the numbers of every estimator.

    Rows of the first are problems, of the others estimators; columns are entropy levels.
    """
    from .analysis import tables

    claims = tables.claims(frame)
    problems = tables.order(claims, "problem")
    return [*_best(frame), *(_problem(name, claims[claims["problem"] == name]) for name in problems if len(problems) <= FEW_PROBLEMS)]


def _best(frame: pd.DataFrame) -> list[Overview]:
    """The best estimators by loss, problem and entropy level; empty where nothing can be answered."""
    from .analysis import answers, tables

    found = [answer for answer in answers.answers(frame) if answer.budget == answers.MAIN_BUDGET]
    losses = dict(zip(frame["problem"], frame["loss"], strict=True))
    # The first question is that of a loss as it is: with its gradients, where it has them.
    by_place = {(answer.problem, answer.stage): answer for answer in found[::-1] if answer.question.name in ("gradients", "values")}
    stages = [stage for stage in tables.order(frame, "stage") if any(stage == at for _, at in by_place)]
    paid = (
        f"the run time of {answers.MAIN_BUDGET} REINFORCE estimates"
        if all(one.timed for one in found)
        else f"{answers.MAIN_BUDGET} estimates"
    )
    overviews = []
    for loss in tables.order(frame, "loss"):
        names = [name for name in tables.order(frame, "problem") if losses[name] == loss and any(name == at for at, _ in by_place)]
        rows = [
            [split_loss(name)[0].removesuffix("_regimes"), *(_leader(by_place.get((name, stage))) for stage in stages)] for name in names
        ]
        if rows:
            overviews.append(
                {"title": f"Best estimator for the loss {loss}, by ρ with {paid}", "of": "scores", "stages": stages, "rows": rows}
            )
    return overviews


def _leader(answer: Any) -> tuple[str, str]:
    """A text and its style: the best estimator, with those that are not significantly different."""
    if answer is None or answer.score.value is None:
        return "", ""
    names = (answer.estimator, *answer.tied)
    if answer.score.low is None:
        return f"none clearly best ({plural(answer.instances, 'instance')})", "dim"
    if answer.outcome == "useless":
        return "none useful", "dim"
    if answer.outcome == "unclear":
        return f"none clearly best ({len(names)} of {answer.rivals + 1} tied)", "dim"
    shown = " or ".join(names) if len(names) <= MOST_NAMED else f"{names[0]} or {len(names) - 1} others"
    return f"{shown} {number(answer.score.value)}", "green" if len(names) == 1 else ""


def compared(frame: pd.DataFrame) -> list[str]:
    """A sentence for every estimator of the user's own: how it compares with `rloo`, or that it was not measured."""
    from .analysis import answers, tables

    base, found = answers.against_rival(frame)
    sentences = []
    for name in filter(answers.is_own, tables.order(frame, "estimator")):
        signs = [answers.sign_of(change) for _, one, change in found if one == name]
        sentences.append(
            f"{name} has a higher ρ than {base} in {signs.count(1)} of {plural(len(signs), 'case')} (problem and entropy level) "
            f"and a lower one in {signs.count(-1)}. Otherwise they are not significantly different."
            if signs
            else f"{name} was not compared with {answers.RIVAL}: add -e {answers.RIVAL} to measure both."
        )
    return sentences


def _problem(name: str, claims: pd.DataFrame) -> Overview:
    from .analysis import tables

    known = {(row.stage, row.estimator): row for row in tables.records(claims)}
    stages = tables.order(claims, "stage")
    rows = [[estimator, *(_glance(known.get((stage, estimator))) for stage in stages)] for estimator in tables.order(claims, "estimator")]
    return {"title": f"{name}: relative bias | relative MSE", "stages": stages, "rows": rows}


def _glance(row: Any) -> tuple[str, str]:
    """A text and its style."""
    if row is None or (row.relative_bias is None and not row.verdict):
        return "", ""
    mark, colour = ("!", "red") if row.contradicted else MARKS.get(row.verdict, (" ", ""))
    bias, error = ("–" if spread is None else number(spread.median) for spread in (row.relative_bias, row.relative_mse))
    fewer = any(spread is not None and spread.instances < row.instances for spread in (row.relative_bias, row.relative_mse))
    return f"{bias} {mark} | {error:>7}{'*' * fewer}", colour

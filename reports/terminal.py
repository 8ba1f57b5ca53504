"""Output of a run on a terminal: its progress, and the summary at its end."""

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..suites.base import split_loss
from ..suites.running.work import Progress, Snapshot, progress_text
from ..suites.text import number, plural

if TYPE_CHECKING:
    import pandas as pd

MARKS_LEGEND = (
    "= unbiased-exact, ≈ equivalent, ≠ biased, ? unresolved, ! NaN, or biased although it declares otherwise, – no number; "
    "medians over the instances"
)

LEGEND = (
    "ρ compares a step along the estimate with one along the exact gradient: 1 is as good, 0 is useless.\n"
    "“or” names estimators that are not significantly different over these instances.\n"
    "h is the entropy level: near 1 all structures are about equally likely, as before training, near 0 a single one is likely."
)

FEW_PROBLEMS = 3  # maximum number of problems that are shown with the numbers of every estimator
MAX_NAMED = 3  # maximum number of estimators that a cell names; of more it shows the first and the number of others

Overview = dict[str, Any]
"""A table: ``title``, ``stages`` and ``rows`` of a name and (text, style) per stage; ``of`` heads the names, by default "estimator".

The last of its kind has a ``legend``.
"""


def console(*, error: bool = False) -> Console:
    """Standard output, or standard error; a pipe gets long lines, not wrapped ones."""
    stream = sys.stderr if error else sys.stdout
    return Console(width=None if stream.isatty() else 240, highlight=False, stderr=error)


@dataclass(frozen=True)
class Verbosity:
    """Amount of output; lines for people go to standard error if standard output is JSON."""

    quiet: bool = False
    as_json: bool = False

    def say(self, text: str, style: str = "", *, important: bool = False, apart: bool = False) -> None:
        """Print lines, never wrapped, after an empty one if they are set apart."""
        if important or not self.quiet:
            console(error=self.as_json).print("\n" * (apart and not self.quiet) + text, style=style, markup=False, soft_wrap=True)

    def table(self, found: Overview) -> None:
        """Print a table of the summary."""
        if self.quiet:
            return
        answers, shown = "of" in found, console(error=self.as_json)
        table = Table(box=None, padding=(0, 1 if answers and shown.width < 100 else 3, 0, 0), header_style="dim", pad_edge=False)
        table.add_column(found.get("of", "estimator"), no_wrap=not answers, overflow="fold")
        for stage in found["stages"]:
            table.add_column(stage, justify="left" if answers else "right", no_wrap=not answers, overflow="fold")
        for name, *values in found["rows"]:
            table.add_row(Text(name), *(Text(text, style=style) for text, style in values))
        shown.print(f"\n{found['title']}", style="bold", markup=False, soft_wrap=True)
        shown.print(table)
        if "legend" in found:
            self.say(found["legend"], "dim", apart=True)


def plain_progress(quiet: float = 10.0) -> Progress:
    """Print lines at the start, at the end, at the first compilation and after so many seconds, which double while no cell ends."""
    last, wait, shown, compiled = -float("inf"), quiet, 0, False

    def report(snapshot: Snapshot) -> None:
        nonlocal last, wait, shown, compiled
        begins = not compiled and any(busy.compiling for busy in snapshot.busy)
        compiled = compiled or begins
        ending = snapshot.finished == snapshot.total and snapshot.label != ""
        same = snapshot.finished == shown
        if ending or begins or time.monotonic() - last >= (wait if same else quiet):
            last, wait, shown = time.monotonic(), 2 * (wait if same else quiet), snapshot.finished
            sys.stderr.write(f"{progress_text(snapshot)} {snapshot.label}".rstrip() + "\n")
            sys.stderr.flush()

    return report


def summary(frame: "pd.DataFrame") -> list[Overview]:
    """A table of the best estimators for each loss, and for few problems a table each with bias and error of every estimator."""
    from .analysis import answers, tables

    found = [answer for answer in answers.answers(frame) if answer.budget == answers.MAIN_BUDGET]
    losses = dict(zip(frame["problem"], frame["loss"], strict=True))
    # The first question is that of a loss as it is: with its gradients, if it has them.
    known = {(answer.problem, answer.stage): answer for answer in found[::-1] if answer.question.name in ("gradients", "values")}
    stages = [stage for stage in tables.order(frame, "stage") if any(stage == at for _, at in known)]
    paid = "the run time of {} REINFORCE estimates" if all(one.timed for one in found) else "{} estimates"
    overviews: list[Overview] = []
    for loss in tables.order(frame, "loss"):
        names = [name for name in tables.order(frame, "problem") if losses[name] == loss and any(name == at for at, _ in known)]
        rows = [[split_loss(name)[0].removesuffix("_regimes"), *(leader(known.get((name, at))) for at in stages)] for name in names]
        title = f"Best estimator for the loss {loss}, by ρ with {paid.format(answers.MAIN_BUDGET)}"
        overviews += [{"title": title, "of": "scores", "stages": stages, "rows": rows}] if rows else []
    if overviews:
        overviews[-1]["legend"] = LEGEND
    claims, spreads = tables.claims(frame), tables.spreads(frame)
    problems = tables.order(claims, "problem")
    for name in problems if len(problems) <= FEW_PROBLEMS else ():
        chosen = claims[claims["problem"] == name]
        cells: dict[tuple[str, str], tuple[str, str]] = {}
        for row in tables.items_of(chosen):
            if row.verdict or row.relative_bias is not None:
                mark, colour = ("!", "red") if row.contradicted else tables.VERDICTS.get(row.verdict, (" ", ""))[:2]
                both = (row.relative_bias, spreads.get((name, row.stage, row.estimator, "relative_mse")))
                bias, error = ("–" if spread is None else number(spread.median) for spread in both)
                cells[row.stage, row.estimator] = (f"{bias} {mark} | {error:>7}", colour)
        stages = tables.order(chosen, "stage")
        rows = [[one, *(cells.get((stage, one), ("", "")) for stage in stages)] for one in tables.order(chosen, "estimator")]
        overviews.append({"title": f"{name}: relative bias | relative MSE", "stages": stages, "rows": rows})
    if overviews:
        overviews[-1].setdefault("legend", MARKS_LEGEND)
    return overviews


def leader(answer: Any) -> tuple[str, str]:
    """A text and its style: the best estimator, with those that are not significantly different."""
    if answer is None or answer.score.value is None:
        return "", ""
    names = (answer.estimator, *answer.tied)
    if answer.outcome == "useless":
        return "none useful", "dim"
    if answer.outcome == "unclear":
        tied = f"{len(names)} of {answer.rivals + 1}" if len(names) > MAX_NAMED else ", ".join(names)
        few = plural(answer.instances, "instance") if answer.score.low is None else f"{tied} tied"
        return f"none clearly best ({few})", "dim"
    shown = " or ".join(names) if len(names) <= MAX_NAMED else f"{names[0]} or {len(names) - 1} others"
    return f"{shown} {number(answer.score.value)}", "green" if len(names) == 1 else ""


def compared(frame: "pd.DataFrame") -> list[str]:
    """A sentence for each of your own estimators: the comparison with `rloo`, or how to get one."""
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

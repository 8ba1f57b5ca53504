"""The page ``docs/results/standard.md``, its figures and the finding that the README opens with, from the published table.

python -m structgrad.reports.page.standard_page --to docs/results [--again FOLDER --data DIR]

With ``--again`` everything is measured anew first: the commands of the published table run into that folder, and go on where they were
stopped.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from ...suites.base import split_loss
from ...suites.statistics.interval import Interval
from ...suites.text import coefficient_interval, exponential, number, whole
from .. import published, results
from ..analysis import answers, tables
from ..analysis.answers import MAIN_BUDGET, Answer
from . import marks
from .cells import plain_table
from .drawing import paper
from .markdown import markdown_table
from .page import to_html

GRADIENTS, VALUES, LINEAR = "squared_distance", "black_box", "squared_distance_linear"
"""Losses: with gradients between the structures, with values only, and the first one's twin that is linear between them."""

PATIENT = 256
"""A budget for which biased estimators are too many to average."""

BUILT_IN, REAL = "standard-entropies", "standard-stages"
"""Names of the figures."""


@dataclass(frozen=True)
class Contest:
    """Who is the best on the structures of one loss at one state, with one budget.

    Attributes:
        wins: how many structures each estimator is the best on, most first. ``count``: of how many.
        rho: the median over structures of the best one's. ``undecided``: on how many others cannot be told from the best.
    """

    wins: Counter[str]
    count: int
    rho: float
    undecided: int

    @property
    def winner(self) -> str:
        """The best on most of them."""
        return self.wins.most_common(1)[0][0]

    def share(self, name: str) -> str:
        """``7 of 9``."""
        return f"{self.wins[name]} of {self.count}"


@dataclass(frozen=True, eq=False)
class Standard:
    """The published table with its answers."""

    frame: pd.DataFrame
    about: Mapping[str, Any]
    found: Sequence[Answer]

    @classmethod
    def load(cls, folder: Path = published.FOLDER) -> Standard:
        """That of the package, or of another folder."""
        frame, about = published.load(folder)
        return cls(frame, about, answers.answers(frame, about["catalogue"]["values_only"]))

    def contest(self, loss: str, stage: str, budget: float = MAIN_BUDGET) -> Contest:
        """Of one loss at one state, over all structures that were measured there; of whatever estimator the loss allows."""
        here = [
            answer
            for answer in self.found
            if answer.question.name == "gradients"
            and answer.budget == budget
            and answer.stage == stage
            and split_loss(answer.problem)[1] == loss
        ]
        rho = float(np.median([answer.score.value for answer in here if answer.score.value is not None]))
        return Contest(Counter(answer.estimator for answer in here), len(here), rho, sum(bool(answer.tied) for answer in here))

    def exact(self, loss: str) -> list[str]:
        """The estimators without bias and variance wherever this loss was measured."""
        rows = tables.measured(self.frame)
        rows = rows[rows["problem"].map(lambda name: split_loss(str(name))[1]) == loss]
        # Of a gradient that nearly vanishes rounding is a larger share: the verdict allows for it.
        inexact = (rows["metric"] == "relative_bias") & (rows["verdict"] != "unbiased-exact")
        inexact |= (rows["metric"] == "relative_variance") & (rows["value"] > tables.ZERO)
        worst = inexact.groupby(rows["estimator"], sort=False).any()
        return list(worst.index[~worst])

    def finding(self) -> list[str]:
        """Five sentences."""
        flat, fair, half, peaked = (self.contest(GRADIENTS, f"h={h}") for h in (0.95, 0.7, 0.4, 0.1))
        first, last = flat.winner, peaked.winner
        second = next(name for name, _ in half.wins.most_common() if name != first)
        patient = [self.contest(GRADIENTS, f"h={h}", PATIENT) for h in (0.7, 0.4)]
        blind = [self.contest(VALUES, f"h={h}") for h in (0.95, 0.7, 0.4)]
        late = self.contest(VALUES, "h=0.1")
        real = [self.contest(GRADIENTS, stage) for stage in ("init", "early", "final")]
        ahead, worth = (", ".join(words) for words in zip(*((str(one.wins[first]), number(one.rho, 2)) for one in real), strict=True))
        used = published.predictors()
        triple = coefficient_interval(Interval(*used["used"]["correlation"]))
        confirmed = "confirmed" if used["confirmed"] else "did not confirm"
        return [
            f"With a loss that has gradients between the structures (`{GRADIENTS}`) and the time of {MAIN_BUDGET} REINFORCE estimates, "
            f"`{first}` is the best on {flat.share(first)} structures while the model is undecided (h = 0.95, and on {fair.share(first)} "
            f"at h = 0.7; median ρ {number(flat.rho, 2)} and {number(fair.rho, 2)}), and on {half.share(first)} at h = 0.4, where "
            f"`{second}` is on {half.wins[second]}.",
            f"Once it has decided (h = 0.1) nothing is good: `{last}` is the best on {peaked.share(last)}, the median ρ of the best is "
            f"{number(peaked.rho, 2)}, and on {peaked.undecided} of {peaked.count} another one may be as good.",
            f"With the time of {PATIENT}, `{patient[0].winner}` is the best on {patient[0].share(patient[0].winner)} at h = 0.7 and "
            f"on {patient[1].share(patient[0].winner)} at h = 0.4 (median ρ {number(patient[0].rho, 2)} and {number(patient[1].rho, 2)}).",
            f"With a loss that gives values only (`{VALUES}`), `{blind[0].winner}` is the best on "
            f"{', '.join(str(one.wins[blind[0].winner]) for one in blind)} of {blind[0].count} at h = 0.95, 0.7, 0.4, and at h = 0.1 it is "
            f"{' or '.join(f'`{name}` ({count})' for name, count in late.wins.most_common())}; with one that is linear between the "
            f"structures, {' and '.join(f'`{name}`' for name in self.exact(LINEAR))} are exact in every state.",
            f"On scores of trained models `{first}` is the best on {ahead} of {real[0].count} sets before, early in and after training, "
            f"with a median ρ of the best of {worth} (`{GRADIENTS}`); and over {used['tasks']} learnt tasks the order by ρ had a rank "
            f"correlation of {triple} with {used['outcome']}, which held-out tasks {confirmed}.",
        ]

    def figures(self) -> dict[str, bytes]:
        """As PNG, by name: of structures with entropies, and of real scores at stages of training."""
        best = paper.winners(marks.held(self.frame, self.about["catalogue"]))
        entropies = best["stage"].str.startswith("h=")
        short = best.assign(base=best["base"].str.removesuffix("_regimes"))
        return {name: paper.saved(paper.draw_matrix(short[part]), "png") for name, part in ((BUILT_IN, entropies), (REAL, ~entropies))}

    def measured(self) -> pd.DataFrame:
        """What was measured: scores, structure, how many structures, states, instances, losses."""
        rows = self.frame.assign(scores=self.frame["problem"].map(lambda name: split_loss(str(name))[0]).astype(object))
        lines = []
        for scores, part in rows.groupby("scores", sort=False):
            logs = part["log_count"].dropna().astype(float)
            counts = " to ".join(dict.fromkeys(exponential(end) for end in (logs.min(), logs.max())))
            instances = part[part["instance"].fillna("") != ""].groupby("stage", observed=True)["instance"].nunique().max()
            stages = ", ".join(part["stage"].astype(object).drop_duplicates())
            sizes = self.about["catalogue"].get("sizes", {}).get(part["problem"].iloc[0], "")
            lines.append((scores, part["oracle"].iloc[0], sizes, counts, stages, instances, part["loss"].nunique()))
        return pd.DataFrame(lines, columns=["scores", "structure", "sizes", "structures", "states", "instances each", "losses"])

    def unsure(self) -> str:
        """On how much the real scores rest: ``With 16 instances each, 12 of 30 of the best cannot be told from others``."""
        contests = [self.contest(GRADIENTS, stage) for stage in ("init", "early", "final")]
        undecided, count = (sum(getattr(one, name) for one in contests) for name in ("undecided", "count"))
        real = self.frame[self.frame["stage"] == "final"]
        instances = real[real["instance"].fillna("") != ""].groupby("problem", observed=True)["instance"].nunique().max()
        return f"With {whole(instances)} instances each, {undecided} of {count} of the best cannot be told from others"


def write(folder: Path, *, of: Path = published.FOLDER) -> list[Path]:
    """Write ``standard.md`` and its figures.

    Args:
        folder: where they go.
        of: the folder of the published table.
    """
    standard = Standard.load(of)
    contents = {f"{name}.png": image for name, image in standard.figures().items()}
    contents["standard.md"] = page(standard).encode()
    for name, content in contents.items():
        results.write_whole(folder / name, content)
    return [folder / name for name in contents]


def again(folder: Path, data: Path, to: Path = published.FOLDER) -> Path:
    """Measure the published table anew: run its commands, and make it of what they find.

    Args:
        folder: of the runs, a folder each; a run that was stopped there goes on.
        data: the folder of the real score files.
        to: where the table goes, by default into the package.

    Returns:
        The folder of the first run, whose page stands beside the finding.

    Raises:
        CalledProcessError: a run that failed, which has said why.
    """
    runs = []
    for position, command in enumerate(published.load()[1]["command"].split(" && ")):
        words = shlex.split(command)[1:]
        words = [str(data) if before == "--data" else word for word, before in zip(words, ["", *words], strict=False)]
        runs.append(folder / str(position))
        subprocess.run([sys.executable, "-m", "structgrad.reports.cli", *words, "--out", str(runs[-1])], check=True)
    published.write(*runs, folder=to)
    return runs[0]


def page_of_run(run: Path) -> bytes:
    """The page of a run, with nothing of its folders."""
    frame, manifest = results.read(run)
    return to_html(frame, {**manifest, "command": published.command_of(str(manifest["command"])), "folder": "standard"}).encode()


def page(standard: Standard) -> str:
    """The text of ``standard.md``."""
    about = standard.about
    names = standard.frame["estimator"].astype(object).drop_duplicates()
    return _template().render(
        finding=standard.finding(),
        entropies=BUILT_IN,
        stages=REAL,
        unsure=standard.unsure(),
        budget=MAIN_BUDGET,
        measured=markdown_table(plain_table("What was measured", standard.measured())),
        rows=whole(about["rows"]),
        estimators=", ".join(f"`{name}`" for name in names),
        day=str(about["finished"]).partition("T")[0],
        environment=about["environment"],
        commits=" and ".join(commit[:9] for commit in about["commits"]),
        commands=about["command"].replace(" && ", "\n"),
    )


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    return jinja2.Environment(loader=loader, autoescape=False, trim_blocks=True, keep_trailing_newline=True).get_template("standard.md.j2")


def main(words: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m structgrad.reports.page.standard_page", description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="the folder of the page")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="measure the table anew, into runs of this folder")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the real score files, for --again")
    given = parser.parse_args(words)
    if (given.again is None) != (given.data is None):
        parser.error("got one of --again and --data; expected both or neither")
    if given.again is not None:
        results.write_whole(given.to / "standard-run.html", page_of_run(again(given.again, given.data)))
    for path in write(given.to):
        print(path)  # noqa: T201


if __name__ == "__main__":
    main()

"""The page ``docs/results/standard.md``, its figures, and the table of the README, from the published table.

Usage: ``python .ci/standard_page.py --to docs/results [--again FOLDER --data DIR]``.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from structgrad.reports import published, results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.analysis.answers import MAIN_BUDGET, Answer
from structgrad.reports.page import dataset, paper, to_html
from structgrad.reports.page.cells import plain_table
from structgrad.reports.page.page import environment
from structgrad.suites.base import split_loss
from structgrad.suites.text import exponential, whole

GRADIENTS, VALUES, LINEAR = "squared_distance", "black_box", "squared_distance_linear"
KINDS = {LINEAR: "linear between structures", GRADIENTS: "differentiable at relaxed inputs", VALUES: "black box"}
"""Kinds of losses, in words."""

ENTROPIES = ("h=0.95", "h=0.7", "h=0.4", "h=0.1")

BUILT_IN, REAL = "standard-entropies", "standard-stages"  # names of the figures


@dataclass(frozen=True)
class Contest:
    """The number of structures, and on how many each estimator is the best (``wins``), or best or tied (``named``)."""

    wins: Counter[str]
    named: Counter[str]
    count: int

    @property
    def none(self) -> int:
        """The number of structures without a clearly best estimator."""
        return self.count - self.wins.total()

    @property
    def winners(self) -> list[str]:
        """The estimators that are best or tied on most structures, unless more structures have no best one."""
        most = max(self.named.values(), default=0)
        leaders = [name for name, count in self.named.items() if count == most]
        return sorted(leaders, key=lambda name: -self.wins[name]) if most > self.none else []

    def cell(self) -> str:
        """``rloo, 14 of 15``, with the others that are as often best or tied."""
        if not (names := self.winners):
            return f"none clearly best, {self.none} of {self.count}"
        return f"{' or '.join(f'`{one}`' for one in names)}, {self.named[names[0]]} of {self.count}"


@dataclass(frozen=True, eq=False)
class Standard:
    """The published table with its answers."""

    frame: pd.DataFrame
    about: Mapping[str, Any]
    found: Sequence[Answer]

    @classmethod
    def load(cls, folder: Path = published.FOLDER) -> Standard:
        """Read the table of a folder."""
        frame, about = published.load(folder)
        return cls(frame, about, answers.answers(frame, about["catalogue"]["values_only"]))

    def contest(self, loss: str, stage: str, budget: float = MAIN_BUDGET) -> Contest:
        """The best estimators for one loss at one entropy level, over all measured structures."""
        asked = ("gradients", budget, stage, loss)
        here = [one for one in self.found if (one.question.name, one.budget, one.stage, split_loss(one.problem)[1]) == asked]
        best = [one for one in here if one.outcome in ("clear", "tied")]
        named = Counter(name for one in best for name in (one.estimator, *one.tied))
        return Contest(Counter(one.estimator for one in best), named, len(here))

    def summary(self) -> str:
        """The best estimator by kind of loss and entropy level, as a table in Markdown."""
        lines = [["loss", *(stage.replace("=", " = ") for stage in ENTROPIES)], ["---"] * (1 + len(ENTROPIES))]
        for loss, kind in KINDS.items():
            cells = [self.contest(loss, stage).cell() for stage in ENTROPIES]
            same = [later if later != before else "the same" for before, later in itertools.pairwise(cells)]
            lines.append([f"{kind} (`{loss}`)", cells[0], *same])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def figures(self) -> dict[str, bytes]:
        """PNG images by file name: structures at entropy levels, and real scores at stages of training."""
        best = paper.winners(dataset.marks(self.frame, self.about["catalogue"]))
        entropies = best["stage"].str.startswith("h=")
        short = best.assign(base=best["base"].str.removesuffix("_regimes"))
        parts = ((BUILT_IN, entropies), (REAL, ~entropies))
        return {f"{name}.png": paper.saved(paper.draw_matrix(short[part]), "png") for name, part in parts}

    def measured(self) -> pd.DataFrame:
        """Scores, structure, number of structures, entropy levels, instances and losses, one row per set of scores."""
        rows, lines = self.frame.assign(scores=self.frame["problem"].map(lambda name: split_loss(str(name))[0]).astype(object)), []
        for scores, part in rows.groupby("scores", sort=False):
            logs = part["log_count"].dropna().astype(float)
            lines.append(
                {
                    "scores": scores,
                    "structure": part["oracle"].iloc[0],
                    "sizes": self.about["catalogue"].get("sizes", {}).get(part["problem"].iloc[0], ""),
                    "structures": " to ".join(dict.fromkeys(exponential(end) for end in (logs.min(), logs.max()))),
                    "entropy levels": ", ".join(tables.order(part, "stage")),
                    "instances each": _instances(part, "stage"),
                    "losses": part["loss"].nunique(),
                }
            )
        return pd.DataFrame(lines)

    def unsure(self) -> str:
        """Uncertainty on real scores: ``With 16 instances each, no estimator is clearly best in 12 of 30 cells``."""
        contests = [self.contest(GRADIENTS, stage) for stage in ("init", "early", "final")]
        none, count = (sum(getattr(one, name) for one in contests) for name in ("none", "count"))
        instances = _instances(self.frame[self.frame["stage"] == "final"], "problem")
        return f"With {whole(instances)} instances each, no estimator is clearly best in {none} of {count} cells"

    def page(self) -> bytes:
        """The text of ``standard.md``."""
        plain = environment().overlay(autoescape=False, keep_trailing_newline=True)
        text = plain.from_string(Path(__file__).with_name("standard.md.j2").read_text(encoding="utf-8")).render(
            standard=self,
            entropies=BUILT_IN,
            stages=REAL,
            budget=MAIN_BUDGET,
            measured=plain_table("What was measured", self.measured()),
            estimators=tables.order(self.frame, "estimator"),
            **self.about,
        )
        return text.encode()

    def html(self) -> bytes:
        """The HTML page of the published table."""
        return to_html(self.frame, {**self.about, "folder": "standard"}).encode()


def _instances(rows: pd.DataFrame, column: str) -> int:
    return int(rows[rows["instance"].fillna("") != ""].groupby(column, observed=True)["instance"].nunique().max())


def again(folder: Path, data: Path, to: Path = published.FOLDER) -> None:
    """Measure the published table again by its commands, one run per subfolder; interrupted runs are resumed."""
    runs = []
    for position, command in enumerate(published.load()[1]["command"].split(" && ")):
        words = shlex.split(command)[1:]
        words = [str(data) if before == "--data" else word for word, before in zip(words, ["", *words], strict=False)]
        runs.append(folder / str(position))
        subprocess.run([sys.executable, "-m", "structgrad.reports.cli", *words, "--out", str(runs[-1])], check=True)
    published.write(*runs, folder=to)


def main(words: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python .ci/standard_page.py", description=__doc__)
    parser.add_argument("--to", type=Path, required=True, help="the folder of the page")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="measure the table again, into runs of this folder")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the real score files, for --again")
    given = parser.parse_args(words)
    if (given.again is None) != (given.data is None):
        parser.error("got one of --again and --data; expected both or neither")
    if given.again is not None:
        again(given.again, given.data)
    standard = Standard.load()
    for name, content in {**standard.figures(), "standard.md": standard.page(), "standard-run.html": standard.html()}.items():
        results.write_whole(given.to / name, content)
        print(given.to / name)  # noqa: T201


if __name__ == "__main__":
    main()

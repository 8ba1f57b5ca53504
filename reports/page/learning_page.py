"""The page ``docs/results/learning.md``, a page for each task and figures, from stored runs of a study of training.

Usage: ``python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results``. The runs may be a part of the study.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...suites.learning.arrays import HALVES, Study, half_of_task
from ...suites.learning.finding import OUTCOMES, association, chosen, measured, predictor_result
from ...suites.metrics import label_of, signed_label
from ...suites.statistics.selection import student_mean as mean
from ...suites.tasks import TASKS, make_task
from ...suites.text import coefficient
from .. import published, results
from ..analysis.learning import RECOMMENDING, correlation, predictor_name
from ..results import Manifest
from .cells import Table, TableCell, estimate_cell, plain, tabulate
from .learning import LearningSection, learning_of, overall_table, predictor_table, task_table
from .looks import looks
from .markdown import escaped, markdown_table

WANTED = (9, 24, 5)
"""Tasks, estimators and seeds of a whole study."""

COMPARED_WITH = {
    "listops_parser": ("reinforce", "Havrylov, Kruszewski & Joulin 2019 gain most by better baselines of REINFORCE."),
    "pipeline": ("frozen", "Peng, Thomson & Smith 2018 compare a frozen parser with straight-through, structured attention and SPIGOT."),
    "ner": ("crf", "Mensch & Blondel 2018 compare the maximum smoothed by ½‖·‖² with the CRF."),
}
"""Tasks of published comparisons: the family that the others are compared with, and the finding."""


def write(runs: Sequence[Path], folder: Path) -> Path:
    """Write the page, those of the tasks in the folder ``learning``, and the figures.

    Raises:
        FileNotFoundError: a folder without a run.
        ValueError: a run without training, or two runs of one cell.
    """
    read, seen = [results.read(run) for run in runs], set[tuple[str, ...]]()
    for run, (frame, _) in zip(runs, read, strict=True):
        if not learning_of(frame):
            raise ValueError(f"{run} holds no result of training; expected the folder of a run of `structgrad learn`")
        cells = set(frame[["suite", "problem", "estimator"]].astype(str).itertuples(index=False, name=None))
        if seen & cells:
            suite, problem, estimator = min(seen & cells)
            raise ValueError(f"{run} has {suite} of {estimator} on {problem}, which another run has too; expected runs of other cells")
        seen |= cells
    frame = read[0][0] if len(read) == 1 else pd.concat([found for found, _ in read], ignore_index=True)
    section = learning_of(frame)
    lines = [*page(section, [manifest for _, manifest in read])]
    for name, title, image in figures(section, {name: colour for name, (colour, _) in looks(frame).items()}):
        results.write_whole(folder / "learning" / f"{name}.png", image)
        lines += ["", f"![{title}](learning/{name}.png)"]
    for task in section.study.tasks:
        results.write_whole(folder / _path(task), ("\n".join(task_page(section.study, task)) + "\n").encode())
    results.write_whole(folder / "learning.md", ("\n".join(lines) + "\n").encode())
    return folder / "learning.md"


def figures(section: LearningSection, colours: dict[str, str]) -> Iterator[tuple[str, str, bytes]]:
    """Learning curves, and accuracy by a number of the gradient and by structures: name, title and PNG of each."""
    import seaborn as sns

    rows = section.charts
    points = rows.get("learning-points", pd.DataFrame(columns=["metric"]))
    rho = f"{label_of(RECOMMENDING[0])} at {RECOMMENDING[1]}"
    looks: dict[str, Any] = {"hue": "estimator", "palette": colours, "col": "task", "col_wrap": 3, "height": 2.4}
    for name, title, some, x, y in (
        ("curves", "Accuracy during training, mean over seeds", rows.get("learning-curves", points), "step", "mean"),
        ("predictor", f"Final accuracy by {rho}", points[points["metric"] == rho], "x", "accuracy"),
        ("structure", "Final accuracy by the quality of structures", points[points["metric"] == "quality of structures"], "x", "accuracy"),
    ):
        if len(some):
            with sns.axes_style("whitegrid"):
                kind = "line" if x == "step" else "scatter"
                grid = sns.relplot(some, x=x, y=y, kind=kind, facet_kws={"sharex": False, "sharey": False}, **looks)
                grid.set_titles("{col_name}").set_axis_labels(title.partition(" by ")[2] or x, "accuracy")
                buffer = io.BytesIO()
                grid.savefig(buffer, format="png", dpi=70)
                grid.figure.clear()
            yield name, title, buffer.getvalue()


def page(section: LearningSection, manifests: Sequence[Manifest]) -> Iterator[str]:
    """The page without its figures, line by line."""
    study = section.study
    yield from ("# Do bias and variance predict how well a model trains?", "")
    yield f"{section.headline} This page is written from stored runs, whose commands are at its end, by"
    yield from ("", "    python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results", "")
    yield from _missing(study)
    yield from ("## The answer", "", *(f"{line}\n" for line in section.sentences))
    yield from _choice(study)
    yield from ("## All tasks", "", _noted(overall_table(study)))
    yield from ("## Predictors of final accuracy", "", *_predictors(study))
    yield from ("## Task pages", "")
    for task in study.tasks:
        summary = f": {make_task(task).summary}" if task.partition("[")[0] in TASKS else ""
        yield f"- [{escaped(task)}]({_path(task)}){summary}"
    yield ""
    yield from ("## Set-up", "")
    for manifest in manifests:
        environment = manifest.get("environment", {})
        if manifest.get("command"):
            yield f"- command: `{published.command_of(str(manifest['command']))}`"
        facts = {name: environment.get(name) for name in ("commit", "cpu", "cores")} | {
            "torch": environment.get("packages", {}).get("torch")
        }
        facts |= {name: manifest.get(name) for name in ("started", "finished")}
        yield from (f"- {name}: {escaped(str(value))}" for name, value in facts.items() if value)
    yield from ("", "## Figures")


def task_page(study: Study, task: str) -> Iterator[str]:
    """The page of a task, line by line: all estimators, and a comparison of a paper if there is one."""
    yield from (f"# {escaped(task)}", "")
    if task.partition("[")[0] in TASKS:
        made = make_task(task)
        structures = f"; `structure`: {made.structured}" if made.structured else ""
        yield from (f"{made.summary[0].upper()}{made.summary[1:]} (`{made.oracle}`). `accuracy`: {made.scored}{structures}.", "")
    yield _noted(task_table(study, task))
    yield from _differences(study.of(tasks=lambda name, task=task: name == task), task)  # type: ignore[misc]


def _path(task: str) -> str:
    return f"learning/{re.sub(r'[^a-z0-9_]+', '-', task.lower()).strip('-')}.md"


def _noted(table: Table) -> str:
    return f"{escaped(table.note)}\n\n{markdown_table(table)}"


def _missing(study: Study) -> Iterator[str]:
    """The differences between a whole study and this one."""
    counts = zip((len(study.tasks), len(study.names), len(study.seeds)), WANTED, ("tasks", "estimators", "seeds"), strict=True)
    lacking = [f"{have} of at least {want} {noun}" for have, want, noun in counts if have < want]
    if lacking:
        yield from (f"**This is a part of the study: it has {', '.join(lacking)}.**", "")
    if absent := [f"`{name}`" for name in TASKS if name not in study.tasks]:
        yield from (f"Not trained in this run: {', '.join(absent)}.", "")
    seeds = np.isfinite(study.outcome("accuracy")).sum(-1)
    gaps = [
        f"`{name}` on `{task}` ({count} of {len(study.seeds)})"
        for task, counts_ in zip(study.tasks, seeds, strict=True)
        for name, count in zip(study.names, counts_, strict=True)
        if 0 < count < len(study.seeds)
    ]
    if gaps:
        yield from ("Without a result at every seed: " + "; ".join(gaps) + ".", "")


def _choice(study: Study) -> Iterator[str]:
    """The predictor that one half of the study chose for each outcome, and its correlation on the other half."""
    outcomes = [outcome for outcome in OUTCOMES if outcome in study.outcomes]
    found = [predictor_result(study, *pair, outcome, "all") for pair in measured(study) for outcome in outcomes]
    if not found:
        return
    known = np.any([np.isfinite(values).any((1, 2)) for values in study.predictors.values()], axis=0)
    tasks = [task for task, any_number in zip(study.tasks, known, strict=True) if any_number]
    halves = [", ".join(f"`{task}`" for task in tasks if half_of_task(task) == half) or "no task of this run" for half in HALVES]
    yield from ("### Chosen on one half, confirmed on the other", "")
    yield (
        "Names decide to which half tasks, estimators and seeds belong (`suites/learning/arrays.py`). "
        f"{HALVES[0].capitalize()}: {halves[0]}. {HALVES[1].capitalize()}: {halves[1]}. "
        "Of the correlations whose interval excludes 0, the largest of either sign is chosen."
    )
    yield ""
    for outcome in OUTCOMES:
        best, text = chosen(found, outcome), "no interval on the half that chooses excludes 0; nothing is chosen"
        if best is not None:
            first, other = correlation(best.choice), correlation(best.confirmation)
            verdict = "confirmed" if best.confirmed else "**not** confirmed"
            text = f"{predictor_name(best)}, {first}; on the other half {other}: {verdict}"
        yield f"- **{signed_label(outcome)}**: {text}."
    yield ""


def _predictors(study: Study) -> Iterator[str]:
    """Correlations of all predictors, over all tasks and by task."""
    pairs = list(measured(study))
    if not pairs:
        yield from ("Gradients were not measured.", "")
        return
    rows: list[dict[str, TableCell | str]] = []
    for name, stage in pairs:
        within = association(study, name, stage, "accuracy", resamples=0).within
        rows.append({"predictor": signed_label(name), "stage": stage, **{task: coefficient(within.get(task)) for task in study.tasks}})
    yield from ("### Every predictor", "", _noted(predictor_table(study)))
    yield from ("### Task by task", "", "Final accuracy, over all estimators.", "", markdown_table(tabulate("", rows, {})))


def _differences(one: Study, task: str) -> Iterator[str]:
    """Differences to one estimator, paired by seed, on a task of a published comparison."""
    family, finding = COMPARED_WITH.get(task, ("", ""))
    base, accuracy = one.of_family(family), one.outcome("accuracy")[0]
    if base is None:
        return
    rows = []
    for place in np.argsort(-np.nan_to_num(accuracy.mean(-1), nan=-1)):
        row: list[TableCell] = []
        for values in (accuracy, one.outcome("structure_accuracy")[0]):
            change = mean(values[place] - values[one.names.index(base)])
            row += [estimate_cell(mean(values[place])), plain("") if one.names[place] == base else estimate_cell(change)]
        if np.isfinite(accuracy[place]).any():
            rows.append([plain(one.names[place]), *row])
    columns = ("estimator", "accuracy", "difference", "structure", "difference")
    yield from (f"### Compared with {escaped(base)}", "", f"{finding} Differences are paired by seed.", "")
    yield markdown_table(Table("", tuple((title, "") for title in columns), rows))


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write docs/results/learning.md and its figures from stored runs.")
    parser.add_argument("run", type=Path, nargs="+", help="the folder of a run")
    parser.add_argument("--to", type=Path, default=Path("docs/results"), metavar="FOLDER", help="where the page goes")
    given = parser.parse_args()
    try:
        print(f"written: {write(given.run, given.to)}")  # noqa: T201
    except (FileNotFoundError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()

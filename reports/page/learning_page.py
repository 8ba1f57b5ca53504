"""The page ``docs/results/learning.md`` and a page for each task, from stored runs of a study of training.

Usage: ``python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results``. The runs may be a part of the study.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...suites.learning.arrays import HALVES, Study, half_of_task
from ...suites.learning.finding import OUTCOMES, association, chosen, measured, predictor_result
from ...suites.metrics import signed_label
from ...suites.tasks import TASKS, make_task
from ...suites.text import coefficient
from .. import published, results
from ..analysis.learning import correlation, predictor_name
from .cells import tabulate
from .learning import learning_of, overall_table, predictor_table, task_table
from .page import document

WANTED = (9, 24, 5)  # tasks, estimators and seeds of a whole study


def write(runs: Sequence[Path], folder: Path) -> Path:
    """Write the page, and those of the tasks in the folder ``learning``; no two runs may have a cell in common."""
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
    study = section.study
    paths = {task: f"learning/{re.sub(r'[^a-z0-9_]+', '-', task.lower()).strip('-')}.md" for task in study.tasks}
    known = {task: make_task(task) for task in study.tasks if task.partition("[")[0] in TASKS}
    for task, path in paths.items():
        content = document("learning_task.md.j2", task=task, made=known.get(task), table=task_table(study, task))
        results.write_whole(folder / path, content)
    counts = zip((len(study.tasks), len(study.names), len(study.seeds)), WANTED, ("tasks", "estimators", "seeds"), strict=True)
    seeds = np.isfinite(study.outcome("accuracy")).sum(-1)
    by_task = []
    for name, stage in measured(study):  # the correlation of every predictor with final accuracy on each task
        within = association(study, name, stage, "accuracy", resamples=0).within
        by_task.append({"predictor": signed_label(name), "stage": stage, **{task: coefficient(within.get(task)) for task in study.tasks}})
    content = document(
        "learning.md.j2",
        section=section,
        lacking=[f"{have} of at least {want} {noun}" for have, want, noun in counts if have < want],
        absent=[name for name in TASKS if name not in study.tasks],
        gaps=[
            f"`{study.names[at]}` on `{study.tasks[place]}` ({seeds[place, at]} of {len(study.seeds)})"
            for place, at in np.argwhere((seeds > 0) & (seeds < len(study.seeds)))
        ],
        **_choice(study),
        overall=overall_table(study),
        predictors=predictor_table(study) if study.predictors else None,
        by_task=tabulate("", by_task, {}),
        tasks=[(task, paths[task], known.get(task)) for task in study.tasks],
        manifests=[manifest for _, manifest in read],
        command_of=published.command_of,
    )
    results.write_whole(folder / "learning.md", content)
    return folder / "learning.md"


def _choice(study: Study) -> dict[str, Any]:
    """The tasks of each half; and by outcome the predictor that one half chose, with its correlation on the other half."""
    pairs, outcomes = list(measured(study)), [outcome for outcome in OUTCOMES if outcome in study.outcomes]
    found = [predictor_result(study, *pair, outcome, "all") for pair in pairs for outcome in outcomes]
    known = [any(np.isfinite(values[place]).any() for values in study.predictors.values()) for place in range(len(study.tasks))]
    tasks = [task for task, any_number in zip(study.tasks, known, strict=True) if any_number]
    halves = {half: ", ".join(f"`{task}`" for task in tasks if half_of_task(task) == half) or "no task of this run" for half in HALVES}
    choices = {}
    for outcome in OUTCOMES if found else ():
        best, text = chosen(found, outcome), "no interval on the half that chooses excludes 0; nothing is chosen"
        if best is not None:
            verdict = "confirmed" if best.confirmed else "**not** confirmed"
            first, other = correlation(best.choice), correlation(best.confirmation)
            text = f"{predictor_name(best)}, {first}; on the other half {other}: {verdict}"
        choices[signed_label(outcome)] = text
    return {"halves": halves, "choices": choices}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write docs/results/learning.md from stored runs.")
    parser.add_argument("run", type=Path, nargs="+", help="the folder of a run")
    parser.add_argument("--to", type=Path, default=Path("docs/results"), metavar="FOLDER", help="where the page goes")
    given = parser.parse_args()
    try:
        print(f"written: {write(given.run, given.to)}")  # noqa: T201
    except (FileNotFoundError, ValueError) as error:
        parser.exit(2, f"error: {error}\n")


if __name__ == "__main__":
    main()

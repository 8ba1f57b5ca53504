"""The answer ``docs/results/learning.md``, a page of all tables, and a page for each task, from stored runs of a study of training.

Usage: ``python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results``. The runs may be a part of the study.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from ...suites.learning import DECLARED, TESTED, Study, association, declared, measured, over_seeds, verdicts
from ...suites.metrics import METRICS, signed_label
from ...suites.statistics.selection import student_mean
from ...suites.tasks import TASKS, make_task
from ...suites.text import ZERO, coefficient, number, percent, plural
from .. import published, results
from ..analysis.learning import RECOMMENDING, SCORE, predictor_name, winner
from .cells import tabulate
from .learning import learning_of, overall_table, predictor_table, task_table
from .page import document

WANTED = (24, 24, 3)  # tasks, estimators and seeds of a whole study
BASE, COMPARED = "always rloo[num_samples=4]", "difference to always rloo[num_samples=4]"
WELL_KNOWN = (
    *("reinforce", "rloo[num_samples=4]", "ste", "st_gumbel", "gumbel_softmax"),
    *("imle", "spigot", "structured_attention", "sparsemap"),
)

STRUCTURES = {
    "latent trees": ("projective_tree", "spanning_tree", "constituency", "shift_reduce"),
    "latent sequences": ("linear_chain", "semi_markov", "ctc", "alignment"),
    "latent subsets": ("subset",),
    "latent permutations": ("assignment",),
    "latent categories": ("categorical", "categories"),
}
LOSSES = {"likelihood": "likelihood of a decoder", "differentiable": "differentiable", "elbo": "ELBO", "black_box": "values only"}


def write(runs: Sequence[Path], folder: Path, package: Path | None = None) -> Path:
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
    if package is not None:
        publish(study, package)  # before the pages, so that nothing is written of a study that is refused
    paths = {task: f"learning/{re.sub(r'[^a-z0-9_]+', '-', task.lower()).strip('-')}.md" for task in study.tasks}
    known = {task: make_task(task) for task in study.tasks if task.partition("[")[0] in TASKS}
    for (task, path), answer in zip(paths.items(), section.sentences[-len(paths) :], strict=True):  # the first sentence is about all
        content = document("learning_task.md.j2", task=task, made=known.get(task), table=task_table(study, task), answer=answer)
        results.write_whole(folder / path, content)
    counts = zip((len(study.tasks), len(study.names), len(study.seeds)), WANTED, ("tasks", "estimators", "seeds"), strict=True)
    seeds = np.isfinite(study.outcome("accuracy")).sum(-1)
    by_task = []
    for name, stage in measured(study):  # the correlation of every predictor with final accuracy on each task
        within = association(study, name, stage, "accuracy").within
        by_task.append({"predictor": signed_label(name), "stage": stage, **{task: coefficient(within.get(task)) for task in study.tasks}})
    predictors = predictor_table(study) if study.predictors else None
    every = document("learning_tables.md.j2", overall=overall_table(study), predictors=predictors, by_task=tabulate("", by_task, {}))
    results.write_whole(folder / "learning/tables.md", every)
    parts = {"verdicts": _verdicts, "kinds": _by_kind, "decisions": _decisions, "choices": _choices, "beliefs": _beliefs}
    content = document(
        "learning.md.j2",
        section=section,
        lacking=[f"{have} of at least {want} {noun}" for have, want, noun in counts if have < want],
        absent=sorted(set(TASKS) - {task.partition("[")[0] for task in study.tasks}),
        gaps=[
            f"`{study.names[at]}` on `{study.tasks[place]}` ({seeds[place, at]} of {len(study.seeds)})"
            for place, at in np.argwhere((seeds > 0) & (seeds < len(study.seeds)))
        ],
        answers=[*_summary(study), section.sentences[0]],
        **{name: tabulate("", rows_of(study), {}) for name, rows_of in parts.items()},
        tasks=[(task, paths[task], known.get(task)) for task in study.tasks],
        manifests=[manifest for _, manifest in read],
        command_of=published.command_of,
    )
    results.write_whole(folder / "learning.md", content)
    return folder / "learning.md"


def _summary(study: Study) -> Iterator[str]:
    """The declared predictors that were confirmed or not, best first, for every tested outcome; and what a choice by one is worth."""
    for outcome in TESTED if study.predictors else ():
        found = sorted(verdicts(study, outcome), key=lambda one: one.whole.pooled.value or 0.0, reverse=True)
        shown = [f"{predictor_name(one)} ({coefficient(one.whole.pooled)})" for one in found if one.verdict == "confirmed"]
        others = [predictor_name(one) for one in found if one.verdict != "confirmed"]
        rest = f" Not shown to predict it: {'; '.join(others)}." if others else ""
        yield f"**{signed_label(outcome).capitalize()}** is predicted by {'; '.join(shown) or 'none of the declared numbers'}.{rest}"
    ways = {row["choice"]: row for row in _choices(study)}
    if BASE in ways and len(ways) > 1:
        better = [way for way, row in ways.items() if way.startswith("by ") and row[COMPARED].partition("[")[2].startswith("+")]
        further = f"Further come: {', '.join(better)}." if better else "No choice by one of these numbers comes significantly further."
        yield f"**Choice.** {BASE.capitalize()} comes {ways[BASE]['of the way']} of the way from floor to ceiling. {further}"


def _verdicts(study: Study) -> list[dict[str, str]]:
    """The declared predictors with their correlations and verdicts, for every tested outcome."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for outcome in TESTED:
        for one in verdicts(study, outcome):
            row = rows.setdefault((one.predictor, one.stage), {"predictor": signed_label(one.predictor), "stage": one.stage})
            fresh = "" if one.fresh is None else f", new tasks {coefficient(one.fresh.pooled)}"
            row[signed_label(outcome)] = coefficient(one.whole.pooled)
            row[f"{signed_label(outcome)}: verdict"] = f"{one.verdict} (p = {number(one.adjusted, 2)}{fresh})"
    return list(rows.values())


def _by_kind(study: Study) -> list[dict[str, str]]:
    """The declared predictors' correlations with final accuracy, by the kind of loss."""
    kinds = sorted({declared(task).kind for task in study.tasks} - {""})
    parts = {f"{kind} ({plural(len(part.tasks), 'task')})": part for kind in kinds if (part := _of(study, "kind", kind))}
    return [
        {"predictor": signed_label(name), "stage": stage}
        | {title: coefficient(association(part, name, stage, "accuracy").pooled) for title, part in parts.items()}
        for name, stage in measured(study)
        if (name, stage) in DECLARED
    ]


def _of(study: Study, declaration: str, *values: str) -> Study:
    return study.of(tasks=lambda task: getattr(declared(task), declaration) in values)


def _decisions(study: Study) -> list[dict[str, str]]:
    """The best estimator, and the well-known ones, for the tasks of most estimators, by structure, and by kind of loss."""
    common = study.of(tasks=study.common.__contains__)  # a black-box loss has few estimators
    parts = {"any structure": common}
    parts |= {title: _of(common, "structure", *names) for title, names in STRUCTURES.items()}
    parts |= {f"loss: {words}": _of(study, "kind", kind) for kind, words in LOSSES.items()}
    rows = []
    for title, part in parts.items():
        if (best := winner(part, part.tasks)) is None:
            continue
        known = sorted((name for name in WELL_KNOWN if name in best.means), key=best.means.__getitem__, reverse=True)
        rows.append(
            {
                "your model": title,
                "tasks (families)": f"{len(part.tasks)} ({len(set(part.families))})",
                "best": f"{best.name} {percent(best.means[best.name])}",
                "not clearly worse": f"{len(best.tied)} of {best.rivals} others",
                "well-known estimators": ", ".join(f"{name} {percent(best.means[name])}{'*' * (name in best.worse)}" for name in known),
            }
        )
    return rows


def _choices(study: Study) -> list[dict[str, str]]:
    """Mean scores of the estimators that a rule chooses, on the tasks of most estimators; the best rule first."""
    part = study.of(tasks=study.common.__contains__, contenders=lambda one: one.competes)
    scores, ways = over_seeds(part.outcome(SCORE)), dict[str, np.ndarray]()
    for name, stage in measured(part):
        numbers = np.where(np.isfinite(scores), METRICS[name].sign * over_seeds(part.predictor(name, stage)), np.nan)
        if (name, stage) in DECLARED and np.isfinite(numbers).any(1).all():
            tied = numbers >= np.nanmax(numbers, 1, keepdims=True) - ZERO  # such as deterministic ones, of variance 0
            ways[f"by {signed_label(name)} at {stage}"] = np.nanmean(np.where(tied, scores, np.nan), 1)
    ways |= {f"always {name}": scores[:, part.names.index(name)] for name in WELL_KNOWN if name in part.names}
    ways |= {"the best of all, in hindsight": np.nanmax(scores, 1), "the median of all": np.nanmedian(scores, 1)} if scores.size else {}
    found = {
        way: pd.Series(values, list(part.families)).groupby(level=0).mean().to_numpy()
        for way, values in ways.items()
        if np.isfinite(values).all()
    }
    base = found.get(BASE)
    return [
        {
            "choice": way,
            "of the way": percent(values.mean()),
            COMPARED: "" if base is None or base is values else coefficient(student_mean(values - base)),
        }
        for way, values in sorted(found.items(), key=lambda item: -item[1].mean())
    ]


def _beliefs(study: Study) -> list[dict[str, str]]:
    """Popular beliefs, each with a difference of normalised accuracy that it predicts to be positive, and whether that holds."""
    tests = (
        ("unbiased is better", "declared unbiased − others", study, "unbiased", (True, False)),
        ("STE is fine on subsets", "ste − rloo[num_samples=4]", _of(study, "structure", "subset"), "name", ("ste", "rloo[num_samples=4]")),
    )
    rows = []
    for belief, test, part, trait, values in tests:
        kept = ([one.competes and getattr(one, trait) == value for one in part.contenders] for value in values)
        scores = [part.outcome(SCORE)[:, columns] for columns in kept]
        means = [np.array([task[np.isfinite(task)].mean() if np.isfinite(task).any() else np.nan for task in side]) for side in scores]
        found = student_mean(pd.Series(means[0] - means[1], list(part.families), dtype=float).groupby(level=0).mean().to_numpy())
        verdict = "not shown" if found.low is None or found.low <= 0 <= (found.high or 0) else "holds" if found.low > 0 else "fails"
        rows.append({"belief": belief, "test": test, "found": coefficient(found), "verdict": verdict})
    variance = [one for one in verdicts(study, "accuracy") if one.predictor == "parameter_variance"]
    rows += [
        {"belief": "low variance is better", "test": predictor_name(one), "found": coefficient(one.whole.pooled), "verdict": one.verdict}
        for one in variance
    ]
    return rows


def publish(study: Study, folder: Path = published.FOLDER) -> None:
    """Write the facts for `recommend`, and all numbers of the study, into the package."""
    found = verdicts(study, "accuracy")
    facts = [
        {"predictor": signed_label(one.predictor), "stage": one.stage, "verdict": one.verdict, "correlation": [on.value, on.low, on.high]}
        for one in found
        for on in [one.whole.pooled]
    ]
    used = next((fact for fact, one in zip(facts, found, strict=True) if (one.predictor, one.stage) == RECOMMENDING), None)
    if used is None:
        raise ValueError(f"the runs hold no {' at '.join(RECOMMENDING)}, which `recommend` needs; `structgrad learn --study` measures it")
    trained, competing = {}, study.of(contenders=lambda one: one.competes)
    for task, accuracies in zip(study.tasks, competing.outcome("accuracy"), strict=True):
        means = pd.DataFrame(accuracies, list(competing.names)).mean(axis=1).dropna().sort_values(ascending=False, kind="stable")
        trained[task] = {"structure": declared(task).structure, "kind": declared(task).kind, "best": list(means.items())}
    known = {"page": "docs/results/learning.md", "outcome": signed_label("accuracy"), "tasks": len(study.tasks), "used": used}
    known |= {"confirmed": [fact for fact in facts if fact["verdict"] == "confirmed"]}
    known |= {"choices": {row["choice"]: row["of the way"] for row in _choices(study)}, "trained": trained}
    results.write_whole(folder / published.PREDICTORS, (json.dumps(known, indent=1, ensure_ascii=False) + "\n").encode())
    named = {**study.outcomes, **{f"{name}@{stage}": values for (name, stage), values in study.predictors.items()}}
    index = pd.MultiIndex.from_product([study.tasks, study.names, study.seeds], names=["task", "estimator", "seed"])
    table = pd.DataFrame({name: values.ravel() for name, values in named.items()}, index).dropna(how="all").astype("float32")
    results.write_whole(folder / "learning.parquet", table.reset_index().to_parquet(compression="zstd"))


def main(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN")],
    to: Path = Path("docs/results"),
    *,
    package: Annotated[bool, typer.Option("--publish", help="Also write the facts for `recommend` into the package.")] = False,
) -> None:
    """Write the pages of a study from the folders of stored runs to a folder."""
    try:
        typer.echo(f"written: {write(runs, to, published.FOLDER if package else None)}")
    except (FileNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    typer.run(main)

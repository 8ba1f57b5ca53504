"""The page ``docs/results/learning.md`` and its figures, from the stored runs of a study of learning; of a part of one, what there is.

python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ...suites.learning.arrays import Study
from ...suites.learning.finding import KINDS, OUTCOMES, association, chosen, foretelling, measured, of_kind
from ...suites.learning.finding import kinds as objectives
from ...suites.learning.halves import HALVES, half_of_task
from ...suites.learning.summaries import interquartile_mean, mean, paired_difference
from ...suites.metrics import signed_label
from ...suites.tasks import TASKS, make_task
from ...suites.text import coefficient, estimate
from .. import results
from ..analysis.learning import SCORE, called, told
from ..results import Manifest
from . import learning_tables as tables
from .cells import Table, TableCell, plain
from .drawing.learning import draw_learning
from .learning import LearningSection, learning_of
from .markdown import escaped, markdown_table

WANTED = (9, 24, 5)
"""Tasks, estimators and seeds of a whole study."""

FOLDER = "learning"
"""Of the figures, beside the page."""

FOUR = ("clusters", "fsdd", "listops_frozen", "l2x_switch")

SHARES = {
    "exact": "0.986 [0.980, 0.991]",
    "rloo": "0.970 [0.934, 0.990]",
    "simple": "0.952",
    "structured_attention": "0.945",
    "sparsemap_marginalisation": "0.938",
    "ste_marginals": "0.867",
    "imle": "0.842",
    "ste": "0.662",
    "spigot": "0.540 [0.526, 0.554]",
}
"""Of prototypes: the share of the way from floor to ceiling over these four."""

FORETOLD = {
    "cosine": ("+.58 [+.32, +.77]", "+.47 [+.18, +.69]"),
    "relative_bias": ("+.38 [+.05, +.64]", "+.34 [+.09, +.60]"),
    "relative_variance": ("−.37 [−.58, −.11]", "−.14"),
    "relative_mse": ("−.03", "+.22"),
    "rho": ("−.12 [−.36, +.14]", "+.17"),
    "rho_16": ("+.26 [−.05, +.52] (ρ at the batch size)", "+.44 [+.14, +.64]"),
}
"""Of prototypes: final accuracy and mean of the curve against numbers at init; intervals draw estimators as if they were independent."""

ACCURACIES: dict[str, dict[str, str]] = {
    "clusters": {
        "exact": ".887",
        "sparsemap_marginalisation": ".866",
        "rloo": ".854",
        "gumbel_softmax": ".851",
        "simple": ".842",
        "structured_attention": ".797",
        "ste": ".737",
        "imle": ".621",
        "spigot": ".590",
    },
    "listops_frozen": {
        "exact": ".900 / 1.00",
        "structured_attention": ".900 / .999",
        "sparsemap": ".900 / .998",
        "rloo": ".872 / .94",
        "ste_marginals": ".814 / .91",
        "imle": ".700 / .75",
        "ste": ".525 / .51",
        "spigot": ".314 / .08",
    },
    "listops": {
        "sparsemap_marginalisation": ".672",
        "structured_attention": ".660",
        "simple": ".632",
        "rloo": ".619",
        "spigot": ".530",
        "ste": ".526",
    },
    "l2x_switch": {
        "exact": ".900 / .931",
        "rloo": "– / .898",
        "ste": "– / .758",
        "imle": "– / .682",
        "spigot": ".850 / .611",
    },
    "ner": {
        "differentiable_dp_loss": ".452 (span F1)",
        "sparsemap_loss": ".448 (span F1)",
        "margin_sparsemap": ".434 (span F1)",
        "perceptron": ".428 (span F1)",
        "crf": ".389 (span F1, overfit)",
    },
}
"""Of prototypes, 3 seeds and mostly one learning rate: accuracy, after a stroke the quality of structures."""

MENSCH = {"CRF": ("90.80", "86.68", "77.35", "87.56"), "½‖·‖²": ("90.86", "85.51", "76.01", "86.58")}
"""Span F1 on CoNLL-03 En, Es, De, Nl of Mensch & Blondel 2018."""

SMOOTHED = ("differentiable_dp_loss", "crf")
"""What they compare: the smoothed maximum with ½‖·‖², and with the entropy."""

WAYS = {"frozen": "pipeline", "ste": "straight-through", "structured_attention": "structured attention", "spigot": "SPIGOT"}
"""The four ways of Peng, Thomson & Smith 2018."""

MOST = 3
"""Correlations that are named of each kind."""

POLICY = "listops_parser"


@dataclass(frozen=True, eq=False)
class Known:
    """What the page is made of."""

    manifests: list[Manifest]
    learning: LearningSection

    @classmethod
    def of(cls, runs: Sequence[Path]) -> Known:
        """The stored runs of folders, as if they were one.

        Raises:
            FileNotFoundError: there is none in a folder.
            ValueError: nothing was learnt in it, or what another one has too.
        """
        frames, manifests, seen = [], [], set[tuple[str, str, str]]()
        for run in runs:
            frame, manifest = results.read(run)
            if not learning_of(frame):
                raise ValueError(f"{run} holds no result of training; expected the folder of a run of `structgrad learn`")
            cells = set(frame[["suite", "problem", "estimator"]].astype(str).itertuples(index=False, name=None))
            if seen & cells:
                suite, problem, estimator = min(seen & cells)
                raise ValueError(f"{run} has {suite} of {estimator} on {problem}, which another run has too; expected runs of other cells")
            seen |= cells
            frames.append(frame)
            manifests.append(manifest)
        return cls(manifests, learning_of(frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)))

    @property
    def study(self) -> Study:
        """Of the run."""
        return self.learning.material.study


def write(runs: Sequence[Path], folder: Path) -> Path:
    """Write the page and its figures; gives the path of the page."""
    known = Known.of(runs)
    drawings = draw_learning(known.learning.material)
    for drawing in drawings:
        results.write_whole(folder / FOLDER / f"{drawing.name}.png", drawing.picture.png(_DOTS_PER_INCH))
    page = [*markdown(known), *(line for one in drawings for line in _figure(one.title, one.name, one.caption))]
    results.write_whole(folder / "learning.md", ("\n".join(page) + "\n").encode())
    return folder / "learning.md"


_DOTS_PER_INCH = 90


def _figure(title: str, name: str, caption: str) -> Iterator[str]:
    yield from ("", f"### {escaped(title)}", "", f"![{title}]({FOLDER}/{name}.png)", "", caption)


def markdown(known: Known) -> Iterator[str]:
    """The page without its figures, line by line."""
    study = known.study
    yield from ("# Do bias and variance predict how well a model trains?", "")
    yield f"{known.learning.headline} This page is written from stored runs, whose commands stand at its end, by"
    yield from ("", "    python -m structgrad.reports.page.learning_page RUN [RUN ...] --to docs/results", "")
    yield from _missing(study)
    yield from ("## The answer", "", *(f"{line}\n" for line in known.learning.sentences))
    yield from _choice(study)
    yield from ("## All tasks", "", _noted(tables.overall_table(study)), *_shares(study))
    yield from ("## Predictors of final accuracy", "", *_foretold(study))
    for task in study.tasks:
        before = _placed(study.of(tasks=lambda name, task=task: name == task), ACCURACIES.get(task, {}))  # type: ignore[misc]
        yield from (f"## {task}", "", *_about(task), _noted(_with(tables.task_table(study, task), "prototype", before)))
        yield from _special(study, task)
    yield from ("## Set-up", "", *_setup(known), "", "## Figures")


def _shares(study: Study) -> Iterator[str]:
    """The prototypes' table recomputed, over their tasks."""
    some = study.of(tasks=lambda task: task in FOUR)
    if len(some.tasks) < len(FOUR):
        yield from (f"Beside the prototypes: not every task of theirs was learnt ({', '.join(FOUR)}).", "")
        return
    scores = some.outcome(SCORE)
    rows = []
    for name, before in SHARES.items():
        here = some.of_family(name)
        own = np.full((1, 1), np.nan) if here is None else scores[:, some.names.index(here)]
        now = estimate(interquartile_mean(own)) if np.isfinite(own).any(1).all() else "not learnt"
        rows.append([plain(name), plain(now), plain(before)])
    yield from ("### Beside the prototypes", "", f"Interquartile means over {', '.join(FOUR)}; the prototypes had 3 seeds.", "")
    yield markdown_table(Table("", (("estimator", ""), ("now", ""), ("prototypes", "")), rows))


def _noted(table: Table) -> str:
    """A table under its note."""
    return f"{escaped(table.note)}\n\n{markdown_table(table)}"


def _about(task: str) -> Iterator[str]:
    """What is learnt, and what its columns are."""
    if task.partition("[")[0] not in TASKS:
        return
    found = make_task(task)
    structures = f"; `structure`: {found.structured}" if found.structured else ""
    yield from (f"{found.summary[0].upper()}{found.summary[1:]} (`{found.oracle}`). `accuracy`: {found.scored}{structures}.", "")


def _placed(one: Study, figures: dict[str, str]) -> dict[str, str]:
    """Figures by name or family as figures by name: those of a family go to the first of it that was learnt."""
    learnt = one.of(contenders=lambda here: bool(np.isfinite(one.outcome("accuracy")[0, one.contenders.index(here)]).any()))
    return {name if name in learnt.names else learnt.of_family(name) or name: text for name, text in figures.items()}


def _with(table: Table, title: str, more: dict[str, str]) -> Table:
    """A table with a column of what was found elsewhere, by the names in its first one."""
    if not more:
        return table
    rows = [[*row, plain(more.get(row[0].text, ""))] for row in table.rows]
    return Table(table.title, (*table.columns, (title, "")), rows, table.note)


def _missing(study: Study) -> Iterator[str]:
    """What a whole study has and this one has not."""
    counts = (len(study.tasks), len(study.names), len(study.seeds))
    lacking = [
        f"{have} of at least {want} {what}"
        for have, want, what in zip(counts, WANTED, ("tasks", "estimators", "seeds"), strict=True)
        if have < want
    ]
    absent = [name for name in TASKS if name not in study.tasks]
    if lacking:
        yield from (f"**This is a part of the study: it has {', '.join(lacking)}.**", "")
    if absent:
        yield from (f"Not learnt in this run: {', '.join(f'`{name}`' for name in absent)}.", "")
    gaps = _gaps(study)
    if gaps:
        yield from ("Without a result at every seed: " + "; ".join(gaps) + ".", "")
    if not list(measured(study)):
        yield from ("Gradients were not measured (`learnt:` problems), so that nothing can be said of what foretold it.", "")


def _gaps(study: Study) -> list[str]:
    """Which pairs of task and estimator have some seeds, and not all."""
    runs = np.isfinite(study.outcome("accuracy")).sum(-1)
    return [
        f"`{name}` on `{task}` ({runs[place, position]} of {len(study.seeds)})"
        for place, task in enumerate(study.tasks)
        for position, name in enumerate(study.names)
        if 0 < runs[place, position] < len(study.seeds)
    ]


def _choice(study: Study) -> Iterator[str]:
    """How predictors were chosen, and what became of it for every outcome."""
    listed = [foretelling(study, *pair, outcome, "all") for pair in measured(study) for outcome in OUTCOMES if outcome in study.outcomes]
    if not listed:
        return
    known = np.any([np.isfinite(values).any((1, 2)) for values in study.predictors.values()], axis=0)
    told_of = [task for task, any_number in zip(study.tasks, known, strict=True) if any_number]
    halves = {half: [task for task in told_of if half_of_task(task) == half] for half in HALVES}
    yield from ("### Chosen on one half, confirmed on the other", "")
    yield (
        "Tasks, estimators and seeds are halved by their names, before anything is measured (`suites/learning/halves.py`): the choice is "
        f"made on {_tasks(halves['choice'])}, the confirmation on {_tasks(halves['confirmation'])}; families of estimators alternate "
        "within each idea, and even seeds choose. The largest correlation of either sign is chosen whose interval holds no 0."
    )
    yield ""
    for outcome in OUTCOMES:
        found = chosen(listed, outcome)
        name = signed_label(outcome)
        if found is None:
            yield f"- **{name}**: no interval on the half that chooses is free of 0; nothing is chosen."
        else:
            verdict = "confirmed" if found.confirmed else "**not** confirmed"
            yield f"- **{name}**: {called(found)}, {told(found.choice)}; on the other half {told(found.confirmation)}: {verdict}."
    yield ""


def _tasks(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no task of this run"


def _foretold(study: Study) -> Iterator[str]:
    """The prototypes' table recomputed, then all of it, then by objective."""
    pairs = list(measured(study))
    if not pairs:
        yield from ("Not measured.", "")
        return
    yield from _strongest(study)
    yield from ("### Beside the prototypes", "", "Per item in scores, at init; means over tasks of Spearman's rank correlation.", "")
    yield markdown_table(_beside(study))
    yield from ("### Every predictor", "", _noted(tables.predictor_table(study)))
    yield from ("### By objective", "", "Final accuracy, over the estimators of one objective.", "", markdown_table(_by_objective(study)))
    yield from ("### Task by task", "", "Final accuracy, over all estimators.", "", markdown_table(_by_task(study)))


def _strongest(study: Study) -> Iterator[str]:
    """The largest correlations over everything, for who wants to know what to look at."""
    pairs = list(measured(study))
    outcomes = [outcome for outcome in OUTCOMES if outcome in study.outcomes]
    rows = []
    for outcome in outcomes:
        for kind in KINDS:
            some = of_kind(study, kind)
            found = [(pair, association(some, *pair, outcome)) for pair in pairs]
            carried = sorted((one for one in found if one[1].carried), key=lambda one: -abs(one[1].pooled.value or 0.0))
            named = [f"{signed_label(predictor)} at {stage} {told(one)}" for (predictor, stage), one in carried[:MOST]]
            rows.append(
                [plain(signed_label(outcome)), plain(kind), plain("; ".join(named) or "none"), plain(f"{len(carried)} of {len(pairs)}")]
            )
    yield from ("### The largest, over everything", "")
    yield (
        "Spearman's rank correlation, the mean over tasks, of those whose interval holds no 0. They are the largest of many, and so larger "
        "than they will be elsewhere: what was chosen on one half and confirmed on the other stands above."
    )
    yield from ("", markdown_table(Table("", (("", ""), ("estimators", ""), ("largest", ""), ("without 0", "")), rows)))


def _beside(study: Study) -> Table:
    columns = (("predictor", ""), *((title, "") for name in ("accuracy", "curve_mean") for title in (signed_label(name), "prototypes")))
    rows = []
    for predictor, (end, curve) in FORETOLD.items():
        cells = [plain(signed_label(predictor))]
        for outcome, before in (("accuracy", end), ("curve_mean", curve)):
            cells += [plain(told(association(study, predictor, "init", outcome))), plain(before)]
        rows.append(cells)
    return Table("Beside the prototypes", columns, rows)


def _by_objective(study: Study) -> Table:
    kinds = [kind for kind in objectives(study, by_objective=True) if kind not in KINDS]
    rows = [
        [
            plain(signed_label(predictor)),
            plain(stage),
            *(tables.correlation(association(of_kind(study, kind), predictor, stage, "accuracy")) for kind in kinds),
        ]
        for predictor, stage in measured(study)
    ]
    return Table("By objective", (("predictor", ""), ("stage", ""), *((kind, "") for kind in kinds)), rows)


def _by_task(study: Study) -> Table:
    rows = []
    for predictor, stage in measured(study):
        within = association(study, predictor, stage, "accuracy", resamples=0).within
        cells = [TableCell(coefficient(within.get(task))) for task in study.tasks]
        rows.append([plain(signed_label(predictor)), plain(stage), *cells])
    return Table("Task by task", (("predictor", ""), ("stage", ""), *((task, "") for task in study.tasks)), rows)


def _special(study: Study, task: str) -> Iterator[str]:
    """What is asked of one task alone."""
    makers = {POLICY: _baselines, "pipeline": _ways, "ner": _losses}
    if task in makers:
        yield from makers[task](study.of(tasks=lambda name: name == task))


def _baselines(one: Study) -> Iterator[str]:
    """The order of ways to train a policy, each against the one before it."""
    yield from ("### The order of baselines", "")
    yield (
        "Havrylov, Kruszewski & Joulin 2019 report 99.2 with an input-dependent baseline, normalisation and PPO, where RL-SPINN has 64.8 "
        "and ST-Gumbel 61.0. Here are all that weigh samples, and all that go decision by decision; differences are paired by seed, to "
        "the estimator in the line below, and to REINFORCE without a baseline."
    )
    yield ""
    one = one.of(contenders=lambda other: other.idea == "score function" or other.family.startswith("step_"))
    scores = one.outcome("accuracy")[0]
    plainest = scores[one.names.index("reinforce")] if "reinforce" in one.names else None
    order = sorted((place for place in range(len(one.names)) if np.isfinite(scores[place]).any()), key=lambda at: -np.nanmean(scores[at]))
    rows = [
        [
            plain(one.names[place]),
            plain(estimate(mean(scores[place]))),
            plain(estimate(paired_difference(scores[place], scores[below])) if below is not None else ""),
            plain("" if plainest is None or one.names[place] == "reinforce" else estimate(paired_difference(scores[place], plainest))),
        ]
        for place, below in zip(order, [*order[1:], None], strict=True)
    ]
    yield markdown_table(Table("", (("estimator", ""), ("accuracy", ""), ("above the next", ""), ("above reinforce", "")), rows))


def _ways(one: Study) -> Iterator[str]:
    """What the second task gains by training the parser on, and how far its trees drift."""
    yield from (
        "### The four ways",
        "",
        "Differences to the pipeline, paired by seed: what the second task gains, and the drift of UAS.",
        "",
    )
    if "frozen" not in one.names:
        yield from ("`frozen` was not trained, so that there is nothing to compare with.", "")
        return
    base = one.names.index("frozen")
    rows = []
    for name, way in WAYS.items():
        here = one.of_family(name)
        if here is None:
            rows.append([plain(way), *(plain("not trained") for _ in range(4))])
            continue
        place, cells = one.names.index(here), [plain(way)]
        for metric in ("accuracy", "structure_accuracy"):
            values = one.outcome(metric)[0]
            drift = "" if place == base else estimate(paired_difference(values[place], values[base]))
            cells += [plain(estimate(mean(values[place]))), plain(drift)]
        rows.append(cells)
    titles = ("way", "accuracy", "gain", "UAS", "drift")
    yield markdown_table(Table("", tuple((title, "") for title in titles), rows))


def _losses(one: Study) -> Iterator[str]:
    """Supervised losses beside published ones."""
    yield from ("### Beside Mensch & Blondel 2018", "")
    yield from ("Span F1 on CoNLL-03, which this task is not: what is to be compared is the order.", "")
    if {*SMOOTHED} <= {*one.names}:
        squared, entropy = (one.outcome("accuracy")[0, one.names.index(name)] for name in SMOOTHED)
        yield from (f"Here ½‖·‖² is {estimate(paired_difference(squared, entropy))} above the CRF, paired by seed.", "")
    rows = [[plain(name), *map(plain, values)] for name, values in MENSCH.items()]
    yield markdown_table(Table("", (("loss", ""), *((language, "") for language in ("En", "Es", "De", "Nl"))), rows))


def _setup(known: Known) -> Iterator[str]:
    for number, manifest in enumerate(known.manifests):
        surroundings = manifest.get("environment", {})
        lines = {
            "command": f"`{_without_folder(manifest['command'])}`" if manifest.get("command") else None,
            "commit": surroundings.get("commit"),
            "processor": surroundings.get("cpu"),
            "cores": surroundings.get("cores"),
            "torch": surroundings.get("packages", {}).get("torch"),
            "started": manifest.get("started"),
            "finished": manifest.get("finished"),
        }
        yield from ([""] if number else [])
        yield from (f"- {name}: {value if name == 'command' else escaped(str(value))}" for name, value in lines.items() if value)


def _without_folder(command: str) -> str:
    """A command without where its results went, which is nobody else's matter."""
    words = shlex.split(command)
    return shlex.join(word for before, word in zip(["", *words], words, strict=False) if "--out" not in (before, word))


def main() -> None:
    """The command."""
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

"""The content of a report, before it is written as a page or as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from ...suites.metrics import METRICS
from ...suites.text import listed, number, plural, whole
from .. import bibliography
from ..analysis import answers, tables
from ..bibliography import Entry
from ..results import Manifest
from . import answering, sections
from .cells import Table, plain_table
from .learning import LearningSection, learning_of, of_gradients

PURPOSE = (
    "A model gives scores θ, from which a discrete structure z is sampled or chosen, and a loss L(z) is computed. This page compares the "
    "gradient ĝ of each estimator with the exact gradient g = ∇ E[L(z)] by bias, variance and run time."
)
LEARNING_PURPOSE = (
    "Models with a discrete latent structure z were trained on a loss L(z). Each run used another estimator ĝ of the gradient with respect "
    "to the scores θ. The tables compare accuracy and training time."
)

VERDICT_MEANING = {
    "unbiased-exact": "the bias is 0 up to rounding: all random outcomes were enumerated, or the estimator is deterministic",
    "equivalent": "the 95 % interval of the bias lies inside the margin below which a bias counts as none",
    "biased": "the test finds a bias",
    "unresolved: rare events": "too few replicates differ from the most frequent one to measure more than their share",
    "broken": "estimates are NaN or infinite",
    "unresolved": "the number of replicates proves neither; this is no evidence that there is no bias",
}
"""The meaning of the verdicts of the test for bias."""


@dataclass(frozen=True)
class EstimatorLine:
    """An estimator of a run, its documentation in a line, and its papers."""

    name: str
    text: str
    papers: tuple[Entry, ...]


@dataclass(frozen=True)
class FailureLine:
    """The cells that failed for one reason, with the traceback."""

    where: tuple[str, ...]
    status: str
    reason: str
    traceback: str


@dataclass(frozen=True)
class Report:
    """The content of a report, in its order.

    Attributes:
        headline: the estimators, problems and instances that were measured. ``counts``: of cells.
        contradictions: a sentence for every broken claim. ``claims``: one on all claims.
        minute: question and answer, in a sentence each; ``price`` is their budget. ``answers``: the table of answers.
        overview: claims and errors by entropy level. ``cost``: of every estimator. ``problems``: a table by the name of each problem.
        further: sparsity, exponents and descent, if measured. ``learning``: results of training, if any.
        skipped, failures: pairs and cells without numbers. ``setup, environment``: lines of the manifest. ``command``: of the run.
        references: publications, each with the estimators and oracles that refer to it.
        metrics, verdicts: their meaning. ``title, purpose``: of the page. ``estimators``: with an explanation each.
        comparison: of estimators of the user's own with `rloo`.
    """

    headline: str
    counts: dict[str, int]
    contradictions: list[str]
    claims: str
    minute: list[tuple[str, str]]
    price: str
    answers: Table
    overview: list[Table]
    cost: Table
    problems: dict[str, Table]
    further: list[Table]
    learning: LearningSection
    skipped: Table
    failures: list[FailureLine]
    setup: list[tuple[str, str]]
    environment: list[tuple[str, str]]
    command: str
    references: dict[Entry, list[str]]
    quick: bool = False
    title: str = "Gradient estimators compared with the exact gradient"
    purpose: str = PURPOSE
    estimators: list[EstimatorLine] = field(default_factory=list)
    comparison: Table = field(default_factory=lambda: Table("", (), []))
    metrics: dict[str, str] = field(default_factory=lambda: {name: sections.described(name) for name in METRICS})
    verdicts: dict[str, str] = field(default_factory=lambda: dict(VERDICT_MEANING))


def report(frame: pd.DataFrame, manifest: Manifest) -> Report:
    """The content of the report of a run."""
    frame = tables.by_loss(frame)
    known, learning, whole = manifest.get("catalogue", {}), learning_of(frame), frame
    frame = of_gradients(frame)
    claims, found = tables.claims(frame), answers.answers(frame, known.get("values_only"))
    return Report(
        headline=" ".join(
            filter(None, (learning.headline, headline(frame, manifest) if len(tables.measured(frame)) or not learning else ""))
        ),
        counts=tables.counts(whole),
        contradictions=contradictions(claims),
        claims=claims_sentence(claims) if not learning or (claims["verdict"] != "").any() else "",
        minute=answering.minute(found),
        price=answering.price(found),
        answers=answering.answer_table(found),
        overview=sections.claim_tables(frame, claims),
        cost=sections.cost_table(frame),
        problems={
            name: sections.problem_table(name, claims[claims["problem"] == name], tables.spreads(frame))
            for name in tables.order(claims, "problem")
        },
        further=sections.further_tables(frame),
        learning=learning,
        skipped=plain_table("Skipped pairs", tables.skipped(whole), filters=(("estimator", ""), ("oracle", ""))),
        failures=failures(whole),
        setup=setup(manifest),
        environment=environment(manifest),
        command=str(manifest.get("command", "")),
        references=bibliography.used(whole, known.get("references")),
        quick=manifest.get("preset") == "quick",
        title=title(frame, learning),
        purpose=LEARNING_PURPOSE if learning and not len(claims) else PURPOSE,
        estimators=estimator_lines(whole, known),
        comparison=sections.comparison_table(frame),
    )


def title(frame: pd.DataFrame, learning: LearningSection) -> str:
    """The title of the page: the tasks, or the structures, of the run."""
    if learning:
        return f"Training with gradient estimators: {listed(learning.study.tasks)}"
    rows = tables.measured(frame)
    structures = list(dict.fromkeys(name.partition("[")[0] for name in tables.order(rows, "oracle") if name))
    on = listed(structures) if len(structures) <= _NAMED else plural(len(structures), "structure")
    return f"{plural(rows['estimator'].nunique(), 'gradient estimator')} on {on}" if structures else "Gradient estimators"


_NAMED = 2


def estimator_lines(frame: pd.DataFrame, known: Manifest) -> list[EstimatorLine]:
    """The measured estimators, each with an explanation and its papers."""
    pairs = tables.distinct(frame[frame["status"] != "skipped"], ["estimator", "family"])
    families = [str(name) for name in pairs["family"].unique()]
    texts = known.get("explained") or bibliography.explained(families)
    cited = known.get("references") or bibliography.cited(families, [])
    papers = bibliography.entries()
    return [
        EstimatorLine(str(name), "Your own estimator.", ())
        if answers.is_own(name)
        else EstimatorLine(str(name), texts.get(family, ""), tuple(papers[key] for key in cited.get(family, ()) if key in papers))
        for name, family in pairs.itertuples(index=False, name=None)
        if family
    ]


def headline(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The estimators, problems and instances that were measured, in one sentence."""
    rows = tables.measured(frame)
    estimators, problems = plural(rows["estimator"].nunique(), "estimator"), plural(rows["problem"].nunique(), "problem")
    pairs = plural(
        len(tables.distinct(rows, ["problem", "stage"])), "pair of problem and entropy level", "pairs of problem and entropy level"
    )
    # An instance counts at every entropy level.
    instances = plural(len(tables.distinct(rows[rows["instance"] != ""], ["problem", "stage", "instance"])), "instance")
    replicates = rows["replicates"].max()
    precision = "" if pd.isna(replicates) else f", up to {whole(replicates)} replicates each"
    return f"{estimators} on {problems} ({pairs}, {instances}{precision}), compared with the exact gradient."


def contradictions(claims: pd.DataFrame) -> list[str]:
    """One sentence for every estimator that declares itself unbiased for the expected loss and is found biased."""
    sentences = []
    for name, found in claims[claims["contradicted"]].groupby("estimator", sort=False):
        first = next(tables.records(found))
        gain = float(np.median([spread.median for spread in found["gain"] if spread is not None] or [1.0]))
        cases = int((claims["estimator"] == name).sum())
        sentences.append(
            f"{name} declares itself unbiased, and {'returns NaN or infinity' if first.verdict == 'broken' else 'is found biased'} "
            f"on {first.problem}, {first.stage} ({whole(first.sharing)} of {whole(first.instances)} instances)"
            + (f". The claim fails in {len(found) - 1} more of its {cases} pairs of problem and entropy level" if len(found) > 1 else "")
            + ("." if abs(gain - 1) < _GAIN_SHOWN else f". Its median gain is {number(gain)}; that of an unbiased estimator is 1.")
        )
    return sentences


_GAIN_SHOWN = 0.01
"""Difference from 1 from which a gain explains a bias."""


def claims_sentence(claims: pd.DataFrame) -> str:
    """The numbers of claims of unbiasedness that hold and that do not."""
    made = claims[claims["unbiased"] & (claims["objective"] == "expected") & (claims["verdict"] != "")]
    counts = made["verdict"].value_counts()
    if made.empty:
        return "No estimator claims to be unbiased for the expected loss."
    proven = int(counts.get("unbiased-exact", 0) + counts.get("equivalent", 0))
    open_ = int(sum(number for word, number in counts.items() if str(word).startswith("unresolved")))
    broken = int(counts.get("biased", 0) + counts.get("broken", 0))
    undecided = f", {open_} undecided" if open_ else ""
    return (
        f"Of {plural(len(made), 'claim')} of unbiasedness (one per estimator, problem and entropy level) {proven} hold{undecided}, "
        f"{broken} broken."
    )


def failures(frame: pd.DataFrame) -> list[FailureLine]:
    """The failed cells: one entry for each reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in tables.records(tables.errors(frame)):
        where = f"{row.estimator} on {', '.join(filter(None, (row.problem, row.stage, row.instance)))} ({row.suite})"
        found.setdefault((row.status, str(row.reason), str(row.traceback or "")), []).append(where)
    return [FailureLine(tuple(where), *key) for key, where in found.items()]


def setup(manifest: Manifest) -> list[tuple[str, str]]:
    """Lines (name, value) of the plan, with its effort and its seed."""
    plan = dict(manifest.get("plan", {}))
    effort = plan.pop("effort", None)
    named = {"entropy levels" if key == "stages" else key: value for key, value in plan.items() if key != "seed"}
    named = {key: (", ".join(map(str, value)) or "all") if isinstance(value, list | tuple) else value for key, value in named.items()}
    efforts = {f"effort: {key}": value for key, value in effort.items()} if isinstance(effort, dict) else {}
    return _lines({"preset": manifest.get("preset"), "seed": manifest.get("seed"), **named, **efforts, "plan": manifest.get("plan_hash")})


def environment(manifest: Manifest) -> list[tuple[str, str]]:
    """Lines (name, value) of the machine, the versions and the dates."""
    surroundings = dict(manifest.get("environment", {}))
    packages, commit = surroundings.pop("packages", {}), surroundings.pop("commit", None)
    dirty = " with changes that are not committed" if surroundings.pop("dirty", False) else ""
    dates = {name: manifest.get(name) for name in ("started", "finished")}
    workers = manifest.get("machine", {}).get("jobs")
    return _lines({**dates, "commit": f"{commit}{dirty}" if commit else None, "workers": workers, **surroundings, **packages})


def _lines(found: dict[str, object]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in found.items() if value not in (None, "")]

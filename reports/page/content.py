"""Everything that a report says, before it is written as a page or as Markdown."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from ...suites.metrics import METRICS
from ...suites.text import plural, whole
from .. import bibliography
from ..analysis import answers, tables
from ..bibliography import Entry
from ..results import Manifest
from . import answering, sections
from .cells import Table, plain_table
from .learning import LearningSection, learning_of, of_gradients

VERDICT_MEANING = {
    "unbiased-exact": "all outcomes of the randomness were replayed, or there is none: the bias is 0 up to rounding",
    "equivalent": "the whole interval of the bias lies inside the margin below which a bias counts as none",
    "biased": "the test finds a bias",
    "unresolved: rare events": "too few replicates differ from the most frequent one for any number but shares to be known",
    "broken": "estimates are NaN or infinite",
    "unresolved": "neither is proven with this number of replicates; this is no evidence that there is no bias",
}
"""What the words of the test for bias say, and what they do not say."""


@dataclass(frozen=True)
class FailureLine:
    """What failed for one reason, with all the places, and the traceback."""

    where: tuple[str, ...]
    status: str
    reason: str
    traceback: str


@dataclass(frozen=True)
class Report:
    """Everything that a report says, in its order.

    Attributes:
        headline: what was measured. ``counts``: of cells.
        contradictions: a sentence for every broken claim. ``claims``: one on all claims.
        minute: question and answer, in a sentence each; ``price`` says with what budget. ``answers``: the table of answers.
        overview: claims and errors by stage. ``cost``: of every estimator. ``problems``: a table by the name of each problem.
        further: sparsity, exponents and descent, where they were measured. ``learning``: what models learnt, where they were trained.
        skipped, failures: what was not measured, and why. ``setup, environment``: lines of the manifest. ``command``: that repeats the run.
        references: publications, each with the estimators and oracles that refer to it.
        metrics, verdicts: their meaning.
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
    metrics: dict[str, str] = field(default_factory=lambda: {name: metric.meaning for name, metric in METRICS.items()})
    verdicts: dict[str, str] = field(default_factory=lambda: dict(VERDICT_MEANING))


def report(frame: pd.DataFrame, manifest: Manifest) -> Report:
    """All that is to be said about a run."""
    frame = tables.by_loss(frame)
    known, learning, whole = manifest.get("catalogue", {}), learning_of(frame), frame
    frame = of_gradients(frame)
    costs = tables.costs(frame)
    claims, found = tables.claims(frame), answers.answers(frame, known.get("values_only"))
    further = [sections.sparsity_table(tables.sparsity(frame)), sections.exponent_table(frame), sections.descent_table(frame)]
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
        cost=sections.cost_table(costs),
        problems={name: sections.problem_table(name, claims[claims["problem"] == name], costs) for name in tables.order(claims, "problem")},
        further=[table for table in further if table.rows],
        learning=learning,
        skipped=plain_table("Skipped pairs", tables.skipped(whole), filters=(("estimator", ""), ("oracle", ""))),
        failures=failures(whole),
        setup=setup(manifest),
        environment=environment(manifest),
        command=str(manifest.get("command", "")),
        references=bibliography.used(whole, known.get("references")),
        quick=manifest.get("preset") == "quick",
    )


def headline(frame: pd.DataFrame, manifest: Manifest) -> str:
    """What was measured, in one sentence."""
    rows = tables.measured(frame)
    replicates = rows["replicates"].dropna()
    return extent(
        rows["estimator"].nunique(),
        rows["problem"].nunique(),
        len(tables.cells(rows)),
        instances(rows),
        float(replicates.max()) if len(replicates) else None,
    )


def instances(rows: pd.DataFrame) -> int:
    """On how many instances something was measured, each counted at every stage."""
    return len(tables.distinct(rows[rows["instance"] != ""], ["problem", "stage", "instance"]))


def extent(estimators: int, problems: int, pairs: int, instances: int, replicates: float | None) -> str:
    """The same of numbers.

    Example:
        >>> extent(2, 1, 1, 3, None)
        '2 estimators on 1 problem (1 pair of problem and stage, 3 instances), compared with the exact gradient of the expected loss.'
    """
    parts = (
        plural(estimators, "estimator"),
        plural(problems, "problem"),
        plural(pairs, "pair of problem and stage", "pairs of problem and stage"),
        plural(instances, "instance"),
    )
    precision = f", up to {whole(replicates)} replicates each" if replicates is not None else ""
    return f"{parts[0]} on {parts[1]} ({parts[2]}, {parts[3]}{precision}), compared with the exact gradient of the expected loss."


def contradictions(claims: pd.DataFrame) -> list[str]:
    """One sentence for every estimator that is found biased although it declares otherwise."""
    found = claims[claims["contradicted"]]
    return [
        f"{row.estimator} declares itself unbiased, and {'returns NaN or infinity' if row.verdict == 'broken' else 'is found biased'} "
        f"on {row.problem}, {row.stage} "
        f"({whole(row.sharing)} of {whole(row.instances)} instances)."
        for row in tables.records(found)
    ]


def claims_sentence(claims: pd.DataFrame) -> str:
    """How the claims of unbiasedness stand."""
    made = claims[claims["unbiased"] & (claims["objective"] == "expected") & (claims["verdict"] != "")]
    counts = made["verdict"].value_counts()
    if made.empty:
        return "No estimator claims to be unbiased for the expected loss."
    proven = int(counts.get("unbiased-exact", 0) + counts.get("equivalent", 0))
    open_ = int(sum(number for word, number in counts.items() if str(word).startswith("unresolved")))
    broken = int(counts.get("biased", 0) + counts.get("broken", 0))
    undecided = f", {open_} undecided" if open_ else ""
    return (
        f"Of {plural(len(made), 'claim')} of unbiasedness (one per estimator, problem and stage) {proven} hold{undecided}, {broken} broken."
    )


def failures(frame: pd.DataFrame) -> list[FailureLine]:
    """What failed: one entry for everything that failed for one reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in tables.records(tables.errors(frame)):
        where = f"{row.estimator} on {', '.join(filter(None, (row.problem, row.stage, row.instance)))} ({row.suite})"
        found.setdefault((row.status, str(row.reason), str(row.traceback or "")), []).append(where)
    return [FailureLine(tuple(where), *key) for key, where in found.items()]


def setup(manifest: Manifest) -> list[tuple[str, str]]:
    """The plan as (what, value) lines, with its effort and its seed."""
    plan = dict(manifest.get("plan", {}))
    effort = plan.pop("effort", None)
    lines = {
        "preset": manifest.get("preset"),
        "seed": manifest.get("seed"),
        **{key: _value(value) for key, value in plan.items() if key != "seed"},
        **({f"effort: {key}": value for key, value in effort.items()} if isinstance(effort, dict) else {}),
        "plan": manifest.get("plan_hash"),
    }
    return _lines(lines)


def environment(manifest: Manifest) -> list[tuple[str, str]]:
    """Where and when, as (what, value) lines."""
    surroundings = dict(manifest.get("environment", {}))
    packages = surroundings.pop("packages", {})
    dirty = " with changes that are not committed" if surroundings.pop("dirty", False) else ""
    commit = surroundings.pop("commit", None)
    workers = manifest.get("machine", {}).get("jobs")
    return _lines(
        {
            "started": manifest.get("started"),
            "finished": manifest.get("finished"),
            "commit": f"{commit}{dirty}" if commit else None,
            "workers": workers,
            **surroundings,
            **packages,
        }
    )


def _lines(found: dict[str, object]) -> list[tuple[str, str]]:
    return [(key, str(value)) for key, value in found.items() if value not in (None, "")]


def _value(value: object) -> object:
    return (", ".join(map(str, value)) or "all") if isinstance(value, list | tuple) else value

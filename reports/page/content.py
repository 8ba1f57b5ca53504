"""The content of a report, before it is written as a page or as Markdown."""

from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pandas as pd

from ...suites.metrics import METRICS
from ...suites.text import listed, number, plural, whole
from .. import bibliography
from ..analysis import answers, tables
from ..bibliography import Entry
from ..results import Manifest
from . import sections
from .cells import plain_table
from .learning import LearningSection, learning_of, of_gradients

PURPOSE = (
    "A model gives scores θ, from which a discrete structure z is sampled or chosen, and a loss L(z) is computed. This page compares the "
    "gradient ĝ of each estimator with the exact gradient g = ∇ E[L(z)] by bias, variance and run time."
)
LEARNING_PURPOSE = (
    "Models with a discrete latent structure z were trained on a loss L(z). Each run used another estimator ĝ of the gradient with respect "
    "to the scores θ. The tables compare accuracy and training time."
)

VERDICT_MEANING = {verdict: meaning for verdict, (_, _, meaning) in tables.VERDICTS.items()}
METRIC_MEANING = {name: sections.described(name) for name in METRICS}  # the meaning of all metrics


def report(frame: pd.DataFrame, manifest: Manifest) -> SimpleNamespace:
    """The content of the report of a run, in its order."""
    every = tables.by_loss(frame)
    known, learning, frame = manifest.get("catalogue", {}), learning_of(every), of_gradients(every)
    claims, found = tables.claims(frame), answers.answers(frame, known.get("values_only"))
    failures = defaultdict[tuple[str, str, str], list[str]](list)
    for row in tables.items_of(tables.errors(every)):
        where = f"{row.estimator} on {', '.join(filter(None, (row.problem, row.stage, row.instance)))} ({row.suite})"
        failures[row.status, str(row.reason), str(row.traceback or "")].append(where)
    extent = headline(frame) if len(tables.measured(frame)) or not learning else ""
    return SimpleNamespace(
        title=_title(frame, learning),
        purpose=LEARNING_PURPOSE if learning and not len(claims) else PURPOSE,
        headline=" ".join(filter(None, (learning.headline, extent))),
        counts=tables.counts(every),
        quick=manifest.get("preset") == "quick",
        contradictions=contradictions(claims),
        claims=_claims_sentence(claims) if not learning or (claims["verdict"] != "").any() else "",
        minute=sections.minute(found),  # questions and answers
        price=sections.price(found),  # their budget
        answers=sections.answer_table(found),
        comparison=sections.comparison_table(frame),  # of the user's own estimators with `rloo`
        overview=sections.claim_tables(claims),  # by entropy level
        cost=sections.cost_table(frame),
        problems=sections.problem_tables(frame, claims),
        further=sections.further_tables(frame),
        learning=learning,
        skipped=plain_table("Skipped pairs", tables.skipped(every), filters=(("estimator", ""), ("oracle", ""))),
        failures=[{"where": where, **dict(zip(("status", "reason", "traceback"), key, strict=True))} for key, where in failures.items()],
        estimators=_estimator_lines(every, known),  # with explanation and papers
        **_settings(manifest),
        command=str(manifest.get("command", "")),
        references=bibliography.used(every, known.get("references")),
    )


def _title(frame: pd.DataFrame, learning: LearningSection) -> str:
    if learning:
        return f"Training with gradient estimators: {listed(learning.study.tasks)}"
    rows = tables.measured(frame)
    structures = list(dict.fromkeys(name.partition("[")[0] for name in tables.order(rows, "oracle") if name))
    on = listed(structures) if len(structures) <= 2 else plural(len(structures), "structure")
    return f"{plural(rows['estimator'].nunique(), 'gradient estimator')} on {on}" if structures else "Gradient estimators"


def _estimator_lines(frame: pd.DataFrame, known: Manifest) -> list[tuple[str, str, list[Entry]]]:
    """The measured estimators, each with an explanation and its papers."""
    pairs = tables.distinct(frame[(frame["status"] != "skipped") & (frame["family"] != "")], ["estimator", "family"])
    families = [str(name) for name in pairs["family"].unique()]
    texts = bibliography.explained(families)
    cited = known.get("references") or bibliography.cited(families, [])
    papers = bibliography.entries()
    return [
        (name, "Your own estimator.", [])
        if answers.is_own(name)
        else (name, texts.get(family, ""), [papers[key] for key in cited.get(family, ()) if key in papers])
        for name, family in pairs.itertuples(index=False, name=None)
    ]


def headline(frame: pd.DataFrame) -> str:
    """The estimators, problems and instances that were measured, in one sentence."""
    rows = tables.measured(frame)
    estimators, problems = plural(rows["estimator"].nunique(), "estimator"), plural(rows["problem"].nunique(), "problem")
    cells = len(tables.distinct(rows, ["problem", "stage"]))
    # An instance counts at every entropy level.
    instances = plural(len(tables.distinct(rows[rows["instance"] != ""], ["problem", "stage", "instance"])), "instance")
    replicates = rows["replicates"].max()
    precision = "" if pd.isna(replicates) else f", up to {whole(replicates)} replicates each"
    pairs = plural(cells, "pair of problem and entropy level", "pairs of problem and entropy level")
    return f"{estimators} on {problems} ({pairs}, {instances}{precision}), compared with the exact gradient."


def contradictions(claims: pd.DataFrame) -> list[str]:
    """One sentence for every estimator that declares itself unbiased for the expected loss and is found biased."""
    sentences = []
    for name, found in claims[claims["contradicted"]].groupby("estimator", sort=False):
        first = next(tables.items_of(found))
        gain = float(np.median([spread.median for spread in found["gain"] if spread is not None] or [1.0]))
        cases = int((claims["estimator"] == name).sum())
        sentences.append(
            f"{name} declares itself unbiased, and {'returns NaN or infinity' if first.verdict == 'broken' else 'is found biased'} "
            f"on {first.problem}, {first.stage} ({whole(first.sharing)} of {whole(first.instances)} instances)"
            + (f". The claim fails in {len(found) - 1} more of its {cases} pairs of problem and entropy level" if len(found) > 1 else "")
            # A gain near 1 does not explain a bias.
            + ("." if abs(gain - 1) < 0.01 else f". Its median gain is {number(gain)}; that of an unbiased estimator is 1.")
        )
    return sentences


def _claims_sentence(claims: pd.DataFrame) -> str:
    """The numbers of claims of unbiasedness that hold and that do not."""
    made = claims.loc[claims["unbiased"] & (claims["objective"] == "expected") & (claims["verdict"] != ""), "verdict"].astype(str)
    if made.empty:
        return "No estimator claims to be unbiased for the expected loss."
    proven, broken = (int(made.isin(words).sum()) for words in (["unbiased-exact", "equivalent"], ["biased", "broken"]))
    undecided = f", {open_} undecided" if (open_ := len(made) - proven - broken) else ""
    claimed = f"{plural(len(made), 'claim')} of unbiasedness (one per estimator, problem and entropy level)"
    return f"Of {claimed} {proven} hold{undecided}, {broken} broken."


def _settings(manifest: Manifest) -> dict[str, list[tuple[str, str]]]:
    """Lines (name, value) of the plan with its effort, and of the machine, the versions and the dates."""
    plan, surroundings = dict(manifest.get("plan", {})), dict(manifest.get("environment", {}))
    effort = plan.pop("effort", None)
    named = {"entropy levels" if key == "stages" else key: value for key, value in plan.items() if key != "seed"}
    named = {key: (", ".join(map(str, value)) or "all") if isinstance(value, list | tuple) else value for key, value in named.items()}
    efforts = {f"effort: {key}": value for key, value in effort.items()} if isinstance(effort, dict) else {}
    packages, commit = surroundings.pop("packages", {}), surroundings.pop("commit", None)
    dirty = " with changes that are not committed" if surroundings.pop("dirty", False) else ""
    dates = {name: manifest.get(name) for name in ("started", "finished")}
    machine = {"commit": f"{commit}{dirty}" if commit else None, "workers": manifest.get("machine", {}).get("jobs")}
    found: dict[str, dict[str, object]] = {
        "setup": {**{name: manifest.get(name) for name in ("preset", "seed")}, **named, **efforts, "plan": manifest.get("plan_hash")},
        "environment": {**dates, **machine, **surroundings, **packages},
    }
    return {title: [(key, str(value)) for key, value in lines.items() if value not in (None, "")] for title, lines in found.items()}

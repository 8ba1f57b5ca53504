"""The page: one file that holds its style, scripts, charts and numbers, and asks for nothing else."""

from __future__ import annotations

import functools
import json

import jinja2
import pandas as pd
from markupsafe import Markup

from ...suites.metrics import METRICS
from ..analysis import tables
from ..analysis.answers import QUESTIONS
from ..results import Manifest
from . import answering, charts, dataset, marks, sections, vega
from .content import report
from .learning import of_gradients
from .looks import looks

TRAINING_CHARTS = {
    "learning-curves": (
        "Learning curves",
        "Accuracy on the test split, mean over seeds with 95 % bands; higher is better. Dotted lines are floor and ceiling. "
        "Choose estimators in the legend.",
    ),
    "learning-points": (
        "Predictors of final accuracy",
        "Each mark is an estimator: a number of its gradient, or the quality of its structures, and its final accuracy; means over seeds. "
        "Shapes are objectives, and filled marks are stochastic. High accuracy with poor structures is coadaptation.",
    ),
    "learning-survival": (
        "Time to the target",
        "Share of seeds below .95 of the ceiling (Kaplan–Meier); lower is better. A line that stays above 0 has seeds that never reach it.",
    ),
    "learning-profile": (
        "Performance profile",
        "Share of runs whose normalised accuracy is at least x, with equal weights of tasks and 95 % bands; higher is better.",
    ),
    "learning-improvement": (
        "Probability of improvement over rloo",
        "Probability that a run ends with a higher accuracy than one of rloo, mean over tasks, with a 95 % interval. Above .5 is better.",
    ),
}
"""Title and caption of each chart of training."""

MANY_ROWS = 30
"""A table with more of them is compressed in the page, and filled when it scrolls into view."""


def to_html(frame: pd.DataFrame, manifest: Manifest) -> str:
    """Render the page of a run. It loads nothing from anywhere else.

    Where the manifest has a ``folder``, the commands that measure a cell again name it.
    """
    frame = tables.by_loss(frame)
    found, held = report(frame, manifest), dataset.held(frame)
    drawn, training = marks.held(of_gradients(frame), manifest.get("catalogue", {})), found.learning.charts()
    specs = dict(charts.specs())
    if training:
        colours = {name: colour for name, (colour, _) in looks(frame).items()}
        metrics = list(dict.fromkeys(training["learning-points"]["metric"])) if "learning-points" in training else []
        specs |= charts.training_specs(found.learning.study.names, colours, metrics)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            report=found,
            problems=found.problems,
            bibtex="\n\n".join(entry.source for entry in found.references),
            data=dataset.packed(held),
            numbers=dataset.summary(held, len(frame)),
            training={name: TRAINING_CHARTS[name] for name in training},
            charts=len(drawn["cells"]) > 0,
            marks=dataset.packed({**drawn, **training}),
            vega=vega.packed(),
            specs=dataset.deflated(_json(specs)),
            questions=_json(_questions(timed=bool((frame["metric"] == "time_ratio").any()))),
            folder=manifest.get("folder", "RUN"),
            many=MANY_ROWS,
            main=sections.MAIN,
        )
    )


def _questions(*, timed: bool) -> dict[str, dict[str, object]]:
    """The questions by name, for the script of the page."""
    return {
        question.name: {
            "asks": question.asks,
            "criterion": question.criterion,
            "label": answering.SCORES[question.score][0],
            "unit": answering.unit(question.score, timed=timed),
            "lower": question.logarithmic,
            "meaning": answering.SCORES[question.score][1],
            "budgeted": question.score != "variance_seconds",
        }
        for question in QUESTIONS
    }


def _json(found: object) -> Markup:
    """JSON that is safe inside of a script."""
    return Markup(json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


@functools.cache
def environment() -> jinja2.Environment:
    """Compiles a template once."""
    loader = jinja2.PackageLoader(__package__)
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters["deflated"] = dataset.deflated
    found.filters["label"] = lambda metric: METRICS[metric].label or METRICS[metric].title or metric
    return found

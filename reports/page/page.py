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
from .drawing.learning import draw_learning
from .learning import of_gradients

MANY_ROWS = 30
"""A table with more of them is compressed in the page, and filled when it scrolls into view."""


def to_html(frame: pd.DataFrame, manifest: Manifest) -> str:
    """Render the page of a run. It loads nothing from anywhere else.

    Where the manifest has a ``folder``, the commands that measure a cell again name it.
    """
    frame = tables.by_loss(frame)
    found, held = report(frame, manifest), dataset.held(frame)
    drawn = marks.held(of_gradients(frame), manifest.get("catalogue", {}))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            report=found,
            problems=found.problems,
            bibtex="\n\n".join(entry.source for entry in found.references),
            data=dataset.packed(held),
            numbers=dataset.summary(held, len(frame)),
            learning=draw_learning(found.learning.material) if found.learning else [],
            charts=len(drawn["cells"]) > 0,
            marks=dataset.packed(drawn),
            vega=vega.packed(),
            specs=_specs(),
            questions=_json(_questions(timed=bool(drawn["cells"]["seconds"].notna().any()))),
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
            "label": answering.SCORES[question.score].label,
            "unit": answering.unit(question.score, timed=timed),
            "lower": question.logarithmic,
            "meaning": answering.SCORES[question.score].meaning,
            "budgeted": question.score != "variance_seconds",
        }
        for question in QUESTIONS
    }


@functools.cache
def _specs() -> str:
    """The charts, which are the same on every page, compressed."""
    return dataset.deflated(_json(charts.specs()))


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

"""The two writers of a report: a page in one file that asks for nothing else, and Markdown for a comment on a pull request."""

import base64
import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import jinja2
import pandas as pd
from markupsafe import Markup

from ...suites.metrics import label_of
from ...suites.text import cells_line, plural
from ..analysis import tables
from ..analysis.answers import MAIN_BUDGET, QUESTIONS
from ..results import Manifest
from . import charts, dataset, sections
from .content import METRIC_MEANING, VERDICT_MEANING, report
from .learning import of_gradients

MANY_ROWS = 30  # a table with more of them is compressed in the page, and filled when it scrolls into view
COMMENT_LIMIT = 60_000  # characters that fit into a comment on a pull request


def to_html(frame: pd.DataFrame, manifest: Manifest) -> str:
    """Render the page of a run. Where the manifest has a ``folder``, the commands that measure a cell again name it."""
    frame = tables.by_loss(frame)
    found, held = report(frame, manifest), dataset.held(frame)
    drawn, training = dataset.marks(of_gradients(frame), manifest.get("catalogue", {})), found.learning.charts
    specs = dict(charts.specs())
    if training:
        colours = dataset.looks(frame)["colour"].to_dict()
        metrics = list(dict.fromkeys(training["learning-points"]["metric"])) if "learning-points" in training else []
        specs |= charts.training_specs(found.learning.study.names, colours, metrics)
    timed = bool((frame["metric"] == "time_ratio").any())
    questions = {
        question.name: {
            "asks": question.asks,
            "criterion": question.criterion,
            "label": sections.SCORES[question.score][0],
            "unit": sections.unit(question.score, timed=timed),
            "lower": question.logarithmic,
            "meaning": sections.SCORES[question.score][1],
            "budgeted": question.score != "variance_seconds",
        }
        for question in QUESTIONS
    }
    values = {"report": found, "training": training, "charts": len(drawn["cells"]) > 0, "folder": manifest.get("folder", "RUN")}
    values |= {"data": dataset.packed(held), "numbers": dataset.summary(held, len(frame)), "many": MANY_ROWS, "main": sections.MAIN}
    values |= {"marks": dataset.packed({**drawn, **training}), "specs": dataset.deflated(_json(specs)), "questions": _json(questions)}
    values |= {"vega": vega(), "verdicts": VERDICT_MEANING, "metrics": METRIC_MEANING}
    return environment().get_template("report.html.j2").render(values)


def to_markdown(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The tables of the page as Markdown, short enough for a comment; parts that do not fit are named."""
    found = report(frame, manifest)
    budget = plural(MAIN_BUDGET, "estimate")  # a comment has room for one
    every = [replace(found.answers, rows=[row for row in found.answers.rows if row[2].text == budget]), found.comparison, *found.overview]
    every += [*found.problems.values(), found.cost, found.skipped, *found.further]
    words, some = {**VERDICT_MEANING, **METRIC_MEANING}, [table for table in every if table.rows]
    whole = document("report.md.j2", report=found, cells=cells_line(found.counts), tables=some, words=words).decode()
    text, *parts = re.split(r"(?m)^(?=<details)", whole)
    last, left_out = f"Reproduce: `{found.command}`\n\n", []
    for part in parts:
        if len(text) + len(part) + len(last) <= COMMENT_LIMIT:
            text += part
        else:
            left_out += re.findall("<summary>(.*)</summary>", part)
    return text + last + (f"\nLeft out, since a comment has a limit: {', '.join(left_out)}.\n" if left_out else "")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([|*_`\[\]])", r"\\\1", safe(text).replace("\n", " "))


def safe(text: str) -> str:
    """Text that is safe in HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


@functools.cache
def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that needs no network, compressed by gzip, in base64.

    ``vl_convert.javascript_bundle()`` of vl-convert-python 1.9 made it, of Vega-Lite 6.4, whose schema Altair checks charts against.
    Their licence is in the same folder. The file is kept because making it takes seconds, and a package of 30 MB.
    """
    return base64.b64encode((Path(__file__).parent / "templates" / "vega.js.gz").read_bytes()).decode()


def _json(found: object) -> Markup:
    """JSON that is safe inside of a script."""
    return Markup(json.dumps(found, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def document(template: str, **values: object) -> bytes:
    """A page in Markdown."""
    plain = environment().overlay(autoescape=False, keep_trailing_newline=True)
    return plain.get_template(template).render(**values).encode()


@functools.cache
def environment() -> jinja2.Environment:
    """The templates of this package, each compiled once."""
    loader = jinja2.PackageLoader(__package__)
    found = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    found.filters |= {"deflated": dataset.deflated, "escaped": escaped, "safe_text": safe, "label": label_of}
    return found

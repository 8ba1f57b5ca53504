"""The page: one file that holds its style, script, figures and numbers, and asks for nothing else."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jinja2
import pandas as pd
from markupsafe import Markup

from ..analysis.tables import order
from ..results import Manifest
from . import dataset, figures
from .content import report
from .figures import Drawing
from .figures.learning import draw_learning
from .learning import of_gradients


@dataclass(frozen=True)
class Shown:
    """A figure of the page."""

    drawing: Drawing
    svg: Markup


def to_html(frame: pd.DataFrame, manifest: Manifest) -> str:
    """The page. It holds its style, script and figures, and asks for nothing else."""
    found, held = report(frame, manifest), dataset.held(frame)
    drawings = [Shown(drawing, Markup(drawing.svg)) for drawing in figures.draw(of_gradients(frame))]
    problems = dict.fromkeys([*found.problems, *(shown.drawing.problem for shown in drawings if shown.drawing.problem)])
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=found,
            overall=[shown for shown in drawings if not shown.drawing.problem],
            problems={name: [shown for shown in drawings if shown.drawing.problem == name] for name in problems},
            bibtex="\n\n".join(entry.source for entry in found.references),
            learning=[Shown(drawing, Markup(drawing.svg)) for drawing in draw_learning(found.learning.material)] if found.learning else [],
            data=dataset.packed(held),
            numbers=dataset.told(held, len(frame)),
            stages=order(frame, "stage"),
        )
    )


@functools.cache
def _environment() -> jinja2.Environment:
    """Compiles a template once."""
    loader = jinja2.PackageLoader(__package__)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)

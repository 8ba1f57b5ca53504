"""The drawings of training: looks of estimators, scales, and files."""

from __future__ import annotations

import math
import re

import pandas as pd
import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.reports import results
from structgrad.reports.page.drawing.drawing import Drawing
from structgrad.reports.page.drawing.learning import LearningMaterial, draw_learning
from structgrad.reports.page.drawing.scale import Scale
from structgrad.reports.page.drawing.styles import INK, family_style, styles
from structgrad.suites.learning import study
from tests.suites.learning.planted import planted


def drawn() -> list[Drawing]:
    rows = planted(("clusters", "matching"), ("exact", "reinforce", "ste"), 2)
    return draw_learning(LearningMaterial.of(study(rows), results.to_frame(rows)))


@pytest.fixture(scope="module")
def drawings() -> list[Drawing]:
    return drawn()


def test_the_same_table_gives_the_same_bytes(drawings: list[Drawing]) -> None:
    assert drawn() == drawings


def test_ids_are_unique_over_all_figures_and_every_reference_is_met(drawings: list[Drawing]) -> None:
    page = "".join(drawing.svg for drawing in drawings)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_text_has_the_colour_of_the_page_and_nothing_is_opaque_behind_it(drawings: list[Drawing]) -> None:
    for drawing in drawings:
        assert "currentColor" in drawing.svg
        assert INK not in drawing.svg
        assert not re.search(r'fill="(#fff|#000|white|black)', drawing.svg)
        assert not re.search(r'<text[^>]*fill="#', drawing.svg)


def test_every_family_of_structgrad_has_a_look_of_its_own() -> None:
    looks = [family_style(name) for name in ESTIMATORS]
    assert len(set(looks)) == len(ESTIMATORS)


def test_an_unknown_family_always_gets_the_same_look() -> None:
    assert family_style("mine") == family_style("mine")


def test_options_of_a_family_differ_in_colour_and_filling() -> None:
    frame = pd.DataFrame({"estimator": ["imle[lambda=1]", "imle[lambda=9]"], "family": ["imle", "imle"]})
    first, second = styles(frame).values()
    assert first.marker == second.marker
    assert first.colour != second.colour
    assert first.fill != second.fill


def test_zero_is_drawn_below_everything_else_and_marked() -> None:
    scale = Scale.of([0.0, 1e-3, 10.0, math.inf, math.nan])
    assert scale.place(0.0) < scale.place(1e-3) < scale.place(10.0)
    places, labels = scale.ticks()
    assert labels[0] == "0"
    assert places[0] == scale.place(0.0)
    assert scale.limits()[0] < scale.place(0.0)
    assert "0" not in Scale.of([1e-3, 10.0]).ticks()[1]


def test_a_figure_can_be_painted(drawings: list[Drawing]) -> None:
    assert drawings[0].picture.png(50).startswith(b"\x89PNG")

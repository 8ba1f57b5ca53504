from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pandas as pd
import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.reports import canvas, figures, results
from structgrad.reports.figures import _Scale
from tests.reports import examples


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.fixture(scope="module")
def drawings(frame: pd.DataFrame) -> list[figures.Drawing]:
    return figures.draw(frame)


def test_three_kinds_for_every_problem(drawings: list[figures.Drawing]) -> None:
    assert [(drawing.kind, drawing.problem) for drawing in drawings] == [
        ("bias-variance", "toy"),
        ("cost-error", "toy"),
        ("sparsity", "toy"),
    ]


def test_figures_name_every_estimator_and_stage(drawings: list[figures.Drawing]) -> None:
    for drawing in drawings:
        texts = {element.text for element in ElementTree.fromstring(drawing.svg).iter() if element.tag.endswith("text")}
        assert {*examples.ESTIMATORS, *examples.STAGES} <= texts


def test_the_same_table_gives_the_same_bytes(frame: pd.DataFrame, drawings: list[figures.Drawing]) -> None:
    assert figures.draw(frame) == drawings


def test_ids_are_unique_over_all_figures_and_every_reference_is_met(drawings: list[figures.Drawing]) -> None:
    page = "".join(drawing.svg for drawing in drawings)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', page)) <= set(ids)


def test_text_has_the_colour_of_the_page_and_nothing_is_opaque_behind_it(drawings: list[figures.Drawing]) -> None:
    for drawing in drawings:
        assert "currentColor" in drawing.svg
        assert canvas.INK not in drawing.svg
        assert not re.search(r"fill: (#fff|#000|white|black)", drawing.svg)
        assert not re.search(r"<text[^>]*fill: #", drawing.svg)


def test_every_family_of_structgrad_has_a_look_of_its_own() -> None:
    looks = [figures.family_style(name) for name in ESTIMATORS]
    assert len(set(looks)) == len(ESTIMATORS)


def test_an_unknown_family_always_gets_the_same_look() -> None:
    assert figures.family_style("mine") == figures.family_style("mine")


def test_options_of_a_family_differ_in_their_filling_only() -> None:
    frame = pd.DataFrame({"estimator": ["imle[lambda=1]", "imle[lambda=9]"], "family": ["imle", "imle"]})
    first, second = figures.styles(frame).values()
    assert (first.colour, first.marker) == (second.colour, second.marker)
    assert first.fill != second.fill


def test_zero_is_drawn_below_everything_else_and_marked() -> None:
    scale = _Scale.of([0.0, 1e-3, 10.0, math.inf, math.nan])
    assert scale.place(0.0) < scale.place(1e-3) < scale.place(10.0)
    places, labels = scale.ticks()
    assert labels[0] == "0"
    assert places[0] == scale.place(0.0)
    assert scale.limits()[0] < scale.place(0.0)
    assert "0" not in _Scale.of([1e-3, 10.0]).ticks()[1]


def test_the_front_joins_what_nothing_beats_and_skips_the_exact_gradient() -> None:
    points = pd.DataFrame(
        {
            "family": ["exact", "a", "b", "c", "d"],
            "median_x": [0.5, 1.0, 2.0, 3.0, 4.0],
            "median_y": [0.0, 5.0, 7.0, 2.0, 2.0],
        }
    )
    assert list(figures.pareto_front(points)["family"]) == ["a", "c"]


def test_a_table_without_numbers_gives_no_figure(frame: pd.DataFrame) -> None:
    assert figures.draw(results.to_frame([])) == []
    no_times = frame[frame["suite"] != "wall_clock"]
    assert figures.cost_against_error(no_times, "toy") is None


def test_the_settings_of_matplotlib_stay(frame: pd.DataFrame) -> None:
    with mpl.rc_context({"font.size": 31}):
        figures.bias_against_variance(frame, "toy")
        assert mpl.rcParams["font.size"] == 31


def test_a_figure_can_be_saved(drawings: list[figures.Drawing], tmp_path: Path) -> None:
    path = drawings[0].save(tmp_path)
    assert path.name == "bias-variance-toy.svg"
    assert path.read_text() == drawings[0].svg

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import seaborn as sns

from structgrad.estimators import ESTIMATORS
from structgrad.reports import results
from structgrad.reports.page import figures
from structgrad.reports.page.drawing.scale import Scale
from structgrad.reports.page.drawing.styles import INK, family_style
from structgrad.reports.page.figures import error_cost
from structgrad.reports.page.figures.bias_variance import bias_against_variance
from structgrad.reports.page.figures.convergence import half_widths
from structgrad.reports.page.figures.descent import descent
from structgrad.reports.page.figures.error_cost import CostContender
from structgrad.reports.page.figures.scaling import scaling
from structgrad.suites.base import Row
from tests.reports import examples


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.fixture(scope="module")
def drawings(frame: pd.DataFrame) -> list[figures.Drawing]:
    return figures.draw(frame)


def test_every_problem_has_what_was_measured_of_it(drawings: list[figures.Drawing]) -> None:
    assert [(drawing.kind, drawing.problem) for drawing in drawings] == [
        ("ranking", ""),
        ("bias-variance", "toy"),
        ("error-seconds", "toy"),
        ("instances", "toy"),
        ("sparsity", "toy"),
    ]
    assert all(len(drawing.caption) > 60 for drawing in drawings)


def test_figures_name_every_estimator_and_stage(drawings: list[figures.Drawing]) -> None:
    for drawing in drawings:
        texts = {element.text for element in ElementTree.fromstring(drawing.svg).iter() if element.tag.endswith("text")}
        competing = set(examples.ESTIMATORS) - (set() if drawing.kind in ("bias-variance", "sparsity") else {"exact"})
        assert {*competing, *examples.STAGES} <= texts


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
        assert INK not in drawing.svg
        assert not re.search(r'fill="(#fff|#000|white|black)', drawing.svg)
        assert not re.search(r'<text[^>]*fill="#', drawing.svg)


def test_every_family_of_structgrad_has_a_look_of_its_own() -> None:
    looks = [figures.family_style(name) for name in ESTIMATORS]
    assert len(set(looks)) == len(ESTIMATORS)


def test_the_colours_are_those_of_seaborn_that_the_colour_blind_can_tell_apart() -> None:
    """Written down, because seaborn takes longer to load than all figures to draw."""
    assert {family_style(family).colour for family in ESTIMATORS} - {INK} < set(sns.color_palette("colorblind").as_hex())


def test_an_unknown_family_always_gets_the_same_look() -> None:
    assert figures.family_style("mine") == figures.family_style("mine")


def test_options_of_a_family_differ_in_their_filling_only() -> None:
    frame = pd.DataFrame({"estimator": ["imle[lambda=1]", "imle[lambda=9]"], "family": ["imle", "imle"]})
    first, second = figures.styles(frame).values()
    assert (first.colour, first.marker) == (second.colour, second.marker)
    assert first.fill != second.fill


def test_zero_is_drawn_below_everything_else_and_marked() -> None:
    scale = Scale.of([0.0, 1e-3, 10.0, math.inf, math.nan])
    assert scale.place(0.0) < scale.place(1e-3) < scale.place(10.0)
    places, labels = scale.ticks()
    assert labels[0] == "0"
    assert places[0] == scale.place(0.0)
    assert scale.limits()[0] < scale.place(0.0)
    assert "0" not in Scale.of([1e-3, 10.0]).ticks()[1]


def test_the_front_is_the_least_error_that_a_budget_buys() -> None:
    cheap, exact, slow = (
        CostContender("cheap", 0.25, 0.0, 1.0),
        CostContender("fair", 0.0, 4.0, 1.0),
        CostContender("slow", 0.0, 1.0, 100.0),
    )
    budgets, error = error_cost.front([cheap, exact, slow], np.array([0.5, 1.0, 4.0, 64.0, 200.0]))
    assert budgets.tolist() == [1.0, 4.0, 64.0, 200.0]
    assert error.tolist() == pytest.approx([0.5, 0.5, 0.25, (4 / 200) ** 0.5])


def test_no_estimate_can_be_had_for_less_than_its_cost() -> None:
    one = CostContender("one", 0.0, 1.0, 2.0)
    assert one.error(np.array([1.0, 2.0, 8.0])).tolist() == [math.inf, 1.0, 0.5]


def test_contenders_leave_out_the_exact_gradient(frame: pd.DataFrame) -> None:
    found = error_cost.contenders(figures.Material(frame).aggregates, "toy", "seconds_per_estimate")
    assert [one.name for one in found["init"]] == ["reinforce", "rloo[num_samples=2]", "imle[lambda=2.5]"]


def test_a_table_without_numbers_gives_no_figure(frame: pd.DataFrame) -> None:
    assert figures.draw(results.to_frame([])) == []
    no_times = figures.Material(frame[frame["suite"] != "wall_clock"])
    assert error_cost.error_against_seconds(no_times, "toy") is None
    assert scaling(no_times, "toy") is None
    assert descent(no_times, "toy") is None


def texts(drawing: figures.Drawing | None) -> set[str | None]:
    assert drawing is not None
    return {element.text for element in ElementTree.fromstring(drawing.svg).iter() if element.tag.endswith("text")}


def test_sweeps_are_drawn_where_they_were_measured() -> None:
    found = figures.Material(results.to_frame(examples.swept_rows()))
    assert {"seconds against length", "relative variance against samples"} <= texts(scaling(found, "toy"))
    assert {"step of equal KL", "along the descent", "training for equal time"} <= texts(descent(found, "toy"))


def test_widths_of_intervals_are_relative_and_end_with_the_whole_run() -> None:
    shared = {"cell": "a", "suite": "bias", **examples.shared("reinforce", "init"), "instance": "0", "metric": "relative_mse"}
    whole = Row(**shared, value=2.0, low=1.5, high=2.5, replicates=4096, reference="expected")
    first = Row(**shared, value=2.0, low=1.0, high=3.0, replicates=1024, reference="expected", setting="replicates=1024", size=1024.0)
    table = half_widths(figures.Material(results.to_frame([whole, first])), "toy")
    assert sorted(zip(table["size"], table["value"], strict=True)) == [(1024.0, 0.5), (4096.0, 0.25)]


def test_the_settings_of_matplotlib_stay(frame: pd.DataFrame) -> None:
    with mpl.rc_context({"font.size": 31}):
        found = bias_against_variance(figures.Material(frame), "toy")
        assert found is not None
        assert found.picture.png(50).startswith(b"\x89PNG")
        assert mpl.rcParams["font.size"] == 31


def test_a_figure_can_be_saved(drawings: list[figures.Drawing], tmp_path: Path) -> None:
    vector, pixels = drawings[1].save(tmp_path)
    assert (vector.name, pixels.name) == ("bias-variance-toy.svg", "bias-variance-toy.png")
    assert vector.read_text() == drawings[1].svg
    assert pixels.read_bytes().startswith(b"\x89PNG")


@pytest.mark.filterwarnings("error")
def test_a_name_that_is_a_long_path_leaves_room_for_the_figure(frame: pd.DataFrame, drawings: list[figures.Drawing]) -> None:
    long = "/a/very/long/path/that/goes/on/and/on/and/on/to/the/file/that/holds/them/estimators.py:" + "Very" * 20 + "Long[k=1]"
    renamed = frame.assign(estimator=frame["estimator"].astype(object).replace("imle[lambda=2.5]", long))
    drawn = figures.draw(renamed)
    assert {drawing.kind for drawing in drawn} == {drawing.kind for drawing in drawings}
    assert all("/a/very/long" not in drawing.svg for drawing in drawn)

"""Figures for a paper: their width, their fonts, and the numbers of their captions."""

from __future__ import annotations

import re

import matplotlib as mpl
import pytest

from structgrad.reports import results
from structgrad.reports.page import paper
from tests.reports import examples


@pytest.fixture(scope="module")
def drawn() -> dict[str, paper.PaperFigure]:
    with mpl.rc_context({"font.size": 31}):
        found = {figure.name: figure for figure in paper.draw(results.to_frame(examples.rows()))}
        assert mpl.rcParams["font.size"] == 31
    return found


def width(figure: paper.PaperFigure) -> float:
    """In inches."""
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", figure.pdf)
    assert box is not None
    return float(box[1]) / 72


def test_every_problem_has_its_figures(drawn: dict[str, paper.PaperFigure]) -> None:
    assert list(drawn) == ["ranking-toy", "plane-toy", "error-seconds-toy"]


def test_several_states_are_as_wide_as_a_page_and_fonts_are_in_the_file(drawn: dict[str, paper.PaperFigure]) -> None:
    for figure in drawn.values():
        assert width(figure) == pytest.approx(paper.PAGE, abs=0.01)
        assert b"/FontFile2" in figure.pdf
        assert b"/Type3" not in figure.pdf


def test_one_state_is_as_wide_as_a_column() -> None:
    rows = [row for row in examples.rows() if row.stage == "init"]
    assert width(next(paper.draw(results.to_frame(rows)))) == pytest.approx(paper.COLUMN, abs=0.01)


def test_a_caption_says_on_what_and_how_much_it_was_measured_and_its_numbers(drawn: dict[str, paper.PaperFigure]) -> None:
    caption = drawn["plane-toy"].caption
    assert "toy (subset[k=3], 220 structures; loss quadratic; 3 instances, 4,096 replicates; seed 7)" in caption
    assert "rloo[num\\_samples=2] bias" in caption
    assert "imle[lambda=2.5] bias 0.700, variance 0.250" in caption
    assert "init: " in caption
    assert "final: " in caption


def test_the_same_table_gives_the_same_bytes(drawn: dict[str, paper.PaperFigure]) -> None:
    again = next(paper.draw(results.to_frame(examples.rows())))
    assert again == drawn["ranking-toy"]

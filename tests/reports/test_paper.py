"""Figures for a paper: their width, their fonts, and the numbers of their captions."""

from __future__ import annotations

import re
from dataclasses import replace

import matplotlib as mpl
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import marks, paper
from structgrad.suites.text import number
from tests.reports import examples


@pytest.fixture(scope="module")
def drawn() -> dict[str, paper.PaperFigure]:
    with mpl.rc_context({"font.size": 31}):
        found = {figure.name: figure for figure in paper.draw(results.to_frame(examples.rows()))}
        assert mpl.rcParams["font.size"] == 31
    return found


def width(figure: paper.PaperFigure) -> float:
    """Width of a PDF in inches."""
    box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", figure.pdf)
    assert box is not None
    return float(box[1]) / 72


def test_every_problem_has_its_figures(drawn: dict[str, paper.PaperFigure]) -> None:
    assert list(drawn) == ["matrix", "ranking-toy", "plane-toy", "error-seconds-toy"]


def test_the_first_figure_has_the_best_of_every_problem_and_state() -> None:
    frame = results.to_frame([*examples.rows(), *(replace(row, problem="other@mlp", loss="mlp") for row in examples.rows())])
    held = marks.held(tables.by_loss(frame), {})
    best = paper.winners(held)
    assert set(zip(best["base"], best["loss"], best["stage"], strict=True)) == {
        (base, loss, stage) for base, loss in (("toy", "quadratic"), ("other", "mlp")) for stage in examples.STAGES
    }
    asked = ("gradients", answers.MAIN_BUDGET)
    found = {(one.problem, one.stage): one for one in answers.answers(frame) if (one.question.name, one.budget) == asked}
    assert {(row.problem, row.stage): row.estimator for row in tables.records(best)} == {
        at: answer.estimator for at, answer in found.items()
    }
    panels = paper.draw_matrix(best).axes
    assert [panel.get_title() for panel in panels] == ["quadratic", "mlp"]
    scores = {text.get_text() for text in panels[0].texts} - {""}
    assert scores == {
        number(row.score, 2) if row.sure else f"({number(row.score, 2)})" for row in tables.records(best) if row.loss == "quadratic"
    }


def test_what_grows_is_drawn_with_its_ends_in_the_caption() -> None:
    drawn = {figure.name: figure for figure in paper.draw(results.to_frame([*examples.rows(), *examples.swept_rows()]))}
    assert {"total-time-length-toy", "relative-variance-samples-toy"} <= set(drawn)
    assert "reinforce 0.250 at 4, 0.0625 at 16" in drawn["relative-variance-samples-toy"].caption


def test_several_states_are_as_wide_as_a_page_and_fonts_are_in_the_file(drawn: dict[str, paper.PaperFigure]) -> None:
    for name, figure in drawn.items():
        if name == "matrix":
            continue
        assert width(figure) == pytest.approx(paper.PAGE, abs=0.01)
        assert b"/FontFile2" in figure.pdf
        assert b"/Type3" not in figure.pdf


def test_one_state_is_as_wide_as_a_column() -> None:
    rows = [row for row in examples.rows() if row.stage == "init"]
    assert width(list(paper.draw(results.to_frame(rows)))[1]) == pytest.approx(paper.COLUMN, abs=0.01)


def test_a_caption_says_on_what_and_how_much_it_was_measured_and_its_numbers(drawn: dict[str, paper.PaperFigure]) -> None:
    caption = drawn["plane-toy"].caption
    assert "toy (subset[k=3], 220 structures; loss quadratic; 3 instances, 4,096 replicates; seed 7)" in caption
    assert "rloo[num\\_samples=2] bias" in caption
    assert "imle[lambda=2.5] bias 0.700, variance 0.250" in caption
    assert "init: " in caption
    assert "final: " in caption


def test_the_same_table_gives_the_same_bytes(drawn: dict[str, paper.PaperFigure]) -> None:
    again = next(paper.draw(results.to_frame(examples.rows())))
    assert again == drawn["matrix"]

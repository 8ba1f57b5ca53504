"""Figures for a paper: their names, width, fonts and captions."""

from __future__ import annotations

import re
from dataclasses import replace

import matplotlib as mpl
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import dataset, paper
from structgrad.suites.base import Row
from structgrad.suites.text import number
from tests.reports import examples


def drawn(rows: list[Row]) -> dict[str, tuple[bytes, str]]:
    """PDF and caption by name."""
    files = {figure.name: figure.draw() for figure in paper.planned(results.to_frame(rows))}
    return {name: (found[f"{name}.pdf"], found[f"{name}.tex"].decode()) for name, found in files.items()}


@pytest.mark.parametrize(("stages", "width"), [(("init", "final"), paper.PAGE), (("init",), paper.COLUMN)])
def test_figures_have_the_width_of_a_page_or_a_column_and_hold_their_fonts(stages: tuple[str, ...], width: float) -> None:
    rows = [row for row in examples.rows() if row.stage in stages]
    with mpl.rc_context({"font.size": 31}):
        found = drawn(rows)
        assert mpl.rcParams["font.size"] == 31
    assert list(found) == ["matrix", "plane-toy", "error-seconds-toy"]
    for pdf in (found["plane-toy"][0], found["error-seconds-toy"][0]):
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", pdf)
        assert box is not None
        assert float(box[1]) / 72 == pytest.approx(width, abs=0.01)
        assert b"/FontFile2" in pdf
        assert b"/Type3" not in pdf
    assert "toy (subset[k=3], 220 structures; loss quadratic; 3 instances, 4,096 replicates; seed 7)." in found["plane-toy"][1]
    assert next(paper.planned(results.to_frame(rows))).draw()["matrix.pdf"] == found["matrix"][0]


def test_the_matrix_has_the_best_of_every_problem_and_state() -> None:
    frame = results.to_frame([*examples.rows(), *(replace(row, problem="the_other@mlp", loss="mlp") for row in examples.rows())])
    best = paper.winners(dataset.marks(tables.by_loss(frame), {}))
    assert set(zip(best["base"], best["loss"], best["stage"], strict=True)) == {
        (base, loss, stage) for base, loss in (("toy", "quadratic"), ("the_other", "mlp")) for stage in examples.STAGES
    }
    asked = ("gradients", answers.MAIN_BUDGET)
    found = {(one.problem, one.stage): one.estimator for one in answers.answers(frame) if (one.question.name, one.budget) == asked}
    assert {(row.problem, row.stage): row.estimator for row in tables.items_of(best)} == found
    panels = paper.draw_matrix(best).axes
    assert [panel.get_title() for panel in panels] == ["quadratic", "mlp"]
    assert {text.get_text() for text in panels[0].texts} - {""} == {
        number(row.score, 2) if row.sure else f"({number(row.score, 2)})" for row in tables.items_of(best) if row.loss == "quadratic"
    }
    assert r"the\_other@mlp (subset" in [figure.text for figure in paper.planned(frame)][3]

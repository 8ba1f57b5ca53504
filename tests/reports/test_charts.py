"""The charts of a page in a real browser: choices, tooltips and clicks, and the texts that follow."""

from __future__ import annotations

import importlib.resources
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.reports import page as report_page
from structgrad.reports import results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import charts, marks
from structgrad.reports.page.looks import looks, luminance
from structgrad.suites.base import Row
from tests.reports import browser, examples
from tests.reports.test_page import DRAWN

BINARY = browser.path()
in_browser = pytest.mark.skipif(BINARY is None, reason="no Chromium here; STRUCTGRAD_BROWSER may name one")
RLOO = "rloo[num_samples=2]"


def several_losses() -> list[Row]:
    """Two problems; the first with a second loss, for which `imle` is nearly without error."""
    found = examples.rows() + examples.rows("other")
    for row in examples.rows():
        better = row.family == "imle" and row.metric in ("relative_bias", "relative_bias_squared", "relative_variance")
        cell = f"mlp-{row.cell}" if row.cell else ""
        value = 1e-6 if better else 1.0 if row.family == "imle" and row.metric == "gain" else row.value
        found.append(replace(row, loss="mlp", cell=cell, value=value, low=value if better else row.low, high=value if better else row.high))
    return found + examples.swept_rows()


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(several_losses())


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    assert BINARY is not None
    with browser.browser(BINARY, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame) -> Path:
    path = tmp_path_factory.mktemp("charts") / "report.html"
    path.write_text(report_page.to_html(frame, {**examples.MANIFEST, "folder": "runs/one"}))
    return path


@pytest.fixture
def opened(tab: browser.Browser, path: Path) -> Iterator[browser.Browser]:
    tab.open(path)
    tab.until(DRAWN)
    yield tab
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "blob:"))] == []


def choose(tab: browser.Browser, name: str, value: object) -> None:
    tab.run(
        f"""{{ const field = document.getElementById('pick-{name}'); field.value = '{value}';
        if (field.value !== '{value}') throw new Error('no such choice'); field.dispatchEvent(new Event('input')); }}"""
    )


def matrix(tab: browser.Browser) -> dict[str, list[str]]:
    rows = tab.run("[...document.querySelectorAll('#matrix tbody tr')].map(row => [...row.cells].map(cell => cell.innerText))")
    return {head.split("\n")[0]: cells for head, *cells in rows}


@in_browser
def test_the_first_screen_is_a_table_of_structures_by_entropy_levels(opened: browser.Browser) -> None:
    found = matrix(opened)
    assert list(found) == ["toy", "other"]
    assert opened.run("[...document.querySelectorAll('#matrix th[scope=col]')].map(one => one.textContent)") == [
        "structure and loss",
        *examples.STAGES,
    ]
    head = opened.run("document.querySelector('#matrix th[scope=row]').innerText")
    assert "subset[k=3], 220 structures" in head
    assert "loss: quadratic" in head
    name, score, rivals, size = found["toy"][0].split("\n")
    assert name in {*examples.ESTIMATORS, "none clearly best"}
    assert re.match(r"ρ 0\.\d+$", score)  # of 3 instances there is no interval
    assert rivals.startswith(("tied with ", "better than", "not significantly different: ", "only candidate: "))
    assert size == "3 instances, 4,096 replicates"
    assert opened.run("document.querySelector('#matrix').getBoundingClientRect().top") < 760


@in_browser
def test_the_loss_the_case_and_the_budget_can_be_chosen(opened: browser.Browser, frame: pd.DataFrame) -> None:
    known = answers.standings(answers.answers(tables.by_loss(frame)))

    def best(problem: str, question: str, budget: int) -> str:
        rows = known[(known["problem"] == problem) & (known["question"] == question) & (known["budget"] == budget)]
        first = rows[(rows["stage"] == "init") & (rows["standing"] == "best")].iloc[0]
        return {"unclear": "none clearly best", "useless": "none useful"}.get(first["outcome"], str(first["estimator"]))

    choose(opened, "loss", "mlp")
    assert list(matrix(opened)) == ["toy"]
    choose(opened, "question", "error")
    assert matrix(opened)["toy"][0].startswith("none clearly best\nrelative MSE")
    choose(opened, "loss", "")
    for question in ("gradients", "values", "unbiased", "error"):
        for budget in answers.BUDGETS:
            choose(opened, "question", question)
            choose(opened, "budget", budget)
            assert matrix(opened)["other"][0].split("\n")[0] == best("other", question, budget)


@in_browser
def test_problem_and_state_are_chosen_for_all_charts(opened: browser.Browser) -> None:
    choose(opened, "problem", "other")
    choose(opened, "level", "final")
    assert opened.run("document.getElementById('where').textContent").startswith(
        "other, subset[k=3], 220 structures; entropy level final; loss quadratic"
    )
    opened.until("document.querySelector('#chart-ranking').dataset.marks === '2'")
    assert opened.run("document.querySelector('#chart-plane').dataset.marks") == "4"


@in_browser
def test_a_click_on_a_mark_shows_its_numbers_its_row_and_how_to_measure_it_again(opened: browser.Browser) -> None:
    names = opened.run("[...document.querySelectorAll('#chart-ranking .mark-symbol path')].length")
    assert names == 2  # without the estimator that the run contradicts
    box = opened.run(
        "(() => { const mark = document.querySelector('#chart-ranking .mark-symbol path'); mark.scrollIntoView({block: 'center'});"
        "const box = mark.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    opened.until("document.querySelector('#vg-tooltip-element.visible') !== null")
    told = opened.run("document.getElementById('vg-tooltip-element').innerText")
    assert re.search(r"instances:?\s+3\s+replicates:?\s+4,096\s+seed:?\s+7", told)
    assert re.search(r"ρ for the time of 16 REINFORCE estimates:?\s+0\.\d+", told)
    for kind in ("mousePressed", "mouseReleased"):
        opened.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    opened.until("document.querySelector('#chosen h3') !== null")
    name = opened.run("document.querySelector('#legend [aria-pressed=true]').dataset.estimator")
    assert opened.run("document.querySelector('#chosen h3').textContent") == f"{name} on toy, init"
    assert "without a baseline" in opened.run("document.querySelector('#chosen p').textContent")
    assert opened.run("document.querySelector('#chosen a').hash") == "#paper-williams1992simple"
    cell = f"init-{name}"[:12]
    assert opened.run("document.querySelector('#chosen pre').textContent") == f"structgrad replay {cell} --run runs/one"
    opened.run("[...document.querySelectorAll('#chosen button')].find(one => one.textContent === 'Go to its row').click()")
    opened.until("document.activeElement === document.querySelector('tr.found')")
    assert opened.run("[...document.querySelector('tr.found').cells].slice(0, 2).map(cell => cell.textContent)") == [name, "init"]


@in_browser
def test_the_legend_fades_all_others(opened: browser.Browser) -> None:
    opacity = "[...document.querySelectorAll('#chart-ranking .mark-symbol path')].map(one => one.getAttribute('opacity'))"
    assert set(opened.run(opacity)) == {"0.95"}
    opened.run("document.querySelector('#legend button').click()")
    opened.until(f"({opacity}).filter(one => one === '0.12').length === 1")
    opened.run("document.querySelector('#legend button').click()")
    opened.until(f"({opacity}).every(one => one === '0.95')")


@in_browser
def test_error_is_drawn_against_seconds_and_against_evaluations(opened: browser.Browser) -> None:
    title = "[...document.querySelectorAll('#chart-error .role-axis-title text')].map(one => one.textContent)"
    opened.until(f"({title}).includes('number N of averaged estimates')")
    choose(opened, "cost", "seconds")
    opened.until(f"({title}).includes('time (µs)')")
    assert opened.run("document.querySelectorAll('#chart-error .mark-area path').length") == 3
    assert opened.run("[...document.querySelectorAll('#pick-cost option')].map(one => one.value)") == ["estimates", "seconds"]


@in_browser
def test_sweeps_are_drawn_where_they_were_measured(opened: browser.Browser) -> None:
    assert "total_time, by length" in opened.run("[...document.querySelectorAll('#pick-sweep option')].map(one => one.value)")
    choose(opened, "sweep", "total_time, by length")
    opened.until("document.querySelectorAll('#chart-sweep .mark-symbol path').length === 3")
    choose(opened, "problem", "other")
    assert opened.run("document.getElementById('sweep-part').hidden")


@in_browser
def test_a_phone_shows_the_picture_without_scrolling_sideways(tab: browser.Browser, path: Path) -> None:
    tab.open(path, width=390)
    tab.until(DRAWN)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("document.querySelector('#matrix').getBoundingClientRect().width") < 390
    assert tab.run("[...document.querySelectorAll('.chart svg')].every(one => one.getBoundingClientRect().width <= 390)")
    assert tab.run("getComputedStyle(document.querySelector('#cost-table td')).position") == "static"


@in_browser
def test_long_names_of_problems_fit_a_phone(tab: browser.Browser, tmp_path: Path) -> None:
    found = [*examples.rows(), *examples.rows("projective_tree_regimes@squared_distance_linear")]
    (tmp_path / "page.html").write_text(report_page.to_html(results.to_frame(found), examples.MANIFEST))
    tab.open(tmp_path / "page.html", width=390)
    tab.until(DRAWN)
    assert tab.run("document.documentElement.scrollWidth") <= 390


@in_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing_that_keeps_anybody_out(tab: browser.Browser, path: Path, width: int, dark: bool) -> None:
    """The rules of axe-core: names for screen readers, contrast, landmarks, order of headings."""
    tab.open(path, width=width, dark=dark)
    tab.until(DRAWN)
    rules = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    tab.run(f"{rules}; 0")
    nodes = "one.nodes.map(node => node.target.join(' '))"
    assert tab.run(f"axe.run().then(found => found.violations.map(one => [one.id, ...{nodes}]))") == []


def test_a_page_is_small(path: Path, frame: pd.DataFrame) -> None:
    """Its library is the most of it; the numbers of 80 rows a cell follow at some 40 bytes each."""
    assert path.stat().st_size < 500_000 + 100 * len(frame)


def test_charts_hold_no_data_and_no_address() -> None:
    for spec in charts.specs().values():
        assert spec["data"] == {"name": "rows"}
        assert "http" not in str(spec)


def test_a_bias_that_was_not_found_is_told_by_its_bound() -> None:
    """Neither a table, nor a chart, nor an answer says 0 of it."""
    rows = [
        replace(row, value=0.0, low=0.0, high=0.025, verdict="unresolved")
        if row.metric == "relative_bias" and row.estimator == RLOO
        else row
        for row in examples.rows()
    ]
    rows = [replace(row, value=0.0) if row.metric == "relative_bias_squared" and row.estimator == RLOO else row for row in rows]
    frame = results.to_frame(rows)
    cells = marks.cells(frame).set_index(["estimator", "stage"])
    assert cells.loc[(RLOO, "init"), "bias_bound"] == 0.025
    assert math.isnan(cells.loc[("reinforce", "init"), "bias_bound"]) is False
    assert math.isnan(cells.loc[("exact", "init"), "bias_bound"])
    report = report_page.report(frame, examples.MANIFEST)
    (claimed,) = (row for row in report.overview[0].rows if row[0].text == RLOO)
    (told,) = (row for row in report.problems["toy"].rows if (row[0].text, row[1].text) == (RLOO, "init"))
    assert claimed[3].text == told[3].text == "|bias| < 2.5 %"
    unbiased = [answer for answer in answers.answers(frame) if answer.estimator == RLOO]
    assert unbiased
    assert all(answer.why.startswith("|bias| < 2.5 %") for answer in unbiased)


def test_a_problem_with_several_losses_is_several() -> None:
    split = tables.by_loss(results.to_frame(several_losses()))
    assert set(split["problem"]) == {"toy, quadratic", "toy, mlp", "other"}
    assert tables.by_loss(split) is split
    one = results.to_frame(examples.rows())
    assert tables.by_loss(one) is one


def test_standings_agree_with_the_answers(frame: pd.DataFrame) -> None:
    split = tables.by_loss(frame)
    known = answers.standings(answers.answers(split))
    for answer in answers.answers(split):
        rows = known[(known["problem"] == answer.problem) & (known["stage"] == answer.stage) & (known["question"] == answer.question.name)]
        rows = rows[rows["budget"] == answer.budget].set_index("estimator")
        assert list(rows.index[rows["standing"] == "best"]) == [answer.estimator]
        assert set(rows.index[rows["standing"] == "tied"]) == set(answer.tied)
        assert len(rows) == answer.rivals + 1
        assert rows.loc[answer.estimator, "score"] == pytest.approx(answer.score.value)


def test_cost_is_one_table_with_units() -> None:
    table = report_page.report(results.to_frame(examples.rows()), examples.MANIFEST).cost
    assert [title for title, _ in table.columns] == [
        "estimator",
        "time of one estimate (µs)",
        "time ratio",
        "peak bytes",
        "loss evaluations",
        "entropy level",
        "problem",
    ]
    (row,) = (row for row in table.rows if (row[0].text, row[5].text) == (RLOO, "init"))
    assert [cell.text for cell in row[1:5]] == ["2000 [1800, 2200]", "2 [1.80, 2.20]", "–", "–"]


def test_every_estimator_has_a_colour_of_its_own_that_shows_on_light_and_dark() -> None:
    names = [*ESTIMATORS, "rloo[num_samples=16]", "./mine.py:BatchMean"]
    families = [*ESTIMATORS, "rloo", "rloo"]
    found = looks(pd.DataFrame({"estimator": names, "family": families}))
    assert len(set(found.values())) == len(names)
    for colour, _ in found.values():
        for page in ("#ffffff", "#14181e"):
            low, high = sorted((luminance(colour), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3


@in_browser
def test_marks_of_the_plane_have_names_and_shapes(opened: browser.Browser) -> None:
    opened.until("document.querySelectorAll('#chart-plane .mark-text.role-mark text').length === 4")
    texts = "[...document.querySelectorAll('#chart-plane .mark-text.role-mark text')].map(one => one.textContent)"
    assert set(opened.run(texts)) == set(examples.ESTIMATORS)
    assert len(set(opened.run("[...document.querySelectorAll('#legend i')].map(one => one.textContent)"))) > 2


@in_browser
def test_cosine_and_a_metric_by_entropy_level_are_drawn(opened: browser.Browser) -> None:
    opened.until("document.querySelector('#chart-levels').dataset.marks === '6'")
    choose(opened, "metric", "variance")
    title = "[...document.querySelectorAll('#chart-levels .role-axis-title text')].map(one => one.textContent)"
    opened.until(f"({title}).includes('relative variance')")
    assert not opened.run("document.getElementById('empty-cosine').hidden")

"""The page in a real browser: it sorts, filters, draws, keeps choices in its address, and asks for nothing."""

import importlib.resources
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from structgrad.reports import page as report_page, results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import page as page_module
from tests.reports import browser, examples

BINARY = browser.path()
pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here; STRUCTGRAD_BROWSER may name one")

DRAWN = "document.documentElement.dataset.charts === 'ready' && document.querySelectorAll('.chart[data-marks] svg').length >= 3"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('#chart-ranking svg text')).fill]"
NUMBERS = "document.querySelector('#numbers details')"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.several_losses())


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    assert BINARY is not None
    with browser.browser(BINARY, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one problem with one loss."""
    return written(tmp_path_factory.mktemp("page"), results.to_frame(examples.rows()))


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame) -> Path:
    """The page of two problems, one of them with two losses."""
    return written(tmp_path_factory.mktemp("charts"), frame)


def written(folder: Path, frame: pd.DataFrame) -> Path:
    path = folder / "report.html"
    path.write_text(report_page.to_html(frame, {**examples.MANIFEST, "folder": "runs/one"}))
    return path


@pytest.fixture(autouse=True)
def _silent(tab: browser.Browser) -> Iterator[None]:
    """No page complains, or asks for anything but itself."""
    yield
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "blob:"))] == []


@pytest.fixture
def opened(tab: browser.Browser, page: Path) -> browser.Browser:
    tab.open(page)
    tab.until(DRAWN)
    return tab


@pytest.fixture
def drawn(tab: browser.Browser, charts: Path) -> browser.Browser:
    tab.open(charts)
    tab.until(DRAWN)
    return tab


def all_of(tab: browser.Browser, selector: str, of: str = "one.textContent") -> Any:
    """A value of every element that a selector finds."""
    return tab.run(f"[...document.querySelectorAll({selector!r})].map(one => {of})")


def shown(tab: browser.Browser, table: str) -> Any:
    """The visible rows of a table, as lists of texts."""
    rows = all_of(tab, f"{table} tbody tr", "one.hidden ? null : [...one.cells].map(cell => cell.innerText.trim())")
    return [row for row in rows if row is not None]


def click(tab: browser.Browser, place: str, text: str) -> None:
    """Click on the button whose text begins so."""
    tab.run(f"[...document.querySelectorAll('{place} button')].find(one => one.textContent.startsWith({text!r})).click()")


def pick(tab: browser.Browser, field: str, value: object) -> None:
    """Choose from a drop-down, or type into a field, given by an expression."""
    tab.run(
        f"""{{ const field = {field}; field.value = {str(value)!r};
        if (field.value !== {str(value)!r}) throw new Error('no such choice'); field.dispatchEvent(new Event('input')); }}"""
    )


def labelled(place: str, label: str) -> str:
    """The field below a label."""
    found = f"[...document.querySelectorAll('{place} label')].find(one => one.firstChild.textContent === {label!r})"
    return f"{found}.querySelector('select, input')"


def choose(tab: browser.Browser, name: str, value: object) -> None:
    pick(tab, f"document.getElementById('pick-{name}')", value)


def matrix(tab: browser.Browser) -> dict[str, list[str]]:
    return {head.split("\n")[0]: cells for head, *cells in all_of(tab, "#matrix tbody tr", "[...one.cells].map(cell => cell.innerText)")}


# Tables.


def test_a_click_on_a_title_sorts_by_number_and_another_one_the_other_way(opened: browser.Browser) -> None:
    for place, order in ((slice(-2, None), "ascending"), (slice(2), "descending")):
        click(opened, "#problem-toy", "relative bias")
        assert [row[0] for row in shown(opened, "#problem-toy")][place] == ["imle[lambda=2.5]"] * 2
        assert all_of(opened, "#problem-toy th[aria-sort]", "one.getAttribute('aria-sort')") == [order]
    opened.run("document.querySelector('#problem-toy th button').focus()")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert opened.run("document.querySelector('#problem-toy th').getAttribute('aria-sort')") == "ascending"
    assert all_of(opened, "button, select, input, a, summary", "one.tabIndex >= 0").count(False) == 0


def test_what_is_shown_can_be_filtered_and_downloaded(opened: browser.Browser) -> None:
    opened.run("window.saved = []; save = (name, text) => window.saved.push([name, text])")
    pick(opened, labelled('[data-table="sparsity"]', "filter"), "rloo final")
    assert all_of(opened, '[data-table="sparsity"] span') == ["1 of 8 rows"]
    for table in ("sparsity", "skipped-pairs"):
        click(opened, f'[data-table="{table}"]', "Download")
    opened.run("document.querySelector('[data-save]').click()")
    (name, text), (short, _), (bibliography, source) = opened.run("window.saved")
    assert (name, short, bibliography) == ("sparsity.csv", "skipped-pairs.csv", "structgrad.bib")
    assert [line.split(",")[:3] for line in text.strip().split("\n")] == [
        ["problem", "entropy level", "estimator"],
        ["toy", "final", "rloo[num_samples=2]"],
    ]
    assert "@article{williams1992simple," in source


def test_all_numbers_are_unpacked_filtered_sorted_and_saved(opened: browser.Browser) -> None:
    """They are drawn a screenful at a time."""
    opened.run("window.saved = []; save = (name, text) => window.saved.push([name, text])")
    assert shown(opened, "#numbers table") == []
    opened.run(f"{NUMBERS}.open = true")
    opened.until(f"{NUMBERS}.dataset.ready === 'yes'")
    pick(opened, labelled("#numbers", "rows"), "every instance")
    assert all_of(opened, "#numbers .controls span") == ["234 rows"]
    assert len(shown(opened, "#numbers table")) == 200
    opened.run("document.querySelector('#numbers .more').click()")
    assert len(shown(opened, "#numbers table")) == 234
    assert opened.run("document.querySelector('#numbers .more').hidden")
    pick(opened, labelled("#numbers", "metric"), "relative_mse")
    click(opened, "#numbers", "value")
    found = [float(row[8]) for row in shown(opened, "#numbers table")]
    assert found == sorted(found) != sorted(found, key=str)
    pick(opened, labelled("#numbers", "rows"), "over instances")
    pick(opened, labelled("#numbers", "metric"), "rho")
    click(opened, "#numbers", "Download")
    ((name, text),) = opened.run("window.saved")
    lines = text.strip().split("\n")
    assert name == "structgrad.csv"
    assert lines[0].startswith("problem,stage,estimator,metric,median")
    assert [",rho," in line for line in lines[1:]] == [True] * 8


def test_a_table_of_many_rows_is_filled_when_it_comes_into_sight(
    tab: browser.Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Problems are shown one at a time."""
    monkeypatch.setattr(page_module, "MANY_ROWS", 2)
    tab.open(written(tmp_path, results.to_frame(examples.rows() + examples.rows("other"))))
    tab.until(DRAWN)
    bodies = "['toy', 'other'].map(name => document.getElementById(`problem-${name}`).tBodies[0])"
    assert tab.run(f"{bodies}.map(body => body.dataset.packed !== undefined)") == [True, True]
    assert all_of(tab, ".panel:not([hidden])", "one.dataset.problem") == ["toy"]
    tab.run("document.querySelector('#chart-ranking').scrollIntoView(); document.querySelector('#legend button').click()")
    click(tab, "#chosen", "Go to its row")
    tab.until("document.activeElement === document.querySelector('tr.found')")
    assert tab.run(f"{bodies}.map(body => body.dataset.packed !== undefined)") == [False, True]
    pick(tab, labelled("#panels", "problem"), "other")
    assert all_of(tab, ".panel:not([hidden])", "one.dataset.problem") == ["other"]
    tab.run("document.getElementById('panels').scrollIntoView(); 0")
    tab.until(f"{bodies}[1].dataset.packed === undefined")
    click(tab, "#problem-other", "relative bias")
    assert shown(tab, "#problem-other")[-1][0] == "imle[lambda=2.5]"


# The whole page.


def test_the_theme_follows_the_system_until_it_is_chosen(tab: browser.Browser, page: Path) -> None:
    tab.open(page)
    tab.run("localStorage.clear()")
    tab.open(page, dark=True)
    tab.until(DRAWN)
    dark = tab.run(COLOURS)
    tab.run("document.getElementById('theme').click()")
    tab.until(f"({COLOURS})[1] !== {dark[1]!r}")
    light = tab.run(COLOURS)
    assert (dark[0], light[0]) == ("rgb(20, 24, 30)", "rgb(255, 255, 255)")
    tab.open(page, dark=True)
    tab.until(DRAWN)
    assert tab.run(COLOURS) == light
    tab.run("document.getElementById('theme').click()")
    tab.until(f"({COLOURS})[1] === {dark[1]!r}")
    tab.run("localStorage.clear()")


def test_a_link_shows_the_chosen_rows_and_charts(opened: browser.Browser, page: Path) -> None:
    pick(opened, labelled('[data-table="answer-table"]', "time of"), "256 estimates")
    choose(opened, "level", "final")
    choose(opened, "metric", "gain")
    opened.run("[...document.querySelectorAll('#legend button')].find(one => one.textContent.includes('imle')).click()")
    opened.run("document.querySelector('.bar a[href=\"#cost\"]').click()")
    opened.open(page, fragment=opened.run("location.hash"))
    opened.until(DRAWN)
    assert all_of(opened, "#pick-level, #pick-metric", "one.value") == ["final", "gain"]
    assert [row[2] for row in shown(opened, "#answer-table")] == ["256 estimates"] * 2
    assert all_of(opened, "#chosen h3") == ["imle[lambda=2.5] on toy, final"]
    assert abs(opened.run("document.getElementById('cost').getBoundingClientRect().top")) < 120


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)], ids=str)
def test_axe_finds_no_obstacle(tab: browser.Browser, charts: Path, width: int, dark: bool) -> None:
    """The rules of axe-core: names for screen readers, contrast, landmarks, order of headings."""
    tab.open(charts, width=width, dark=dark)
    tab.until(DRAWN)
    rules = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    tab.run(f"{rules}; 0")
    nodes = "one.nodes.map(node => node.target.join(' '))"
    assert tab.run(f"axe.run().then(found => found.violations.map(one => [one.id, ...{nodes}]))") == []


# Charts.


def test_the_first_screen_is_a_table_of_structures_by_entropy_levels(drawn: browser.Browser) -> None:
    found = matrix(drawn)
    assert list(found) == ["toy", "other"]
    assert all_of(drawn, "#matrix th[scope=col]") == ["structure and loss", *examples.STAGES]
    head = drawn.run("document.querySelector('#matrix th[scope=row]').innerText")
    assert "subset[k=3], 220 structures" in head
    assert "loss: quadratic" in head
    name, score, rivals, size = found["toy"][0].split("\n")
    assert name in {*examples.ESTIMATORS, "none clearly best"}
    assert re.match(r"ρ 0\.\d+$", score)  # of 3 instances there is no interval
    assert rivals.startswith(("tied with ", "better than", "not significantly different: ", "only candidate: "))
    assert size == "3 instances, 4,096 replicates"
    assert drawn.run("document.querySelector('#matrix').getBoundingClientRect().top") < 760


def test_the_loss_the_question_and_the_budget_can_be_chosen(drawn: browser.Browser, frame: pd.DataFrame) -> None:
    known = {(one.problem, one.stage, one.question.name, one.budget): one for one in answers.answers(tables.by_loss(frame))}
    choose(drawn, "loss", "mlp")
    assert list(matrix(drawn)) == ["toy"]
    choose(drawn, "question", "error")
    assert matrix(drawn)["toy"][0].startswith("none clearly best\nrelative MSE")
    choose(drawn, "loss", "")
    questions = itertools.cycle(("gradients", "values", "unbiased", "error"))
    for question, budget in zip(questions, (*answers.BUDGETS, *answers.BUDGETS), strict=False):
        choose(drawn, "question", question)
        choose(drawn, "budget", budget)
        best = known["other", "init", question, budget]
        text = {"unclear": "none clearly best", "useless": "none useful"}.get(best.outcome, best.estimator)
        assert matrix(drawn)["other"][0].split("\n")[0] == text


def test_a_click_on_a_mark_shows_its_numbers_its_row_and_how_to_measure_it_again(drawn: browser.Browser) -> None:
    marks = "#chart-ranking .mark-symbol path"
    assert set(all_of(drawn, marks, "one.getAttribute('opacity')")) == {"0.95"}
    assert len(all_of(drawn, marks)) == 2  # without the estimator that the run contradicts
    box = drawn.run(
        f"(() => {{ const mark = document.querySelector('{marks}'); mark.scrollIntoView({{block: 'center'}});"
        "const box = mark.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    drawn.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    drawn.until("document.querySelector('#vg-tooltip-element.visible') !== null")
    tooltip = drawn.run("document.getElementById('vg-tooltip-element').innerText")
    assert re.search(r"instances:?\s+3\s+replicates:?\s+4,096\s+seed:?\s+7", tooltip)
    assert re.search(r"ρ for the time of 16 REINFORCE estimates:?\s+0\.\d+", tooltip)
    for kind in ("mousePressed", "mouseReleased"):
        drawn.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)
    drawn.until("document.querySelector('#chosen h3') !== null")
    # All other marks fade.
    drawn.until(f"[...document.querySelectorAll('{marks}')].filter(one => one.getAttribute('opacity') === '0.12').length === 1")
    (name,) = all_of(drawn, "#legend [aria-pressed=true]", "one.dataset.estimator")
    assert all_of(drawn, "#chosen h3") == [f"{name} on toy, init"]
    assert "without a baseline" in all_of(drawn, "#chosen p")[0]
    assert drawn.run("document.querySelector('#chosen a').hash") == "#paper-williams1992simple"
    click(drawn, "#chosen", "Go to its row")
    drawn.until("document.activeElement === document.querySelector('tr.found')")
    assert drawn.run("[...document.querySelector('tr.found').cells].slice(0, 2).map(cell => cell.textContent)") == [name, "init"]

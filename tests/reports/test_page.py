"""The page in a real browser: it sorts, filters, changes its theme, unpacks its numbers, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structgrad.reports import page as report_page
from structgrad.reports import results
from structgrad.reports.page import page as page_module
from tests.reports import browser, examples

BINARY = browser.path()
pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium here; STRUCTGRAD_BROWSER may name one")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_page.to_html(results.to_frame(examples.rows()), examples.MANIFEST))
    return path


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    assert BINARY is not None
    with browser.browser(BINARY, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def opened(tab: browser.Browser, page: Path) -> Iterator[browser.Browser]:
    """The page, which must not have complained nor asked for anything when the test is over."""
    tab.open(page)
    tab.until(DRAWN)
    yield tab
    assert tab.complaints == []
    assert [url for url in tab.requests if not url.startswith(("file:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in tab.requests) == 1


def shown(tab: browser.Browser, table: str) -> Any:
    """The visible rows of a table, as lists of texts."""
    cells = "[...row.cells].map(cell => cell.innerText.trim())"
    return tab.run(f"[...document.querySelectorAll('{table} tbody tr')].filter(row => !row.hidden).map(row => {cells})")


def pick(tab: browser.Browser, place: str, label: str, value: str) -> None:
    """Choose from a drop-down, or type into a field, by its label."""
    tab.run(
        f"""{{ const label = [...document.querySelectorAll('{place} label')].find(one => one.firstChild.textContent === {label!r});
        const field = label.querySelector('select, input'); field.value = {value!r};
        if (field.value !== {value!r}) throw new Error('no such choice: ' + {value!r}); field.dispatchEvent(new Event('input')); }}"""
    )


def click_title(tab: browser.Browser, table: str, title: str) -> None:
    tab.run(f"[...document.querySelectorAll('{table} th')].find(one => one.textContent === {title!r}).querySelector('button').click()")


def test_a_click_sorts_by_number_and_another_one_the_other_way(opened: browser.Browser) -> None:
    click_title(opened, "#problem-toy", "rel. bias")
    up = [row[0] for row in shown(opened, "#problem-toy")]
    click_title(opened, "#problem-toy", "rel. bias")
    down = [row[0] for row in shown(opened, "#problem-toy")]
    assert up[-2:] == ["imle[lambda=2.5]", "imle[lambda=2.5]"]
    assert down[:2] == ["imle[lambda=2.5]", "imle[lambda=2.5]"]
    assert opened.run("document.querySelector('#problem-toy th[aria-sort]').getAttribute('aria-sort')") == "descending"


def test_words_filter_rows_and_say_how_many_are_left(opened: browser.Browser) -> None:
    pick(opened, '[data-table="sparsity"]', "filter", "rloo final")
    assert [row[1:3] for row in shown(opened, "#sparsity")] == [["final", "rloo[num_samples=2]"]]
    assert opened.run("document.querySelector('[data-table=\"sparsity\"] span').textContent") == "1 of 8 rows"


def test_answers_show_one_budget_until_another_is_chosen(opened: browser.Browser) -> None:
    assert [row[2] for row in shown(opened, "#answer-table")] == ["16 estimates"] * 2
    pick(opened, '[data-table="answer-table"]', "time of", "256 estimates")
    assert [row[2] for row in shown(opened, "#answer-table")] == ["256 estimates"] * 2
    pick(opened, '[data-table="answer-table"]', "time of", "")
    assert len(shown(opened, "#answer-table")) == 6


DRAWN = "document.documentElement.dataset.charts === 'ready' && document.querySelectorAll('.chart[data-marks] svg').length >= 3"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('#chart-ranking svg text')).fill]"


def test_the_theme_follows_the_system_until_somebody_chooses(tab: browser.Browser, page: Path) -> None:
    tab.open(page, dark=True)
    tab.run("localStorage.clear()")
    tab.open(page, dark=True)
    tab.until(DRAWN)
    dark = tab.run(COLOURS)
    tab.run("document.getElementById('theme').click()")
    tab.until(f"({COLOURS})[1] !== {dark[1]!r}")
    light = tab.run(COLOURS)
    assert dark[0] == "rgb(20, 24, 30)"
    assert light[0] == "rgb(255, 255, 255)"
    assert dark[1] != light[1]
    tab.open(page, dark=True)
    tab.until(DRAWN)
    assert tab.run(COLOURS) == light
    tab.run("document.getElementById('theme').click()")
    tab.until(f"({COLOURS})[1] === {dark[1]!r}")
    assert tab.run(COLOURS) == dark
    tab.run("localStorage.clear()")
    assert tab.complaints == []


OPEN_NUMBERS = "document.querySelector('#numbers details').open = true"
LOADED = "document.querySelector('#numbers details').dataset.ready === 'yes'"


def test_all_numbers_are_unpacked_filtered_and_sorted(opened: browser.Browser) -> None:
    assert shown(opened, "#numbers table") == []
    opened.run(OPEN_NUMBERS)
    opened.until(LOADED)
    pick(opened, "#numbers", "rows", "every instance")
    pick(opened, "#numbers", "metric", "relative_mse")
    click_title(opened, "#numbers", "value")
    found = [float(row[8]) for row in shown(opened, "#numbers table")]
    assert found == sorted(found)
    assert found != sorted(found, key=str)
    pick(opened, "#numbers", "estimator", "imle[lambda=2.5]")
    assert {row[2] for row in shown(opened, "#numbers table")} == {"imle[lambda=2.5]"}


def test_a_long_table_is_drawn_a_screenful_at_a_time(opened: browser.Browser) -> None:
    opened.run(OPEN_NUMBERS)
    opened.until(LOADED)
    pick(opened, "#numbers", "rows", "every instance")
    assert opened.run("document.querySelector('#numbers .controls span').textContent") == "234 rows"
    assert len(shown(opened, "#numbers table")) == 200
    opened.run("document.querySelector('#numbers .more').click()")
    assert len(shown(opened, "#numbers table")) == 234
    assert opened.run("document.querySelector('#numbers .more').hidden")


def test_a_csv_is_made_of_what_is_shown(opened: browser.Browser) -> None:
    opened.run("window.saved = []; save = (name, text) => window.saved.push([name, text])")
    opened.run(OPEN_NUMBERS)
    opened.until(LOADED)
    pick(opened, "#numbers", "metric", "rho")
    opened.run("[...document.querySelectorAll('#numbers button')].find(one => one.textContent.startsWith('Download')).click()")
    (name, text), *_ = opened.run("window.saved")
    lines = text.strip().split("\n")
    assert name == "structgrad.csv"
    assert lines[0].startswith("problem,stage,estimator,metric,median")
    assert len(lines) == 1 + 8
    assert all(",rho," in line for line in lines[1:])


def test_every_table_can_be_downloaded_as_it_is_filtered(opened: browser.Browser) -> None:
    opened.run("window.saved = []; save = (name, text) => window.saved.push([name, text])")
    pick(opened, '[data-table="sparsity"]', "filter", "rloo final")
    for table in ("sparsity", "skipped-pairs"):
        opened.run(f"[...document.querySelectorAll('[data-table=\"{table}\"] button')][0].click()")
    (name, text), (short, _) = opened.run("window.saved")
    assert (name, short) == ("sparsity.csv", "skipped-pairs.csv")
    assert [line.split(",")[:3] for line in text.strip().split("\n")] == [
        ["problem", "entropy level", "estimator"],
        ["toy", "final", "rloo[num_samples=2]"],
    ]


def test_a_link_shows_the_chosen_rows_and_charts(tab: browser.Browser, page: Path) -> None:
    tab.open(page)
    tab.until(DRAWN)
    pick(tab, '[data-table="answer-table"]', "time of", "256 estimates")
    pick(tab, "#closer", "entropy level", "final")
    pick(tab, "#closer", "metric", "gain")
    tab.run("[...document.querySelectorAll('#legend button')].find(one => one.textContent.includes('imle')).click()")
    tab.run("document.querySelector('.bar a[href=\"#cost\"]').click()")
    tab.open(page, fragment=tab.run("location.hash"))
    tab.until(DRAWN)
    chosen = "['level', 'metric'].map(name => document.getElementById(`pick-${name}`).value)"
    assert tab.run(chosen) == ["final", "gain"]
    assert [row[2] for row in shown(tab, "#answer-table")] == ["256 estimates"] * 2
    assert tab.run("document.querySelector('#chosen h3').textContent") == "imle[lambda=2.5] on toy, final"
    assert abs(tab.run("document.getElementById('cost').getBoundingClientRect().top")) < 120
    assert tab.complaints == []


def test_bibtex_can_be_downloaded(opened: browser.Browser) -> None:
    opened.run("window.saved = []; save = (name, text) => window.saved.push([name, text])")
    opened.run("document.querySelector('[data-save]').click()")
    ((name, text),) = opened.run("window.saved")
    assert name == "structgrad.bib"
    assert "@article{williams1992simple," in text


def test_on_a_phone_only_tables_and_figures_scroll(tab: browser.Browser, page: Path) -> None:
    tab.open(page, width=390)
    assert tab.run("document.documentElement.scrollWidth") <= 390
    assert tab.run("document.querySelector('#problem-toy').parentElement.scrollWidth") > 390


def test_controls_can_be_reached_by_keyboard(opened: browser.Browser) -> None:
    unreachable = "[...document.querySelectorAll('button, select, input, a, summary')].filter(one => one.tabIndex < 0)"
    assert opened.run(f"{unreachable}.length") == 0
    opened.run("document.querySelector('#problem-toy th button').focus()")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r")
    assert opened.run("document.querySelector('#problem-toy th').getAttribute('aria-sort')") == "ascending"


def test_two_problems_are_shown_one_at_a_time(tab: browser.Browser, tmp_path: Path) -> None:
    frame = results.to_frame(examples.rows() + examples.rows("other"))
    path = tmp_path / "report.html"
    path.write_text(report_page.to_html(frame, examples.MANIFEST))
    tab.open(path)
    seen = "[...document.querySelectorAll('.panel')].filter(one => !one.hidden).map(one => one.dataset.problem)"
    assert tab.run(seen) == ["toy"]
    pick(tab, "#panels", "problem", "other")
    assert tab.run(seen) == ["other"]
    assert tab.complaints == []


def test_a_table_of_many_rows_is_filled_when_it_comes_into_sight(
    tab: browser.Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MANY_ROWS", 2)
    frame = results.to_frame(examples.rows() + examples.rows("other"))
    path = tmp_path / "report.html"
    path.write_text(report_page.to_html(frame, examples.MANIFEST))
    tab.open(path)
    tab.until(DRAWN)
    rows = "document.getElementById('problem-{}').tBodies[0].rows.length"
    packed = "document.getElementById('problem-{}').tBodies[0].dataset.packed !== undefined"
    assert [tab.run(packed.format(name)) for name in ("toy", "other")] == [True, True]
    assert tab.run("document.querySelectorAll('tbody[data-packed] tr').length === document.querySelectorAll('tbody[data-packed]').length")

    tab.run("document.querySelector('#chart-ranking').scrollIntoView(); document.querySelector('#legend button').click()")
    tab.run("[...document.querySelectorAll('#chosen button')].find(one => one.textContent === 'Go to its row').click()")
    tab.until("document.activeElement === document.querySelector('tr.found')")
    assert tab.run(rows.format("toy")) > 2
    assert [tab.run(packed.format(name)) for name in ("toy", "other")] == [False, True]

    pick(tab, "#panels", "problem", "other")
    tab.run("document.getElementById('panels').scrollIntoView(); 0")
    tab.until(f"!({packed.format('other')})")
    click_title(tab, "#problem-other", "rel. bias")
    assert tab.run(rows.format("other")) == tab.run(rows.format("toy"))
    assert shown(tab, "#problem-other")[-1][0] == "imle[lambda=2.5]"
    assert tab.complaints == []

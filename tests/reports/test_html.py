from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from structgrad.reports import figures, html, results
from structgrad.suites.base import METRICS
from tests.reports import examples

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction", "xlink:href"}


class Page(HTMLParser):
    """What a page would load, its ids, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.words: list[str] = []
        self.raw = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        for name, value in attributes:
            self.loads += [str(value)] if name in LOADING else []
            self.ids += [str(value)] if name == "id" else []
            self.raw += f" {value}" if name.startswith(("style", "on")) else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            self.open = self.open[: len(self.open) - self.open[::-1].index(tag) - 1]

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("style", "script"):
            self.raw += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.fixture(scope="module")
def source(frame: pd.DataFrame) -> str:
    return html.to_html(frame, examples.MANIFEST)


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_the_page_loads_nothing(source: str, page: Page) -> None:
    assert all(target.startswith("#") for target in page.loads)
    assert all(target.startswith("#") for target in re.findall(r"url\((.)", page.raw))
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|import\(|https?:", page.raw)
    assert set(re.findall(r"https?://[^\s\"'<]+", source)) <= {"http://www.w3.org/2000/svg"}


def test_every_link_of_the_page_has_a_target_and_ids_are_unique(page: Page) -> None:
    assert {target[1:] for target in page.loads} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_text_from_the_run_is_escaped(source: str, page: Page) -> None:
    assert "<script>alert" not in source
    assert "RuntimeError: <script>alert(1)</script> | no" in page.text
    assert "a <cpu> & more" in page.text


def test_the_page_says_what_was_measured_first(page: Page) -> None:
    assert page.text.index("4 estimators on 1 problem (2 pairs of problem and stage, 6 instances, up to 4,096 replicates each)") < 100
    assert "9 cells ok" in page.text
    assert "1 failed" in page.text
    assert "1 skipped" in page.text


def test_a_contradicted_claim_stands_out(page: Page, frame: pd.DataFrame) -> None:
    sentence = "rloo[num_samples=2] declares itself unbiased, and is found biased on toy, init (1 of 3 instances)."
    assert sentence in page.text
    assert page.text.index(sentence) < page.text.index("By the median over instances")
    assert len(html.report(frame, examples.MANIFEST).contradictions) == 2


def test_the_page_explains_metrics_and_verdicts(page: Page) -> None:
    for meaning in (*METRICS.values(), *html.VERDICT_MEANING.values()):
        assert meaning in page.text


def test_the_page_tells_how_to_repeat_the_run(page: Page) -> None:
    assert examples.MANIFEST["command"] in page.text
    assert "0123abc with changes that are not committed" in page.text


def test_verdicts_are_printed_in_their_own_words(page: Page) -> None:
    for word in ("unbiased-exact", "equivalent 1/3", "biased 1/3"):
        assert word in page.text


def test_a_metric_that_does_not_exist_everywhere_says_so(frame: pd.DataFrame, page: Page) -> None:
    missing = (frame["metric"] == "rho") & (frame["instance"] == "item1") & (frame["estimator"] == "imle[lambda=2.5]")
    (table,) = html.report(frame[~missing], examples.MANIFEST).problems
    assert [cell.text for row in table.rows for cell in row if " of " in cell.text] == ["0.291 [0.150, 0.431] (2 of 3)"] * 2
    assert "(2 of 3)" not in page.text


def test_skips_and_errors_give_their_reasons(page: Page) -> None:
    assert "sparsemap needs ProjectionOracle" in page.text
    assert "1 failed" in page.text


def test_the_quick_preset_warns(frame: pd.DataFrame, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "draw", lambda frame: [])
    assert "not for conclusions" not in page.text
    assert "not for conclusions" in Page(html.to_html(frame, {**examples.MANIFEST, "preset": "quick"})).text


def test_an_empty_run_still_gives_a_page() -> None:
    assert "There is nothing to draw." in html.to_html(results.to_frame([]), {})


def test_markdown_has_the_same_tables(frame: pd.DataFrame) -> None:
    text = html.to_markdown(frame, examples.MANIFEST)
    assert text.startswith("## structgrad report")
    assert "9 cells ok, 1 failed, 1 skipped." in text
    assert r"| imle\[lambda=2.5\] | perturbed | biased | 0.700 \[0.600, 50.4\] (biased)" in text
    assert "contradicts its claim" in text
    assert r"RuntimeError: &lt;script>alert(1)&lt;/script> \| no" in text
    for title in ("Claims and verdicts", "Relative mean squared error", "toy", "Sparsity", "Skipped pairs", "Errors"):
        assert f"<summary>{title}</summary>" in text
    widths = {line.count("|") - line.count(r"\|") for line in table_of(text, "Claims and verdicts")}
    assert len(widths) == 1


def table_of(text: str, title: str) -> list[str]:
    body = text[text.index(f"<summary>{title}</summary>") :]
    return [line for line in body[: body.index("</details>")].splitlines() if line.startswith("|")]


def test_markdown_names_the_tables_that_do_not_fit(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "COMMENT_LIMIT", 3000)
    text = html.to_markdown(frame, examples.MANIFEST)
    assert len(text) < 3200
    assert "Left out, since a comment has a limit:" in text


def browse(page: Path, *options: str) -> str:
    assert BROWSER is not None
    quiet = ("--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = [BROWSER, "--headless", "--no-sandbox", *quiet, profile, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_browser_draws_the_page(source: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(source)
    browse(page, f"--screenshot={tmp_path / 'page.png'}", "--window-size=1000,3000")
    assert (tmp_path / "page.png").stat().st_size > 50_000


ACTIONS = """<script>
const table = document.getElementById("problem-toy");
const header = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === "rel. bias");
table.tHead.rows[0].cells[header].firstChild.click();
table.tHead.rows[0].cells[header].firstChild.click();
const first = table.tBodies[0].rows[0].textContent;
document.body.dataset.first = first;
</script>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
def test_a_click_sorts_and_words_filter(source: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    typed = (
        '<script>const box = document.querySelector("input[data-table=sparsity]"); box.value = "rloo final"; '
        'box.dispatchEvent(new Event("input"));</script>'
    )
    page.write_text(source.replace("</body>", ACTIONS + typed + "</body>"))
    dom = browse(page, "--dump-dom")
    assert re.search(r'<body data-first="\s*(init|final)\s*imle', dom)
    body = dom[dom.index('<table id="sparsity"') :]
    rows = re.findall(r"<tr( hidden=\"\")?>", body[body.index("<tbody>") : body.index("</tbody>")])
    assert len(rows) == 8
    assert sum(not hidden for hidden in rows) == 1

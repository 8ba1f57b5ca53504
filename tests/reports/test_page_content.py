"""The content of the page, of its charts and of its Markdown; the golden pages hold the texts of all tables."""

import base64
import json
import math
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from structgrad.estimators import ESTIMATORS
from structgrad.reports import page as report_page, results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.page import charts, dataset, page as page_module, sections
from structgrad.suites.metrics import METRICS
from tests.reports import examples

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction", "xlink:href"}
RLOO = "rloo[num_samples=2]"


class Page(HTMLParser):
    """The links that a page would load, its ids, and its visible text."""

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
    return report_page.to_html(frame, examples.MANIFEST)


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_the_page_loads_nothing_and_its_links_have_targets(source: str, page: Page) -> None:
    assert {target[:1] for target in page.loads} == {"#"}
    assert {target[1:] for target in page.loads} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert all(target.startswith("#") for target in re.findall(r"url\((.)", page.raw))
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|import\(|https?:", page.raw)
    assert set(re.findall(r"https?://[^\s\"'<]+", source)) <= {"http://www.w3.org/2000/svg"}
    # Its library is the most of it.
    assert len(source) < 500_000 + 100 * len(examples.rows())


@pytest.mark.parametrize(
    "text",
    [
        *("9 cells ok", "1 failed", "1 skipped", "a <cpu> & more", examples.MANIFEST["command"]),
        *("unbiased-exact", "equivalent 1/3", "biased 1/3", "sparsemap needs ProjectionOracle", "No traceback was kept."),
        "0123abc with changes that are not committed",
        "imle[lambda=2.5] Implicit MLE: forward z = argmax(θ + ε)",
        "Niepert et al. 2021",
        "RuntimeError: <script>alert(1)</script> | no: spigot on toy, final (bias)",
        "R. J. Williams (1992). Simple Statistical Gradient-Following",
        "@inproceedings{niepert2021implicit,",
        *map(str, METRICS.values()),
        *report_page.VERDICT_MEANING.values(),
    ],
)
def test_the_page_holds(text: str, page: Page) -> None:
    assert text in page.text


def test_the_page_does_not_hold(source: str, page: Page) -> None:
    assert "<script>alert" not in source
    for absent in ("sparsemap2018", "not for conclusions", "(2 of 3)"):
        assert absent not in page.text
    assert all(f"; {METRICS[name].range}" in sections.described(name) for name in sections.MAIN)


def test_quick_and_empty_runs_have_a_page(frame: pd.DataFrame) -> None:
    assert "not for conclusions" in Page(report_page.to_html(frame, {**examples.MANIFEST, "preset": "quick"})).text
    assert "Nothing was measured." in report_page.to_html(results.to_frame([]), {})


def test_a_bias_that_was_not_found_is_shown_by_its_bound() -> None:
    """Neither a table, nor a chart, nor an answer shows 0 for it."""
    changes: dict[str, dict[str, Any]] = {
        "relative_bias": {"value": 0.0, "low": 0.0, "high": 0.025, "verdict": "unresolved"},
        "relative_bias_squared": {"value": 0.0},
    }
    frame = results.to_frame(replace(row, **changes.get(row.metric, {}) if row.estimator == RLOO else {}) for row in examples.rows())
    bounds = dataset.cells(frame).set_index(["estimator", "stage"])["bias_bound"]
    assert bounds[RLOO, "init"] == 0.025
    assert [math.isnan(bounds[name, "init"]) for name in ("reinforce", "exact")] == [False, True]
    report = report_page.report(frame, examples.MANIFEST)
    (claimed,) = (row for row in report.overview[0].rows if row[0].text == RLOO)
    (listed,) = (row for row in report.problems["toy"].rows if (row[0].text, row[1].text) == (RLOO, "init"))
    assert claimed[3].text == listed[3].text == "|bias| < 2.5 %"
    unbiased = [answer for answer in answers.answers(frame) if answer.estimator == RLOO]
    assert {answer.why[:14] for answer in unbiased} == {"|bias| < 2.5 %"}


# Markdown.


def test_markdown_has_the_same_tables(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report_page.to_markdown(frame, examples.MANIFEST)
    assert text.startswith("## structgrad report")
    assert "- **Loss quadratic** → No estimator is clearly best in 2 of 2 cells." in text.partition("<details")[0]
    for part in (
        "9 cells ok, 1 failed, 1 skipped.",
        r"| imle\[lambda=2.5\] | perturbed | biased | 0.700 \[0.600, 50.4\] (biased)",
        "contradicts its claim",
        r"RuntimeError: &lt;script>alert(1)&lt;/script> \| no",
        *(f"<summary>{title}</summary>" for title in ("Sparsity", "Skipped pairs")),
    ):
        assert part in text
    assert len({line.count("|") - line.count(r"\|") for line in table_of(text, "Tests for bias, entropy level init")}) == 1
    assert "256 estimates" not in "".join(table_of(text, "Which estimator, where"))
    monkeypatch.setattr(page_module, "COMMENT_LIMIT", 3000)
    text = report_page.to_markdown(frame, examples.MANIFEST)
    assert len(text) < 3300
    assert "Left out, since a comment has a limit:" in text


def table_of(text: str, title: str) -> list[str]:
    body = text[text.index(f"<summary>{title}</summary>") :]
    return [line for line in body[: body.index("</details>")].splitlines() if line.startswith("|")]


# Numbers in the page.


def unpack(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    found = json.loads(zlib.decompress(base64.b64decode(text)), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    return {name: {column["name"]: column for column in table} for name, table in found.items()}


def test_all_numbers_are_in_the_page(frame: pd.DataFrame, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    found = unpack(dataset.packed(dataset.held(frame)))
    overall, single = found[dataset.OVER_INSTANCES], found[dataset.EVERY_INSTANCE]
    aggregated = tables.aggregate(frame)
    assert [overall["metric"]["words"][code] for code in overall["metric"]["codes"]] == list(aggregated["metric"])
    assert overall["median"]["numbers"] == pytest.approx(list(aggregated["median"]), rel=1e-3, nan_ok=True)
    assert len(single["value"]["numbers"]) == (frame["metric"].astype(object).ne("") | frame["status"].ne("ok")).sum()
    assert "RuntimeError: <script>alert(1)</script> | no" in single["reason"]["words"]
    medians = f"opens with {len(aggregated)} medians over instances"
    assert f"{medians}; “every instance” shows the {len(single['value']['numbers'])} rows behind them." in page.text
    assert f"has all {len(frame)} rows in full" in page.text
    monkeypatch.setattr(dataset, "MOST_ROWS", 10)
    assert list(dataset.held(frame)) == [dataset.OVER_INSTANCES]
    assert f"{medians}; single instances are too many for a page." in Page(report_page.to_html(frame, examples.MANIFEST)).text


def test_numbers_are_rounded_by_their_digits_as_text_is() -> None:
    drawn = np.random.default_rng(0).standard_normal(2000) * 10.0 ** np.random.default_rng(1).integers(-320, 300, 2000)
    halves = np.arange(10_005, 99_995, 10) / 10.0 ** np.random.default_rng(2).integers(-12, 20, 8999)
    values = np.concatenate(
        [drawn, halves, -halves, 10.0 ** np.arange(-30, 30), [0.0, -0.0, 5e-324, 1e15, 9.9995, math.inf, -math.inf, math.nan]]
    )
    column = unpack(dataset.packed({"all": pd.DataFrame({"value": values})}))["all"]["value"]
    expected = [float(f"{value:.3e}") if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value) for value in values.tolist()]
    assert column["numbers"] == expected
    assert all(isinstance(one, int) for one in column["numbers"] if one == 1000.0)


# Charts.


def test_charts_hold_no_data_and_no_address() -> None:
    for spec in charts.specs().values():
        assert spec["data"] == {"name": "rows"}
        assert "http" not in str(spec)


def luminance(colour: str) -> float:
    """The relative luminance of WCAG."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_every_estimator_has_a_colour_of_its_own_that_shows_on_light_and_dark() -> None:
    names = [*ESTIMATORS, "rloo[num_samples=16]", "./mine.py:BatchMean"]
    found = dataset.looks(pd.DataFrame({"estimator": names, "family": [*ESTIMATORS, "rloo", "rloo"]}))
    assert len(found.drop_duplicates()) == len(names)
    for colour in found["colour"]:
        for page in ("#ffffff", "#14181e"):
            low, high = sorted((luminance(colour), luminance(page)))
            assert (high + 0.05) / (low + 0.05) >= 3

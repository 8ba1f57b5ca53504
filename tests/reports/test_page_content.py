from __future__ import annotations

import base64
import json
import math
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from structgrad.reports import page as report_page
from structgrad.reports import results
from structgrad.reports.analysis import tables
from structgrad.reports.page import dataset, markdown, sections
from structgrad.reports.page import page as page_module
from structgrad.suites.metrics import METRICS, title_of
from tests.reports import examples

LOADING = {"src", "href", "srcset", "data", "action", "poster", "background", "formaction", "xlink:href"}


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
    counts = "4 estimators on 1 problem (2 pairs of problem and entropy level, 6 instances, up to 4,096 replicates each)"
    order = ["4 gradient estimators on subset", report_page.content.PURPOSE, counts, "Loss quadratic"]
    assert [page.text.index(part) for part in order] == sorted(page.text.index(part) for part in order)
    assert page.text.index(counts) < 700
    assert "9 cells ok" in page.text
    assert "1 failed" in page.text
    assert "1 skipped" in page.text


def test_a_contradicted_claim_stands_out(page: Page, frame: pd.DataFrame) -> None:
    sentence = (
        "rloo[num_samples=2] declares itself unbiased, and is found biased on toy, init (1 of 3 instances). "
        "The claim fails in 1 more of its 2 pairs of problem and entropy level."
    )
    assert sentence in page.text
    assert page.text.index(sentence) < page.text.index("Loss quadratic")
    assert len(report_page.report(frame, examples.MANIFEST).contradictions) == 1
    short = frame.assign(value=frame["value"].mask(frame["metric"] == "gain", 0.75))
    assert report_page.report(short, examples.MANIFEST).contradictions[0].endswith("gain is 0.750; that of an unbiased estimator is 1.")


def test_the_page_explains_metrics_and_verdicts(page: Page) -> None:
    for meaning in (*map(str, METRICS.values()), *report_page.VERDICT_MEANING.values()):
        assert meaning in page.text
    for name in sections.MAIN:
        assert METRICS[name].range
        assert f"; {METRICS[name].range}" in sections.described(name)


def test_the_page_tells_how_to_repeat_the_run(page: Page) -> None:
    assert examples.MANIFEST["command"] in page.text
    assert "0123abc with changes that are not committed" in page.text


def test_estimators_are_explained_with_their_papers(page: Page) -> None:
    assert "imle[lambda=2.5] Implicit MLE: forward z = argmax(θ + ε)" in page.text
    assert "Niepert et al. 2021" in page.text
    assert "#paper-niepert2021implicit" in page.loads


def test_the_best_of_a_level_is_bold_and_the_exact_gradient_does_not_compete(frame: pd.DataFrame) -> None:
    found = report_page.report(frame, examples.MANIFEST)
    table, cost = found.problems["toy"], found.cost
    titles = [title for title, _ in table.columns]
    assert titles[3:] == [*map(title_of, sections.MAIN), "time of one estimate (µs)"]
    best = {title: {row[0].text for row in table.rows if row[1].text == "init" and row[place].best} for place, title in enumerate(titles)}
    assert best["rel. variance"] == {"imle[lambda=2.5]"}
    assert best["gain"] == {"reinforce", "rloo[num_samples=2]"}
    assert best["estimator"] == set()
    assert {row[0].text for row in cost.rows if row[1].best} == {"imle[lambda=2.5]"}


@pytest.mark.parametrize(
    ("families", "said"), [(("rloo", "BatchMean"), True), (("reinforce", "BatchMean"), False), (("rloo", "imle"), False)]
)
def test_an_estimator_of_ones_own_is_compared_with_rloo(families: tuple[str, str], said: bool) -> None:
    """A class of the user's has the family of its parent; its name has a colon."""
    first, second = families
    names = {"rloo[num_samples=2]": first, "imle[lambda=2.5]": "./mine.py:BatchMean" if second == "BatchMean" else second}
    rows = [replace(row, estimator=names.get(row.estimator, row.estimator)) for row in examples.rows()]
    found = report_page.report(results.to_frame(rows), examples.MANIFEST).comparison
    assert bool(found.rows) == said
    if said:
        assert found.title == "./mine.py:BatchMean compared with rloo"
        assert [row[1].text for row in found.rows] == ["init", "final"]
        variance = found.rows[0][6]
        assert (variance.text, variance.notes, variance.best) == ("0.250", ("rloo 3",), True)


def test_verdicts_are_printed_in_their_own_words(page: Page) -> None:
    for word in ("unbiased-exact", "equivalent 1/3", "biased 1/3"):
        assert word in page.text


def test_a_metric_that_does_not_exist_everywhere_says_so(frame: pd.DataFrame, page: Page) -> None:
    missing = (frame["metric"] == "rho") & (frame["instance"] == "item1") & (frame["estimator"] == "imle[lambda=2.5]")
    table = report_page.report(frame[~missing], examples.MANIFEST).problems["toy"]
    assert [(cell.text, *cell.notes) for row in table.rows for cell in row if "(2 of 3)" in cell.notes] == [
        ("0.291", "[0.150, 0.431]", "(2 of 3)")
    ] * 2
    assert "(2 of 3)" not in page.text


def test_skips_and_errors_give_their_reasons(page: Page) -> None:
    assert "sparsemap needs ProjectionOracle" in page.text
    assert "RuntimeError: <script>alert(1)</script> | no: spigot on toy, final (bias)" in page.text
    assert "No traceback was kept." in page.text


def test_what_fails_for_one_reason_is_told_once() -> None:
    broken = next(row for row in examples.rows() if row.status == "error")
    rows = [replace(broken, instance=name, traceback="line 1") for name in "abc"]
    (failure,) = report_page.report(results.to_frame(rows), {}).failures
    assert len(failure.where) == 3
    assert failure.traceback == "line 1"


def test_the_quick_preset_warns(frame: pd.DataFrame, page: Page) -> None:
    assert "not for conclusions" not in page.text
    assert "not for conclusions" in Page(report_page.to_html(frame, {**examples.MANIFEST, "preset": "quick"})).text


def test_an_empty_run_still_gives_a_page() -> None:
    assert "Nothing was measured." in report_page.to_html(results.to_frame([]), {})


def test_markdown_has_the_same_tables(frame: pd.DataFrame) -> None:
    text = report_page.to_markdown(frame, examples.MANIFEST)
    assert text.startswith("## structgrad report")
    assert "9 cells ok, 1 failed, 1 skipped." in text
    assert r"| imle\[lambda=2.5\] | perturbed | biased | 0.700 \[0.600, 50.4\] (biased)" in text
    assert "contradicts its claim" in text
    assert r"RuntimeError: &lt;script>alert(1)&lt;/script> \| no" in text
    for title in (
        "Which estimator, where",
        "Tests for bias, entropy level init",
        "Relative mean squared error, entropy level final",
        "Sparsity",
        "Skipped pairs",
        "Failures",
    ):
        assert f"<summary>{title}</summary>" in text
    widths = {line.count("|") - line.count(r"\|") for line in table_of(text, "Tests for bias, entropy level init")}
    assert len(widths) == 1


def table_of(text: str, title: str) -> list[str]:
    body = text[text.index(f"<summary>{title}</summary>") :]
    return [line for line in body[: body.index("</details>")].splitlines() if line.startswith("|")]


def test_markdown_names_the_tables_that_do_not_fit(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "COMMENT_LIMIT", 3000)
    text = report_page.to_markdown(frame, examples.MANIFEST)
    assert len(text) < 3300
    assert "Left out, since a comment has a limit:" in text


def test_markdown_answers_before_its_first_fold(frame: pd.DataFrame) -> None:
    text = report_page.to_markdown(frame, examples.MANIFEST)
    assert "- **Loss quadratic** → No estimator is clearly best in 2 of 2 cells." in text.partition("<details")[0]
    assert "256 estimates" not in "".join(table_of(text, "Which estimator, where"))


def unpack(text: str) -> dict[str, list[dict[str, object]]]:
    return dict(json.loads(zlib.decompress(base64.b64decode(text)), parse_constant=lambda word: pytest.fail(f"{word} is no JSON")))


def words(column: dict[str, object]) -> list[str]:
    return [column["words"][code] for code in column["codes"]]  # type: ignore[index, attr-defined]


def test_all_numbers_travel_with_the_page(frame: pd.DataFrame) -> None:
    found = unpack(dataset.packed(dataset.held(frame)))
    overall, single = ({column["name"]: column for column in found[name]} for name in (dataset.OVER_INSTANCES, dataset.EVERY_INSTANCE))
    aggregated = tables.aggregate(frame)
    assert words(overall["metric"]) == list(aggregated["metric"])
    assert overall["median"]["numbers"] == pytest.approx(list(aggregated["median"]), rel=1e-3, nan_ok=True)
    assert len(single["value"]["numbers"]) == (frame["metric"].astype(object).ne("") | frame["status"].ne("ok")).sum()
    assert "RuntimeError: <script>alert(1)</script> | no" in single["reason"]["words"]


def test_long_tables_are_packed_as_they_would_stand(frame: pd.DataFrame, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MANY_ROWS", 2)
    packed = report_page.to_html(frame, examples.MANIFEST)

    def spread(found: re.Match[str]) -> str:
        return f"<tbody>{zlib.decompress(base64.b64decode(found[1])).decode()}</tbody>"

    again, count = re.subn(r'<tbody data-packed="([^"]*)">.*?</tbody>', spread, packed, flags=re.DOTALL)
    assert count > 3
    assert "<tbody data-packed" not in source
    assert re.sub(r">\s+<", "><", again) == re.sub(r">\s+<", "><", source)


def test_infinite_and_missing_numbers_stay_apart_in_strict_json() -> None:
    row = next(row for row in examples.rows() if row.metric == "rho")
    rows = results.to_frame([replace(row, value=value, low=None) for value in (float("inf"), 1 / 3)])
    found = unpack(dataset.packed(dataset.held(rows)))
    by_name = {column["name"]: column["numbers"] for column in found[dataset.EVERY_INSTANCE] if "numbers" in column}
    assert by_name["value"] == ["∞", 0.3333]
    assert by_name["95 % from"] == [None, None]


def test_a_page_of_a_large_run_holds_what_was_found_over_instances(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "MOST_ROWS", 10)
    assert list(unpack(dataset.packed(dataset.held(frame)))) == [dataset.OVER_INSTANCES]
    assert told(Page(report_page.to_html(frame, examples.MANIFEST)).text) == (sizes(frame)[0], None, len(frame))


def told(text: str) -> tuple[int | None, ...]:
    """The numbers of rows in the text of the page: shown at first, available, and measured."""
    patterns = r"opens with ([\d,]+) medians over instances", r"“every instance” shows the ([\d,]+) rows", r"has all ([\d,]+) rows in full"
    found = [re.search(pattern, text) for pattern in patterns]
    return tuple(int(match[1].replace(",", "")) if match else None for match in found)


def sizes(frame: pd.DataFrame) -> list[int]:
    """The numbers of rows of the tables in the page."""
    return [len(next(iter(table))["codes"]) for table in unpack(dataset.packed(dataset.held(frame))).values()]  # type: ignore[index, arg-type]


def test_a_page_says_how_many_rows_its_tables_have(frame: pd.DataFrame) -> None:
    medians, single = sizes(frame)
    assert told(Page(report_page.to_html(frame, examples.MANIFEST)).text) == (medians, single, len(frame))
    assert medians < single


def test_the_set_up_is_told_with_its_effort(frame: pd.DataFrame) -> None:
    manifest = {**examples.MANIFEST, "plan": {"estimators": ["a", "b"], "effort": {"alpha": 0.001}}, "plan_hash": "0a1b"}
    found = dict(report_page.report(frame, manifest).setup)
    assert (found["estimators"], found["effort: alpha"], found["plan"]) == ("a, b", "0.001", "0a1b")


def test_papers_of_what_was_measured_are_listed(page: Page) -> None:
    assert "R. J. Williams (1992). Simple Statistical Gradient-Following" in page.text
    assert "@inproceedings{niepert2021implicit," in page.text
    assert "sparsemap2018" not in page.text


def test_sweeps_have_tables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    exponent = replace(examples.swept_rows()[0], metric="time_exponent", value=2.0, low=1.9, high=2.1, setting="axis=length", size=None)
    found = report_page.report(results.to_frame([*examples.swept_rows(), exponent]), {})
    shown = {table.title: [cell.text for row in table.rows for cell in row] for table in found.further}
    assert shown["Exponents"] == ["toy", "reinforce", "length", "2 [1.90, 2.10]"]
    assert shown["Descent"][:3] == ["toy", "init", "reinforce"]
    assert "0.100 [0.0500, 0.200]" in shown["Descent"]


def test_numbers_are_rounded_by_their_digits_as_text_is() -> None:
    drawn = np.random.default_rng(0).standard_normal(2000) * 10.0 ** np.random.default_rng(1).integers(-320, 300, 2000)
    halves = np.arange(10_005, 99_995, 10) / 10.0 ** np.random.default_rng(2).integers(-12, 20, 8999)
    values = np.concatenate(
        [drawn, halves, -halves, 10.0 ** np.arange(-30, 30), [0.0, -0.0, 5e-324, 1e15, 9.9995, math.inf, -math.inf, math.nan]]
    )
    (column,) = dataset.columns(pd.DataFrame({"value": values}))
    expected = [float(f"{value:.3e}") if math.isfinite(value) else {math.inf: "∞", -math.inf: "−∞"}.get(value) for value in values.tolist()]
    assert column["numbers"] == expected
    assert all(isinstance(one, int) for one in column["numbers"] if one == 1000.0)

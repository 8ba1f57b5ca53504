from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import LinearChain, SpanningTree, Subset
from structgrad.suites import Results, measure
from structgrad.suites.fragments import LIMIT, WIDTH, FragmentTable, IntervalAxis, curve, fragment
from structgrad.suites.frames import COLUMNS
from structgrad.suites.measures.measurement import FRAME_COLUMNS, Measurement
from structgrad.suites.problems.sized import size_text
from structgrad.suites.running import notebook
from structgrad.suites.running.progress import Busy, Snapshot
from structgrad.suites.statistics.interval import Interval
from structgrad.suites.statistics.selection import student_mean
from tests.reports import examples

VOID = {"br"}


class Balanced(HTMLParser):
    """Every element is closed, in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_fragment(text: str) -> None:
    """Whole in itself, within the limit, and in the colours of its surroundings."""
    found = Balanced(text)
    assert not found.open
    assert len(text.encode()) <= LIMIT
    for tag, attributes in found.seen:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href", "onclick", "onload"} & set(attributes)
    assert "url(" not in text
    assert not re.search(r"(?<!&)#[0-9a-f]{3,6}\b|rgb\(|recommend|best", text)
    assert set(re.findall(r"(?:fill|stroke|color|background):([\w]+)", text)) <= {"none", "currentColor", "inherit"}


@pytest.fixture(scope="module")
def found() -> Measurement:
    scores = torch.tensor([1.0, 0.5, -0.5, 0.0, 2.0], dtype=torch.float64)

    def product(z: torch.Tensor) -> torch.Tensor:
        return z[..., 0] * z[..., 1] * 2 + z[..., 2]

    return measure(make_estimator("rloo[num_samples=3]"), Subset(2), product, scores)


def test_a_measurement_names_what_was_measured(found: Measurement) -> None:
    text = found._repr_html_()
    check_fragment(text)
    for word in ("rloo[num_samples=3]", "subset[k=2]", "product", "n=5", "10 structures", "1 instance", "unbiased-exact", "relative MSE"):
        assert word in text
    assert repr(found).startswith("<Measurement of rloo[num_samples=3] on subset[k=2]: relative bias 0, ")
    assert len(repr(found)) < 200


def test_intervals_and_replicates_are_shown(found: Measurement) -> None:
    sampled = replace(found, tier="mc", replicates=4096, sampling="budget", metrics={"relative_bias": Interval(0.5, 0.4, 0.625, "t")})
    assert "0.500 [0.400, 0.625]" in sampled._repr_html_()
    assert "4096 replicates (budget)" in sampled._repr_html_()


def test_the_frame_of_a_measurement(found: Measurement) -> None:
    frame = found.frame
    assert list(frame.columns) == list(FRAME_COLUMNS)
    assert dict(frame.dtypes.astype(str)) == {name: COLUMNS[name] for name in FRAME_COLUMNS}
    assert frame["metric"].tolist() == list(found.metrics)
    one = frame.set_index("metric").loc["gradient_nonzeros"]
    assert (one["unit"], one["estimator"], one["reference"]) == ("count", "rloo[num_samples=3]", "")
    assert one["value"] == found.metrics["gradient_nonzeros"].value
    assert one["log_count"] == pytest.approx(math.log(10))
    assert frame["low"].isna().all()


def test_a_measurement_without_a_gradient_is_shown() -> None:
    """Its metrics are absolute."""
    found = measure(make_estimator("reinforce"), Subset(1), lambda z: 0 * z[..., 0] + 3.0, torch.zeros(3, dtype=torch.float64))
    assert "absolute variance" in found._repr_html_()
    check_fragment(found._repr_html_())
    assert "absolute_variance" in found.frame["metric"].tolist()


def test_results_are_a_list_a_frame_and_a_fragment() -> None:
    rows = examples.rows()
    results = Results(rows, sizes={("toy", "init"): "n=7"})
    assert results == rows
    assert isinstance(results, list)
    assert len(results.frame) == len(rows)
    assert list(results.frame.columns) == list(COLUMNS)
    text = results._repr_html_()
    check_fragment(text)
    for word in ("toy", "stage init", "n=7", "median of 3 [95 %]", "relative variance", "3 instances"):
        assert word in text
    assert repr(results).startswith(f"<Results: {len(rows)} rows of 6 estimators on 1 problem, 1 error, 1 skipped>")


def test_results_of_nothing() -> None:
    assert repr(Results()) == "<Results: no rows>"
    check_fragment(Results()._repr_html_())
    assert Results().frame.empty


def test_an_interval_of_a_median_stays_within_the_intervals_of_its_instances() -> None:
    row = next(row for row in examples.rows() if row.metric == "relative_bias" and row.status == "ok")
    rows = [replace(row, instance=str(i), value=0.01, low=0.0, high=0.5, setting="") for i in range(4)]
    assert "0.0100 [0," in Results(rows)._repr_html_()


def test_two_instances_have_a_range() -> None:
    row = next(row for row in examples.rows() if row.metric == "relative_bias" and row.status == "ok")
    rows = [replace(row, instance=str(i), value=float(i + 1), low=None, high=None, setting="") for i in range(2)]
    text = Results(rows)._repr_html_()
    assert "median of 2 [range]" in text
    assert "1.50 [1, 2]" in text


def test_what_failed_is_told() -> None:
    row = examples.rows()[0]
    failed = replace(row, status="error", reason="a <reason> & more", value=None)
    text = Results([failed])._repr_html_()
    check_fragment(text)
    assert "1 error" in text
    assert "a &lt;reason&gt; &amp; more" in text


def test_a_large_run_keeps_the_limit_and_says_what_is_left_out() -> None:
    many = [replace(row, estimator=f"{row.estimator}<{i}>", problem=f"p{i % 9}") for i in range(60) for row in examples.rows()]
    text = Results(many)._repr_html_()
    check_fragment(text)
    (left,) = re.findall(r"(\d+) more lines do not fit here", text)
    assert int(left) > 0


def test_a_fragment_of_long_names_and_notes_keeps_the_limit() -> None:
    table = FragmentTable("x" * 100, ["h"] * 5, [["é" * 200] * 5 for _ in range(500)])
    check_fragment(fragment("t", ["f" * 50], [table, table], ["n" * 5000] * 50))


@pytest.mark.parametrize(
    "numbers", [[0.0], [1e-16, 3.0], [1e-9, 1e9], [5.0], [-1.0, 2.0], [], [math.inf, 1.0], [-3.0, -3.0], [1e300, 1e-300]]
)
@pytest.mark.parametrize("metric", ["relative_bias", "cosine", "accuracy", "of_a_suite_of_ones_own"])
def test_pictures_stay_in_their_frame(metric: str, numbers: list[float]) -> None:
    axis = IntervalAxis.of(metric, [Interval(number) for number in numbers])
    for number in [*numbers, -1e9, 0.0, 1e9, math.inf]:
        mark = axis.mark(Interval(number, number - 1 if math.isfinite(number) else number, math.inf))
        places = [float(x) for x in re.findall(r'(?:cx="|M|H)(-?[\d.e+]+)', axis.heading() + mark)]
        assert places
        assert all(0 <= x <= WIDTH for x in places)
    assert "circle" not in axis.mark(Interval(None))


def test_values_lie_in_their_order() -> None:
    """Of logarithms too, with 0 before all others."""
    for metric in ("relative_mse", "gain"):
        axis = IntervalAxis.of(metric, [Interval(value) for value in (0.0, 1e-3, 1.0, 50.0)])
        places = [axis.at(value) for value in (0.0, 1e-3, 1.0, 50.0)]
        assert places == sorted(places)
        assert len(set(places)) >= 3


def test_a_curve_needs_two_points() -> None:
    axis = IntervalAxis.of("accuracy", [Interval(0.2), Interval(0.8)])
    assert "path" not in curve([(0.0, Interval(0.2))], 10.0, axis)
    drawn = curve([(0.0, Interval(0.2)), (10.0, Interval(0.8, 0.7, 0.9))], 10.0, axis)
    assert 'd="M6 26L114 2"' in drawn


def test_sizes_follow_from_shapes() -> None:
    assert size_text(SpanningTree(), (6, 6)) == "n=5"
    assert size_text(LinearChain(), (4, 2, 2)) == "n=4,t=2"
    assert size_text(SimpleNamespace, (3, 3)) == "scores 3×3"


def test_student_mean() -> None:
    found = student_mean(np.array([1.0, math.nan, 3.0]))
    assert found.value == 2.0
    assert found.high == pytest.approx(2 + 12.7062, abs=1e-4)
    assert student_mean(np.array([1.0])) == Interval(1.0)
    assert student_mean(np.array([math.nan])) == Interval(None)


# Progress.


class Handle:
    def __init__(self, shown: list[Any]) -> None:
        self.shown = shown

    def update(self, line: Any) -> None:
        self.shown.append(line)


def test_no_progress_is_shown_outside_a_notebook() -> None:
    assert notebook.notebook_progress() is None


def test_progress_in_a_notebook_is_one_line_that_is_not_drawn_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed: list[Any] = []
    updated: list[Any] = []

    def display(line: Any, *, display_id: bool) -> Handle:
        assert display_id
        displayed.append(line)
        return Handle(updated)

    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(notebook.sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[attr-defined]
    monkeypatch.setitem(notebook.sys.modules, "IPython.display", SimpleNamespace(display=display))  # type: ignore[attr-defined]
    report = notebook.notebook_progress()
    assert report is not None
    for finished in range(1001):
        report(Snapshot(finished, 1000, left=5.0, busy=(Busy("0", "x", 1.0),)))
    assert len(displayed) == 1
    assert 1 <= len(updated) < 20
    assert repr(updated[-1]).startswith("1000/1000 cells")
    assert "width:100%" in updated[-1]._repr_html_()
    check_fragment(updated[-1]._repr_html_())

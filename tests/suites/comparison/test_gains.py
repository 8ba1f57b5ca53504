"""Errors are judged at the same gain: what was made smaller is no better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from structgrad.suites import processors
from structgrad.suites.base import Row
from structgrad.suites.comparison import Comparison, compare, compare_large, gate, read_settings
from structgrad.suites.comparison.verdicts import LARGEST_RATIO
from tests.suites.comparison.rows import batch_means, exact, sampled
from tests.suites.comparison.test_large import tables

FIELDS = ("relative_variance", "relative_mse", "orthogonal_bias", "null_bias", "gain")


def exactly(scale: float, spread: float) -> list[Row]:
    """The errors of an estimate of gain 1, orthogonal bias 0.3, null bias 0.1 and variance 4, times a scale; deviations times a spread."""
    variance, gain, orthogonal = 4 * (scale * spread) ** 2, scale, abs(0.3 * scale)
    values = (variance, (gain - 1) ** 2 + orthogonal**2 + variance, orthogonal, orthogonal / 3, gain)
    return [exact(value, metric=metric) for metric, value in zip(FIELDS, values, strict=True)]


def drawn(scale: float, spread: float, seed: int = 0) -> list[Row]:
    """The same of one direction, from replicates in batches."""
    noise = np.random.default_rng(seed).standard_normal((32, 256))
    estimates = scale * (1 + 2 * spread * noise)
    gains, squares = estimates.mean(1), np.square(estimates - 1).mean(1)
    numbers = {"relative_variance": np.square(estimates).mean(1) - estimates.mean() ** 2, "relative_mse": squares, "gain": gains}
    return [sampled(values, metric=metric, seed=seed) for metric, values in numbers.items()]


ERRORS = ("relative_variance", "relative_mse")
CHANGES = [
    (1.0, 1.0, "identical", "identical"),
    (0.5, 1.0, "changed", "identical"),
    (2.0, 1.0, "changed", "identical"),
    (-1.0, 1.0, "changed", "identical"),
    (0.01, 1.0, "changed", "identical"),
    (1.0, 0.5, "identical", "improved"),
    (1.0, 1.5, "identical", "regressed"),
    (0.5, 0.5, "changed", "improved"),
    (0.5, 1.5, "changed", "regressed"),
    (2.0, 0.3, "changed", "improved"),
]
"""The estimate times a scale, its deviations besides times a spread: the verdicts on the gain and on the errors."""


@pytest.mark.parametrize(("scale", "spread", "of_gain", "of_errors"), CHANGES)
def test_exact_errors_are_judged_at_the_same_gain(scale: float, spread: float, of_gain: str, of_errors: str) -> None:
    verdicts = {item.key.metric: item.verdict for item in compare(exactly(1.0, 1.0), exactly(scale, spread))}
    assert verdicts.pop("gain") == of_gain
    assert {verdicts[metric] for metric in ERRORS} == {of_errors}
    assert {verdicts[metric] for metric in ("orthogonal_bias", "null_bias")} == {"identical"}


@pytest.mark.parametrize(("scale", "spread", "of_gain", "of_errors"), CHANGES)
def test_sampled_errors_are_judged_at_the_same_gain(scale: float, spread: float, of_gain: str, of_errors: str) -> None:
    verdicts = {item.key.metric: item.verdict for item in compare(drawn(1.0, 1.0), drawn(scale, spread))}
    assert verdicts.pop("gain") in ({"identical", "equivalent"} if of_gain == "identical" else {of_gain})
    assert set(verdicts.values()) == {of_errors}


@pytest.mark.parametrize("scale", [0.5, 0.8])
def test_a_smaller_estimate_is_no_improvement_with_other_random_numbers_either(scale: float) -> None:
    found = [item for seed in range(20) for item in compare(drawn(1.0, 1.0, 2 * seed), drawn(scale, 1.0, 2 * seed + 1))]
    assert {item.verdict for item in found if item.key.metric == "gain"} == {"changed"}
    others = [item.verdict for item in found if item.key.metric != "gain"]
    assert others.count("improved") <= 1
    assert "regressed" not in others


def test_a_smaller_estimate_is_no_improvement_where_the_gain_is_too_noisy_to_show_it() -> None:
    """A hundredth of the replicates: the variance is known, the change of the gain is not."""
    rows = [[replace(row, seed=seed) for row in few(seed, scale)] for seed, scale in ((0, 1.0), (1, 0.5))]
    found = {item.key.metric: item.verdict for item in compare(*rows)}
    assert found["gain"] == "inconclusive"
    assert found["relative_variance"] != "improved"
    alone = [[row for row in side if row.metric == "relative_variance"] for side in rows]
    assert [item.verdict for item in compare(*alone)] == ["improved"]


def few(seed: int, scale: float) -> list[Row]:
    gain, variance = batch_means(seed, mean=scale, error=0.19 * scale), batch_means(seed + 7, mean=4 * scale**2, error=0.04 * scale**2)
    return [sampled(gain, metric="gain"), sampled(variance, metric="relative_variance")]


def test_the_change_at_the_same_gain_says_so() -> None:
    found = {item.key.metric: item for item in compare(exactly(1.0, 1.0), exactly(0.5, 1.5))}
    assert found["relative_variance"].change.value == pytest.approx(2.25)
    assert found["relative_variance"].reason == "at the same gain, which was 1 and is 0.5"
    assert found["gain"].change.value == pytest.approx(0.5)


def test_an_estimate_that_vanished_is_no_improvement() -> None:
    for rows in (exactly, drawn):
        found = {item.key.metric: item for item in compare(rows(1.0, 1.0), rows(1e-9, 1.0))}
        assert found["gain"].verdict == "changed"
        assert found["relative_variance"].verdict == "inconclusive"
        assert (
            found["relative_variance"].reason == "the gain was 1 and is 1e-09: errors cannot be compared at the same gain" or rows is drawn
        )


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_gain_is_said_to_be_missing(missing: int) -> None:
    rows = [[exact(4.0), exact(None if number == missing else 1.0, metric="gain")] for number in range(2)]
    found = {item.key.metric: item for item in compare(*rows)}
    was, now = ("missing", "1") if missing == 0 else ("1", "missing")
    assert found["relative_variance"].reason == f"the gain was {was} and is {now}: errors cannot be compared at the same gain"


@pytest.mark.parametrize("compared", [lambda *rows: compare(*rows), lambda *rows: list(compare_large(tables(*rows)))])
def test_a_cheaper_wrong_gradient_is_no_improvement(compared: Callable[..., list[Comparison]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "processors", lambda: 1)

    def rows(gain: float, parts: float, estimator: str) -> list[Row]:
        support = exact(parts, metric="support", suite="sparsity", estimator=estimator)
        return [exact(gain, metric="gain", estimator=estimator), support, replace(support, problem="another")]

    base, head = [*rows(1.0, 4.0, "rloo"), *rows(1.0, 4.0, "ste")], [*rows(0.5, 2.0, "rloo"), *rows(1.0, 2.0, "ste")]
    found = {(item.key.estimator, item.key.problem): item for item in compared(base, head) if item.key.metric == "support"}
    assert found["rloo", "toy"].verdict == "inconclusive"
    assert "no improvement" in found["rloo", "toy"].reason
    assert {item.verdict for place, item in found.items() if place != ("rloo", "toy")} == {"improved"}


def test_without_a_gain_on_either_side_errors_are_compared_as_they_are() -> None:
    """Of an estimator whose mean is orthogonal to the gradient."""
    base, head = [[exact(value), exact(gain, metric="gain")] for value, gain in ((4.0, 1e-17), (1.0, -2e-17))]
    assert [item.verdict for item in compare(base, head)] == ["improved", "identical"]
    assert [item.verdict for item in compare(base[:1], head[:1])] == ["improved"]


def test_a_gain_that_is_not_gated_is_divided_by_all_the_same() -> None:
    settings = read_settings({"gate": {"metric": {"gain": {"gated": False}}}})
    result = gate(exactly(1.0, 1.0), exactly(0.5, 1.0), settings=settings)
    assert result.outcome == "passed"
    assert {item.verdict for item in result.comparisons} == {"identical"}


@pytest.mark.parametrize("rows", [exact, lambda value: sampled(value * batch_means(0))])
@pytest.mark.parametrize("least", [1e-17, 1e-9, 1e-4])
def test_no_ratio_is_absurd(rows: Callable[[float], Row], least: float) -> None:
    for pair in ((least, 0.2), (0.2, least)):
        (found,) = compare([rows(pair[0])], [rows(pair[1])])
        assert found.verdict == ("regressed" if pair[0] < pair[1] else "improved")
        assert (found.scale, found.change.value) == ("difference", pytest.approx(pair[1] - pair[0], rel=0.05))
    (found,) = compare([rows(1.0)], [rows(0.9 * LARGEST_RATIO)])
    assert found.scale == "ratio"
    assert found.change.value is not None
    assert math.isfinite(found.change.value)

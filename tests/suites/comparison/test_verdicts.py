from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from structgrad.suites.base import Row
from structgrad.suites.comparison import compare
from structgrad.suites.comparison.verdicts import Comparison
from tests.suites.comparison.rows import batch_means, exact, sampled


def verdict(base: Row | None, head: Row | None, **options: Any) -> Comparison:
    (found,) = compare([base] if base else [], [head] if head else [], **options)
    return found


@pytest.mark.parametrize(
    ("metric", "base", "head", "expected"),
    [
        ("relative_variance", 1.0, 1.0 + 5e-10, "identical"),
        ("relative_variance", 1.0, 1.0 + 5e-9, "regressed"),
        ("relative_variance", 1.0, 1.0 - 5e-9, "improved"),
        ("relative_variance", 0.0, 5e-13, "identical"),
        ("relative_variance", 0.0, 1e-9, "regressed"),
        ("relative_bias", 2e-15, 4e-10, "identical"),
        ("relative_bias", 2e-15, 0.02, "regressed"),
        ("support", 3.0, 4.0, "regressed"),
        ("support", 4.0, 3.0, "improved"),
        ("rho", 0.5, 0.4, "regressed"),
        ("rho", 0.4, 0.5, "improved"),
        ("gain", 3.0, 2.94, "changed"),
        ("gain", 2.94, 3.0, "changed"),
        ("truth_norm", 1.0, 1.0 + 1e-8, "changed"),
    ],
)
def test_exact_numbers_are_compared_exactly(metric: str, base: float, head: float, expected: str) -> None:
    found = verdict(exact(base, metric=metric), exact(head, metric=metric))
    assert (found.verdict, found.method, found.p_value) == (expected, "exact", None)


def test_bytes_have_a_margin() -> None:
    machines = ({"packages": {"torch": "2"}},) * 2
    rows = [exact(value, metric="peak_memory", tier="") for value in (1e6, 1.03e6, 1.2e6)]
    assert [verdict(rows[0], row, machines=machines).verdict for row in rows] == ["identical", "equivalent", "regressed"]


@pytest.mark.parametrize(("factor", "expected"), [(1.2, "regressed"), (0.8, "improved"), (1.0, "identical"), (1.01, "equivalent")])
def test_paired_numbers_show_changes_that_are_far_below_their_noise(factor: float, expected: str) -> None:
    noise = batch_means(0, error=0.3)
    found = verdict(sampled(noise), sampled(factor * noise))
    assert (found.verdict, found.method) == (expected, "paired")
    if expected != "identical":
        assert found.change.value == pytest.approx(factor)


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [(1.2, 0.01, "regressed"), (0.8, 0.01, "improved"), (1.0, 0.01, "equivalent"), (1.2, 0.3, "inconclusive"), (1.0, 0.3, "inconclusive")],
)
def test_independent_numbers_need_precision(mean: float, error: float, expected: str) -> None:
    found = verdict(sampled(batch_means(0, error=error)), sampled(batch_means(1, mean=mean, error=error), seed=1))
    assert (found.verdict, found.method) == (expected, "independent")
    assert found.change.low is not None
    assert found.change.low < (found.change.value or 0) < (found.change.high or 0)


def test_a_change_between_both_margins_stays_open() -> None:
    found = verdict(sampled(batch_means(0, error=0.02)), sampled(batch_means(1, mean=1.06, error=0.02), seed=1))
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize("metric", ["gain", "relative_bias_squared"])
def test_numbers_that_may_be_negative_are_compared_by_their_difference(metric: str) -> None:
    base = sampled(batch_means(0, mean=-0.001, error=0.001), metric=metric)
    head = sampled(batch_means(1, mean=0.2, error=0.001), metric=metric, seed=1)
    found = verdict(base, head)
    assert found.scale == "difference"
    assert found.verdict == ("changed" if metric == "gain" else "regressed")
    assert verdict(base, base).verdict == "identical"


def test_a_bias_near_zero_has_an_absolute_margin() -> None:
    """Squared biases of 0 and 3e-4 differ by far more than 2 %, and by less than a bias of 2 %."""
    noise = batch_means(0, mean=0.0, error=1e-5)
    base, head = (sampled(noise + shift, metric="relative_bias_squared") for shift in (0.0, 3e-4))
    assert verdict(base, head).verdict == "equivalent"
    assert verdict(base, sampled(noise + 2e-2, metric="relative_bias_squared")).verdict == "regressed"


def test_a_gain_that_changes_either_way_is_a_change_and_no_improvement() -> None:
    noise = batch_means(0, mean=3.0, error=0.1)
    for factor in (0.98, 1.02):
        assert verdict(sampled(noise, metric="gain"), sampled(factor * noise, metric="gain")).verdict == "changed"


def test_a_variance_that_was_zero_is_compared_by_the_difference() -> None:
    zero = sampled(np.zeros(32))
    found = verdict(zero, sampled(batch_means(1, error=0.01)))
    assert (found.verdict, found.scale) == ("regressed", "difference")
    assert verdict(zero, zero).verdict == "identical"


def test_a_sampled_norm_is_left_to_its_square() -> None:
    assert compare([sampled(batch_means(0), metric="relative_bias")], [sampled(batch_means(1), metric="relative_bias")]) == []


def test_a_rare_event_that_one_run_has_not_seen_is_no_regression() -> None:
    """The variance is that of one estimate in thousands; without it there is rounding, whose logarithm looks precise."""
    nothing = sampled(1e-31 * batch_means(0))
    once = sampled(1e-31 * batch_means(1) + 4.0 * np.eye(32)[3], seed=1)
    thrice = sampled(1e-31 * batch_means(1) + 4.0 * np.eye(32)[[3, 8, 20]].sum(0), seed=1)
    for head in (once, thrice):
        found = verdict(nothing, head)
        assert (found.verdict, found.scale) == ("inconclusive", "difference")


def test_an_exact_number_and_a_sampled_one_can_be_compared() -> None:
    found = verdict(exact(1.0), sampled(batch_means(1, mean=1.2)))
    assert (found.verdict, found.method) == ("regressed", "independent")


def test_no_number_is_never_a_pass() -> None:
    nonfinite = exact(None, status="nonfinite", reason="the value is nan")
    failure = exact(None, metric="", instance="", status="oom", reason="no memory")
    assert verdict(exact(), nonfinite).verdict == "broken"
    assert verdict(exact(), None).verdict == "missing"
    assert verdict(exact(), failure).verdict == "broken"
    assert verdict(exact(), failure).reason == "no memory"
    assert verdict(exact(), exact(None)).verdict == "broken"
    assert verdict(nonfinite, nonfinite).verdict == "incomparable"
    assert verdict(None, nonfinite).verdict == "incomparable"
    assert verdict(None, failure).verdict == "incomparable"
    assert verdict(nonfinite, None).verdict == "incomparable"


def test_what_is_mended_or_new_is_said() -> None:
    nonfinite = exact(None, status="nonfinite", reason="the value is nan")
    assert verdict(nonfinite, exact()).verdict == "fixed"
    assert verdict(None, exact()).verdict == "new"
    assert compare([exact(None)], [exact(None)]) == []


def test_an_obstacle_makes_it_incomparable_and_a_failure_counts_more() -> None:
    raised = replace(exact(2.0), estimator_version=2)
    assert verdict(exact(), raised).verdict == "incomparable"
    assert verdict(exact(), replace(raised, status="nonfinite", value=None)).verdict == "broken"


def test_a_sampled_number_of_unknown_error_stays_open() -> None:
    row = sampled(batch_means(0), batches=(), low=None, high=None, interval="")
    assert verdict(row, row).verdict == "inconclusive"
    assert "error" in verdict(row, row).reason


def test_many_comparisons_share_one_level() -> None:
    """A p-value of 0.002 is proof alone, and none among a hundred."""
    base, head = sampled(batch_means(0)), sampled(batch_means(3, mean=1.06), seed=1)
    alone = verdict(base, head)
    assert alone.p_value is not None
    assert 1e-4 < alone.p_value < 0.01
    assert alone.verdict == "regressed"
    others = [(replace(base, instance=f"i{n}"), replace(head, instance=f"i{n}")) for n in range(100)]
    quiet = [(left, sampled(batch_means(5), seed=1, instance=left.instance)) for left, _ in others]
    among = compare([base, *(left for left, _ in quiet)], [head, *(right for _, right in quiet)])[0]
    assert among.p_adjusted is not None
    assert among.p_adjusted > 0.01
    assert among.verdict == "inconclusive"

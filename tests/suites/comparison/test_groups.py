from __future__ import annotations

import math

import pytest

from structgrad.suites.comparison import compare
from structgrad.suites.comparison.groups import grouped
from tests.suites.comparison.rows import batch_means, exact, sampled


def test_ratios_are_averaged_over_the_same_instances() -> None:
    base = [exact(1.0, instance="a"), exact(4.0, instance="b")]
    (group,) = grouped(compare(base, [exact(2.0, instance="a"), exact(2.0, instance="b")]))
    assert group.change.value == pytest.approx(1.0)
    assert group.change.low is None
    assert (group.verdict, group.sharing, group.instances) == ("regressed", 1, 2)
    assert group.most.key.instance == "a"


def test_independent_errors_shrink_with_the_number_of_instances() -> None:
    def width(instances: int) -> float:
        base = [sampled(batch_means(n), instance=f"i{n}") for n in range(instances)]
        head = [sampled(batch_means(100 + n), instance=f"i{n}", seed=1) for n in range(instances)]
        (group,) = grouped(compare(base, head))
        return math.log(group.change.high or 1) - math.log(group.change.low or 1)

    assert width(16) == pytest.approx(width(1) / 4, rel=0.3)


def test_differences_are_averaged_where_a_value_is_not_positive() -> None:
    base = [exact(0.0, instance="a"), exact(4.0, instance="b")]
    (group,) = grouped(compare(base, [exact(1.0, instance="a"), exact(6.0, instance="b")]))
    assert (group.scale, group.change.value, group.most.key.instance) == ("difference", pytest.approx(1.5), "b")


def test_what_has_no_change_has_its_reason() -> None:
    (group,) = grouped(compare([exact()], [exact(estimator_version=3)]))
    assert group.change.value is None
    assert "estimator_version" in group.reason


def test_coverage_of_the_mean_ratio() -> None:
    inside = 0
    for trial in range(200):
        base = [sampled(batch_means(1000 * trial + n), instance=f"i{n}") for n in range(4)]
        head = [sampled(batch_means(1000 * trial + 500 + n), instance=f"i{n}", seed=1) for n in range(4)]
        (group,) = grouped(compare(base, head))
        inside += (group.change.low or 0) <= 1 <= (group.change.high or 0)
    assert 0.91 <= inside / 200 <= 0.995

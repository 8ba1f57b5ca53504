from __future__ import annotations

import math

import numpy as np
import pytest

from structgrad.suites.comparison.contrasts import Estimate, beyond, common_random_numbers, contrast, log_beyond, log_ratio
from tests.suites.comparison.rows import batch_means, exact, sampled


def test_the_error_of_a_sampled_number_is_that_of_the_mean_of_its_batches() -> None:
    means = batch_means(0)
    found = Estimate.of(sampled(means))
    assert found is not None
    assert found.error == pytest.approx(means.std(ddof=1) / math.sqrt(32), rel=1e-9)
    assert found.degrees == 31


def test_without_batches_the_interval_tells_the_error() -> None:
    row = sampled(batch_means(0))
    with_batches, without = Estimate.of(row), Estimate.of(sampled(batch_means(0), batches=()))
    assert with_batches is not None
    assert without is not None
    assert without.error == pytest.approx(with_batches.error, rel=1e-3)


def test_a_sampled_number_without_an_interval_has_no_known_error_and_an_exact_one_has_none() -> None:
    assert Estimate.of(sampled(batch_means(0), batches=(), low=None, high=None, interval="")) is None
    assert Estimate.of(exact(3.0)) == Estimate(3.0)
    assert Estimate.of(exact(None)) is None


@pytest.mark.parametrize("change", [{"seed": 1}, {"replicates": 8192}, {"tier": "exact"}, {"batches": ()}, {"dtype": "float32"}])
def test_random_numbers_are_common_only_where_everything_about_them_agrees(change: dict[str, object]) -> None:
    base = sampled(batch_means(0))
    assert common_random_numbers(base, sampled(batch_means(1)))
    assert not common_random_numbers(base, sampled(batch_means(0), **change))


def test_what_both_sides_share_cancels_in_a_paired_contrast() -> None:
    noise = batch_means(0, error=0.1)
    base, head = Estimate.of(sampled(noise)), Estimate.of(sampled(1.05 * noise))
    assert base is not None
    assert head is not None
    paired, independent = (contrast(log_ratio, base, head, paired=paired) for paired in (True, False))
    assert paired.error < 1e-12
    assert independent.error > 0.1
    assert paired.estimate == independent.estimate == pytest.approx(math.log(1.05))


def test_independent_errors_add_up_in_squares_and_a_baseline_is_not_taken_for_exact() -> None:
    found = contrast(log_ratio, Estimate(2.0, 0.06), Estimate(2.0, 0.08), paired=False)
    assert found.error == pytest.approx(0.05, rel=2e-3)
    assert contrast(log_ratio, Estimate(2.0), Estimate(2.0, 0.08), paired=False).error == pytest.approx(0.04, rel=2e-3)


def test_degrees_of_freedom_follow_welch() -> None:
    def degrees(first: float, second: float) -> float:
        return contrast(lambda b, h: h - b, Estimate(1.0, first, 31), Estimate(1.0, second, 31), paired=False).degrees

    assert degrees(0.1, 0.1) == pytest.approx(62)
    assert degrees(0.1, 0.0) == pytest.approx(31)


@pytest.mark.parametrize(("base", "head", "above"), [(1.0, 1.03, True), (1.0, 1.01, False), (-1.0, -0.97, True), (-1.0, -0.99, False)])
def test_a_margin_is_a_share_of_the_size_of_the_base(base: float, head: float, above: bool) -> None:
    assert (beyond(1, 0.02, 0.0)(base, head) > 0) == above
    assert beyond(-1, 0.02, 0.0)(base, head) < 0


def test_a_margin_of_a_ratio_is_the_same_on_both_scales() -> None:
    assert log_beyond(1, 0.02)(2.0, 2.04) == pytest.approx(0, abs=1e-12)
    assert beyond(1, 0.02, 0.0)(2.0, 2.04) == pytest.approx(0, abs=1e-12)


def test_p_values_of_independent_sides_are_uniform_where_nothing_changed() -> None:
    """At the margin 0, over 2000 comparisons; a baseline that is taken for exact rejects four times as often."""
    shares = {True: 0, False: 0}
    for seed in range(2000):
        base, head = (Estimate.of(sampled(batch_means(2 * seed + side))) for side in (0, 1))
        assert base is not None
        assert head is not None
        for exactly in shares:
            side = Estimate(base.value) if exactly else base
            shares[exactly] += contrast(log_ratio, side, head, paired=False).p_above() < 0.01
    assert 8 <= shares[False] <= 33
    assert shares[True] > 60


def test_an_exact_difference_is_certain() -> None:
    assert contrast(beyond(1, 0.0, 0.0), Estimate(1.0), Estimate(1.1), paired=False).p_above() == 0.0
    assert contrast(beyond(1, 0.0, 0.0), Estimate(1.0), Estimate(0.9), paired=False).p_above() == 1.0


def test_bounds_cover_at_the_stated_level() -> None:
    inside = 0
    for seed in range(500):
        base, head = (Estimate.of(sampled(batch_means(2 * seed + side, error=0.02))) for side in (0, 1))
        assert base is not None
        assert head is not None
        low, high = contrast(lambda b, h: h - b, base, head, paired=False).bounds()
        inside += low <= 0 <= high
    assert 0.92 <= inside / 500 <= 0.98
    assert np.isfinite(low)

"""A factor is named by what it is made of, and only where it is known well enough."""

from __future__ import annotations

import pytest

from structgrad.suites.audit.diagnosis import LENGTH, SIGN, Gain, cause_of_gain


@pytest.mark.parametrize(
    ("gain", "numbers", "words"),
    [
        (0.75, {"num_samples": 4}, "(N − 1)/N with N = 4"),
        (4 / 3, {"num_samples": 4}, "N/(N − 1) with N = 4"),
        (4.0, {"num_samples": 4}, "summed, not averaged"),
        (0.25, {"num_samples": 4}, "mean over the samples is taken twice"),
        (0.95, {"decay": 0.95, "num_samples": 1}, "1 − (1 − decay)/N with decay = 0.95, N = 1"),
        (0.05 * 19, {"decay": 0.9, "num_samples": 2}, "1 − (1 − decay)/N with decay = 0.9, N = 2"),
        (0.3, {"sigma": 0.3}, "gain 0.3 = sigma: the estimate is not divided by sigma"),
        (1 / 0.3, {"sigma": 0.3}, "1/sigma with sigma = 0.3"),
        (0.09, {"sigma": 0.3}, "sigma² with sigma = 0.3"),
        (1 / 0.09, {"noise.scale": 0.3}, "1/noise.scale² with noise.scale = 0.3"),
        (2.0, {}, "counted twice"),
    ],
)
def test_exact_factors(gain: float, numbers: dict[str, float], words: str) -> None:
    assert words in cause_of_gain(Gain(gain), numbers, None)


def test_the_number_of_losses_stands_for_n() -> None:
    assert "N = 3" in cause_of_gain(Gain(2 / 3), {}, 3.0)
    assert cause_of_gain(Gain(0.61), {}, 3.0) == LENGTH


def test_signs() -> None:
    assert cause_of_gain(Gain(-1.0), {}, None) == SIGN
    assert (
        cause_of_gain(Gain(-0.5), {"sigma": 0.5}, None) == f"{SIGN} And beside it, gain 0.5 = sigma: the estimate is not divided by sigma"
    )


def test_an_interval_names_a_factor_only_where_it_is_narrow() -> None:
    numbers = {"sigma": 0.5}
    assert "sigma" in cause_of_gain(Gain(0.51, 0.02), numbers, None)
    assert cause_of_gain(Gain(0.51, 0.005), numbers, None) == LENGTH
    assert cause_of_gain(Gain(0.5, 0.3), numbers, None) == ""
    assert cause_of_gain(Gain(-0.5, 0.3), numbers, None) == SIGN

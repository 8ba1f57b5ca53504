from __future__ import annotations

import math

import pytest

from structgrad.suites.text import interval, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.123"),
        (0.1, "0.100"),
        (12.345, "12.3"),
        (99.96, "100"),
        (9.999, "10.0"),
        (3.0, "3"),
        (1 - 1e-15, "1"),
        (0.9999, "1.00"),
        (123456.7, "123000"),
        (1.5e7, "1.5e7"),
        (-0.00012, "-1.2e-4"),
        (1e-13, "0"),
        (-1e-300, "0"),
        (0.0, "0"),
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_interval() -> None:
    assert interval(0.12, 0.1, 0.15) == "0.120 [0.100, 0.150]"
    assert interval(0.12, math.nan, math.nan) == "0.120"
    assert interval(0.12, 0.12, 0.12) == "0.120"

"""The verdict on a number in two runs; `tests/goldens/test_comparison.py` has many more pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from structgrad.suites.base import Row, to_frame
from structgrad.suites.comparison import compare, read_settings
from structgrad.suites.comparison.verdicts import holm_with
from tests.suites.comparison.rows import batch_means, compared, exact, failed, sampled

NONFINITE = exact(None, status="nonfinite", reason="the value is nan")
MACHINE = {"cpu": "x", "cores": 2, "python": "3.11", "packages": {"torch": "2.8"}}


def verdict(base: Row | None, head: Row | None, **options: Any) -> Any:
    (found,) = compared([base] if base else [], [head] if head else [], **options)
    return found


def test_p_values_are_uniform_and_intervals_cover_if_nothing_changed() -> None:
    """2000 comparisons at the margin 0; a baseline that is taken for exact would reject four times as often."""
    rows = [[sampled(batch_means(2 * n + side), instance=f"i{n}", seed=side) for n in range(2000)] for side in (0, 1)]
    margins = {"minimum_change": 0.0, "floor": 0.0}
    found = compare(*rows, settings=read_settings({"gate": {"metric": {"relative_variance": margins}}}))
    assert 8 <= (found["p_value"] < 0.01).sum() <= 33
    center = 1.0 if found["scale"].eq("ratio").all() else 0.0
    assert 0.93 <= ((found["low"] <= center) & (center <= found["high"])).mean() <= 0.97


@pytest.mark.parametrize(
    ("base", "head", "expected"),
    [
        (exact(), NONFINITE, "broken"),
        (exact(), exact(None), "broken"),
        (NONFINITE, NONFINITE, "incomparable"),
        (None, failed(), "incomparable"),
        (NONFINITE, None, "incomparable"),
        (exact(None), exact(), "new"),
        (exact(), exact(None, status="nonfinite", estimator_version=2), "broken"),
        *((exact(), exact(2.0, **{name: 9}), "incomparable") for name in ("oracle_version", "suite_version", "schema_version")),
        (exact(entropy=1.0), exact(2.0, entropy=1.1, seed=5), "incomparable"),
        (exact(entropy=1.0), exact(2.0, entropy=1.0, seed=5), "regressed"),
        (sampled(batch_means(0), batches=(), low=None), sampled(batch_means(0), batches=(), low=None), "inconclusive"),
    ],
)
def test_no_number_is_never_a_pass(base: Row | None, head: Row | None, expected: str) -> None:
    assert verdict(base, head).verdict == expected


@pytest.mark.parametrize("change", [{}, {"cpu": "y"}, {"cores": 4}, {"python": "3.12"}, {"packages": {"torch": "2.9"}}])
def test_times_need_the_same_machine_and_bytes_the_same_torch(change: dict[str, Any]) -> None:
    rows = [replace(sampled(batch_means(0)), metric="time_ratio", batches=()), exact(1e6, metric="peak_memory", tier="")]
    found = [item.verdict for item in compared(rows, rows, machines=(MACHINE, {**MACHINE, **change}))]
    assert found == ["incomparable" if change else "identical", "incomparable" if "packages" in change else "identical"]


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "cubic": lambda random, shape: random.standard_t(3, shape),
    "lognormal": lambda random, shape: np.exp(2 * random.standard_normal(shape)),
    "rare": lambda random, shape: 100.0 * (random.random(shape) < 1 / 2000) + 1e-16 * random.random(shape),
    "sparse": lambda random, shape: 30.0 * (random.random(shape) < 1 / 300) * random.standard_normal(shape),
}
"""Estimates with light and heavy tails. ``rare``: two of five runs see nothing but rounding."""


def test_200_gates_on_unchanged_code_fail_no_more_often_than_stated() -> None:
    """Gain and variance of each law on two instances, with fresh random numbers; one Holm correction per gate."""
    gates, random, sides = 200, np.random.default_rng(0), []
    for seed in (0, 1):
        rows = []
        for gate in range(gates):
            for name, law in LAWS.items():
                for item in range(2):
                    samples = law(random, (32, 32))
                    squares = (samples - samples.mean()) ** 2
                    about = {"problem": f"p{gate}", "estimator": name, "instance": f"i{item}", "seed": seed}
                    rows.append(sampled(samples.mean(1), metric="gain", **about))
                    means, deviations = ((one.sum() - one.sum(1)) / (one.size - 32) for one in (squares, samples - samples.mean()))
                    variances = tuple((means - deviations**2).tolist())
                    rows.append(sampled(squares.mean(1), **{**about, "value": float(samples.var()), "batches": variances}))
        sides.append(to_frame(rows))
    found = compare(*sides)
    alarms = sum((holm_with(part["p_value"].to_numpy(float)) < 0.01).any() for _, part in found.groupby("problem", observed=True))
    assert alarms <= stats.binom.ppf(0.99, gates, 0.01)  # what a true rate of 0.01 gives in 99 of 100 such experiments

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


@pytest.mark.parametrize(
    ("metric", "base", "head", "expected"),
    [
        ("relative_bias", 2e-15, 4e-10, "identical"),
        ("relative_bias", 2e-15, 0.02, "regressed"),
        ("rho", 0.4, 0.5, "improved"),
        ("gain", 2.94, 3.0, "changed"),
        ("truth_norm", 1.0, 1.0 + 1e-8, "changed"),
    ],
)
def test_exact_numbers_are_compared_exactly(metric: str, base: float, head: float, expected: str) -> None:
    found = verdict(exact(base, metric=metric), exact(head, metric=metric))
    assert (found.verdict, found.method) == (expected, "exact")


@pytest.mark.parametrize(
    ("error", "head", "expected", "method"),
    [
        # Common random numbers show changes far below their noise.
        (0.3, sampled(1.2 * batch_means(0, error=0.3)), "regressed", "paired"),
        (0.3, sampled(1.01 * batch_means(0, error=0.3)), "equivalent", "paired"),
        (0.3, sampled(1.2 * batch_means(0, error=0.3), replicates=64), "inconclusive", "independent"),
        (0.3, exact(9.0), "regressed", "independent"),
        # Others need precision.
        (0.01, sampled(batch_means(1, mean=0.8), seed=1), "improved", "independent"),
        (0.01, sampled(batch_means(1), seed=1), "equivalent", "independent"),
        (0.02, sampled(batch_means(1, mean=1.06, error=0.02), seed=1), "inconclusive", "independent"),
    ],
)
def test_sampled_numbers_are_compared_with_their_errors(error: float, head: Row, expected: str, method: str) -> None:
    found = verdict(sampled(batch_means(0, error=error)), head)
    assert (found.verdict, found.method) == (expected, method)
    assert expected == "identical" or found.low < found.change < found.high


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

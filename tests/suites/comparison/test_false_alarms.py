"""200 gates on unchanged code with fresh random numbers, of estimates with light and heavy tails: at most the stated rate fails."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from structgrad.suites.base import Row
from structgrad.suites.comparison import gate
from structgrad.suites.statistics.moments import BATCHES
from tests.suites.comparison.rows import BASE

GATES, REPLICATES = 200, 1024

LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda random, shape: random.standard_normal(shape),
    "cubic": lambda random, shape: random.standard_t(3, shape),
    "lognormal": lambda random, shape: np.exp(2 * random.standard_normal(shape)),
    "rare": lambda random, shape: 100.0 * (random.random(shape) < 1 / 2000) + 1e-16 * random.random(shape),
    "frequent": lambda random, shape: 10.0 * (random.random(shape) < 1 / 50),
    "sparse": lambda random, shape: 30.0 * (random.random(shape) < 1 / 300) * random.standard_normal(shape),
}
"""One estimate of a scalar; its mean and its variance are compared. ``rare``: two of five runs see nothing but rounding."""


def rows(random: np.random.Generator, seed: int, factor: float = 1.0) -> list[Row]:
    """Gain and variance of every law on two instances, with their delete-one-batch values."""
    found = []
    for name, law in LAWS.items():
        for item in range(2):
            samples = factor * law(random, (BATCHES, REPLICATES // BATCHES))
            known = {
                "tier": "mc",
                "replicates": REPLICATES,
                "seed": seed,
                "interval": "jackknife",
                "estimator": name,
                "instance": f"i{item}",
            }
            for metric, value, without in (
                ("gain", samples.mean(), means_without_a_batch(samples)),
                ("relative_variance", samples.var(), variances_without_a_batch(samples)),
            ):
                numbers = {"metric": metric, "value": float(value), "low": 0.0, "high": 0.0, "batches": tuple(without.tolist())}
                found.append(Row(**{**BASE, **known, **numbers}))
    return found


def means_without_a_batch(samples: np.ndarray) -> np.ndarray:
    return (samples.sum() - samples.sum(1)) / (samples.size - samples.shape[1])


def variances_without_a_batch(samples: np.ndarray) -> np.ndarray:
    centred = samples - samples.mean()
    return means_without_a_batch(centred**2) - means_without_a_batch(centred) ** 2


def test_statistics_without_a_batch_are_those_of_the_other_batches() -> None:
    samples = np.random.default_rng(0).lognormal(size=(BATCHES, 5))
    others = [np.delete(samples, batch, axis=0) for batch in range(BATCHES)]
    np.testing.assert_allclose(means_without_a_batch(samples), [part.mean() for part in others])
    np.testing.assert_allclose(variances_without_a_batch(samples), [part.var() for part in others])


def failures(factor: float, gates: int) -> list[set[str]]:
    """The laws that every gate fails on."""
    random = np.random.default_rng(0)
    return [
        {item.key.estimator for item in gate(rows(random, 0), rows(random, 1, factor)).failures if hasattr(item, "verdict")}
        for _ in range(gates)
    ]


def test_200_gates_on_unchanged_code_fail_no_more_often_than_stated() -> None:
    alarms = sum(map(bool, failures(1.0, GATES)))
    most = int(stats.binom.ppf(0.99, GATES, 0.01))  # what a true rate of 0.01 gives in 99 of 100 such experiments
    assert alarms <= most, f"{alarms} of {GATES} gates failed"


@pytest.mark.parametrize(("factor", "least"), [(1.5, 9), (1.25, 9)])
def test_a_change_of_scale_is_found(factor: float, least: int) -> None:
    assert sum("normal" in names for names in failures(factor, 10)) >= least

"""Rows made by hand, exact and sampled."""

from __future__ import annotations

from typing import Any

import numpy as np

from structgrad.suites.base import Row
from structgrad.suites.statistics.moments import BATCHES

BASE: dict[str, Any] = {
    "cell": "cell",
    "suite": "bias",
    "problem": "toy",
    "stage": "init",
    "source": "",
    "oracle": "subset[k=3]",
    "loss": "mlp",
    "estimator": "rloo",
    "family": "rloo",
    "instance": "toy-0",
    "reference": "expected",
    "metric": "relative_variance",
}


def exact(value: float | None = 1.0, **changes: Any) -> Row:
    """A number of the exact tier."""
    return Row(**{**BASE, "tier": "exact", "value": value, **changes})


def sampled(means: np.ndarray, *, seed: int = 0, **changes: Any) -> Row:
    """The mean of 32 batches of replicates, each with a mean of its own."""
    without = (means.sum() - means) / (len(means) - 1)
    error = float(means.std(ddof=1)) / np.sqrt(len(means))
    value = float(means.mean())
    numbers = {"value": value, "low": value - 2.04 * error, "high": value + 2.04 * error, "interval": "jackknife"}
    known = {"tier": "mc", "replicates": 4096, "batches": tuple(map(float, without)), "seed": seed}
    return Row(**{**BASE, **known, **numbers, **changes})


def batch_means(seed: int, *, mean: float = 1.0, error: float = 0.01) -> np.ndarray:
    """Means of 32 batches, whose mean has the standard error that is given."""
    return mean + error * np.sqrt(BATCHES) * np.random.default_rng(seed).standard_normal(BATCHES)

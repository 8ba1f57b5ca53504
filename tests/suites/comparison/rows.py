"""Rows made by hand, exact and sampled, and planted changes of estimators."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from structgrad.estimators import Estimator, Loss
from structgrad.estimators.exact import ExactMarginalisation
from structgrad.estimators.surrogates import with_gradient
from structgrad.suites.base import Row
from structgrad.suites.comparison import GateResult, compare
from structgrad.suites.comparison.pairs import items_of
from structgrad.suites.statistics.moments import BATCHES

BASE: dict[str, Any] = {
    "cell": "cell", "suite": "bias", "problem": "toy", "stage": "init", "source": "", "oracle": "subset[k=3]", "loss": "mlp",
    "estimator": "rloo", "family": "rloo", "instance": "toy-0", "reference": "expected", "metric": "relative_variance",
}  # fmt: skip


def exact(value: float | None = 1.0, **changes: Any) -> Row:
    """A number of the exact tier."""
    return Row(**{**BASE, "tier": "exact", "value": value, **changes})


def failed(status: str = "oom", **changes: Any) -> Row:
    """A cell that failed."""
    return exact(None, **{"metric": "", "instance": "", "status": status, "reason": "no memory", **changes})


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


def compared(base: Iterable[Row], head: Iterable[Row], **options: Any) -> list[Any]:
    """The rows that `compare` returns."""
    return list(items_of(compare(base, head, **options)))


def failing(result: GateResult) -> set[tuple[str, str]]:
    """The estimators that a gate fails on, each with a metric."""
    found = [result.claims[result.claims["broken"]], result.comparisons[result.comparisons["reaction"] == "fail"]]
    return {(str(item.estimator), str(item.metric)) for table in found for item in items_of(table)}


@dataclass(frozen=True)
class Change:
    """A planted change: ``E ĝ`` times ``scale``, and the covariance times ``spread``, around the exact gradient."""

    scale: float = 1.0
    spread: float = 1.0

    def planted(self, estimator: Estimator[Any], enumerated: Any) -> Estimator[Any]:
        """The estimator with the change in it; it has the same name and declares the same."""
        change, kind = self, type(estimator)

        class Planted(kind):  # type: ignore[misc, valid-type]
            def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: Any) -> Tensor:
                estimate = estimator.gradient(loss, oracle, scores.detach(), generator=generator)
                centre = ExactMarginalisation().gradient(loss, enumerated, scores.detach(), generator=generator)
                changed = change.scale * (centre + change.spread**0.5 * (estimate - centre))
                return with_gradient(scores.new_zeros(scores.shape[: scores.ndim - oracle.event_ndim]), scores, changed)

        planted: Estimator[Any] = Planted(**vars(estimator))
        return planted

"""Tables made by hand, on which it is known whom to recommend."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structgrad.reports import results
from structgrad.suites.base import Row

MANIFEST: dict[str, Any] = {
    "status": "finished",
    "seed": 0,
    "command": "/a/bin/structgrad run bias sparsity wall_clock --out /b/c --builtin",
    "started": "2001-02-03T04:05:06+00:00",
    "finished": "2001-02-03T04:06:00+00:00",
    "environment": {"commit": "0123456789abcdef", "dirty": False, "cpu": "a cpu", "cores": 2, "python": "3.11", "packages": {"torch": "2"}},
}
ITEMS = 4
EXTENSIONS = {"squared_distance": "quadratic", "squared_distance_linear": "linear", "black_box": "none"}


@dataclass(frozen=True)
class Made:
    """An estimator as it is made up; relative moments, and a cost in estimates of reinforce with the half of its relative interval."""

    bias: float = 0.0
    variance: float = 0.0
    unbiased: bool = False
    verdict: str = "biased"
    zero: float = 0.0
    cost: float = 1.0
    evaluations: float = 1.0
    spread: float = 0.0
    cost_error: float = 0.0

    def rho(self, averaged: float) -> float:
        """ρ of the mean of some estimates whose bias is orthogonal to the gradient."""
        return 1 / math.sqrt(1 + self.bias**2 + self.variance / averaged)


REINFORCE = Made(variance=100.0, unbiased=True, verdict="unbiased-exact")


def rows(
    known: Mapping[str, Made],
    problem: str = "toy",
    *,
    oracle: str = "subset[k=3]",
    stages: Mapping[str, float | None] = {"h=0.9": 0.9},
    losses: Sequence[str] = ("squared_distance",),
    count: float = 220.0,
) -> list[Row]:
    """A result table: bias and variance on four instances of each stage and loss, times on the whole problem."""
    found = []
    sampled = {"suite": "bias", "interval": "profile", "reference": "expected", "tier": "mc", "replicates": 4096, "truth_norm": 1.0}
    for loss, (stage, entropy), (name, made) in itertools.product(losses, stages.items(), known.items()):
        common: dict[str, Any] = {
            "cell": "c", "problem": f"{problem}@{loss}", "stage": stage, "source": "built-in", "oracle": oracle, "loss": loss,
            "extension": EXTENSIONS[loss], "estimator": name, "family": name.partition("[")[0],
            "objective": "expected" if made.unbiased else "argmax", "unbiased": made.unbiased,
        }  # fmt: skip
        for item in range(ITEMS):
            numbers = {
                "relative_bias": made.bias,
                "relative_bias_squared": made.bias**2,
                "gain": 1.0,
                "relative_variance": made.variance * (1 + made.spread * (item - 1.5)),
                "zero_gradient_rate": made.zero,
            }
            about = {**common, "instance": f"item{item}"}
            for metric, value in numbers.items():
                more = {
                    **sampled,
                    "log_count": math.log(count),
                    "normalised_entropy": entropy,
                    "low": 0.5 * value,
                    "high": 2 * value + 0.01,
                }
                found.append(Row(**about, **more, metric=metric, value=value, verdict=made.verdict if metric == "relative_bias" else ""))
            found.append(Row(**about, suite="work", metric="loss_evaluations", value=made.evaluations, unit="count"))
        found.append(Row(**common, suite="wall_clock", metric="seconds_per_estimate", value=1e-5 * made.cost, unit="s"))
        low, high = made.cost * (1 - made.cost_error), made.cost * (1 + made.cost_error)
        found.append(Row(**common, suite="wall_clock", metric="time_ratio", value=made.cost, low=low, high=high))
    return found


def written(folder: Path, table: Sequence[Row], **manifest: Any) -> Path:
    """The folder of a run that holds a table."""
    results.write(table, folder, {**MANIFEST, **manifest})
    return folder

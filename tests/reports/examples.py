"""A small result table made by hand: two stages, four estimators, three instances."""

import math
from dataclasses import replace
from typing import Any

from structgrad.suites.base import Row

MANIFEST: dict[str, Any] = {
    "plan": {"problems": ["toy"], "stages": [], "seed": 7, "instances": 3},
    "seed": 7,
    "command": "structgrad run -p 'toy*' --builtin --seed 7",
    "started": "2001-02-03T04:05:06+00:00",
    "finished": "2001-02-03T04:06:00+00:00",
    "environment": dict(python="3.11", packages={"torch": "2.13"}, commit="0123abc", dirty=True, cpu="a <cpu> & more", threads=1),
}

# name: objective, declares itself unbiased, verdicts and relative biases of three instances, relative variance
ESTIMATORS: dict[str, tuple[str, bool, tuple[str, ...], tuple[float, ...], float]] = {
    "exact": ("expected", True, ("unbiased-exact",) * 3, (0.0, 1e-16, 0.0), 0.0),
    "reinforce": ("expected", True, ("unbiased-exact", "equivalent", "unbiased-exact"), (0.0, 0.01, 0.0), 8.0),
    "rloo[num_samples=2]": ("expected", True, ("equivalent", "biased", "unresolved"), (0.02, 0.3, 0.1), 3.0),
    "imle[lambda=2.5]": ("perturbed", False, ("biased",) * 3, (0.5, 0.7, 100.0), 0.25),
}
STAGES = ("init", "final")
SECONDS = {"exact": 1.0, "reinforce": 0.001, "rloo[num_samples=2]": 0.002, "imle[lambda=2.5]": 0.0005}


def shared(estimator: str, stage: str) -> dict[str, Any]:
    """The columns that every row of a pair has."""
    objective, unbiased, *_ = ESTIMATORS[estimator]
    where = {"problem": "toy", "stage": stage, "source": "toy.npz", "oracle": "subset[k=3]", "loss": "quadratic", "seed": 7}
    return {**where, "estimator": estimator, "family": estimator.partition("[")[0], "objective": objective, "unbiased": unbiased}


def near(value: float) -> dict[str, float]:
    """A value with an interval of ± 10 %."""
    return {"value": value, "low": 0.9 * value, "high": 1.1 * value}


def moment_rows(estimator: str, stage: str) -> list[Row]:
    """Metrics of three instances."""
    _, unbiased, verdicts, biases, variance = ESTIMATORS[estimator]
    rows = []
    for item, (verdict, bias) in enumerate(zip(verdicts, biases, strict=True)):
        about: dict[str, Any] = {"cell": f"{stage}-{estimator}", **shared(estimator, stage), "instance": f"item{item}"}
        about["log_count"] = math.log(220)
        metrics = {
            "relative_bias": bias,
            "relative_bias_squared": bias**2,
            "gain": 1.0 if unbiased else 1 + bias / 2,
            "relative_variance": variance,
            "relative_mse": bias**2 + variance,
            "rho": 1 / (1 + bias + variance),
        }
        sampled: dict[str, Any] = {"suite": "bias", "reference": "expected", "tier": "mc", "replicates": 4096}
        for metric, value in metrics.items():
            rows.append(Row(**about, **sampled, metric=metric, **near(value), verdict=verdict if metric == "relative_bias" else ""))
        for metric, value in {"support": 220.0, "forward_nonzeros": 3.0, "gradient_nonzeros": float(item)}.items():
            rows.append(Row(**about, suite="sparsity", metric=metric, unit="count", value=value))
    return rows


def timing_rows(estimator: str) -> list[Row]:
    """Times, at the first stage only."""
    seconds = SECONDS[estimator]
    times = {"forward_time": 0.032, "backward_time": 0.064, "time_ratio": seconds / 0.001, "seconds_per_estimate": seconds}
    about = {"cell": "timing", "suite": "wall_clock", **shared(estimator, "init")}
    return [Row(**about, metric=metric, **near(value)) for metric, value in times.items()]


def rows(problem: str = "toy") -> list[Row]:
    """The whole table, with one skipped pair and one failure."""
    found = [row for stage in STAGES for estimator in ESTIMATORS for row in moment_rows(estimator, stage)]
    found += [row for estimator in ESTIMATORS for row in timing_rows(estimator)]
    failed = {**shared("imle[lambda=2.5]", "final"), "estimator": "spigot", "family": "spigot"}
    found.append(Row(cell="broken", suite="bias", **failed, status="error", reason="RuntimeError: <script>alert(1)</script> | no"))
    skipped = {**shared("imle[lambda=2.5]", "init"), "estimator": "sparsemap", "family": "sparsemap"}
    found.append(Row(cell="", suite="", **skipped, status="skipped", reason="sparsemap needs ProjectionOracle"))
    return [replace(row, problem=problem) for row in found]


def swept_rows() -> list[Row]:
    """Sweeps of the suites scaling and descent."""
    common = {"cell": "sweep", **shared("reinforce", "init")}
    found = [
        Row(**common, suite="scaling", metric=metric, setting=f"{axis}={size}", size=size, **near(size**power) | {"high": size**power})
        for metric, axis, power in (("total_time", "length", 2.0), ("relative_variance", "samples", -1.0))
        for size in (4.0, 8.0, 16.0)
    ]
    found += [Row(**common, suite="descent", metric="rho", instance="0", value=h, setting=f"h={h:g}", size=h) for h in (0.9, 0.4)]
    return [*found, Row(**common, suite="descent", metric="regret", instance="0", value=0.1, low=0.05, high=0.2)]


def several_losses() -> list[Row]:
    """Two problems; the first with a second loss, for which `imle` is nearly without error."""
    found = rows() + rows("other")
    for row in rows():
        better = row.family == "imle" and row.metric in ("relative_bias", "relative_bias_squared", "relative_variance")
        cell = f"mlp-{row.cell}" if row.cell else ""
        value = 1e-6 if better else 1.0 if row.family == "imle" and row.metric == "gain" else row.value
        found.append(replace(row, loss="mlp", cell=cell, value=value, low=value if better else row.low, high=value if better else row.high))
    return found + swept_rows()

"""Rows of a run of learning in which one known metric predicts the results."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from structgrad.estimators import make_estimator
from structgrad.suites.base import Row

TASKS = ("clusters", "l2x_switch", "listops_frozen", "matching")
ESTIMATORS = (
    *("exact", "reinforce", "rloo", "vargrad", "reinforce_constant", "sum_and_sample", "ste", "ste_marginals", "simple", "identity"),
    *("gumbel_softmax", "st_gumbel", "perturb_and_map", "stochastic_softmax", "spigot", "spigot_eg", "imle", "aimle", "blackbox"),
    *("structured_attention", "differentiable_dp", "sparsemap", "sparsemap_marginalisation", "top_k_sparsemax"),
)
STEPS = 200


def planted(
    tasks: Sequence[str] = TASKS,
    estimators: Sequence[str] = ESTIMATORS,
    seeds: int = 5,
    *,
    noise: float = 0.01,
    predictor: str = "cosine",
) -> list[Row]:
    """A run in which estimators end the better the larger one of their numbers is; all other numbers are drawn at random."""
    return list(_rows(tasks, estimators, seeds, noise, predictor))


def _rows(tasks: Sequence[str], estimators: Sequence[str], seeds: int, noise: float, predictor: str) -> Iterator[Row]:
    random = np.random.default_rng(0)
    for task in tasks:
        for name in estimators:
            worth = {"exact": 1.0}.get(name, float(random.uniform(0.1, 0.95)))
            for seed in range(seeds):
                yield from trained(task, name, seed, float(np.clip(worth + noise * random.standard_normal(), 0, 1)))
            for stage in ("init", "early", "final"):
                for metric in ("relative_bias", "relative_variance", "relative_mse", "cosine", "gain", "rho", "parameter_cosine"):
                    of_parameters = metric.startswith("parameter")
                    value = worth if metric == predictor else float(random.uniform(0.1, 1.0))
                    suite = "parameter_bias" if of_parameters else "bias"
                    for seed in range(seeds):
                        yield row(suite, f"learnt:{task}", stage, name, f"seed-{seed}", metric, value + 0.001 * seed)


def trained(task: str, name: str, seed: int, worth: float) -> Iterator[Row]:
    """One run of training whose share of the way from floor to ceiling is given."""
    at = (task, name, f"seed-{seed}")
    accuracy = 0.5 + 0.4 * worth
    reached = worth >= 0.5
    steps = STEPS * (1.2 - worth) if reached else float(STEPS)
    values = {
        "accuracy": accuracy,
        "structure_accuracy": 0.2 + 0.7 * worth,
        "relaxed_accuracy": accuracy,
        "curve_mean": accuracy - 0.05,
        "normalised_accuracy": worth,
        "diverged": 0.0,
        "floor_accuracy": 0.5,
        "ceiling_accuracy": 0.9,
        "step_time": 0.004,
    }
    for metric, value in values.items():
        yield learnt(*at, metric, value)
    bounds = {"low": steps, "high": steps, "sampling": "converged"} if reached else {"low": steps, "sampling": "budget"}
    yield learnt(*at, "steps_to_target", steps if reached else None, **bounds)
    for step in range(0, STEPS + 1, 50):
        share = 1 - np.exp(-step / 60)
        yield learnt(*at, "curve_accuracy", 0.5 + 0.4 * worth * share, setting=f"step={step}", size=float(step))


@functools.cache
def declarations(name: str) -> tuple[str, dict[str, Any]]:
    """The family of an estimator, and its declarations."""
    made = make_estimator(name)
    return made.name, {"objective": made.objective, "unbiased": made.unbiased, "deterministic": made.deterministic}


def learnt(task: str, name: str, instance: str, metric: str, value: float | None, **more: object) -> Row:
    """A row of the suite learning."""
    return row("learning", f"task:{task}", "training", name, instance, metric, value, **more)


def row(  # noqa: PLR0917
    suite: str, problem: str, stage: str, name: str, instance: str, metric: str, value: float | None, **more: object
) -> Row:
    """A row of an estimator of the registry."""
    family, declared = declarations(name)
    where = (f"{suite}-{problem}-{stage}-{name}", suite, problem, stage, "planted", "categorical", "cross_entropy", name, family)
    return Row(*where, **declared, instance=instance, metric=metric, value=value, **more)  # type: ignore[arg-type]

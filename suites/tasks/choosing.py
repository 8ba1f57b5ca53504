"""Learning rate and main option of an estimator, chosen on the validation split of a task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...estimators.base import Estimator
from .references import remembered
from .task import Task
from .training import Job, train_all

FIRST_TUNING_SEED = 1_000_000  # seeds that choose start here, so that no test uses them

OPTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    name: (option, values)
    for option, values, names in (
        ("lambda_", (1.0, 10.0, 100.0), ("imle",)),
        ("lambda_", (0.5, 5.0, 50.0), ("blackbox",)),
        ("step_size", (0.1, 1.0, 10.0), ("spigot", "spigot_ce", "spigot_eg")),
        ("step_size", (0.02, 0.2, 2.0), ("spigot_steps",)),
        ("step_size", (0.03, 0.1, 0.3), ("reinforce_ppo", "step_ppo")),
        ("temperature", (0.3, 1.0, 3.0), ("gumbel_softmax", "st_gumbel", "gumbel_rao", "step_st_gumbel", "gst", "gumbel_crf")),
        ("temperature", (0.3, 1.0, 3.0), ("gumbel_crf_st", "stochastic_softmax", "perturb_and_parse")),
        ("temperature", (0.1, 0.5, 2.0), ("relaxed_top_k", "relaxed_top_k_st")),
        ("temperature", (1.0, 2.0, 4.0), ("reinmax",)),
        ("sigma", (0.3, 1.0, 3.0), ("perturbed_optimizer", "perturbed_multiplicative")),
        ("strength", (0.1, 1.0, 10.0), ("fusedmax", "oscarmax")),
    )
    for name in names
}
"""The main option of an estimator and the values that validation chooses from, if its name has no options in brackets."""


@dataclass(frozen=True)
class Tuning:
    """The training runs of a choice: their steps, and their seeds from ``first`` on, before `FIRST_TUNING_SEED` is added."""

    steps: int
    first: int
    seeds: int


@dataclass(frozen=True)
class ValidatedChoice:
    """The best candidate: the estimator with its option, the learning rate, and their accuracy on the validation split."""

    estimator: Estimator[Any]
    rate: float
    accuracy: float = 0.0

    def setting(self, name: str) -> tuple[str, float] | None:
        """The chosen option as text and number, such as ``("lambda=10", 10.0)``; None if the name leaves nothing to choose."""
        option, values = tunable(name, self.estimator)
        if not values:
            return None
        value = float(getattr(self.estimator, option))
        return f"{option.rstrip('_')}={value:g}", value


def tunable(name: str, estimator: Estimator[Any]) -> tuple[str, tuple[float, ...]]:
    """The option that validation chooses and its values; both empty for a name with options in brackets, or without such an option."""
    return OPTIONS.get(estimator.name, ("", ())) if "[" not in name else ("", ())


def choose(task: Task, name: str, estimator: Estimator[Any], tuning: Tuning, scratch: Path | None = None) -> ValidatedChoice:
    """The best learning rate with the option as it is, then the best option at that rate; trained once on a machine.

    Options in the brackets of ``name`` stay as they are. A killed run continues from the checkpoints in ``scratch``.
    """
    option, values = tunable(name, estimator)
    if len(task.rates) == 1 and not values:
        return ValidatedChoice(estimator, task.rates[0])

    def chosen() -> dict[str, float]:
        best = _best(task, estimator, task.rates, tuning, scratch)
        for value in values:
            if value != getattr(estimator, option):
                found = _best(task, replace(estimator, **{option: value}), (best.rate,), tuning, scratch)  # type: ignore[type-var]
                best = max(best, found, key=lambda choice: choice.accuracy)
        kept = {"rate": best.rate, "accuracy": best.accuracy}
        return kept | ({"value": float(getattr(best.estimator, option))} if values else {})

    found = remembered(task, ("choice", repr(estimator), estimator.version, values, tuning), chosen)
    best = replace(estimator, **{option: found["value"]}) if values else estimator  # type: ignore[type-var]
    return ValidatedChoice(best, found["rate"], found["accuracy"])


def _best(task: Task, estimator: Estimator[Any], rates: tuple[float, ...], tuning: Tuning, scratch: Path | None) -> ValidatedChoice:
    """The rate of the largest mean accuracy over seeds; a run that diverged is the last choice."""
    first = FIRST_TUNING_SEED + tuning.first
    jobs = [Job(seed, rate) for rate in rates for seed in range(first, first + tuning.seeds)]
    accuracies = dict.fromkeys(rates, 0.0)
    for run in train_all(task, estimator, jobs, steps=tuning.steps, split="validation", points=1, scratch=scratch):
        accuracies[run.job.rate] += (run.metrics["accuracy"] if run.diverged is None else -1.0) / tuning.seeds
    best = max(accuracies, key=accuracies.__getitem__)
    return ValidatedChoice(estimator, best, accuracies[best])

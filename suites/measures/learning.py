"""Learning with an estimator: a task, seed by seed, with learning rate and main option chosen beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ...estimators.base import Estimator
from ..base import Instance, Problem
from ..problems import TaskProblem
from ..tasks import Task
from ..tasks.references import bounds
from ..tasks.training import Job, Learnt, train_all
from .suite import Context, Finding, Suite

TARGET = 0.95
"""Of the ceiling: the accuracy whose first step is told."""

FIRST_TUNING_SEED = 1_000_000
"""Seeds that choose, which are never those of a test."""

OPTIONS: dict[str, tuple[str, tuple[float, ...]]] = {
    "imle": ("lambda_", (1.0, 10.0, 100.0)),
    "blackbox": ("lambda_", (0.5, 5.0, 50.0)),
    "spigot": ("step_size", (0.1, 1.0, 10.0)),
    "spigot_steps": ("step_size", (0.02, 0.2, 2.0)),
    "spigot_ce": ("step_size", (0.1, 1.0, 10.0)),
    "spigot_eg": ("step_size", (0.1, 1.0, 10.0)),
    "gumbel_softmax": ("temperature", (0.3, 1.0, 3.0)),
    "st_gumbel": ("temperature", (0.3, 1.0, 3.0)),
    "gumbel_rao": ("temperature", (0.3, 1.0, 3.0)),
    "step_st_gumbel": ("temperature", (0.3, 1.0, 3.0)),
    "gst": ("temperature", (0.3, 1.0, 3.0)),
    "reinmax": ("temperature", (1.0, 2.0, 4.0)),
    "gumbel_crf": ("temperature", (0.3, 1.0, 3.0)),
    "gumbel_crf_st": ("temperature", (0.3, 1.0, 3.0)),
    "relaxed_top_k": ("temperature", (0.1, 0.5, 2.0)),
    "relaxed_top_k_st": ("temperature", (0.1, 0.5, 2.0)),
    "stochastic_softmax": ("temperature", (0.3, 1.0, 3.0)),
    "perturb_and_parse": ("temperature", (0.3, 1.0, 3.0)),
    "perturbed_optimizer": ("sigma", (0.3, 1.0, 3.0)),
    "perturbed_multiplicative": ("sigma", (0.3, 1.0, 3.0)),
    "fusedmax": ("strength", (0.1, 1.0, 10.0)),
    "oscarmax": ("strength", (0.1, 1.0, 10.0)),
    "reinforce_ppo": ("step_size", (0.03, 0.1, 0.3)),
    "step_ppo": ("step_size", (0.03, 0.1, 0.3)),
}
"""The option that matters most, and what validation chooses among, where a name gives no options."""


@dataclass(frozen=True)
class LearningAmount:
    """How much training an effort buys.

    Attributes:
        share: of the task's steps that a test takes; half of them choose rate and option, which ranks as well.
        tuning: seeds that choose.
    """

    share: float
    tuning: int

    @classmethod
    def of(cls, context: Context) -> LearningAmount:
        """Three fifths of the steps and one seed at quick effort; else all and two."""
        return cls(0.6, 1) if context.effort.rounds <= 10 else cls(1.0, 2)

    def steps(self, task: Task) -> int:
        """Of a test."""
        return max(round(self.share * task.steps), 1)

    def runs(self, task: Task, name: str, seeds: int) -> float:
        """Runs of so many steps that a cell takes, those that choose counted in halves."""
        choices = len(task.rates) * (len(task.rates) > 1 or name in OPTIONS) + max(len(OPTIONS.get(name, ("", ()))[1]) - 1, 0)
        return seeds + 0.5 * self.tuning * choices


class LearningSuite(Suite):
    """Accuracy and speed of models that are trained with every estimator; instances are seeds, and runs of estimators are paired by them.

    Learning rate and main option are chosen on the validation split, over seeds of their own. Trained in float32 whatever the plan says.
    """

    name: ClassVar[str] = "learning"
    summary: ClassVar[str] = "accuracy, curve and steps to a target of models trained with each estimator on a task, seed by seed"
    measures: ClassVar[str] = "tasks"
    dtype: ClassVar[str] = "float32"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Of every seed, after the choices that hold for all of them."""
        assert isinstance(problem, TaskProblem)
        for name, estimator in estimators.items():
            yield from _Cell(name, estimator, problem, context).findings()

    def limitation(self, problem: Problem, instance: Instance, context: Context) -> str | None:
        """A device."""
        return on_cpu(context)


def on_cpu(context: Context) -> str | None:
    """Why nothing is trained on a device."""
    return None if context.device == "cpu" else f"models are trained on the CPU, and the plan has the device {context.device}"


@dataclass(frozen=True)
class ValidatedChoice:
    """What validation chose."""

    estimator: Estimator[Any]
    rate: float
    accuracy: float


@dataclass(frozen=True, eq=False)
class _Cell:
    """One estimator on a task."""

    name: str
    estimator: Estimator[Any]
    problem: TaskProblem
    context: Context

    @property
    def task(self) -> Task:
        return self.problem.task

    @property
    def amount(self) -> LearningAmount:
        return LearningAmount.of(self.context)

    @property
    def scratch(self) -> Path | None:
        return self.context.scratch

    def findings(self) -> Iterator[Finding]:
        choice = self._choice()
        yield Finding(self.name, "learning_rate", choice.rate)
        if "[" not in self.name and self.estimator.name in OPTIONS:
            option = OPTIONS[self.estimator.name][0]
            value = getattr(choice.estimator, option)
            yield Finding(self.name, "chosen_option", value, setting=f"{option.rstrip('_')}={value:g}", size=value)
        jobs = [Job(seed, choice.rate) for seed in self.problem.seeds]
        steps = self.amount.steps(self.task)
        learnt = train_all(self.task, choice.estimator, jobs, steps=steps, scratch=self.scratch)
        for instance, found in zip(self.problem.instances, learnt, strict=True):
            yield from self._of_seed(instance, found, steps)

    # What validation chooses.

    def _choice(self) -> ValidatedChoice:
        """The best rate with the option as it is, then the best option at that rate."""
        option, values = OPTIONS.get(self.estimator.name, ("", ())) if "[" not in self.name else ("", ())
        if len(self.task.rates) == 1 and not values:
            return ValidatedChoice(self.estimator, self.task.rates[0], 0.0)
        best = self._best(self.estimator, self.task.rates)
        for value in values:
            if value != getattr(self.estimator, option):
                found = self._best(replace(self.estimator, **{option: value}), (best.rate,))  # type: ignore[type-var]
                best = max(best, found, key=lambda choice: choice.accuracy)
        return best

    def _best(self, estimator: Estimator[Any], rates: tuple[float, ...]) -> ValidatedChoice:
        first = FIRST_TUNING_SEED + self.problem.seeds[0]
        seeds = range(first, first + self.amount.tuning)
        jobs = [Job(seed, rate) for rate in rates for seed in seeds]
        steps = max(self.amount.steps(self.task) // 2, 1)
        found = train_all(self.task, estimator, jobs, steps=steps, split="validation", points=1, scratch=self.scratch)
        means = {rate: sum(_validated(one) for one in found if one.job.rate == rate) / len(seeds) for rate in rates}
        rate = max(rates, key=lambda rate: means[rate])
        return ValidatedChoice(estimator, rate, means[rate])

    # What comes of it.

    def _of_seed(self, instance: Instance, found: Learnt, steps: int) -> Iterator[Finding]:
        floor, ceiling = (values["accuracy"] for values in bounds(self.task, found.job.seed))
        accuracy = found.metrics["accuracy"]
        trained = [value for step, value in found.curve if step > 0]
        values = {
            **{
                metric: found.metrics[metric]
                for metric in ("accuracy", "structure_accuracy", "relaxed_accuracy")
                if metric in found.metrics
            },
            "curve_mean": sum(trained) / len(trained),
            "normalised_accuracy": (accuracy - floor) / (ceiling - floor) if ceiling > floor else None,
            "diverged": float(found.diverged is not None),
            "floor_accuracy": floor,
            "ceiling_accuracy": ceiling,
        }
        for metric, value in values.items():
            yield Finding(self.name, metric, value, instance=instance.name)
        yield replace(to_target(found.curve, TARGET * ceiling, steps), estimator=self.name, instance=instance.name)
        for step, value in found.curve:
            yield Finding(self.name, "curve_accuracy", value, instance=instance.name, setting=f"step={step}", size=float(step))


def _validated(found: Learnt) -> float:
    """The accuracy that a choice goes by; a run that diverged is the last choice."""
    return found.metrics["accuracy"] if found.diverged is None else -1.0


def to_target(curve: tuple[tuple[int, float], ...], target: float, steps: int) -> Finding:
    """The step from which a curve has been at a target, between the point before it and itself.

    A run that does not come there is censored: no value, ``low`` is its last step, ``sampling`` is ``budget``, and the reason says it.

    Example:
        >>> found = to_target(((0, 0.5), (10, 0.8), (20, 0.9)), 0.85, 20)
        >>> found.value, found.low, found.high, to_target(((0, 0.5), (10, 0.8)), 0.85, 10).sampling
        (20.0, 10.0, 20.0, 'budget')
    """
    before = 0
    for step, accuracy in curve:
        if accuracy >= target:
            return Finding("", "steps_to_target", float(step), float(before), float(step), sampling="converged")
        before = step
    reason = f"the accuracy of {target:.3g}, {TARGET:g} of the ceiling, was not reached within {steps} steps"
    return Finding("", "steps_to_target", None, float(steps), None, sampling="budget", reason=reason)

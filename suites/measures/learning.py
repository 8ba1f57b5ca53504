"""Learning with an estimator: a task, seed by seed, with learning rate and main option chosen beforehand; and its references."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ...estimators.base import Estimator
from ..base import Problem
from ..problems import TaskProblem, is_task
from ..tasks import Task
from ..tasks.references import ValidatedChoice, bounds, choose, tunable
from ..tasks.training import Job, TrainingRun, train_all
from .parameter_bias import ModelBatch
from .suite import EFFORTS, Context, Effort, Finding, Suite

TARGET = 0.95  # share of the ceiling that is the target accuracy of `steps_to_target`


def training_amount(task: Task, effort: Effort) -> tuple[int, int]:
    """The steps of a test, and the seeds that choose rate and option in half of the steps, which rank alike.

    Three fifths of the task's steps and one seed at quick effort; else all and two.
    """
    share, seeds = (0.6, 1) if effort.rounds <= EFFORTS["quick"].rounds else (1.0, 2)
    return max(round(share * task.steps), 1), seeds


class LearningSuite(Suite):
    """Accuracy and speed of models that are trained with every estimator; instances are seeds, and runs of estimators are paired by them.

    Learning rate and main option are chosen on the validation split, over seeds of their own. Models are trained in float32, whichever
    dtype the plan has.
    """

    name: ClassVar[str] = "learning"
    summary: ClassVar[str] = "accuracy, curve and steps to a target of models trained with each estimator on a task, seed by seed"
    measures: ClassVar[str] = "tasks"
    dtype: ClassVar[str] = "float32"
    order: ClassVar[int] = 1

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        assert isinstance(problem, TaskProblem)
        task, (steps, _) = problem.task, training_amount(problem.task, context.effort)
        for name, estimator in estimators.items():
            choice = chosen_for(problem, name, estimator, context)
            yield Finding(name, "learning_rate", choice.rate)
            yield from option_finding(name, choice)
            jobs = [Job(seed, choice.rate) for seed in problem.seeds]
            models = train_all(task, choice.estimator, jobs, steps=steps, scratch=context.scratch)
            for instance, found in zip(problem.instances, models, strict=True):
                yield from _of_seed(name, instance.name, found, task, steps)


class TaskReferences(Suite):
    """Train and store the references of a task once, before other cells need them, so that those keep their time limits.

    Of a task: floor and ceiling of every seed. Of a task along a run: the model of every seed, and the norm of the exact gradient of its
    first batch. Results are stored in the user's cache, where the suites `learning` and `parameter_bias` find them.
    """

    name: ClassVar[str] = "references"
    summary: ClassVar[str] = "floor and ceiling of a task, and the exact gradients of its models, computed once and shared"
    measures: ClassVar[str] = "references"
    dtype: ClassVar[str] = "float64"
    order: ClassVar[int] = 0

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        assert isinstance(problem, TaskProblem)
        [name] = estimators
        for seed in problem.seeds:
            if is_task(problem.name):
                floor, ceiling = bounds(problem.task, seed)
                values = {"floor_accuracy": floor, "ceiling_accuracy": ceiling}
            else:
                values = {"parameter_truth_norm": float(ModelBatch.of(problem, seed, context).truth().gradient.norm())}
            yield from (Finding(name, metric, value, instance=f"seed={seed}") for metric, value in values.items())


def chosen_for(problem: TaskProblem, name: str, estimator: Estimator[Any], context: Context) -> ValidatedChoice:
    """Learning rate and main option of an estimator on the task of a problem, as validation chooses them before it is trained."""
    steps, seeds = training_amount(problem.task, context.effort)
    chosen = range(problem.seeds[0], problem.seeds[0] + seeds)
    return choose(problem.task, name, estimator, chosen, steps=max(steps // 2, 1), scratch=context.scratch)


def option_finding(name: str, choice: ValidatedChoice) -> Iterator[Finding]:
    """The chosen option, if there was one to choose."""
    option, values = tunable(name, choice.estimator)
    if values:
        value = float(getattr(choice.estimator, option))
        yield Finding(name, "chosen_option", value, setting=f"{option.rstrip('_')}={value:g}", size=value)


def _of_seed(name: str, instance: str, found: TrainingRun, task: Task, steps: int) -> Iterator[Finding]:
    floor, ceiling = bounds(task, found.job.seed)
    trained = [value for step, value in found.curve if step > 0]
    accuracy = found.metrics["accuracy"]
    values: dict[str, float | None] = {
        **{metric: found.metrics[metric] for metric in ("accuracy", "structure_accuracy", "relaxed_accuracy") if metric in found.metrics},
        "curve_mean": sum(trained) / len(trained),
        "normalised_accuracy": (accuracy - floor) / (ceiling - floor) if ceiling > floor else None,
        "diverged": float(found.diverged is not None),
        "floor_accuracy": floor,
        "ceiling_accuracy": ceiling,
    }
    for metric, value in values.items():
        yield Finding(name, metric, value, instance=instance)
    yield replace(to_target(found.curve, TARGET * ceiling, steps), estimator=name, instance=instance)
    for step, value in found.curve:
        yield Finding(name, "curve_accuracy", value, instance=instance, setting=f"step={step}", size=float(step))


def to_target(curve: Sequence[tuple[int, float]], target: float, steps: int) -> Finding:
    """The step from which a curve has been at a target, between the point before it and itself.

    A run that does not reach it is censored: it has no value, ``low`` is its last step, ``sampling`` is ``budget``, and there is a reason.
    """
    before = 0
    for step, accuracy in curve:
        if accuracy >= target:
            return Finding("", "steps_to_target", float(step), float(before), float(step), sampling="converged")
        before = step
    reason = f"the accuracy of {target:.3g}, {TARGET:g} of the ceiling, was not reached within {steps} steps"
    return Finding("", "steps_to_target", None, float(steps), None, sampling="budget", reason=reason)

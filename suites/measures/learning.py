"""Learning on a task, seed by seed, with learning rate and main option chosen beforehand; its references; and the first batches.

Along a run of training, bias and variance of a batch's gradient are those in the encoder's parameters.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...estimators import ExactMarginalisation, make_estimator
from ...estimators.base import Estimator
from ..base import NonFiniteError, Problem
from ..problems import TaskProblem, is_task
from ..problems.named import learner_of, within
from ..statistics.interval import Interval
from ..statistics.intervals import UNRESOLVED
from ..statistics.metrics import NoisyGradient, estimated_metrics, exact_metrics, metrics_against, single
from ..statistics.moments import BATCHES, Moments
from ..tasks.references import ValidatedChoice, bounds, choose, learnt_model, reference_name, remembered, tunable
from ..tasks.task import Task
from ..tasks.training import BatchOrder, Job, TrainingRun, train_all
from .draws import Draws, estimates
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


METRIC = {  # the names of metrics of a batch in parameters, by those of single items
    name: f"parameter_{name.removeprefix('relative_')}"
    for name in ("relative_bias", "relative_variance", "relative_mse", "cosine", "gain", "rho")
}

REFERENCE_WORK = 4  # replicates of a reference without an exact gradient, as a multiple of those of an estimator


class ParameterBias(Suite):
    """Bias and variance of the first training batch of a seed, in the encoder's parameters and double precision.

    Instances are seeds, one model each at the stage of the problem. The truth is the exact gradient. With too many structures it is the
    mean of many estimates of leave-one-out, whose noise is subtracted from the bias; ``tier`` has the kind.
    """

    name: ClassVar[str] = "parameter_bias"
    summary: ClassVar[str] = "bias, variance and usefulness of a batch's gradient in the encoder's parameters, along a run of training"
    measures: ClassVar[str] = "learnt"
    dtype: ClassVar[str] = "float64"

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        assert isinstance(problem, TaskProblem)
        for seed in problem.seeds:
            place = ModelBatch.of(problem, seed, context)
            truth = place.truth()
            for name, estimator in estimators.items():
                try:
                    metrics = place.metrics(estimator, truth)
                except NonFiniteError as error:
                    yield Finding.failed(name, METRIC["relative_bias"], error, instance=f"seed={seed}", reference="expected")
                    continue
                known: dict[str, Any] = {"instance": f"seed={seed}", "reference": "expected"}
                known["tier"] = "exact" if estimator.deterministic and truth.noise == 0 else "mc"
                known["replicates"] = None if estimator.deterministic else place.replicates
                for metric, found in metrics.items():
                    yield Finding.of(name, METRIC[metric], found, **known)


@dataclass(frozen=True, eq=False)
class ModelBatch:
    """The first batch of a seed with the model of that seed at a stage."""

    draws: Draws  # of estimates in scores
    theta: Tensor  # scores ``[b, *event]`` as functions of ``parameters``
    parameters: tuple[Tensor, ...]
    common: Tensor  # ``[b, *event]``, added to every estimate by the regulariser
    reference: Estimator[Any]  # the estimator that gives the truth
    replicates: int  # of an estimator
    task: Task  # as the seed sees it

    @classmethod
    def of(cls, problem: TaskProblem, seed: int, context: Context) -> Self:
        """The batch of a seed at the stage of a problem."""
        task = problem.task.at(seed)
        model = learnt_model(task, learner_of(problem.name, task), seed, problem.stage).double()
        batch = task.batch("train", BatchOrder(task, seed)()).double()
        theta = task.scores(model, batch)
        scores = theta.detach()
        regulariser, common = task.regulariser(model, batch), torch.zeros_like(scores)
        if regulariser is not None:
            leaf = scores.clone().requires_grad_()
            (common,) = torch.autograd.grad(regulariser(leaf).sum(), leaf)
        model.decoder.requires_grad_(False)
        parameters = tuple(parameter for parameter in model.encoder.parameters() if parameter.requires_grad)
        key = ("parameter_bias", task.name, problem.stage, str(seed))
        draws = Draws(task.oracle, within(task, batch, task.loss(model, batch), scores), scores, context, key, batch.lengths)
        replicates = BATCHES * max(2, context.effort.rounds // 8)  # two for each batch of the intervals
        return cls(draws, theta, parameters, common, make_estimator(reference_name(task)), replicates, task)

    def truth(self) -> NoisyGradient:
        """The exact gradient, or the mean of many estimates; computed once on a machine."""
        settings = self.draws.key, self.draws.context.seed, self.replicates, repr(self.reference), self.reference.version
        return NoisyGradient(*remembered(self.task, ("parameter truth", *settings), self._truth))

    def _truth(self) -> tuple[Tensor, float]:
        if isinstance(self.reference, ExactMarginalisation):
            return self._pulled(estimates(self.reference, self.draws, 1))[0], 0.0
        # Random numbers that no estimator is measured with.
        other, number = replace(self.draws, key=(*self.draws.key, "reference")), REFERENCE_WORK * self.replicates
        found = torch.cat([self._pulled(part) for part in estimates(self.reference, other, number).split(BATCHES)])
        return found.mean(0), float(found.var(0).sum()) / number

    def metrics(self, estimator: Estimator[Any], truth: NoisyGradient) -> dict[str, Interval]:
        """The metrics of `METRIC`, relative to the truth."""
        warmed = self.draws.warmed(estimator)
        if estimator.deterministic:
            summary = single(self._pulled(estimates(warmed, self.draws, 1))[0], truth.gradient)
            found, against = exact_metrics(summary), metrics_against(summary, truth)
        else:
            moments = Moments.empty(truth.gradient)
            for batch, part in enumerate(estimates(warmed, self.draws, self.replicates).split(self.replicates // BATCHES)):
                moments.add(self._pulled(part), batch)
            found, against = estimated_metrics(moments), metrics_against(moments, truth)
        corrected = {name: against[name] for name in ("relative_bias", "gain") if truth.noise > 0 and found[name] is not UNRESOLVED}
        return {name: (found | corrected)[name] for name in METRIC if name in found}

    def _pulled(self, rows: Tensor) -> Tensor:
        """Estimates in scores ``[n, b·event]`` as gradients of the batch's mean in the parameters, ``[n, parameters]``."""
        upstream = (rows.reshape(len(rows), *self.theta.shape) + self.common) / len(self.theta)
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        with contextlib.suppress(RuntimeError):  # an encoder without batched gradients is differentiated row by row
            together = torch.autograd.grad(self.theta, self.parameters, upstream, is_grads_batched=True, **options)
            return torch.cat([gradient.flatten(1) for gradient in together], 1)
        each = [torch.autograd.grad(self.theta, self.parameters, row, **options) for row in upstream]
        return torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in each])

"""Bias and variance of a batch's gradient in the encoder's parameters, along a run of training."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...estimators import ExactMarginalisation, make_estimator
from ...estimators.base import Estimator
from ..base import NonFiniteError, Problem
from ..problems import TaskProblem
from ..problems.named import learner_of, within
from ..statistics.interval import Interval
from ..statistics.intervals import UNRESOLVED
from ..statistics.metrics import NoisyGradient, estimated_metrics, exact_metrics, metrics_against, single
from ..statistics.moments import BATCHES, Moments
from ..tasks.references import learnt_model, reference_name, remembered
from ..tasks.task import Task
from ..tasks.training import BatchOrder
from .draws import Draws, estimates
from .suite import Context, Finding, Suite

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

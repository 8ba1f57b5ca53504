"""Training of a task: batches, resumable runs with one estimator, and plain fits for floors."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...estimators.base import Estimator, check_call
from ...estimators.layer import StructuredLayer, train_step
from ...oracles.capabilities.ragged import of_lengths
from ..base import check_finite
from ..statistics.adaptive import write_whole
from .task import Batch, LatentModel, Split, Task, TaskLoss

EVALUATIONS = 20
"""Evaluations of a run, evenly spread over its steps, after the one at its start."""

CHECKPOINT_SECONDS = 3.0
"""Time between two checkpoints."""

MAX_SCORE = 1e12
"""A run with larger scores is ended as diverged."""

MODERATE_SCORE = 1e3
"""Below it scores and losses have not diverged: NaN of the estimate is then a fault of the estimator."""


class BatchOrder:
    """Numbers of the items of the next batch, each item once per epoch. They depend on seed and task only, so that runs are paired."""

    def __init__(self, task: Task, seed: int, split_size: int) -> None:
        self.generator = torch.Generator().manual_seed(_key(task.name, seed))
        self.batch_size, self.split_size = task.batch_size, split_size
        self.left = torch.empty(0, dtype=torch.long)

    def __call__(self) -> Tensor:
        if len(self.left) < min(self.batch_size, self.split_size):
            self.left = torch.randperm(self.split_size, generator=self.generator)
        items, self.left = self.left[: self.batch_size], self.left[self.batch_size :]
        return items

    def state(self) -> tuple[Tensor, Tensor]:
        """The state that decides the next batches."""
        return self.generator.get_state(), self.left.clone()

    def load(self, state: tuple[Tensor, Tensor]) -> None:
        """Continue from a state."""
        self.generator.set_state(state[0])
        self.left = state[1]


def _key(*names: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True)
class Job:
    """One run of training: the seed of its initial weights and order of data, and its learning rate."""

    seed: int
    rate: float


@dataclass(frozen=True)
class TrainingResult:
    """The result of a job.

    Attributes:
        curve: steps, each with the accuracy at the best structures; constant after a run diverged.
        metrics: those of `Task.evaluate` at the last evaluation.
        diverged: the first step that failed; None if none did.
        model: the model after the last step.
    """

    job: Job
    curve: tuple[tuple[int, float], ...]
    metrics: Mapping[str, float]
    diverged: int | None
    model: LatentModel


class Training:
    """Jobs of one estimator, trained as one batched model, or a single job; it can stop and continue at any step.

    The estimator gets the jobs as a dimension of the batch ``[S, b]`` and draws from one stream. A job's random numbers so depend on the
    other jobs. Each job has its own weights, data, clipping and state of Adam.

    Args:
        task: the task. ``estimator``: the estimator of the gradient. ``jobs``: the jobs, sorted by rate.
        steps: None for the task's.
        split: the split of curves and metrics. ``points``: number of evaluations after the one at the start.
    """

    def __init__(  # noqa: PLR0913
        self,
        task: Task,
        estimator: Estimator[Any],
        jobs: Sequence[Job],
        *,
        steps: int | None = None,
        split: Split = "test",
        points: int = EVALUATIONS,
    ) -> None:
        self.task, self.estimator, self.jobs, self.split = task, estimator, tuple(jobs), split
        self.steps = task.steps if steps is None else steps
        seeds = [job.seed for job in jobs]
        self.layer = _layer(task, estimator, _key("estimator", task.name, *seeds))
        self.tasks = [task.at(seed) for seed in seeds]
        self.runs = (_StackedRuns if len(jobs) > 1 else _Runs)(self.tasks, self.jobs)
        own = [{"params": list(self.layer.parameters()), "lr": jobs[0].rate}] if list(self.layer.parameters()) else []
        self.optimiser = torch.optim.Adam([*self.runs.groups(), *own], fused=True)
        self.optimiser.register_step_pre_hook(self._clip)
        self.orders = [BatchOrder(own, job.seed, own.size("train")) for own, job in zip(self.tasks, self.jobs, strict=True)]
        self.points = {round(i * self.steps / points) for i in range(points + 1)}
        self.step = 0
        self.curves: list[list[tuple[int, float]]] = [[] for _ in jobs]
        self.metrics: list[dict[str, float]] = [{} for _ in jobs]
        self.diverged: list[int | None] = [None for _ in jobs]

    def run(self, until: int | None = None, *, scratch: Path | None = None) -> None:
        """Train to a step, or to the end.

        Args:
            until: a step.
            scratch: a folder for checkpoints; a run of the same jobs continues from there, with identical results.
        """
        path = None if scratch is None else scratch / f"training-{self._identity}.pt"
        if path is not None and path.is_file():
            self._load(torch.load(path, weights_only=True))
        last = self.steps if until is None else min(until, self.steps)
        self._evaluate()
        written = time.monotonic()
        while self.step < last:
            self._advance()
            self._evaluate()
            if path is not None and (self.step == last or time.monotonic() - written > CHECKPOINT_SECONDS):
                write_whole(path, self._state())
                written = time.monotonic()

    def results(self) -> list[TrainingResult]:
        """The results of the jobs so far."""
        found = zip(self.jobs, self.curves, self.metrics, self.diverged, self.runs.models, strict=True)
        return [TrainingResult(job, tuple(curve), dict(metrics), diverged, model) for job, curve, metrics, diverged, model in found]

    # One step.

    def _advance(self) -> None:
        if None in self.diverged:
            self.runs.load([draw() for draw in self.orders])
            with contextlib.suppress(_LostError):
                more: dict[str, Any] = {"lengths": self.runs.lengths, "regulariser": self.runs.regulariser()}
                train_step(self.layer, self.optimiser, self._scores, self.runs.loss(), **more)
        self.step += 1

    def _scores(self) -> Tensor:
        """The scores. If some are too large, their runs end and the step is skipped."""
        scores = self.runs.scores()
        self.shown = scores
        if scores.requires_grad:
            scores.retain_grad()
        if not float(scores.detach().amax()) < MAX_SCORE:
            each = scores.detach().reshape(len(self.jobs), -1).amax(-1)
            self._end(~(each < MAX_SCORE))
            raise _LostError
        return scores

    def _clip(self, *_: object) -> None:
        """Clip the gradient of every job; a job whose gradient is not finite ends."""
        lost = ~self.runs.clip(self.task.clip).isfinite()
        if bool(lost.any()):
            self._blame()
            self._end(lost)

    def _blame(self) -> None:
        """Raise NonFiniteError if scores and losses of a failed step are moderate, so that the estimator is the cause."""
        theta, event = self.shown, self.task.oracle.event_ndim
        if theta.grad is None:
            return
        lengths = self.runs.lengths
        oracle = self.task.oracle if lengths is None else of_lengths(self.task.oracle, lengths)
        with torch.no_grad():
            losses = self.runs.loss()(oracle.argmax(theta.detach()))
        moderate = (theta.abs().flatten(theta.ndim - event).amax(-1) < MODERATE_SCORE) & (losses.abs() < MODERATE_SCORE)
        estimates = theta.grad[moderate].flatten(1)
        check_finite(estimates, self.estimator.name, before=self.step * moderate.numel())

    def _end(self, lost: Tensor) -> None:
        """Mark runs as diverged. They restart from their initial weights, so that the other runs continue, and are not evaluated again."""
        for index in lost.nonzero()[:, 0].tolist():
            if self.diverged[index] is None:
                self.diverged[index] = self.step
            self.runs.reset(index)

    def _evaluate(self) -> None:
        if self.step not in self.points or (self.curves[0] and self.curves[0][-1][0] == self.step):
            return
        for index, model in enumerate(self.runs.models):
            if self.diverged[index] is None:
                self.metrics[index] = dict(self.tasks[index].evaluate(model, self.split))
            self.curves[index].append((self.step, self.metrics[index]["accuracy"]))

    # Checkpoints.

    @property
    def _identity(self) -> str:
        """A key of all that the numbers depend on."""
        estimator = f"{self.estimator!r} version {self.estimator.version}"
        return f"{_key(self.task, self.task.version, estimator, self.jobs, self.steps, self.split, sorted(self.points)):014x}"

    def _state(self) -> dict[str, Any]:
        return {
            "models": [model.state_dict() for model in self.runs.models],
            "optimiser": self.optimiser.state_dict(),
            "layer": self.layer.state_dict(),
            "orders": [each.state() for each in self.orders],
            "step": self.step,
            "curves": self.curves,
            "metrics": self.metrics,
            "diverged": self.diverged,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        for model, tensors in zip(self.runs.models, state["models"], strict=True):
            model.load_state_dict(tensors)
        self.optimiser.load_state_dict(state["optimiser"])
        self.layer.load_state_dict(state["layer"])
        for each, kept in zip(self.orders, state["orders"], strict=True):
            each.load(kept)
        self.step, self.curves, self.metrics, self.diverged = (state[name] for name in ("step", "curves", "metrics", "diverged"))


class _LostError(Exception):
    """Scores are too large, and the step is skipped."""


# One model, or several as one.


class _Runs:
    """The model of one job: scores and loss of its batches, and the clipping of its gradient.

    Attributes:
        models: one per job.
    """

    def __init__(self, tasks: Sequence[Task], jobs: Sequence[Job]) -> None:
        self.task, self.tasks, self.jobs = tasks[0], tasks, jobs
        self.models = [task.model(job.seed) for task, job in zip(tasks, jobs, strict=True)]
        self.trained = [parameter for parameter in self.models[0].parameters() if parameter.requires_grad]

    def groups(self) -> list[dict[str, Any]]:
        """Groups of the optimiser."""
        return self.task.parameter_groups(self.models[0], self.jobs[0].rate)

    def load(self, items: list[Tensor]) -> None:
        """Load the next batch of each job, by the numbers of its items."""
        self.batch = self.task.batch("train", items[0])
        self.lengths = self.batch.lengths

    def scores(self) -> Tensor:
        return self.task.scores(self.models[0], self.batch)

    def loss(self) -> TaskLoss:
        return self.task.loss(self.models[0], self.batch)

    def regulariser(self) -> Callable[[Tensor], Tensor] | None:
        return self.task.regulariser(self.models[0], self.batch)

    def clip(self, longest: float) -> Tensor:
        """Clip the gradients and return their norms ``[S]``; gradients that are not finite are dropped."""
        norm = nn.utils.clip_grad_norm_(self.trained, longest)
        if not bool(norm.isfinite()):
            for parameter in self.trained:
                parameter.grad = None
        return norm.reshape(1)

    def reset(self, index: int) -> None:
        """Restore the initial weights of a model."""
        self.models[index].load_state_dict(self.tasks[index].model(self.jobs[index].seed).state_dict())


class _StackedRuns(_Runs):
    """Several jobs: the functions of the task are mapped over stacked parameters and over batches ``[S, b, ...]``.

    Parameters of consecutive jobs of one learning rate are stacked, and those of the models are views of them.
    """

    def __init__(self, tasks: Sequence[Task], jobs: Sequence[Job]) -> None:
        super().__init__(tasks, jobs)
        self.template = self.task.model(jobs[0].seed)
        trained = [name for name, parameter in self.models[0].named_parameters() if parameter.requires_grad]
        runs = [(rate, [index for index, _ in run]) for rate, run in itertools.groupby(enumerate(jobs), lambda item: item[1].rate)]
        self.stacks = [(rate, {name: self._leaf(name, rows) for name in trained}) for rate, rows in runs]
        tensors = [{**dict(model.named_parameters()), **dict(model.named_buffers())} for model in self.models]
        self.names = (*trained, *(name for name in tensors[0] if name not in trained))
        self.fixed = tuple(torch.stack([own[name].detach() for own in tensors]) for name in self.names[len(trained) :])
        self.places = [_place(self.template, name) for name in self.names]

    def _leaf(self, name: str, rows: list[int]) -> Tensor:
        own = [self.models[i].get_parameter(name) for i in rows]
        leaf = torch.stack([parameter.detach() for parameter in own])
        for parameter, view in zip(own, leaf, strict=True):
            parameter.data = view
        return leaf.requires_grad_()

    def groups(self) -> list[dict[str, Any]]:
        named = {id(parameter): name for name, parameter in self.models[0].named_parameters()}
        return [
            {**group, "params": [leaves[named[id(parameter)]] for parameter in group["params"]]}
            for rate, leaves in self.stacks
            for group in self.task.parameter_groups(self.models[0], rate)
        ]

    def load(self, items: list[Tensor]) -> None:
        if all(task is self.task for task in self.tasks):
            parts, self.rebuild = _parts(self.task.batch("train", torch.cat(items)))
            self.parts = tuple(part.unflatten(0, (len(self.jobs), -1)) for part in parts)
        else:
            found = [_parts(task.batch("train", own)) for task, own in zip(self.tasks, items, strict=True)]
            self.rebuild, self.parts = found[0][1], tuple(map(torch.stack, zip(*(parts for parts, _ in found), strict=True)))
        self.lengths = self.rebuild(self.parts).lengths

    def scores(self) -> Tensor:
        return self._map(self.task.scores)

    def loss(self) -> TaskLoss:
        def call(structure: Tensor) -> Tensor:
            at = structure.ndim - self.task.oracle.event_ndim - 2
            return self._map(lambda model, batch, z: self.task.loss(model, batch)(z), structure, at)

        declared = self._declared[0]
        gold = None if declared.gold is None else self._map(lambda model, batch: self.task.loss(model, batch).gold)  # type: ignore[arg-type,return-value]
        return replace(declared, call=call, gold=gold)

    def regulariser(self) -> Callable[[Tensor], Tensor] | None:
        if not self._declared[1]:
            return None
        return lambda scores: self._map(lambda model, batch, theta: self.task.regulariser(model, batch)(theta), scores)  # type: ignore[misc]

    @functools.cached_property
    def _declared(self) -> tuple[TaskLoss, bool]:
        """The loss with its declarations, and whether there is a regulariser."""
        first = self.rebuild(tuple(part[0] for part in self.parts))
        return self.task.loss(self.template, first), self.task.regulariser(self.template, first) is not None

    def _map(self, function: Callable[..., Tensor], point: Tensor | None = None, at: int = 0) -> Tensor:
        """The function of every model with its batch and its part of a point, whose dimension of jobs is ``at``."""
        leaves = [tuple(stack.values()) for _, stack in self.stacks]
        trained = leaves[0] if len(leaves) == 1 else tuple(map(torch.cat, zip(*leaves, strict=True)))
        tensors, points = (*trained, *self.fixed), () if point is None else (point,)

        def one(tensors: tuple[Tensor, ...], parts: tuple[Tensor, ...], *own: Tensor) -> Tensor:
            with self._in_place(tensors):
                return function(self.template, self.rebuild(parts), *own)

        found: Tensor = torch.func.vmap(one, in_dims=(0, 0, *(at for _ in points)), out_dims=at)(tensors, self.parts, *points)
        return found

    @contextlib.contextmanager
    def _in_place(self, tensors: tuple[Tensor, ...]) -> Iterator[None]:
        """The template with these tensors. ``torch.func.functional_call`` would double the time of a small model."""
        own = [places[name] for places, name in self.places]
        try:
            for (places, name), tensor in zip(self.places, tensors, strict=True):
                places[name] = tensor
            yield
        finally:
            for (places, name), tensor in zip(self.places, own, strict=True):
                places[name] = tensor

    def clip(self, longest: float) -> Tensor:
        norms = []
        for _, leaves in self.stacks:
            # The loss is a mean over all jobs: each has a share of its own gradient.
            gradients = [leaf.grad.mul_(len(self.jobs)) for leaf in leaves.values() if leaf.grad is not None]
            norm = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
            shrink = torch.where(norm.isfinite(), (longest / (norm + 1e-6)).clamp(max=1.0), 0.0)
            for gradient in gradients:
                gradient.nan_to_num_(0.0, 0.0, 0.0).mul_(shrink.reshape(-1, *[1] * (gradient.ndim - 1)))
            norms.append(norm)
        return torch.cat(norms)


def _place(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dictionary of a parameter or a buffer, and its key there."""
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last


def _parts(batch: Batch) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], Batch]]:
    """The tensors of a batch, and the function that rebuilds it."""
    optional = [name for name in ("lengths", "gold") if getattr(batch, name) is not None]
    parts = (*batch.inputs, batch.labels, *(getattr(batch, name) for name in optional))
    inputs = len(batch.inputs)

    def rebuild(tensors: tuple[Tensor, ...]) -> Batch:
        return Batch(tensors[:inputs], tensors[inputs], **dict(zip(optional, tensors[inputs + 1 :], strict=True)))

    return parts, rebuild


# Runs side by side, or one.


def stackable(task: Task, estimator: Estimator[Any]) -> bool:
    """Whether seeds can be trained as one batched model: the task is stackable, and the estimator keeps no state between steps."""
    return task.stackable and not estimator.state and not list(_layer(task, estimator, 0).parameters())


def event_shape(task: Task) -> tuple[int, ...]:
    """The event shape of the scores of an item, padded."""
    model = task.model(0)  # outside of no_grad, because it may train a decoder
    with torch.no_grad():
        return tuple(task.scores(model, task.batch("validation", torch.zeros(1, dtype=torch.long))).shape[1:])


def _layer(task: Task, estimator: Estimator[Any], seed: int) -> StructuredLayer:
    return StructuredLayer(task.oracle, estimator, seed=torch.Generator().manual_seed(seed), event_shape=event_shape(task))


def train_all(  # noqa: PLR0913
    task: Task,
    estimator: Estimator[Any] | str,
    jobs: Sequence[Job],
    *,
    steps: int | None = None,
    split: Split = "test",
    points: int = EVALUATIONS,
    scratch: Path | None = None,
) -> list[TrainingResult]:
    """Train jobs: as one batched model if they are `stackable`, else one after the other.

    Args:
        task: the task.
        estimator: an estimator or its name.
        jobs: the jobs, sorted by rate.
        steps: None for the task's.
        split: the split of curves and metrics.
        points: number of evaluations after the one at the start.
        scratch: a folder for checkpoints; a killed run continues from there, with identical results.

    Example:
        >>> from structgrad.estimators import LeaveOneOut
        >>> from structgrad.suites.tasks.clusters import Clusters
        >>> small = Clusters(clusters=3, features=4, train=200, heldout=100, steps=20)
        >>> [found] = train_all(small, LeaveOneOut(), [Job(seed=0, rate=0.05)])
        >>> len(found.curve), found.diverged, sorted(found.metrics)
        (21, None, ['accuracy', 'relaxed_accuracy', 'structure_accuracy'])
    """
    (made,) = check_call("train_all", estimator=estimator)
    found: list[TrainingResult] = []
    for some in [tuple(jobs)] if stackable(task, made) else [(job,) for job in jobs]:
        training = Training(task, made, some, steps=steps, split=split, points=points)
        training.run(scratch=scratch)
        found += training.results()
    return found


def train(task: Task, estimator: Estimator[Any] | str, *, rate: float, seed: int, steps: int | None = None) -> LatentModel:
    """A model after one run of training with Adam."""
    return train_all(task, estimator, [Job(seed, rate)], steps=steps)[0].model


def fit(module: nn.Module, loss: Callable[[Tensor], Tensor], task: Task, *, rate: float, seed: int) -> None:
    """Train a module without latent structure on a task's data for the task's steps; the loss gets the numbers of the items of a batch."""
    draw = BatchOrder(task, seed, task.size("train"))
    descend(module, lambda: loss(draw()), steps=task.steps, rate=rate, clip=task.clip)


Structures = Callable[[Batch], Tensor]
"""Structures ``[..., b, *event]`` for the items of a batch."""


def fit_decoder(  # noqa: PLR0913
    task: Task, model: LatentModel, trained: Structures, *, rate: float, seed: int, tested: Structures | None = None
) -> dict[str, float]:
    """Train a decoder on given structures for the task's steps; return the means of `Task.judge` over the test split.

    Args:
        task: the task.
        model: its model.
        trained: structures of the training items.
        rate: learning rate.
        seed: of the order of the data.
        tested: structures of the test items; None for ``trained``.
    """

    def loss(items: Tensor) -> Tensor:
        batch = task.batch("train", items)
        return task.loss(model, batch)(trained(batch)).mean()

    fit(model.decoder, loss, task, rate=rate, seed=seed)
    return judged(task, model, tested or trained)


@torch.no_grad()
def judged(task: Task, model: LatentModel, structures: Structures) -> dict[str, float]:
    """Means of `Task.judge` over the test split, at given structures."""
    test = task.batch("test", torch.arange(task.size("test")))
    return {metric: float(values.mean()) for metric, values in task.judge(model, test, structures(test)).items()}


@torch.enable_grad()  # models may be built under no_grad
def descend(module: nn.Module, loss: Callable[[], Tensor], *, steps: int, rate: float, clip: float = 5.0) -> None:
    """Train a module without latent structure by Adam."""
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()

"""Training of a task: batches, resumable runs with one estimator, and plain fits for floors."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...estimators.base import Estimator, check_call
from ...estimators.layer import StructuredLayer, train_step
from ...oracles.capabilities.ragged import of_lengths
from ..base import check_finite
from ..trust import write_state
from .task import Batch, LatentModel, Split, Task, TaskLoss

EVALUATIONS = 20  # evaluations of a run, evenly spread over its steps, after the one at its start
CHECKPOINT_SECONDS = 3.0  # time between two checkpoints
MAX_SCORE = 1e12  # a run with larger scores is ended as diverged
MODERATE_SCORE = 1e3  # below it scores and losses have not diverged: NaN of the estimate is then a fault of the estimator


class BatchOrder:
    """Numbers of the items of the next batch, each item once per epoch. They depend on seed and task only, so that runs are paired."""

    def __init__(self, task: Task, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(_key(task.name, seed))
        self.batch_size, self.split_size = task.batch_size, task.size("train")
        self.left = torch.empty(0, dtype=torch.long)

    def __call__(self) -> Tensor:
        if len(self.left) < min(self.batch_size, self.split_size):
            self.left = torch.randperm(self.split_size, generator=self.generator)
        items, self.left = self.left[: self.batch_size], self.left[self.batch_size :]
        return items


def _key(*names: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big")


@dataclass(frozen=True)
class Job:
    """The seed of the initial weights and of the order of data of a run, and its learning rate."""

    seed: int
    rate: float


class TrainingRun:
    """One run of training, with its results so far."""

    def __init__(self, task: Task, job: Job) -> None:
        self.task, self.job = task.at(job.seed), job
        self.model, self.order = self.task.model(job.seed), BatchOrder(self.task, job.seed)
        self.curve: list[tuple[int, float]] = []  # steps with the accuracy at the best structures; constant after the run diverged
        self.metrics: dict[str, float] = {}  # those of `Task.evaluate` at the last evaluation
        self.diverged: int | None = None  # the first step that failed
        self.batch: Batch  # the next one, with its loss and regulariser
        self.loss: TaskLoss
        self.regulariser: Callable[[Tensor], Tensor] | None

    def clip(self, share: int) -> bool:
        """Clip the gradient, and return whether it is finite; else drop it. The loss is a mean over so many runs."""
        trained = [parameter for parameter in self.model.parameters() if parameter.grad is not None]
        if share > 1:
            for parameter in trained:
                parameter.grad.mul_(share)  # type: ignore[union-attr]
        finite = bool(nn.utils.clip_grad_norm_(trained, self.task.clip).isfinite())
        if not finite:
            self.model.zero_grad()
        return finite

    def end(self, step: int) -> None:
        """Mark the run as diverged. It restarts from its initial weights, so that others continue, and is not evaluated again."""
        self.diverged = step if self.diverged is None else self.diverged
        self.model.load_state_dict(self.task.model(self.job.seed).state_dict())

    def evaluate(self, step: int, split: Split) -> None:
        """Add a point to the curve."""
        if self.diverged is None:
            self.metrics = self.task.evaluate(self.model, split)
        self.curve.append((step, self.metrics["accuracy"]))

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, and the results."""
        order = {"generator": self.order.generator.get_state(), "left": self.order.left.clone()}
        return {"model": self.model.state_dict(), "order": order, "results": (self.curve, self.metrics, self.diverged)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.model.load_state_dict(state["model"])
        self.order.generator.set_state(state["order"]["generator"])
        self.order.left = state["order"]["left"]
        self.curve, self.metrics, self.diverged = state["results"]


class Training:
    """Jobs of one estimator side by side, or a single job; the training can stop and continue at any step.

    The estimator gets the jobs as a dimension of the batch ``[S, b]`` and draws from one stream. A job's random numbers so depend on the
    other jobs. Each job has its own weights, data and clipping. For the arguments see `train_all`.
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
        self.task, self.estimator, self.split = task, estimator, split
        self.steps = task.steps if steps is None else steps
        self.layer = _layer(task, estimator, _key("estimator", task.name, *(job.seed for job in jobs)))
        self.runs = [TrainingRun(task, job) for job in jobs]
        groups = [group for run in self.runs for group in run.task.parameter_groups(run.model, run.job.rate)]
        if learned := list(self.layer.parameters()):
            groups.append({"params": learned, "lr": jobs[0].rate})
        self.optimiser = torch.optim.Adam(groups, fused=True)
        self.optimiser.register_step_pre_hook(self._clip)
        self.points = {round(i * self.steps / points) for i in range(points + 1)}
        self.step = 0

    def run(self, until: int | None = None, *, scratch: Path | None = None) -> None:
        """Train to a step, or to the end, with checkpoints in a folder, from which a run of the same jobs continues."""
        # A key of all that the numbers depend on.
        names = (self.task, self.task.version, f"{self.estimator!r} version {self.estimator.version}", [run.job for run in self.runs])
        key = _key(*names, self.steps, self.split, sorted(self.points))
        path = None if scratch is None else scratch / f"training-{key:014x}.pt"
        if path is not None and path.is_file():
            state = torch.load(path, weights_only=True)
            self.optimiser.load_state_dict(state["optimiser"])
            self.layer.load_state_dict(state["layer"])
            self.step = state["step"]
            for run, own in zip(self.runs, state["runs"], strict=True):
                run.load_state_dict(own)
        last = self.steps if until is None else min(until, self.steps)
        self._evaluate()
        written = time.monotonic()
        while self.step < last:
            self._advance()
            self._evaluate()
            if path is not None and (self.step == last or time.monotonic() - written > CHECKPOINT_SECONDS):
                parts = {"optimiser": self.optimiser.state_dict(), "layer": self.layer.state_dict()}
                write_state(path, {**parts, "step": self.step, "runs": [run.state_dict() for run in self.runs]})
                written = time.monotonic()

    def _advance(self) -> None:
        if any(run.diverged is None for run in self.runs):
            for run in self.runs:
                run.batch = run.task.batch("train", run.order())
                run.loss, run.regulariser = run.task.loss(run.model, run.batch), run.task.regulariser(run.model, run.batch)
            self.lengths = _joined([run.batch.lengths for run in self.runs])
            with contextlib.suppress(_LostError):
                more: dict[str, Any] = {"lengths": self.lengths, "regulariser": self._regulariser()}
                train_step(self.layer, self.optimiser, self._scores, self._loss(), **more)
        self.step += 1

    def _scores(self) -> Tensor:
        """The scores. If some are too large, their runs end and the step is skipped."""
        scores = _joined([run.task.scores(run.model, run.batch) for run in self.runs])
        assert scores is not None
        self.shown = scores
        if scores.requires_grad:
            scores.retain_grad()
        if not float(scores.detach().amax()) < MAX_SCORE:
            for run, own in zip(self.runs, scores.detach().reshape(len(self.runs), -1), strict=True):
                if not float(own.amax()) < MAX_SCORE:
                    run.end(self.step)
            raise _LostError
        return scores

    def _loss(self) -> TaskLoss:
        first, *others = [run.loss for run in self.runs]
        if not others:
            return first

        def call(structures: Tensor) -> Tensor:
            jobs = structures.ndim - self.task.oracle.event_ndim - 2
            return torch.stack([run.loss(own) for run, own in zip(self.runs, structures.unbind(jobs), strict=True)], jobs)

        return replace(first, call=call, gold=_joined([run.loss.gold for run in self.runs]))

    def _regulariser(self) -> Callable[[Tensor], Tensor] | None:
        terms = [run.regulariser for run in self.runs if run.regulariser is not None]
        if len(self.runs) == 1 or not terms:
            return terms[0] if terms else None
        return lambda scores: torch.stack([term(own) for term, own in zip(terms, scores, strict=True)])

    def _clip(self, *_: object) -> None:
        """Clip the gradient of every job; a job whose gradient is not finite ends."""
        decoder = [parameter for parameter in self.runs[0].model.decoder.parameters() if parameter.requires_grad]
        # Later steps on the same samples train the encoder alone.
        if decoder and type(self.estimator).rounds is Estimator.rounds and all(parameter.grad is None for parameter in decoder):
            raise ValueError(
                f"`{self.estimator.name}` gives the decoder no gradient; expected a surrogate that does not detach the losses: "
                "return `losses.mean(0) + term - term.detach()`, where `term` is your surrogate"
            )
        lost = [run for run in self.runs if not run.clip(len(self.runs))]
        if lost:
            self._blame()
        for run in lost:
            run.end(self.step)

    def _blame(self) -> None:
        """Raise NonFiniteError if scores and losses of a failed step are moderate, so that the estimator is the cause."""
        theta, event = self.shown, self.task.oracle.event_ndim
        if theta.grad is None:
            return
        oracle = self.task.oracle if self.lengths is None else of_lengths(self.task.oracle, self.lengths)
        with torch.no_grad():
            losses = self._loss()(oracle.argmax(theta.detach()))
        moderate = (theta.abs().flatten(theta.ndim - event).amax(-1) < MODERATE_SCORE) & (losses.abs() < MODERATE_SCORE)
        check_finite(theta.grad[moderate].flatten(1), self.estimator.name, before=self.step * moderate.numel())

    def _evaluate(self) -> None:
        if self.step in self.points and self.step not in dict(self.runs[0].curve):
            for run in self.runs:
                run.evaluate(self.step, self.split)


class _LostError(Exception):
    """Scores are too large, and the step is skipped."""


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    """Tensors of several jobs, stacked; that of a single job is itself."""
    known = [part for part in parts if part is not None]
    return None if not known else known[0] if len(parts) == 1 else torch.stack(known)


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
) -> list[TrainingRun]:
    """Train jobs: side by side if the task is ``stackable`` and the estimator keeps no state between steps, else one after the other.

    Curves and metrics are those of ``split``, with ``points`` evaluations after the one at the start. The folder ``scratch`` is for
    checkpoints: a killed run continues from there, with identical results.

    Example:
        >>> from structgrad.estimators import LeaveOneOut
        >>> from structgrad.suites.tasks.synthetic import Clusters
        >>> small = Clusters(clusters=3, features=4, train=200, heldout=100, steps=20)
        >>> [found] = train_all(small, LeaveOneOut(), [Job(seed=0, rate=0.05)])
        >>> len(found.curve), found.diverged, sorted(found.metrics)
        (21, None, ['accuracy', 'relaxed_accuracy', 'structure_accuracy'])
    """
    (made,) = check_call("train_all", estimator=estimator)
    together = task.stackable and not made.state and not list(_layer(task, made, 0).parameters())
    found: list[TrainingRun] = []
    for some in [tuple(jobs)] if together else [(job,) for job in jobs]:
        training = Training(task, made, some, steps=steps, split=split, points=points)
        training.run(scratch=scratch)
        found += training.runs
    return found


def train(task: Task, estimator: Estimator[Any] | str, *, rate: float, seed: int, steps: int | None = None) -> LatentModel:
    """A model after one run of training with Adam."""
    return train_all(task, estimator, [Job(seed, rate)], steps=steps)[0].model


def fit(module: nn.Module, loss: Callable[[Tensor], Tensor], task: Task, *, rate: float, seed: int) -> None:
    """Train a module without latent structure on a task's data for the task's steps; the loss gets the numbers of the items of a batch."""
    draw = BatchOrder(task, seed)
    descend(module, lambda: loss(draw()), steps=task.steps, rate=rate, clip=task.clip)


Structures = Callable[[Batch], Tensor]  # structures ``[..., b, *event]`` for the items of a batch


def fit_decoder(  # noqa: PLR0913
    task: Task, model: LatentModel, trained: Structures, *, rate: float, seed: int, tested: Structures | None = None
) -> dict[str, float]:
    """Means of `Task.judge` over the test split, at ``tested`` structures if given, after training at others if the decoder learns."""

    def loss(items: Tensor) -> Tensor:
        batch = task.batch("train", items)
        return task.loss(model, batch)(trained(batch)).mean()

    if any(parameter.requires_grad for parameter in model.decoder.parameters()):
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

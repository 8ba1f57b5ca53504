"""A task with a loss of one's own, named by its code: ``clusters[loss=./mine.py:loss]``."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ...oracles import Oracle, registry
from ...oracles.sources import digest_of, source_of
from .module_task import ModuleTask, PerItem
from .task import Batch, LatentModel, Task, TaskLoss

NUM_TRIED = 64  # random predictions that a loss is tried on
WANTED = "expected a function of predictions and labels, with one value per item"


def imported_loss(name: str, wanted: str) -> Any:
    """The function that ``./mine.py:loss`` or ``module:loss`` means; ValueError for anything else, which says what is wanted."""
    if ":" not in name:
        raise ValueError(f"got the loss {name!r}; expected your own, such as ./mine.py:loss")
    function = registry.imported(name, "loss")
    if not callable(function):
        raise ValueError(f"got the loss {name!r}, a {type(function).__name__}; {wanted}")
    return function


def with_own_loss(task: Task, name: str) -> Task:
    """The task with a loss ``f(predictions, labels)``: ``[n, ...], [n, ...] -> [n]``, or one value per position of items with lengths.

    Predictions are those of the decoder. A task without one passes structures and the true structures, with zeros in the padding.

    Raises:
        ValueError: what the name means cannot be imported, or takes other arguments.
    """
    function = imported_loss(name, WANTED)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ValueError(f"got the loss {name!r} for the task {task.name} ({error}); {WANTED}") from None
    if isinstance(task, ModuleTask):
        return replace(task, loss_per_item=function)
    kind: Any = _with_loss(type(task), name, function, digest_of(source_of(function)))
    return kind(**{field.name: getattr(task, field.name) for field in fields(task) if field.init})  # type: ignore[arg-type, no-any-return]


@functools.lru_cache(maxsize=64)
def _with_loss(kind: Any, name: str, function: PerItem, digest: tuple[str, ...]) -> Any:
    tried: list[tuple[bool, bool]] = []

    class WithOwnLoss(kind):  # type: ignore[misc]
        def __repr__(self) -> str:
            return f"{super().__repr__()} with the loss {name} {' '.join(digest)}"

        def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
            items = -self.oracle.event_ndim - 1

            def call(z: Tensor) -> Tensor:
                found, labels, leading = self.predict(model, batch, z), batch.labels, z.shape[: z.ndim + items]
                if found is z:
                    inside: Any = 1 if batch.lengths is None else self.oracle.length_mask(tuple(z.shape[items + 1 :]), batch.lengths)
                    found, labels = z * inside, batch.true() * inside
                found = found.flatten(0, len(leading))
                values = function(found, labels.expand(*leading, *labels.shape).flatten(0, len(leading)))
                if values.shape[:1] != found.shape[:1]:
                    raise ValueError(f"{name} gave {tuple(values.shape)} for {len(found)} items; {WANTED}")
                values = values.unflatten(0, (*leading, z.shape[items]))
                return values if values.ndim == len(leading) + 1 or batch.lengths is None else batch.mean(values)

            if not tried:
                best, worst = ends(self.oracle, self.scores(model, batch).detach())
                predicted = self.predict(model, batch, best)
                if predicted is not best:
                    _check_predictions(function, predicted.detach(), batch.labels, f"the loss {name!r} for the task {self.name}")
                tried.append(smoothness(call, best, worst))
            return TaskLoss(call, name, *tried[0], extension="formula" if tried[0][1] else "none", gold=batch.gold)

    WithOwnLoss.__module__, WithOwnLoss.__qualname__ = kind.__module__, kind.__qualname__
    return WithOwnLoss


def _check_predictions(function: PerItem, predicted: Tensor, labels: Tensor, subject: str) -> None:
    """Refuse a loss from which no decoder can learn; what it returns for structures is examined with the problem."""
    noise = torch.randn((NUM_TRIED, *predicted.shape), generator=torch.Generator().manual_seed(0)).flatten(0, 1).requires_grad_()
    with contextlib.suppress(RuntimeError, TypeError, IndexError), torch.enable_grad():
        values = function(noise, labels.expand(NUM_TRIED, *labels.shape).flatten(0, 1))
        least, most = (float(end.detach()) for end in (values.min(), values.max()))
        if values.shape[:1] == noise.shape[:1] and least == most:
            raise ValueError(f"{subject} gave {least:g} for all predictions; expected one that depends on them")
        if not values.requires_grad:
            raise ValueError(f"{subject} gives values only, from which its decoder cannot learn; expected one with a derivative")


def ends(oracle: Oracle, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best and the worst structures; a forbidden part stays forbidden."""
    return oracle.argmax(scores), oracle.argmax(torch.where(scores > -torch.inf, -scores, scores))


def smoothness(function: Callable[[Tensor], Any], best: Tensor, worst: Tensor) -> tuple[bool, bool]:
    """Whether a loss has a derivative at a structure, and finite values and derivatives between two of them."""

    def has_gradient(point: Tensor) -> bool:
        point = point.clone().requires_grad_()
        try:
            with torch.enable_grad():
                losses = function(point)
                (gradient,) = torch.autograd.grad(losses.sum(), point, allow_unused=True)
        except Exception:  # what is wrong with it at a structure is said by `examine_loss`
            return False
        return gradient is not None and bool(losses.isfinite().all() and gradient.isfinite().all())

    return (differentiable := has_gradient(best)), differentiable and has_gradient((best + worst) / 2)

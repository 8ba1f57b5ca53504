"""Training a task: the order of its data, one run with one estimator, and plain fits for floors and ceilings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ...estimators.base import Estimator
from ...estimators.layer import StructuredLayer, train_step
from .task import LatentModel, Task


def order(task: Task, seed: int, split_size: int) -> Callable[[], Tensor]:
    """Numbers of the items of the next batch, each item once per epoch; keyed by seed and task, so that runs of estimators are paired."""
    generator = torch.Generator().manual_seed(_key(task.name, seed))
    left = torch.empty(0, dtype=torch.long)

    def draw() -> Tensor:
        nonlocal left
        if len(left) < min(task.batch_size, split_size):
            left = torch.randperm(split_size, generator=generator)
        items, left = left[: task.batch_size], left[task.batch_size :]
        return items

    return draw


def _key(*names: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(names).encode(), digest_size=7).digest(), "big")


def train(task: Task, estimator: Estimator[Any], *, rate: float, seed: int, steps: int | None = None) -> LatentModel:
    """A model after one run of training with Adam."""
    model = task.model(seed)
    event = tuple(task.scores(model, task.batch("train", torch.zeros(1, dtype=torch.long))).shape[1:])
    layer = StructuredLayer(task.oracle, estimator, seed=_key("estimator", task.name, seed), event_shape=event)
    optimiser = torch.optim.Adam([*task.parameter_groups(model, rate), {"params": list(layer.parameters()), "lr": rate}])
    draw = order(task, seed, task.size("train"))
    for _ in range(task.steps if steps is None else steps):
        batch = task.batch("train", draw())
        train_step(
            layer,
            optimiser,
            lambda batch=batch: task.scores(model, batch),  # type: ignore[misc]
            task.loss(model, batch),
            regulariser=task.regulariser(model, batch),
            clip=task.clip,
        )
    return model


def fit(module: nn.Module, loss: Callable[[Tensor], Tensor], task: Task, *, rate: float, seed: int) -> None:
    """Train a module without latent structure on a task's data, for as long as the task; the loss is of the numbers of a batch's items."""
    draw = order(task, seed, task.size("train"))
    descend(module, lambda: loss(draw()), steps=task.steps, rate=rate, clip=task.clip)


def descend(module: nn.Module, loss: Callable[[], Tensor], *, steps: int, rate: float, clip: float = 5.0) -> None:
    """Train a module without latent structure by Adam."""
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()

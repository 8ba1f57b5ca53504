"""Timed steps: one training step of an estimator on a batch whose rows are all different, on one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ....estimators.base import Estimator, Loss, PathwiseEstimator

BATCH = 32
"""Rows per timed call; every row has scores of its own."""


def timing_batch(scores: Tensor, *, generator: torch.Generator, rows: int = BATCH) -> Tensor:
    """Distinct rows ``[rows, *event]`` around one score tensor: shared rows would hide the cost that training pays."""
    noise = torch.randn((rows, *scores.shape), generator=generator, dtype=scores.dtype, device=scores.device)
    return scores + 1e-3 * noise


def time_once(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> tuple[float, float]:
    """Seconds of one forward (structure and loss, or surrogate) and of its backward to the scores; the device is synchronised."""
    leaf = scores.detach().clone().requires_grad_()
    generator = torch.Generator(scores.device).manual_seed(0)
    value, forward = _clocked(lambda: forward_pass(estimator, oracle, loss, leaf, generator).sum(), scores.device)
    _, backward = _clocked(lambda: torch.autograd.grad(value, leaf, allow_unused=True), scores.device)
    return forward, backward


def forward_pass(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor, generator: torch.Generator) -> Tensor:
    """As in training: a layer and the loss where the estimator is one, else the surrogate."""
    if isinstance(estimator, PathwiseEstimator) and estimator.evaluations().losses == 1:
        return loss(estimator.structure(oracle, scores, generator=generator))
    return estimator.surrogate(loss, oracle, scores, generator=generator)


def clock(device: torch.device | None = None) -> float:
    """Seconds, read when the device has finished what it was given; without one, the current CUDA device, if there is any."""
    if torch.cuda.is_available() if device is None else device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def single_thread() -> Iterator[None]:
    """Everything inside computes on one thread: with two, a small step on a busy machine takes several times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _clocked(call: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    start = clock(device)
    result = call()
    return result, clock(device) - start

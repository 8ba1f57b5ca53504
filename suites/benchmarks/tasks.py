"""Prepared calls of benchmarks: once per process, because asv runs ``setup`` before every timed call."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # for the profiler, which counts memory: asv forks each benchmark from a process with these imports
from torch import Tensor

from structgrad.estimators import make_estimator
from structgrad.oracles import make_oracle
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.training import Job, Training, event_shape

from .cases import CASES, HOME, HOMES, SIZED
from .operations import OPERATIONS, Inputs, left_out

STEP = 0.01  # the change of scores since the solution that a warm start begins with: about a step of training


Prepared = tuple[Callable[[], Any], torch.Generator]  # a call, and the generator that it draws from


def clock() -> float:
    """CPU seconds of this process, without other processes. If CUDA is used, elapsed seconds once the device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def normal(*shape: int, seed: int, device: str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)


def prepare_device(device: str) -> None:
    """Use one thread; raise NotImplementedError for CUDA without a device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no CUDA device")
    torch.set_num_threads(1)


@functools.cache
def operation_task(case: str, operation: str, batch: int, device: str) -> Prepared:
    """An operation of an oracle, called once before, because the first call may compile."""
    prepare_device(device)
    oracle, event = structure(case)
    reason = left_out(operation, oracle, event, batch)
    if reason is not None:
        raise NotImplementedError(reason)
    scores, others = normal(2, batch, *event, seed=0, device=device)
    before = oracle.project(scores - STEP * others) if operation == "project_warm" else None
    given = Inputs(scores, others, oracle.argmax(scores), torch.Generator(device).manual_seed(0), before)
    OPERATIONS[operation](oracle, given)
    return functools.partial(OPERATIONS[operation], oracle, given), given.generator


@functools.cache
def estimator_task(name: str, case: str, batch: int, device: str) -> Prepared:
    """An estimate per row, called once before."""
    prepare_device(device)
    estimator, oracle, event = pair(name, case)
    scores, weights = normal(batch, *event, seed=0, device=device), normal(*event, seed=1, device=device)

    def loss(structures: Tensor) -> Tensor:  # quadratic, so that no estimator is unbiased by the loss being linear
        return (structures * weights).flatten(structures.ndim - weights.ndim).sum(-1).square()

    generator = torch.Generator(device).manual_seed(0)
    warmed = estimator.warmed_up(loss, oracle, scores, generator=generator)
    warmed.gradient(loss, oracle, scores, generator=generator)
    return functools.partial(warmed.gradient, loss, oracle, scores, generator=generator), generator


@functools.cache
def training_step(name: str, task: str) -> Callable[[], Any]:
    """A step of training with an estimator, within an endless run."""
    prepare_device("cpu")
    made = make_task(task)
    if (reason := made.unavailable()) is not None:
        raise NotImplementedError(reason)
    run = Training(made, fitting(name, made.oracle, event_shape(made)), [Job(0, made.rates[0])], steps=sys.maxsize, points=1)
    run.run(until=1)
    return lambda: run.run(until=run.step + 1)


def structure(case: str) -> tuple[Any, tuple[int, ...]]:
    """The oracle of a case, and the shape of its scores."""
    text, numbers = CASES[case]
    oracle: Any = make_oracle(text)
    return oracle, oracle.event_of(numbers) if case in SIZED else numbers


def fitting(name: str, oracle: Any, event: tuple[int, ...]) -> Any:
    """The estimator of a name; NotImplementedError, by which asv skips a benchmark, if it does not support the oracle at this size."""
    estimator = make_estimator(name)
    if (reason := estimator.incompatibility(oracle, event)) is not None:
        raise NotImplementedError(reason)
    return estimator


def pair(name: str, case: str) -> tuple[Any, Any, tuple[int, ...]]:
    """An estimator, the oracle of a case or of its `home`, and the shape of its scores."""
    oracle, event = structure(home(name) if case == HOME else case)
    return fitting(name, oracle, event), oracle, event


def home(name: str) -> str:
    """The first of the `HOMES` that an estimator supports."""
    estimator = make_estimator(name)
    for case in HOMES:
        if estimator.incompatibility(*structure(case)) is None:
            return case
    raise NotImplementedError(f"{name} supports none of {', '.join(HOMES)}")

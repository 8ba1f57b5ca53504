"""Prepared calls of benchmarks: once per process, because asv runs ``setup`` before every timed call."""

from __future__ import annotations

import functools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import commit
from .cases import CASES, HOME, HOMES, SIZED
from .operations import OPERATIONS, Inputs, left_out

STEP = 0.01
"""The change of scores since the solution that a warm start begins with: about a step of training."""

FLOOR = 1e-12
"""Rounding below it would look like a regression from 0."""


@dataclass(frozen=True)
class PreparedCall:
    """A call, and the generator that it draws from."""

    call: Callable[[], Any]
    generator: torch.Generator

    def restart(self) -> PreparedCall:
        """Reset the generator, so that every timed call has the same random numbers."""
        self.generator.manual_seed(0)
        return self


@dataclass(frozen=True)
class Quadratic:
    """The square of a linear form, so that no estimator is unbiased by the loss being linear."""

    weights: Tensor

    def __call__(self, structures: Tensor) -> Tensor:
        return (structures * self.weights).flatten(structures.ndim - self.weights.ndim).sum(-1).square()


def clock() -> float:
    """CPU seconds of this process, without other processes. If CUDA is used, elapsed seconds once the device is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def tracked(value: float | None, floor: float = FLOOR) -> float:
    """A measured value as asv can compare it: finite, above 0.

    Raises:
        ValueError: a missing, infinite or negative value, which asv would compare wrongly.
    """
    if value is None or not -FLOOR <= value < math.inf:
        raise ValueError(f"`tracked` got {value}; expected a finite value, at least 0")
    return max(float(value), floor)


def normal(*shape: int, seed: int, device: str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Standard normal numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).to(device)


def prepare_device(device: str) -> None:
    """Use one thread; raise NotImplementedError for CUDA without a device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise NotImplementedError("no CUDA device")
    torch.set_num_threads(1)


@functools.cache
def operation_task(case: str, operation: str, batch: int, device: str) -> PreparedCall:
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
    return PreparedCall(functools.partial(OPERATIONS[operation], oracle, given), given.generator)


@functools.cache
def estimator_task(name: str, case: str, batch: int, device: str) -> PreparedCall:
    """An estimate per row, called once before."""
    prepare_device(device)
    estimator, oracle, event = pair(name, case)
    scores, loss = normal(batch, *event, seed=0, device=device), Quadratic(normal(*event, seed=1, device=device))
    generator = torch.Generator(device).manual_seed(0)
    warmed = estimator.warmed_up(loss, oracle, scores, generator=generator)
    warmed.gradient(loss, oracle, scores, generator=generator)
    return PreparedCall(functools.partial(warmed.gradient, loss, oracle, scores, generator=generator), generator)


@functools.cache
def training_step(name: str, task: str) -> Callable[[], Any]:
    """A step of training with an estimator, within an endless run."""
    prepare_device("cpu")
    made = learnt_task(task)
    event = commit.of_commit("suites.tasks.training", "event_shape")(made)
    estimator = commit.make_estimator(name, made.oracle, event)
    training, job = (commit.of_commit("suites.tasks.training", part) for part in ("Training", "Job"))
    run = training(made, estimator, [job(0, made.rates[0])], steps=sys.maxsize, points=1)
    run.run(until=1)
    return lambda: run.run(until=run.step + 1)


def accuracy(name: str, task: str) -> float:
    """The accuracy on the test split after one run of training with an estimator."""
    made, train = learnt_task(task), commit.of_commit("suites.tasks.training", "train")
    estimator = commit.of_commit("estimators", "make_estimator")(name)
    return float(made.evaluate(train(made, estimator, rate=0.02, seed=0))["accuracy"])


def learnt_task(name: str) -> Any:
    """A task by name, if this commit has it and its data are here."""
    if name.partition("[")[0] not in commit.of_commit("suites.tasks", "TASKS"):
        raise NotImplementedError(f"this commit has no task {name}")
    made = commit.of_commit("suites.tasks", "make_task")(name)
    if made.unavailable() is not None:
        raise NotImplementedError(made.unavailable())
    return made


def structure(case: str) -> tuple[Any, tuple[int, ...]]:
    """The oracle of a case, and the shape of its scores.

    Raises:
        NotImplementedError: an oracle that this commit does not have, or whose sizes it does not declare.
    """
    text, numbers = CASES[case]
    oracle = commit.make_oracle(text)
    if case not in SIZED:
        return oracle, numbers
    if not hasattr(oracle, "event_of"):
        raise NotImplementedError(f"the {text} of this commit makes no shape of sizes")
    return oracle, oracle.event_of(numbers)


def pair(name: str, case: str) -> tuple[Any, Any, tuple[int, ...]]:
    """An estimator, the oracle of a case or of its `home`, and the shape of its scores.

    Raises:
        NotImplementedError: a pair that does not fit.
    """
    oracle, event = structure(home(name) if case == HOME else case)
    return commit.make_estimator(name, oracle, event), oracle, event


def home(name: str) -> str:
    """The first of the `HOMES` that an estimator supports."""
    for case in HOMES:
        try:
            commit.make_estimator(name, *structure(case))
        except NotImplementedError:
            continue
        return case
    raise NotImplementedError(f"{name} serves none of {', '.join(HOMES)}")

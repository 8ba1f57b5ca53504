"""Estimators with planted properties, for tests of suites on known answers."""

import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.estimators import Estimator, Evaluations, ExactMarginalisation, Loss
from structgrad.estimators.base import Objective
from structgrad.estimators.surrogates import with_gradient
from structgrad.oracles import Subset
from structgrad.oracles.random_streams import random_uniform
from structgrad.suites.base import Instance, Problem
from structgrad.suites.measures.suite import Context, Effort
from structgrad.suites.problems.losses import make_loss

QUICK = Effort(replicates=1024, most_replicates=1024, seconds=5.0, rounds=7)
CONTEXT = Context(effort=QUICK)


def take_no_time_to_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make clocks show the processor time of this thread plus its sleep. Other threads, which may wait for a kernel, sleep as before."""
    slept, sleep, own = [0.0], time.sleep, threading.get_ident()
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(seconds) if threading.get_ident() == own else sleep(seconds))
    busy = time.thread_time
    for name in ("perf_counter", "thread_time"):
        monkeypatch.setattr(time, name, lambda: busy() + sum(slept))


@dataclass(frozen=True)
class Planted(Estimator[Any]):
    """The value 0 with a gradient of a subclass's choice."""

    name: ClassVar[str] = "planted"
    objective: ClassVar[Objective] = "expected"

    def evaluations(self) -> Evaluations:
        return Evaluations()

    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        return torch.zeros_like(scores)

    def surrogate(self, loss: Loss, oracle: Any, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        value = scores.new_zeros(scores.shape[: scores.ndim - oracle.event_ndim])
        return with_gradient(value, scores, self.estimate(loss, oracle, scores.detach(), generator))


@dataclass(frozen=True)
class Sleeping(Planted):
    """Takes ``seconds`` times the number of parts to some power."""

    seconds: float = 0.002
    power: float = 0.0

    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        time.sleep(self.seconds * scores.shape[-1] ** self.power)
        return torch.zeros_like(scores)


@dataclass(frozen=True)
class Failing(Planted):
    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        raise RuntimeError("planted\nand more")


@dataclass(frozen=True)
class Hungry(Planted):
    """Holds 8 bytes for every pair of parts of every row."""

    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        pairs = torch.zeros(*scores.shape, scores.shape[-1], dtype=torch.float64)
        return pairs.sum(-1).to(scores.dtype)


@dataclass(frozen=True)
class Sparse(Planted):
    """``kept`` parts are 1, and a share of the estimates is 0 altogether."""

    kept: int = 2
    vanishing: float = 0.25

    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        found = torch.zeros_like(scores)
        found[..., : self.kept] = 1
        kept = random_uniform(scores.shape[:-1], (), generator=generator, device=scores.device) >= self.vanishing
        return found * kept.unsqueeze(-1)


@dataclass(frozen=True)
class Uphill(Planted):
    """A multiple of the exact gradient; uphill below 0."""

    factor: float = -1.0
    deterministic: ClassVar[bool] = True

    def estimate(self, loss: Loss, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        return self.factor * ExactMarginalisation().gradient(loss, oracle, scores, generator=generator)


def problem(scale: float = 1.0, instances: int = 1, parts: int = 6) -> Problem:
    """Random scores of 2 of some parts, with a quadratic loss that is tied to a gold structure."""
    oracle = Subset(2)
    items = []
    for index in range(instances):
        scores = scale * torch.randn(parts, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        gold = oracle.argmax(torch.randn(parts, generator=torch.Generator().manual_seed(100 + index), dtype=torch.float64))
        items.append(Instance(f"item-{index}", scores, make_loss("quadratic", gold, oracle, seed=np.random.SeedSequence(index))))
    return Problem("planted", "init", oracle, tuple(items), "test")

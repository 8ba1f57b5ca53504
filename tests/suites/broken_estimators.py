"""Estimators with which something goes wrong, for the tests of the runner; workers import them by name."""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from structgrad.estimators import ExactMarginalisation, Reinforce
from structgrad.oracles.kernels import notices
from structgrad.oracles.random_streams import random_uniform


class Failing(Reinforce):
    """A mistake."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        raise RuntimeError("a mistake")


class Hungry(Reinforce):
    """Asks torch for more memory than there is."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        return torch.empty(2**58, dtype=torch.uint8).sum().double()


class Starved(Reinforce):
    """Has the memory of a device for 200 rows, and records the launches that it refused."""

    most = 200
    refused: ClassVar[list[int]] = []

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        if len(scores) > self.most:
            self.refused.append(len(scores))
            raise torch.OutOfMemoryError(f"CUDA out of memory: {len(scores)} rows")
        return super().surrogate(loss, oracle, scores, generator=generator)


class Famished(Starved):
    """Has memory for no row."""

    most = 0


class Greedy(Reinforce):
    """Takes three GiB."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        return torch.zeros(3 * 2**27, dtype=torch.float64).sum()


class Hanging(Reinforce):
    """Hangs."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        os.write(1, b"about to hang\n")
        time.sleep(600)
        return scores


class Holding(Reinforce):
    """Waits in compiled code that does not release the GIL."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        ctypes.PyDLL(None).sleep(600)
        return scores


class Busy(Reinforce):
    """Computes forever."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        while True:
            pass


class Exiting(Reinforce):
    """Ends its process."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        raise SystemExit(7)


class Aborting(Reinforce):
    """Aborts, as compiled code does."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        os.abort()


class Killed(Reinforce):
    """Kills its worker, as the kernel does when memory runs out; without workers, it works."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().surrogate(loss, oracle, scores, generator=generator)


class Compiling(Reinforce):
    """Shows that it compiles until a file exists."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        notices.begin()
        for _ in range(1200):
            if os.path.exists(os.environ[NOTICED]):
                break
            time.sleep(0.05)
        notices.end()
        return super().surrogate(loss, oracle, scores, generator=generator)


NOTICED = "STRUCTGRAD_TEST_NOTICED"
"""The environment variable with the name of that file."""

HOLD = "STRUCTGRAD_TEST_HOLD"
"""The environment variable of processes that are to be held."""


class Held(Reinforce):
    """Hangs if the environment says so, so that a run can be disturbed in the middle, and continue elsewhere."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        while HOLD in os.environ:
            time.sleep(600)
        return super().surrogate(loss, oracle, scores, generator=generator)


class Terminated(Reinforce):
    """Gets SIGTERM if the environment says so."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        if HOLD in os.environ:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().surrogate(loss, oracle, scores, generator=generator)


@dataclass(frozen=True)
class Slow(Reinforce):
    """Takes a moment, so that a run can be disturbed in the middle."""

    seconds: float = 0.4

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        time.sleep(self.seconds if scores.ndim > oracle.event_ndim else 0)
        return super().surrogate(loss, oracle, scores, generator=generator)


class Nan(Reinforce):
    """NaN always; one sample, so that it is replayed."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        return super().surrogate(loss, oracle, scores, generator=generator) * self.factor(
            scores[..., 0] if oracle.event_ndim == 1 else scores[..., 0, 0], generator
        )

    def factor(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return torch.tensor(math.nan)


class Infinite(Nan):
    """Infinite always."""

    def factor(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        return torch.tensor(math.inf)


class RarelyNan(Nan):
    """NaN in one of 500 draws."""

    def factor(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        drawn = random_uniform(tuple(rows.shape), (), generator=generator, device=rows.device)
        return torch.where(drawn < 1 / 500, math.nan, 1.0).to(rows.dtype)


class FixedNan(ExactMarginalisation):
    """NaN without noise."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        return super().surrogate(loss, oracle, scores, generator=generator) * math.nan

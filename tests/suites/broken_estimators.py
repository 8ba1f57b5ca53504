"""Estimators with which something goes wrong, for the tests of the runner; workers import them by name."""

import ctypes
import math
import multiprocessing
import os
import signal
import time

import torch
from torch import Tensor

from structgrad.estimators import ExactMarginalisation, Reinforce
from structgrad.oracles.kernels import notices
from structgrad.oracles.random_streams import random_uniform


class Acting(Reinforce):
    """Does something before each estimate."""

    def surrogate(self, loss, oracle, scores, *, generator) -> Tensor:
        self.act()
        return super().surrogate(loss, oracle, scores, generator=generator)

    def act(self) -> None:
        raise RuntimeError("a mistake")


class Failing(Acting):
    """A mistake."""


class Hungry(Acting):
    """Asks torch for more memory than there is."""

    def act(self) -> None:
        torch.empty(2**58, dtype=torch.uint8)


class Greedy(Acting):
    """Takes three GiB."""

    def act(self) -> None:
        torch.zeros(3 * 2**27, dtype=torch.float64)


class Hanging(Acting):
    """Hangs."""

    def act(self) -> None:
        os.write(1, b"about to hang\n")
        time.sleep(600)


class Holding(Acting):
    """Waits in compiled code that does not release the GIL."""

    def act(self) -> None:
        ctypes.PyDLL(None).sleep(600)


class Busy(Acting):
    """Computes forever."""

    def act(self) -> None:
        while True:
            pass


class Exiting(Acting):
    """Ends its process."""

    def act(self) -> None:
        raise SystemExit(7)


class Aborting(Acting):
    """Aborts, as compiled code does."""

    def act(self) -> None:
        os.abort()


class Killed(Acting):
    """Kills its worker, as the kernel does when memory runs out; without workers, it works."""

    def act(self) -> None:
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)


NOTICED = "STRUCTGRAD_TEST_NOTICED"
"""The environment variable with the name of the file that ends the pretended compilation, in workers alone."""


class Compiling(Acting):
    """Shows that it compiles until a file exists."""

    def act(self) -> None:
        notices.step(1)
        while multiprocessing.parent_process() is not None and not os.path.exists(os.environ[NOTICED]):
            time.sleep(0.05)
        notices.step(-1)


HOLD = "STRUCTGRAD_TEST_HOLD"
"""The environment variable of processes that are to be held."""


class Held(Acting):
    """Hangs if the environment says so, so that a run can be disturbed in the middle, and continue elsewhere."""

    def act(self) -> None:
        while HOLD in os.environ:
            time.sleep(600)


class Terminated(Acting):
    """Gets SIGTERM if the environment says so."""

    def act(self) -> None:
        if HOLD in os.environ:
            os.kill(os.getpid(), signal.SIGTERM)


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

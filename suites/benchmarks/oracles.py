"""Time and peak memory of every operation of an oracle, at batch 64."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from structgrad.oracles import Categorical, LinearChain, Subset
from structgrad.suites.measures.memory import peak_memory
from structgrad.suites.measures.wall_clock import clock

AnyOracle = Categorical | Subset | LinearChain
BATCH = 64
CASES: dict[str, tuple[AnyOracle, tuple[int, ...]]] = {
    "categorical n=1000": (Categorical(), (1000,)),
    "subset n=100 k=10": (Subset(10), (100,)),
    "linear_chain n=12 t=8": (LinearChain(), (12, 8, 8)),
    "linear_chain n=32 t=16": (LinearChain(), (32, 16, 16)),
}
TOO_SLOW = {("linear_chain n=32 t=16", "project")}
"""The active set takes seconds a call here: its supports hold about 80 atoms of 8192 parts."""


def sample(oracle: AnyOracle, scores: Tensor) -> Tensor:
    """One exact sample per row."""
    return oracle.sample(scores, generator=torch.Generator(scores.device).manual_seed(0))


def marginals_backward(oracle: AnyOracle, scores: Tensor) -> Tensor:
    """Marginals and one product with their Jacobian."""
    return torch.autograd.grad(oracle.marginals(scores).square().sum(), scores)[0]


OPERATIONS: dict[str, Callable[[AnyOracle, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores.detach()),
    "marginals": lambda oracle, scores: oracle.marginals(scores.detach()),
    "marginals_backward": marginals_backward,
    "sample": sample,
    "project": lambda oracle, scores: oracle.project(scores.detach()).mean,
}


class _Base:
    version: ClassVar[str] = "1"
    params: ClassVar[tuple[list[str], ...]] = (list(CASES), list(OPERATIONS), ["cpu", "cuda"])
    param_names: ClassVar[tuple[str, ...]] = ("oracle", "operation", "device")

    def setup(self, case: str, operation: str, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise NotImplementedError("no CUDA device")
        if (case, operation) in TOO_SLOW:
            raise NotImplementedError("too slow to repeat")
        torch.set_num_threads(1)
        self.oracle, event = CASES[case]
        self.operation = OPERATIONS[operation]
        generator = torch.Generator().manual_seed(0)
        self.scores = torch.randn(BATCH, *event, generator=generator).to(device).requires_grad_()


class OracleTime(_Base):
    number, repeat, rounds, warmup_time = 1, (3, 10, 2.0), 2, 0.2
    timer = staticmethod(clock)

    def time_operation(self, case: str, operation: str, device: str) -> None:
        self.operation(self.oracle, self.scores)


class OracleMemory(_Base):
    unit = "bytes"

    def track_peak_memory(self, case: str, operation: str, device: str) -> float:
        return float(peak_memory(lambda: self.operation(self.oracle, self.scores), device=device))

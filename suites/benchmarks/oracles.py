"""Time and peak memory of every operation of an oracle, at batch 64."""

from __future__ import annotations

from typing import ClassVar

import torch

from structgrad.suites.measures.memory import peak_memory
from structgrad.suites.measures.wall_clock import clock
from structgrad.suites.speed.cases import CASES, OPERATIONS

BATCH = 64
LARGEST = frozenset({"linear_chain 128x32", "alignment 128x128", "assignment 64"})
"""Left to `python -m structgrad.suites.speed`: 64 dense samples of each are gigabytes."""


class _Base:
    version: ClassVar[str] = "2"
    params: ClassVar[tuple[list[str], ...]] = ([name for name in CASES if name not in LARGEST], list(OPERATIONS), ["cpu", "cuda"])
    param_names: ClassVar[tuple[str, ...]] = ("oracle", "operation", "device")

    def setup(self, name: str, operation: str, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise NotImplementedError("no CUDA device")
        case = CASES[name]
        if operation in case.without:
            raise NotImplementedError("out of reach at this size")
        torch.set_num_threads(1)
        self.oracle, self.operation, self.scores = case.oracle, OPERATIONS[operation], case.scores(BATCH).to(device)
        self.operation(self.oracle, self.scores)


class OracleTime(_Base):
    number, repeat, rounds, warmup_time = 1, (3, 10, 2.0), 2, 0.2
    timer = staticmethod(clock)

    def time_operation(self, name: str, operation: str, device: str) -> None:
        self.operation(self.oracle, self.scores)


class OracleMemory(_Base):
    unit = "bytes"

    def track_peak_memory(self, name: str, operation: str, device: str) -> float:
        return float(peak_memory(lambda: self.operation(self.oracle, self.scores), device=device))

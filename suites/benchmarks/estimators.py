"""Time and peak memory of one gradient estimate per row, on `linear_chain` with 6 tokens and 5 tags, at batch 256."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from structgrad.estimators import ESTIMATORS, make_estimator
from structgrad.oracles import LinearChain
from structgrad.suites.measures.memory import peak_memory
from structgrad.suites.measures.wall_clock import clock

BATCH = 256
EVENT = (6, 5, 5)


class _Base:
    version: ClassVar[str] = "1"
    # `exact` visits 15,625 structures for every row: it is the reference, not a candidate.
    params: ClassVar[tuple[list[str], ...]] = ([name for name in ESTIMATORS if name != "exact"], ["cpu", "cuda"])
    param_names: ClassVar[tuple[str, ...]] = ("estimator", "device")

    def setup(self, name: str, device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise NotImplementedError("no CUDA device")
        torch.set_num_threads(1)
        reason = make_estimator(name).incompatibility(LinearChain(), EVENT)
        if reason is not None:
            raise NotImplementedError(reason)
        self.oracle, self.generator = LinearChain(), torch.Generator(device).manual_seed(0)
        drawn = torch.randn(2, *EVENT, generator=torch.Generator().manual_seed(0)).to(device)
        self.scores, self.weights = drawn[0].expand(BATCH, *EVENT), drawn[1]
        self.estimator = make_estimator(name).warmed_up(self.loss, self.oracle, self.scores, generator=self.generator)

    def loss(self, structure: Tensor) -> Tensor:
        return (structure * self.weights).sum((-3, -2, -1)).square()

    def estimate(self) -> Tensor:
        return self.estimator.gradient(self.loss, self.oracle, self.scores, generator=self.generator)


class EstimatorTime(_Base):
    number, repeat, rounds, warmup_time = 1, (3, 10, 2.0), 2, 0.2
    timer = staticmethod(clock)

    def time_gradient(self, name: str, device: str) -> None:
        self.estimate()


class EstimatorMemory(_Base):
    unit = "bytes"

    def track_peak_memory(self, name: str, device: str) -> float:
        return float(peak_memory(self.estimate, device=device))

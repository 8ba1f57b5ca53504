"""Structures at sizes that people use, and operations on them, to be timed next to other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structgrad.oracles import CTC, DERIVED, LinearChain, TiedChain, make_oracle
from structgrad.suites.benchmarks.cases import BETWEEN, LARGE, MIDDLE, SIZED
from structgrad.suites.benchmarks.cases import CASES as TABLE
from structgrad.suites.benchmarks.operations import backward


@dataclass(frozen=True)
class Case:
    """One structure at one size: a name, an oracle, the shape of one score tensor, and operations that are out of reach at this size."""

    name: str
    oracle: Any
    event: tuple[int, ...]
    without: frozenset[str] = frozenset()

    @property
    def structure(self) -> str:
        """The registry name."""
        return str(self.oracle.name)

    def scores(self, batch: int) -> Tensor:
        """Standard normal float32 scores [batch, *event]; chains share one matrix of transitions, CTC has a text without repeats."""
        stream = torch.Generator().manual_seed(0)
        if isinstance(self.oracle, LinearChain | TiedChain):
            tags = self.event[-1]
            length = self.event[0] - tags * isinstance(self.oracle, TiedChain)
            unary, transition = torch.randn(batch, length, tags, generator=stream), torch.randn(tags, tags, generator=stream)
            return self.oracle.from_potentials(unary, transition)
        if isinstance(self.oracle, CTC):
            frames, labels = self.event[0], self.event[1] // 2
            log_probs = torch.randn(batch, frames, labels + 1, generator=stream).log_softmax(-1)
            return CTC.from_log_probs(log_probs, torch.arange(1, labels + 1).expand(batch, -1))
        return torch.randn(batch, *self.event, generator=stream)


SUMS = frozenset({"log_partition", "marginals", "marginals_backward", "sample", "sample64", "sample64_indices"})


def _cases() -> list[Case]:
    """Sums of more than 8! permutations, and projections of more than 64 rows, are out of reach."""
    found = []
    for name in (*MIDDLE, *BETWEEN, *LARGE):
        if name not in SIZED and not name.startswith("policy"):  # a policy has the recursions of `shift_reduce`
            text, event = TABLE[name]
            sums = SUMS if text == "assignment" and event[0] > 8 else frozenset()
            found.append(Case(name, make_oracle(text), event, sums))
    for kind in DERIVED.values():
        size = kind.examples.usual
        found.append(Case(f"{kind.name} {'x'.join(map(str, size))}", kind(), kind.event_of(size)))
    return found


CASES: dict[str, Case] = {case.name: case for case in _cases()}


Operation = Callable[[Any, Tensor, torch.Generator], Tensor]


OPERATIONS: dict[str, Operation] = {
    "argmax": lambda oracle, scores, generator: oracle.argmax(scores),
    "argmax_indices": lambda oracle, scores, generator: oracle.argmax(scores, as_indices=True),
    "log_partition": lambda oracle, scores, generator: oracle.log_partition(scores),
    "marginals": lambda oracle, scores, generator: oracle.marginals(scores),
    "marginals_backward": lambda oracle, scores, generator: backward(oracle.marginals, scores),
    "sample": lambda oracle, scores, generator: oracle.sample(scores, 1, generator=generator),
    "sample64": lambda oracle, scores, generator: oracle.sample(scores, 64, generator=generator),
    "sample64_indices": lambda oracle, scores, generator: oracle.sample(scores, 64, generator=generator, as_indices=True),
    "kbest16": lambda oracle, scores, generator: oracle.kbest(scores, 16),
    "project": lambda oracle, scores, generator: oracle.project(scores).mean,
    "project_backward": lambda oracle, scores, generator: backward(lambda leaf: oracle.project(leaf).mean, scores),
}
"""Timed operations; ``…_backward`` is forward and backward together, ``…_indices`` gives compact structures."""


def operations(case: Case) -> list[str]:
    """Operations within reach of a case."""
    return [name for name in OPERATIONS if name not in case.without]

"""Structures at sizes that people use, and operations on them, to be timed next to other libraries."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structgrad.oracles import CTC, DERIVED, LinearChain, TiedChain
from tests.asv_benchmarks.cases import BETWEEN, LARGE, MIDDLE, SIZED
from tests.asv_benchmarks.tasks import OPERATIONS as MEASURED, Operation, left_out, structure


@dataclass(frozen=True)
class Case:
    """One structure at one size: a name, an oracle, and the shape of one score tensor."""

    name: str
    oracle: Any
    event: tuple[int, ...]

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


CASES: dict[str, Case] = {
    name: Case(name, *structure(name))
    for name in (*MIDDLE, *BETWEEN, *LARGE)
    if name not in SIZED and not name.startswith("policy")  # a policy has the recursions of `shift_reduce`
}
for kind in DERIVED.values():
    name = f"{kind.name} {'x'.join(map(str, kind.examples.usual))}"
    CASES[name] = Case(name, kind(), kind.event_of(kind.examples.usual))

_COMMON = "argmax log_partition marginals marginals_backward sample sample_64 kbest_8 project project_backward".split()  # noqa: SIM905

OPERATIONS: dict[str, Operation] = {name: MEASURED[name] for name in _COMMON} | {
    "argmax_indices": lambda oracle, given: oracle.argmax(given.scores, as_indices=True),
    "sample_64_indices": lambda oracle, given: oracle.sample(given.scores, 64, generator=given.generator, as_indices=True),
}
"""Timed operations; ``…_backward`` is forward and backward together, ``…_indices`` gives compact structures."""


def operations(case: Case) -> list[str]:
    """Operations within reach of a case."""
    return [name for name in OPERATIONS if left_out(name.removesuffix("_indices"), case.oracle, case.event, 1) is None]

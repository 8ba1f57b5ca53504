"""Cases of the speed table: structures at sizes that people use, and operations on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...oracles import CTC, DERIVED, DerivedOracle, LinearChain, TiedChain, make_oracle
from ..benchmarks.cases import BETWEEN, LARGE, MIDDLE, SIZED
from ..benchmarks.cases import CASES as TABLE

BATCHES = (1, 64, 256)


@dataclass(frozen=True)
class Case:
    """One structure at one size.

    Attributes:
        name: what tables and peers call it: the structure and its size.
        oracle: any oracle.
        event: the shape of one score tensor.
        without: operations that are out of reach at this size.
        multiply_adds: of one log-partition, for the floor; 0 where memory alone bounds it.
    """

    name: str
    oracle: Any
    event: tuple[int, ...]
    without: frozenset[str] = frozenset()
    multiply_adds: float = 0.0

    @property
    def structure(self) -> str:
        """The registry name."""
        return str(self.oracle.name)

    @property
    def options(self) -> tuple[Any, ...]:
        """What its kernels take beside tensors."""
        return tuple(self.oracle.kernel_options())

    def scores(self, batch: int) -> Tensor:
        """Standard normal float32 scores [batch, *event], always the same: of chains, unary ones and one matrix of transitions.

        Of connectionist temporal classification, those of log-probabilities of symbols, and a text in which none comes twice.
        """
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


_SUMS = frozenset({"log_partition", "marginals", "marginals_backward", "sample", "sample64", "sample64_indices"})
_PROJECTIONS = frozenset({"project", "project_backward"})

_MULTIPLY_ADDS: dict[str, Callable[[Any, tuple[int, ...]], float]] = {
    "linear_chain": lambda oracle, event: event[0] * event[1] * event[2],
    "tied_chain": lambda oracle, event: (event[0] - event[1]) * event[1] ** 2,
    "constituency": lambda oracle, event: event[0] ** 3 / 6,
    "projective_tree": lambda oracle, event: (event[0] - 1) ** 3 / 2,
    "spanning_tree": lambda oracle, event: (event[0] - 1) ** 3 / 3,
    "alignment": lambda oracle, event: 3 * event[0] * event[1],
    "assignment": lambda oracle, event: 2.0 ** event[0] * event[0] / 2,
    "subset": lambda oracle, event: event[0] * oracle.k,
    "shift_reduce": lambda oracle, event: (event[0] - 1) ** 2,
}


def named(name: str) -> Case:
    """A case of the table of benchmark cases, whose event is written there."""
    text, event = TABLE[name]
    oracle = make_oracle(text)
    count = _MULTIPLY_ADDS.get(oracle.name)
    return Case(name, oracle, event, _out_of_reach(oracle.name, event), count(oracle, event) if count else 0.0)


def _out_of_reach(structure: str, event: tuple[int, ...]) -> frozenset[str]:
    """Of permutations: sums of more than 8, and projections of more than 64."""
    if structure != "assignment":
        return frozenset()
    return (_SUMS if event[0] > 8 else frozenset()) | (_PROJECTIONS if event[0] > 64 else frozenset())


def _of_derivations(oracle: DerivedOracle) -> Case:
    """At the size that people use, as the oracle says."""
    size = oracle.examples.usual
    event = oracle.event_of(size)
    return Case(f"{oracle.name} {'x'.join(map(str, size))}", oracle, event, multiply_adds=oracle.derivations(event).edges)


def _cases() -> list[Case]:
    written = [name for name in (*MIDDLE, *BETWEEN, *LARGE) if name not in SIZED and not name.startswith("policy")]
    return [*map(named, written), *(_of_derivations(kind()) for kind in DERIVED.values())]


CASES: dict[str, Case] = {case.name: case for case in _cases()}
"""By name; a policy has the recursions of `shift_reduce`."""


Operation = Callable[[Any, Tensor, torch.Generator], Tensor]


def _marginals_backward(oracle: Any, scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.marginals(leaf).square().sum(), leaf)
    return gradient


def _project_backward(oracle: Any, scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.project(leaf).mean.square().sum(), leaf)
    return gradient


OPERATIONS: dict[str, Operation] = {
    "argmax": lambda oracle, scores, generator: oracle.argmax(scores),
    "argmax_indices": lambda oracle, scores, generator: oracle.argmax(scores, as_indices=True),
    "log_partition": lambda oracle, scores, generator: oracle.log_partition(scores),
    "marginals": lambda oracle, scores, generator: oracle.marginals(scores),
    "marginals_backward": lambda oracle, scores, generator: _marginals_backward(oracle, scores),
    "sample": lambda oracle, scores, generator: oracle.sample(scores, 1, generator=generator),
    "sample64": lambda oracle, scores, generator: oracle.sample(scores, 64, generator=generator),
    "sample64_indices": lambda oracle, scores, generator: oracle.sample(scores, 64, generator=generator, as_indices=True),
    "kbest16": lambda oracle, scores, generator: oracle.kbest(scores, 16),
    "project": lambda oracle, scores, generator: oracle.project(scores).mean,
    "project_backward": lambda oracle, scores, generator: _project_backward(oracle, scores),
}
"""What is timed of every case; ``…_backward`` is forward and backward together, ``…_indices`` gives compact structures.

A generator is made before: doing so waits for the device.
"""


def operations(case: Case) -> list[str]:
    """The operations that a case has."""
    return [name for name in OPERATIONS if name not in case.without]

"""What is timed: structures at sizes that people use, and operations on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...oracles import (
    Alignment,
    Assignment,
    Categorical,
    Categories,
    Constituency,
    LinearChain,
    ProjectiveTree,
    ShiftReduce,
    SpanningTree,
    Subset,
)

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
        return tuple(self.oracle._kernel_options())

    def scores(self, batch: int) -> Tensor:
        """Standard normal float32 scores [batch, *event], always the same; of chains, unary scores and one matrix of transitions."""
        stream = torch.Generator().manual_seed(0)
        if isinstance(self.oracle, LinearChain):
            length, tags = self.event[:2]
            unary, transition = torch.randn(batch, length, tags, generator=stream), torch.randn(tags, tags, generator=stream)
            return LinearChain.from_potentials(unary, transition)
        return torch.randn(batch, *self.event, generator=stream)


_DENSE = frozenset({"project", "project_backward"})
_SUMS = frozenset({"log_partition", "marginals", "marginals_backward", "sample", "sample64"})


def _cases() -> list[Case]:
    cases = [Case(f"linear_chain {n}x{t}", LinearChain(), (n, t, t), multiply_adds=n * t * t) for n, t in ((32, 16), (128, 32))]
    cases += [Case(f"constituency {n}", Constituency(), (n, n), multiply_adds=n**3 / 6) for n in (10, 20, 40)]
    cases += [Case(f"projective_tree {n}", ProjectiveTree(), (n + 1, n + 1), multiply_adds=n**3 / 2) for n in (10, 20, 40)]
    cases += [Case(f"spanning_tree {n}", SpanningTree(), (n + 1, n + 1), multiply_adds=n**3 / 3) for n in (10, 20, 40)]
    cases += [Case(f"alignment {n}x{n}", Alignment(), (n, n), multiply_adds=3 * n * n) for n in (32, 128)]
    cases += [Case(f"assignment {n}", Assignment(), (n, n), _SUMS if n > 8 else frozenset(), 2**n * n / 2) for n in (8, 16, 64)]
    cases += [Case("subset 20/5", Subset(5), (20,), multiply_adds=100), Case("subset 1000/10", Subset(10), (1000,), multiply_adds=10_000)]
    cases += [Case("categorical 1000", Categorical(), (1000,)), Case("categories 32x16", Categories(), (32, 16))]
    cases += [Case("shift_reduce 20", ShiftReduce(), (21, 21, 2), multiply_adds=400)]
    return cases


CASES: dict[str, Case] = {case.name: case for case in _cases()}
"""By name."""


def _marginals_backward(oracle: Any, scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.marginals(leaf).square().sum(), leaf)
    return gradient


def _project_backward(oracle: Any, scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(oracle.project(leaf).mean.square().sum(), leaf)
    return gradient


def _sample(oracle: Any, scores: Tensor, number: int) -> Tensor:
    drawn: Tensor = oracle.sample(scores, number, generator=torch.Generator(scores.device).manual_seed(0))
    return drawn


OPERATIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "marginals_backward": _marginals_backward,
    "sample": lambda oracle, scores: _sample(oracle, scores, 1),
    "sample64": lambda oracle, scores: _sample(oracle, scores, 64),
    "project": lambda oracle, scores: oracle.project(scores).mean,
    "project_backward": _project_backward,
}
"""What is timed of every case; ``…_backward`` is forward and backward together."""


def operations(case: Case) -> list[str]:
    """The operations that a case has."""
    return [name for name in OPERATIONS if name not in case.without]

"""Capture operations in CUDA graphs, and replay them on other numbers: ``python -m tests.oracles.gpu.capturing CASE OPERATION…``.

A process that failed to capture may be unfit for anything else, so that it ends there; `failures` goes on in another one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from structgrad.oracles import make_oracle
from structgrad.oracles.random_streams import SeedBlocks
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, RANDOM, method_of, operations_of, with_lengths

CASES: dict[str, tuple[int, ...]] = {
    "categorical": (5,),
    "categories": (3, 2),
    "subset[k=2]": (5,),
    "linear_chain": (3, 2, 2),
    "alignment": (3, 2),
    "constituency": (4, 4),
    "projective_tree": (3, 3),
    "spanning_tree": (3, 3),
    "assignment": (3, 3),
    "shift_reduce": (4, 4, 2),
    "shift_reduce[normalization=local]": (4, 4, 2),
    "semi_markov": (2, 2, 1, 1),
}

WAIT: dict[str, frozenset[str]] = {case: frozenset({"kbest"}) for case in ("constituency", "projective_tree")}
WAIT["semi_markov"] = frozenset(name for name in OPERATIONS if method_of(name) == "project")
"""By case, the operations that cannot be captured: what `docs/how-to/gpu.md` names."""

Replay = Callable[[], None]
Capture = Callable[[Callable[[], list[Tensor]]], tuple[list[Tensor], Replay]]
"""Runs a call once, and gives its results and what computes them again, where they are."""


def graph(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Replay]:
    """Capture on the GPU."""
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        results = call()
    return results, recorded.replay


@dataclass(frozen=True)
class Input:
    """What an operation takes; each call has random numbers of its own, always the same."""

    case: str
    operation: str
    scores: Tensor
    lengths: Tensor | None

    @classmethod
    def drawn(cls, case: str, operation: str, device: torch.device, *, ragged: bool, rows: int) -> Input:
        """Normal scores and, where asked for and taken, lengths."""
        oracle, event = make_oracle(case), CASES[case]
        lengths = None
        if ragged and method_of(operation) in with_lengths(type(oracle)):
            lengths = (
                torch.stack([torch.randint(1, limit + 1, (rows,)) for limit in oracle.length_limits(event)], -1).squeeze(-1).to(device)
            )
        return cls(case, operation, torch.randn(rows, *event, device=device), lengths)

    def prepared(self) -> Callable[[], list[Tensor]]:
        """A call that gives the result and, where there is one, its gradient in the scores."""
        oracle: Any = make_oracle(self.case)
        named: dict[str, Any] = {} if self.lengths is None else {"lengths": self.lengths}
        stream = SeedBlocks((7,), len(self.scores), device=self.scores.device)
        if self.operation in RANDOM:
            named["generator"] = stream
        differentiable = self.operation in DIFFERENTIABLE

        def call() -> list[Tensor]:
            stream.draws = 0
            leaf = self.scores.detach().requires_grad_(differentiable)
            result = OPERATIONS[self.operation](oracle, leaf, **named)
            gradient = torch.autograd.grad(result.square().sum(), leaf) if differentiable else ()
            return [result.detach(), *gradient]

        return call

    def become(self, other: Input) -> None:
        """Take over another's numbers, in place."""
        self.scores.copy_(other.scores)
        if self.lengths is not None and other.lengths is not None:
            self.lengths.copy_(other.lengths)


def check(case: str, operation: str, capture: Capture, device: torch.device, *, ragged: bool, rows: int) -> None:
    """Raise where an operation cannot be captured, or where its replay on other numbers gives other results than a call on these.

    Bits are equal: no sum is taken in another order.
    """
    held, other = (Input.drawn(case, operation, device, ragged=ragged, rows=rows) for _ in range(2))
    expected = other.prepared()()
    held.prepared()()  # compiles, and makes tables
    results, replay = capture(held.prepared())
    held.become(other)
    replay()
    for found, right in zip(results, expected, strict=True):
        assert torch.equal(torch.nan_to_num(found), torch.nan_to_num(right)), f"a replay of {operation} gives other bits than a call"


def capturable(case: str) -> list[str]:
    """The operations of a case that can be captured."""
    return [name for name in operations_of(make_oracle(case)) if name not in WAIT.get(case.partition("[")[0], ())]


def failures(case: str, operations: Iterable[str], module: str = __name__) -> Iterator[str]:
    """Every operation that a process of its own cannot capture, with the reason."""
    left = list(operations)
    while left:
        done = subprocess.run([sys.executable, "-m", module, case, *left], capture_output=True, text=True, timeout=600, check=False)
        captured = [json.loads(line)["captured"] for line in done.stdout.splitlines() if line.startswith('{"captured"')]
        left = left[len(captured) :]
        if left:
            yield f"{left.pop(0)}: {(done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1]}"


if __name__ == "__main__":
    for name in sys.argv[2:]:
        for with_padding in (False, True):
            check(sys.argv[1], name, graph, torch.device("cuda"), ragged=with_padding, rows=64)
        sys.stdout.write(json.dumps({"captured": name}) + "\n")
        sys.stdout.flush()

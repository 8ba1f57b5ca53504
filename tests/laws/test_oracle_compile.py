"""Compiled code may call every operation: the numbers are right, and an operation is one break of the graph."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.torch_version import TorchVersion

from structgrad.estimators import csoftmax, entmax, make_estimator
from structgrad.estimators.supervised import SUPERVISED_LOSSES
from structgrad.oracles import LinearChain
from tests.estimator_cases import numbers
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, seeded
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, assert_same, operations_of

CHAIN, IMLE, RLOO = LinearChain(), make_estimator("imle"), make_estimator("rloo")


def _size(z: Tensor) -> Tensor:
    """A loss."""
    return z.flatten(-3).square().sum(-1)


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "argmax": (lambda rows: CHAIN.argmax(2 * rows).sin(), 1),
    "marginals": (lambda rows: CHAIN.marginals(2 * rows).sin(), 1),
    "projection": (lambda rows: CHAIN.project(2 * rows).mean.sin(), 1),
    "two": (lambda rows: CHAIN.log_partition(2 * rows).exp() + CHAIN.entropy(rows.sin()), 2),
    "sample": (lambda rows: CHAIN.sample(2 * rows, generator=seeded()).sin(), 1),
    "loss": (lambda rows: SUPERVISED_LOSSES["crf_loss"](CHAIN, 2 * rows, torch.zeros_like(rows)).sin(), 1),
    "attention": (lambda rows: entmax(csoftmax(2 * rows, 0.9).sin(), 1.3).sin(), 2),
    "structure": (lambda rows: IMLE.structure(CHAIN, 2 * rows, generator=seeded()).sin(), 1),
    "surrogate": (lambda rows: RLOO.surrogate(_size, CHAIN, 2 * rows, generator=seeded()).sin(), 1),
}
"""Calls and how many operations each is."""


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Compiled code is kept for no other test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("call", CALLS)
def test_an_operation_is_one_break_of_the_graph(call: str, backend: str) -> None:
    """With the numbers and gradients of plain code."""
    function, operations = CALLS[call]
    explained = torch._dynamo.explain(function)(numbers(3, 4, 2, 2))
    # Versions before the pinned one split the graph once more between two operations of one line.
    more = int(call == "attention" and TorchVersion(torch.__version__) < (2, 13))
    assert operations <= explained.graph_break_count <= operations + more
    assert explained.graph_count == explained.graph_break_count + 1
    leaf = numbers(3, 4, 2, 2).requires_grad_()
    found, expected = torch.compile(function, backend=backend)(leaf), function(leaf)
    assert torch.equal(found, expected)
    if expected.requires_grad:
        (ours,), (theirs,) = (torch.autograd.grad(result.sum(), leaf) for result in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)


def assert_compiled(case: OracleCase, operation: str) -> None:
    def function(rows: Tensor) -> Tensor:
        return OPERATIONS[operation](case.oracle, 2 * rows).nan_to_num(neginf=0).sin()

    leaf = make_scores(case, 1.0, rows=3).requires_grad_()
    found, expected = torch.compile(function, backend="eager")(leaf), function(leaf)
    assert_same(found, expected, operation)
    if operation in DIFFERENTIABLE:
        assert_same(torch.autograd.grad(found.sum(), leaf)[0], torch.autograd.grad(expected.sum(), leaf)[0], operation)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_compiled(operation: str) -> None:
    assert_compiled(next(case for case in GENERIC_CASES[::-1] if operation in operations_of(case.oracle)), operation)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", GENERIC_CASES, ids=str)
def test_every_operation_of_every_oracle_is_compiled(case: OracleCase, operation: str) -> None:
    if operation in operations_of(case.oracle):
        assert_compiled(case, operation)


@pytest.mark.filterwarnings("ignore")
def test_a_mapped_operation_is_compiled() -> None:
    scores = numbers(3, 4, 2, 2)
    found = torch.compile(lambda rows: torch.func.vmap(CHAIN.marginals)(2 * rows), backend="eager")(scores)
    assert torch.equal(found, CHAIN.marginals(2 * scores))


TRACERS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], object]] = {
    "jit": lambda function, rows: torch.jit.trace(function, (rows,), check_trace=False),
    "make_fx": lambda function, rows: make_fx(function)(rows),
    "export": lambda function, rows: torch.export.export(_Module(function), (rows,), strict=False),
}


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_tracer_is_refused(tracer: str) -> None:
    """It would keep the first structure as a constant."""
    for call, name in (("argmax", "argmax"), ("structure", "structure")):
        with pytest.raises(ValueError, match=f"^`{name}` got called under torch.jit.trace, torch.export or make_fx, .*use torch.compile"):
            TRACERS[tracer](CALLS[call][0], numbers(3, 4, 2, 2))


def test_nothing_imports_the_compiler_before_it_is_used() -> None:
    code = "import sys, structgrad.estimators; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

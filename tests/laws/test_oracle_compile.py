"""Compiled and exported code may call every operation: graphs hold those whose results the shapes tell, and break once at the others."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, func

from structgrad.estimators import StructuredLayer, csoftmax, entmax, make_estimator
from structgrad.estimators.supervised import SUPERVISED_LOSSES
from structgrad.oracles import Alignment, LinearChain, Subset, graphs
from structgrad.oracles.capabilities.ragged import of_lengths
from tests.covering import sampled
from tests.estimator_cases import numbers
from tests.helpers import GENERIC_CASES, OracleCase, make_scores, seeded
from tests.oracle_operations import DIFFERENTIABLE, OPERATIONS, assert_same, operations_of

CHAIN, IMLE, RLOO, STE = LinearChain(), make_estimator("imle"), make_estimator("rloo"), make_estimator("ste")
LAYER, SUBSET, GENERATOR, SHORT = (
    StructuredLayer("linear_chain", "sparsemap", seed=0),
    Subset(3),
    seeded(),
    of_lengths(CHAIN, torch.tensor([4, 2, 3])),
)


LOSSES = [loss for name, loss in SUPERVISED_LOSSES.items() if name != "perturbed_fenchel_young_loss"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of the compiler

NODES = {key.rpartition(".")[2] for key, kind in graphs.KINDS.items() if kind.gives and not graphs.OLD}


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "two": (lambda rows: CHAIN.log_partition(2 * rows).exp() + CHAIN.entropy(rows.sin()), 0),
    "lengths": (lambda rows: CHAIN.marginals(2 * rows, lengths=torch.tensor([4, 2, 0])).sin(), 0),
    "best": (lambda rows: CHAIN.argmax(2 * rows, as_indices=True) + CHAIN.argmax(rows).sin().sum(), 0),
    "parts": (lambda rows: CHAIN.log_prob(CHAIN.argmax(rows, as_indices=True), 2 * rows, as_indices=True).sin(), 0),
    "loss": (lambda rows: sum(loss("linear_chain", 2 * rows, torch.zeros_like(rows)) for loss in LOSSES).sin(), 0),
    "attention": (lambda rows: entmax(csoftmax(2 * rows, 0.9).sin(), 1.3).sin(), 0),
    "mapped": (lambda rows: func.vmap(CHAIN.log_prob, in_dims=(None, 0))(CHAIN.argmax(rows[0]), 2 * rows).sin(), 0),
    "mapped lengths": (
        lambda rows: func.vmap(lambda row, size: CHAIN.marginals(row, lengths=size), in_dims=(0, None))(2 * rows, torch.tensor(2)),
        0,
    ),
    "layer": (lambda rows: LAYER(2 * rows).sin(), 0),
    "layer lengths": (lambda rows: LAYER(2 * rows, lengths=torch.tensor([4, 2, 0])).sin(), 0),
    "pad": (lambda rows: CHAIN.pad(2 * rows, torch.tensor([4, 2, 0])).exp(), 0),
    "projection": (lambda rows: CHAIN.project(2 * rows).mean.sin(), 1),
    "sample": (lambda rows: CHAIN.sample(2 * rows, generator=seeded()).sin(), 1),
    "structure": (lambda rows: IMLE.structure(CHAIN, 2 * rows, generator=seeded()).sin(), 1),
    "kept lengths": (lambda rows: STE.structure(SHORT, 2 * rows, generator=GENERATOR).sin(), 0),
    "surrogate": (lambda rows: RLOO.surrogate(lambda z: z.flatten(-3).square().sum(-1), CHAIN, 2 * rows, generator=seeded()).sin(), 1),
}
"""Calls and how often each breaks the graph."""


@pytest.fixture(autouse=True)
def _forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiled code is kept for no other test."""
    if graphs.OLD and request.function is not test_every_operation_is_compiled:
        pytest.skip("graphs hold operations from torch 2.12 on")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("call", CALLS)
def test_graphs_break_where_no_node_can_be(call: str) -> None:
    """With the numbers and gradients of plain code."""
    function, breaks = CALLS[call]
    if breaks:
        assert torch._dynamo.explain(function)(numbers(3, 4, 2, 2)).graph_break_count == breaks
        torch._dynamo.reset()
    leaf = numbers(3, 4, 2, 2).requires_grad_()
    found, expected = torch.compile(function, backend="aot_eager", fullgraph=not breaks)(leaf), function(leaf)
    assert torch.equal(found, expected)
    if expected.requires_grad:
        (ours,), (theirs,) = (torch.autograd.grad(result.sum(), leaf) for result in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_compiled(operation: str) -> None:
    offered, node = [case for case in GENERIC_CASES if operation in operations_of(case.oracle)], operation in NODES
    for case, dtype in sampled([*itertools.product(offered, (torch.float64, torch.bfloat16))], 1):
        torch._dynamo.reset()

        def function(rows: Tensor, case: OracleCase = case) -> Tensor:
            return OPERATIONS[operation](case.oracle, 2 * rows).nan_to_num(neginf=0).sin()

        leaf = make_scores(case, 1.0, rows=3).to(dtype).requires_grad_()
        found, expected = torch.compile(function, backend="aot_eager" if node else "eager", fullgraph=node)(leaf), function(leaf)
        assert found.dtype == expected.dtype
        assert_same(found, expected, operation)
        if operation in DIFFERENTIABLE:
            ours, theirs = (torch.autograd.grad(result.sum(), leaf)[0] for result in (found, expected))
            assert_same(ours, theirs, operation)


class _Model(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, rows: Tensor) -> object:
        return self.function(rows)


LOADED = """
import sys, torch, structgrad.oracles
rows, expected = torch.load(sys.argv[2])
assert all(map(torch.equal, torch.export.load(sys.argv[1]).module()(rows), expected))
"""


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_decoder_is_exported_for_batches_and_lengths_of_any_size(strict: bool, tmp_path: Path) -> None:
    """And runs in a process that has imported the oracles."""
    model = _Model(lambda rows: (CHAIN.argmax(2 * rows), CHAIN.argmax(rows, as_indices=True), CHAIN.marginals(2 * rows)))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.export.export(model, (numbers(3, 4, 2, 2),), dynamic_shapes=(sizes,), strict=strict)
    rows = numbers(5, 7, 2, 2)
    assert all(map(torch.equal, program.module()(rows), model(rows)))
    if not strict:
        torch.export.save(program, tmp_path / "decoder.pt2")
        torch.save((rows, model(rows)), tmp_path / "expected.pt")
        words = [sys.executable, "-c", LOADED, tmp_path / "decoder.pt2", tmp_path / "expected.pt"]
        assert subprocess.run(words, check=False).returncode == 0


def test_a_graph_that_names_an_object_of_another_process_says_so() -> None:
    text = graphs.written("structgrad.oracles.capabilities.base:Oracle.argmax", ("scores",), ("self",), object())
    with pytest.raises(ValueError, match="expected one with a name, such as subset"):
        graphs.operation([numbers(4, 2, 2)], [], text.replace('"$object": "', '"$object": "of another'))


def test_what_is_wrong_is_said_when_the_graph_runs() -> None:
    compiled = torch.compile(SUBSET.argmax, backend="eager", fullgraph=True)
    with pytest.raises(ValueError, match="`argmax` got n=2 parts for k=3; expected n >= k"):
        compiled(numbers(4, 2))
    for call in (CHAIN.argmax, CHAIN.marginals, CHAIN.pad):
        with pytest.raises(
            ValueError, match=r"got lengths: torch.int64 of shape \(2,\); expected an integer tensor of shape \(3,\), one len"
        ):
            torch.compile(call, backend="eager", fullgraph=True)(numbers(3, 4, 2, 2), lengths=torch.tensor([1, 2]))


@pytest.mark.parametrize("transform", [func.grad, func.jacrev, func.jacfwd])
def test_derivatives_of_transforms_are_compiled(transform: Callable[..., Callable[[Tensor], Tensor]]) -> None:
    """With a structure whose tables are not made yet."""
    differentiated, rows = transform(lambda rows: Alignment().log_partition(rows).sin().sum()), numbers(2, 4, 5)
    torch.testing.assert_close(torch.compile(differentiated, backend="aot_eager")(rows), differentiated(rows))


def test_a_graph_has_no_directional_derivative() -> None:
    """Which torch would take for 0."""
    rows = numbers(3, 4, 2, 2)
    module = torch.export.export(_Model(CHAIN.log_partition), (rows,), strict=False).module()
    with pytest.raises(ValueError, match="a graph got called under"):
        func.jvp(module, (rows,), (rows,))


def test_a_number_may_change() -> None:
    """The compiler makes it a variable then."""
    compiled, rows = torch.compile(entmax, backend="eager", fullgraph=True), numbers(3, 4)
    for alpha in (1.3, 1.5, 1.7):
        assert torch.equal(compiled(rows, alpha), entmax(rows, alpha))


TRACERS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "jit": lambda function, rows: torch.jit.trace(function, (rows,), check_trace=False),
    "make_fx": lambda function, rows: torch.fx.experimental.proxy_tensor.make_fx(function)(rows),
    "export": lambda function, rows: torch.export.export(_Model(function), (rows,), strict=False).module(),
}


@pytest.mark.parametrize("tracer", TRACERS)
def test_a_tracer_keeps_nodes_and_is_refused_what_is_none(tracer: str) -> None:
    """A random structure would be a constant."""
    traced = TRACERS[tracer](CALLS["two"][0], numbers(3, 4, 2, 2))
    assert torch.equal(traced(2 * numbers(3, 4, 2, 2)), CALLS["two"][0](2 * numbers(3, 4, 2, 2)))
    for call in ("sample", "structure"):
        with pytest.raises(ValueError, match=f"^`{call}` got called under torch.jit.trace, torch.export or make_fx, .*use torch.compile"):
            TRACERS[tracer](CALLS[call][0], numbers(3, 4, 2, 2))

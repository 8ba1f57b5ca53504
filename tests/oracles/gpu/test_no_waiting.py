"""No operation reads a value on the host, so that it can be captured in a CUDA graph; and the same input gives the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from structgrad.oracles import kernels, make_oracle
from structgrad.oracles.random_streams import SeedBlocks

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
}
Operation = Callable[[Any, Tensor], Tensor]


def streams(scores: Tensor) -> SeedBlocks:
    return SeedBlocks((7,), len(scores), device=scores.device)


def backward(function: Callable[[Tensor], Tensor], scores: Tensor) -> Tensor:
    leaf = scores.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    return gradient


OPERATIONS: dict[str, Operation] = {
    "argmax": lambda oracle, scores: oracle.argmax(scores),
    "log_partition": lambda oracle, scores: oracle.log_partition(scores),
    "marginals": lambda oracle, scores: oracle.marginals(scores),
    "marginals_backward": lambda oracle, scores: backward(oracle.marginals, scores),
    "sample": lambda oracle, scores: oracle.sample(scores, 2, generator=streams(scores)),
    "project": lambda oracle, scores: oracle.project(scores).mean,
    "project_backward": lambda oracle, scores: backward(lambda leaf: oracle.project(leaf).mean, scores),
}

PAIRS = [(case, operation) for case in CASES for operation in OPERATIONS]


class Reading(TorchDispatchMode):
    """Raises where a value of a tensor is needed on the host."""

    READS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2")

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket.__name__ in self.READS:
            raise RuntimeError(f"{function} waits for the device")
        return function(*args, **(kwargs or {}))


@contextmanager
def watched(device: torch.device) -> Iterator[None]:
    """Let torch raise an error where the host waits for the device; on the CPU, where it asks for what would make it wait."""
    if device.type == "cpu":
        with Reading():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("case", "operation"), PAIRS)
def test_nothing_is_read_on_the_host(case: str, operation: str, gpu_kernels: torch.device) -> None:
    oracle, scores = make_oracle(case), torch.randn(1, *CASES[case], device=gpu_kernels)
    expected = OPERATIONS[operation](oracle, scores)  # compiles, and makes tables
    with watched(gpu_kernels):
        found = OPERATIONS[operation](oracle, scores)
    assert torch.equal(found, expected), "the same input gave other bits"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("case", "operation"), PAIRS)
def test_a_graph_replays_it(case: str, operation: str) -> None:
    oracle, device = make_oracle(case), torch.device("cuda")
    held, other = (torch.randn(64, *CASES[case], device=device) for _ in range(2))
    call = OPERATIONS[operation]
    expected = call(oracle, other)
    call(oracle, held)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call(oracle, held)
    held.copy_(other)
    graph.replay()
    torch.testing.assert_close(result, expected)


def test_what_waits_is_seen(gpu_kernels: torch.device) -> None:
    """The active set in torch asks after every step whether it is done: assignments of more than 16 rows are left to it."""
    scores = torch.randn(1, 3, 3, device=gpu_kernels)
    with kernels.disabled(), pytest.raises(RuntimeError), watched(gpu_kernels):
        make_oracle("assignment").project(scores).mean  # noqa: B018 - computed on first use

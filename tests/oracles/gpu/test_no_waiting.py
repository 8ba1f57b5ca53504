"""Operations of the executor read no value on the host, so they fit into a CUDA graph. Equal inputs give equal bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from structgrad.oracles import DERIVED, kernels, make_oracle
from structgrad.oracles.capabilities import Oracle
from structgrad.oracles.random_streams import SeedBlocks
from tests.waiting import watched

EVENTS: dict[str, tuple[int, ...]] = {
    "linear_chain": (3, 2, 2),
    "constituency": (4, 4),
    "shift_reduce[normalization=local]": (4, 4, 2),
    **{name: kind.event_of(kind.examples.small[0]) for name, kind in DERIVED.items() if name in ("ctc", "tied_semi_markov")},
}
USUAL = {"linear_chain": (128, 32, 32), "alignment": (128, 128), "constituency": (40, 40), "shift_reduce": (41, 41, 2)}
"""Events that fill a device at 256 rows."""

OPERATIONS = ("argmax", "log_partition", "marginals", "sample")
"""With their gradients."""

on_a_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def prepared(case: str, operation: str, scores: Tensor, lengths: Tensor | None) -> Callable[[], list[Tensor]]:
    """A call that gives the result and, where there is one, its gradient."""
    oracle: Any = make_oracle(case)
    stream = SeedBlocks((7,), len(scores), device=scores.device)

    def call() -> list[Tensor]:
        stream.draws = 0
        leaf = scores.detach().requires_grad_(operation in ("log_partition", "marginals"))
        named = {"generator": stream} if operation == "sample" else {}
        result = getattr(oracle, operation)(leaf, lengths=lengths, **named)
        return [result.detach(), *(torch.autograd.grad(result.square().sum(), leaf) if leaf.requires_grad else ())]

    return call


def lengths_of(case: str, rows: int, device: torch.device) -> Tensor:
    limits = make_oracle(case).length_limits(EVENTS[case])
    return torch.stack([torch.randint(1, limit + 1, (rows,)) for limit in limits], -1).squeeze(-1).to(device)


@pytest.mark.parametrize("case", EVENTS)
def test_nothing_is_read_on_the_host(case: str, gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    if gpu_kernels.type == "cpu":  # where values of lengths are looked at
        monkeypatch.setattr(Oracle, "check_lengths", lambda *given: None)
    for operation in OPERATIONS:
        scores = torch.randn(1, *EVENTS[case], device=gpu_kernels)
        call = prepared(case, operation, scores, lengths_of(case, 1, gpu_kernels))
        expected = call()  # compiles, and makes tables
        with watched(gpu_kernels):
            found = call()
        assert all(map(torch.equal, found, expected))


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", EVENTS)
def test_a_graph_replays_it_on_other_numbers(case: str, operation: str) -> None:
    device = torch.device("cuda")
    scores, other = (torch.randn(64, *EVENTS[case], device=device) for _ in range(2))
    expected = prepared(case, operation, other, None)()
    call = prepared(case, operation, scores, None)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    scores.copy_(other)
    graph.replay()
    assert all(map(torch.equal, results, expected))


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", USUAL)
def test_ten_repetitions_have_the_same_bits(case: str, operation: str) -> None:
    """A lane that reads global memory before another has written there gives another result now and then; race checkers do not see it."""
    call = prepared(case, operation, torch.randn(256, *USUAL[case], device="cuda"), None)
    first = [result.clone() for result in call()]
    assert all(all(map(torch.equal, call(), first)) for _ in range(10))


def test_what_waits_is_seen(gpu_kernels: torch.device) -> None:
    """The active set asks after every step whether it is done."""
    scores = torch.randn(1, 3, 3, device=gpu_kernels)
    with kernels.disabled(), pytest.raises(RuntimeError), watched(gpu_kernels):
        make_oracle("assignment").project(scores).mean  # noqa: B018 - computed on first use

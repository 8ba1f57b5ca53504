"""No operation reads a value on the host, so that it can be captured in a CUDA graph; and the same input gives the same bits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from structgrad.oracles import kernels, make_oracle
from structgrad.oracles.capabilities import Oracle
from tests.oracles.gpu.capturing import CASES, Replay, capturable, check, failures
from tests.waiting import watched

OWN = ("argmax", "marginals", "samples", "project_atoms")
"""What has kernels of its own; the others are made of these. With their gradients."""


def pretended(device: torch.device) -> Callable[[Callable[[], list[Tensor]]], tuple[list[Tensor], Replay]]:
    """A capture that raises where the host would wait, as one in a graph does, and a replay that calls again."""

    def capture(call: Callable[[], list[Tensor]]) -> tuple[list[Tensor], Replay]:
        with watched(device):
            results = call()

        def replay() -> None:
            for result, again in zip(results, call(), strict=True):
                result.copy_(again)

        return results, replay

    return capture


@pytest.fixture(autouse=True)
def _nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU, which stands in, is where values of lengths are looked at: `tests.laws.test_oracle_devices` sees that a device is not."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(Oracle, "check_lengths", lambda *given: None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operations", [OWN, pytest.param((), id="all", marks=pytest.mark.sweep)])
def test_nothing_is_read_on_the_host(case: str, operations: tuple[str, ...], gpu_kernels: torch.device) -> None:
    for operation in [name for name in capturable(case) if not operations or name in operations]:
        check(case, operation, pretended(gpu_kernels), gpu_kernels, ragged=True, rows=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", CASES)
def test_a_graph_replays_it(case: str) -> None:
    assert not list(failures(case, capturable(case)))


def test_what_waits_is_seen(gpu_kernels: torch.device) -> None:
    """The active set in torch asks after every step whether it is done: assignments of more than 16 rows are left to it."""
    scores = torch.randn(1, 3, 3, device=gpu_kernels)
    with kernels.disabled(), pytest.raises(RuntimeError), watched(gpu_kernels):
        make_oracle("assignment").project(scores).mean  # noqa: B018 - computed on first use

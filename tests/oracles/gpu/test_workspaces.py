"""Workspaces of kernels do not grow with the batch: it is taken in parts, and no result depends on how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from structgrad.oracles.kernels import gpu
from tests.oracles.gpu.test_no_waiting import EVENTS, OPERATIONS, prepared

BATCH = 2


class Taking(TorchDispatchMode):
    """Counts the bytes that are allocated."""

    ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "zeros", "new_zeros", "zeros_like", "clone")

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function.overloadpacket.__name__ in self.ALLOCATIONS:
            self.bytes += found.numel() * found.element_size()
        return found


@contextmanager
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes that every call of a kernel takes."""
    amounts: list[int] = []
    call = gpu.DeviceKernel.__call__

    def watched(kernel: gpu.DeviceKernel, *tensors: Tensor) -> None:
        with Taking() as mode:
            call(kernel, *tensors)
        amounts.append(mode.bytes)

    with monkeypatch.context() as patch:
        patch.setattr(gpu.DeviceKernel, "__call__", watched)
        yield amounts


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", ["linear_chain", "constituency", "semi_markov", "ctc"])
def test_a_batch_in_parts_gives_the_same_bits_in_bounded_memory(
    case: str, operation: str, gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from structgrad.oracles.kernels.gpu import launching

    def call(rows: Tensor) -> list[Tensor]:
        return prepared(case, operation, rows, None)()

    scores = torch.randn(BATCH, *EVENTS[case], device=gpu_kernels, dtype=torch.float64)
    with taken(monkeypatch) as alone:
        call(scores[:1])
    with taken(monkeypatch) as whole:
        expected = call(scores)
    with taken(monkeypatch) as parted, monkeypatch.context() as patch:
        patch.setattr(launching, "FILLING", 1)
        patch.setattr(launching, "SCRATCH", 1)
        found = call(scores)
    assert all(map(torch.equal, found, expected))
    assert parted == alone, f"one row at a time takes {parted} bytes, one row {alone}, and {BATCH} rows {whole}"


def test_parts_are_as_large_as_the_budget_allows_and_fill_a_device(gpu_kernels: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgrad.oracles.kernels.gpu import launching

    rows = torch.empty(100, device=gpu_kernels)

    def sizes(numbers: int) -> list[int]:
        parts = list(launching.launches(rows, (numbers, torch.float64), (numbers, torch.float32)))
        assert [(len(first), len(second)) for _, (first, second) in parts] == [(part.stop - part.start,) * 2 for part, _ in parts]
        assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
        assert parts[-1][0].stop == len(rows)
        return [part.stop - part.start for part, _ in parts]

    monkeypatch.setattr(launching, "SCRATCH", 12 * 1000)
    monkeypatch.setattr(launching, "MOST_SCRATCH", 12 * 3000)
    monkeypatch.setattr(launching, "FILLING", 20)
    assert sizes(5) == [100]
    assert sizes(20) == [48, 48, 4]  # 50 fit; parts begin at multiples of 16 rows
    assert sizes(100) == [16] * 6 + [4]  # 10 fit, 20 fill a device
    assert sizes(500) == [6] * 16 + [4]  # so many are the most
    assert sizes(10_000) == [1] * 100


def test_an_empty_batch_is_not_launched() -> None:
    launching = pytest.importorskip("structgrad.oracles.kernels.gpu.launching", reason="Triton is offered for Linux alone")
    assert list(launching.launches(torch.empty(0, 3), (5, torch.float64))) == []

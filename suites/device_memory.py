"""Free memory of a device, and launches of as many rows as fit into it, or half as many once it has run out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch

from ..oracles.magnitudes import GIB

SHARE = 0.5
"""Share of the free memory that launches use. Later launches may take more than the first one, and free memory is fragmented."""

T = TypeVar("T")

_allotted: ContextVar[float] = ContextVar("structgrad_device_memory_allotted", default=math.inf)

_learned: ContextVar[dict[tuple[str, torch.device], tuple[int, bool]] | None] = ContextVar("structgrad_launches_learned", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Remember the memory of a launch for all later launches of its kind, in this context."""
    token = _learned.set({})
    try:
        yield
    finally:
        _learned.reset(token)


def allot(amount: float) -> None:
    """Take no more bytes of a device than these, a worker's share, in this context."""
    _allotted.set(amount)


def available(device: torch.device) -> float:
    """The bytes that launches may use, of free, reserved and allotted memory; infinite on the CPU."""
    if device.type != "cuda":
        return math.inf
    left = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return SHARE * max(min(left, _allotted.get()) - torch.cuda.memory_allocated(device), 0)


@dataclass(frozen=True)
class Launches:
    """A range of rows, cut into launches. Their sizes depend on memory only if it is scarce.

    Attributes:
        name: the name of the computation. Launches of the same name share the sizes that fit.
        rows: rows of a launch.
        device: the device.
        block: rows that are never split; ``rows`` is a multiple of it.
        filling: rows of a launch after the first one, if the memory of the first one shows that so many fit.
    """

    name: str
    rows: int
    device: torch.device
    block: int = 1
    filling: int = 0

    def over(self, start: int, stop: int, compute: Callable[[int, int], T]) -> Iterator[tuple[int, T]]:
        """Yield the first row and ``compute(first, count)`` of every launch; without enough memory, again with half its rows.

        Raises:
            torch.OutOfMemoryError: there is none for a single block.
        """
        known = _learned.get()
        known, kind = {} if known is None else known, (self.name, self.device)
        first = start
        while first < stop:
            rows, settled = known.get(kind, (self.rows, False))
            count = min(rows, stop - first)
            grows = self.device.type == "cuda" and not settled and self.filling > rows
            if grows:
                torch.cuda.reset_peak_memory_stats(self.device)
                before = torch.cuda.memory_allocated(self.device)
            found = self._attempt(compute, first, count)
            if not found:
                known[kind] = self._doublings(count // 2), True
                continue
            if grows:
                each = max((torch.cuda.max_memory_allocated(self.device) - before) / count, 1.0)
                known[kind] = max(rows, self._doublings(int(min(self.filling, available(self.device) / each)))), True
            yield first, found.pop()
            first += count

    def _attempt(self, compute: Callable[[int, int], T], first: int, count: int) -> list[T]:
        """The result, or nothing if memory ran out. The traceback, which holds intermediate tensors, is released."""
        cuda = self.device.type == "cuda"
        try:
            return [compute(first, count)]
        except RuntimeError as error:
            # Some CUDA libraries have no class for it.
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
                raise
            if count <= self.block:
                left, whole = torch.cuda.mem_get_info(self.device) if cuda else (0, 0)
                place = f"{self.device}, where {left / GIB:.1f} of {whole / GIB:.1f} GiB are free" if cuda else str(self.device)
                raise torch.OutOfMemoryError(
                    f"{self.name} got no memory for {count} at a time on {place}; expected it for so few: choose smaller "
                    "problems or fewer --jobs on this device, or end what else computes there"
                ) from error
        if cuda:
            torch.cuda.empty_cache()
        return []

    def _doublings(self, most: int) -> int:
        """A block, doubled as often as possible, so that sums over launches hardly depend on their size."""
        return self.block << max((most // self.block).bit_length() - 1, 0)

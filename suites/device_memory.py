"""Free memory of a device, and launches of as many rows as fit into it, or half as many once it has run out."""

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch

from ..oracles.magnitudes import GIB

SHARE = 0.5  # Share of the free memory that launches use. Later launches may take more than the first one, and free memory is fragmented.

T = TypeVar("T")

_allotted: ContextVar[float] = ContextVar("structgrad_device_memory_allotted", default=math.inf)


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
    """A range of rows, cut into launches. Their sizes depend on memory only if it is scarce."""

    name: str  # the name of the computation, for messages
    rows: int  # rows of a launch
    device: torch.device  # the device
    block: int = 1  # rows that are never split; ``rows`` is a multiple of it

    def over(self, start: int, stop: int, compute: Callable[[int, int], T]) -> Iterator[tuple[int, T]]:
        """Yield the first row and ``compute(first, count)`` of every launch; without enough memory, again with half its rows."""
        rows, first = self.rows, start
        while first < stop:
            count = min(rows, stop - first)
            try:
                found = compute(first, count)
            except RuntimeError as error:
                # Some CUDA libraries have no class for it.
                if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
                    raise
                if count <= self.block:
                    place = str(self.device)
                    if self.device.type == "cuda":
                        left, whole = torch.cuda.mem_get_info(self.device)
                        place += f", where {left / GIB:.1f} of {whole / GIB:.1f} GiB are free"
                    raise torch.OutOfMemoryError(
                        f"{self.name} got no memory for {count} at a time on {place}; expected it for so few: choose smaller "
                        "problems or fewer --jobs on this device, or end what else computes there"
                    ) from error
                # A block, doubled as often as possible, so that sums over launches hardly depend on their size.
                rows = self.block << max((count // 2 // self.block).bit_length() - 1, 0)
            else:
                yield first, found
                del found
                first += count
                continue
            # Here the traceback, which holds intermediate tensors, is released.
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

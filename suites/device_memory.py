"""Free memory of a device, and launches of as many rows as fit into it, or half as many once it has run out."""

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
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


def launched(  # noqa: PLR0913 - a range of rows, its size and place, and what is computed
    name: str, rows: int, device: torch.device, span: tuple[int, int], compute: Callable[[int, int], T], *, block: int = 1
) -> Iterator[tuple[int, T]]:
    """Yield the first row and ``compute(first, count)`` of every launch of a range; without enough memory, again with half its rows.

    The sizes of launches depend on memory only if it is scarce: else they have so many ``rows``, a multiple of ``block``, whose rows are
    never split. The ``name`` is for messages.
    """
    first, stop = span
    while first < stop:
        count = min(rows, stop - first)
        try:
            found = compute(first, count)
        except RuntimeError as error:
            # Some CUDA libraries have no class for it.
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
                raise
            if count <= block:
                place = str(device)
                if device.type == "cuda":
                    left, whole = torch.cuda.mem_get_info(device)
                    place += f", where {left / GIB:.1f} of {whole / GIB:.1f} GiB are free"
                raise torch.OutOfMemoryError(
                    f"{name} got no memory for {count} at a time on {place}; expected it for so few: choose smaller "
                    "problems or fewer --jobs on this device, or end what else computes there"
                ) from error
            # A block, doubled as often as possible, so that sums over launches hardly depend on their size.
            rows = block << max((count // 2 // block).bit_length() - 1, 0)
        else:
            yield first, found
            del found
            first += count
            continue
        # Here the traceback, which holds intermediate tensors, is released.
        if device.type == "cuda":
            torch.cuda.empty_cache()

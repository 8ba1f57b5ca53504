"""Peak memory of a call, as torch's allocators count it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def peak_memory(call: Callable[[], object], *, device: torch.device | str = "cpu") -> int:
    """The most bytes that a call took from torch and held at one time, not counting what was held before.

    Only torch's allocations count: no interpreter, no imported library, so that small tensors are visible, unlike in a process's resident
    set. On CUDA the caching allocator's own counter is read; on the CPU the profiler's record of every allocation and release is summed.

    Args:
        call: takes no arguments, and releases nothing that was held before.
        device: where the call computes.

    Returns:
        Bytes; 0 for a call that allocates nothing.

    Example:
        >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64))
        8000
    """
    place = torch.device(device)
    return _cuda_peak(call, place) if place.type == "cuda" else _cpu_peak(call)


def _cuda_peak(call: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _cpu_peak(call: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    results = None if recorded.profiler is None else recorded.profiler.kineto_results
    if results is None:
        raise RuntimeError("`peak_memory` got no record from torch's profiler; expected a build of torch with the profiler (Kineto)")
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return max(accumulate(size for _, size in sorted(changes, key=lambda change: change[0])), default=0)

"""Peak memory of a training step, as torch's allocators count it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ...estimators.base import Estimator, Loss, check_call
from ..base import Problem
from ..statistics import seeds
from ..suite import Context, Finding, Suite
from .timing import forward_pass, single_thread, time_once, timing_batch


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


def training_memory(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> dict[str, float]:
    """Peak bytes of one training step on a batch of scores, and how they grow with the batch.

    Args:
        estimator: in training, as `time_once` runs it; on two rows before, because what is kept for later calls does not count.
        oracle: what it runs on.
        loss: ``[..., *batch, *event] -> [..., *batch]``.
        scores: ``[rows, *event]``, an even number of rows.

    Returns:
        ``forward_memory``, ``peak_memory`` (forward and backward), and ``memory_per_row``, what a row of the second half adds.
    """
    check_call("training_memory", estimator=estimator, loss=loss, oracle=oracle, scores=scores)
    device, half = scores.device, len(scores) // 2
    time_once(estimator, oracle, loss, scores[:2])
    forward = peak_memory(lambda: _forward(estimator, oracle, loss, scores), device=device)
    small, large = (
        peak_memory(functools.partial(time_once, estimator, oracle, loss, rows), device=device) for rows in (scores[:half], scores)
    )
    return {"forward_memory": float(forward), "peak_memory": float(large), "memory_per_row": (large - small) / half}


def _forward(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor) -> Tensor:
    leaf = scores.detach().clone().requires_grad_()
    return forward_pass(estimator, oracle, loss, leaf, torch.Generator(scores.device).manual_seed(0)).sum()


class Memory(Suite):
    """How much memory one training step takes, forward and backward, and with every further row.

    The batch is that of `timing_batch` around the largest instance. On the CPU the numbers are exact counts: they repeat to the byte.
    """

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "peak bytes of a training step, and what one more row adds"
    exclusive: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        """Peak bytes of every estimator."""
        instance = max(problem.instances, key=lambda item: item.scores.numel())
        stream = seeds.generator(context.seed, "wall_clock", problem.name, instance.name, device=context.device)
        scores = timing_batch(instance.scores.to(context.device, context.dtype), generator=stream)
        for name, estimator in estimators.items():
            with single_thread():
                found = training_memory(estimator, problem.oracle, instance.loss, scores)
            yield from (Finding(name, metric, value) for metric, value in found.items())

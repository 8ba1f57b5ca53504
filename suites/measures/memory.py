"""Peak memory of a training step, from torch's allocators and kernels."""

import functools
import gc
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ...estimators import Estimator, Loss
from ...estimators.base import check_call
from ...oracles import kernels
from ..base import Problem
from ..statistics import seeds
from .cost.timer import single_thread, time_once, timing_batch
from .suite import Context, Finding, Suite


def peak_memory(call: Callable[[], object], *, device: torch.device | str = "cpu") -> int:
    """The most bytes that a call took from torch and held at one time, without those held before; 0 for a call that allocates nothing.

    Tensors and the memory of kernels count, the interpreter and imported libraries do not. So small tensors are visible, unlike in the
    resident set of a process. On CUDA the caching allocator's own counter is read. On the CPU the profiler's record of every allocation and
    release is summed. Garbage collection is off: tensors in reference cycles are held until the call ends.

    Example:
        >>> peak_memory(lambda: torch.zeros(1000, dtype=torch.float64))
        8000
    """
    place, collects = torch.device(device), gc.isenabled()
    gc.disable()  # it would release older memory during the call, sooner in one run and later in another
    try:
        if place.type == "cuda":
            torch.cuda.synchronize(place)
            torch.cuda.reset_peak_memory_stats(place)
            before = torch.cuda.memory_allocated(place)
            call()
            torch.cuda.synchronize(place)
            return torch.cuda.max_memory_allocated(place) - before
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded, kernels.shown_to_torch():
            call()
    finally:
        if collects:
            gc.enable()
    results = None if recorded.profiler is None else recorded.profiler.kineto_results
    if results is None:
        raise RuntimeError("`peak_memory` got no record from torch's profiler; expected a build of torch with the profiler (Kineto)")
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    return int(max(accumulate((size for _, size in sorted(changes, key=lambda change: change[0])), initial=0)))


def load_kernels(call: Callable[[], object]) -> None:
    """Make a call as `peak_memory` does, before it measures that call: a first call loads kernels, whose code must not count."""
    with kernels.shown_to_torch():
        call()


def training_memory(estimator: Estimator[Any] | str, oracle: Any, loss: Loss, scores: Tensor) -> int:
    """Peak bytes of the second of two equal training steps on scores ``[*batch, *event]``: memory that is kept does not count."""
    made, loss, oracle, scores = check_call("training_memory", estimator=estimator, loss=loss, oracle=oracle, scores=scores)
    step = functools.partial(time_once, made, oracle, loss, scores)
    load_kernels(step)
    return peak_memory(step, device=scores.device)


class Memory(Suite):
    """Memory of one training step, forward and backward.

    The batch is that of `timing_batch` around the largest instance. On the CPU the numbers are exact counts: they repeat to the byte.
    """

    name: ClassVar[str] = "memory"
    summary: ClassVar[str] = "peak bytes of a training step"
    version: ClassVar[int] = 2
    exclusive: ClassVar[bool] = True

    def findings(self, problem: Problem, estimators: Mapping[str, Estimator[Any]], context: Context) -> Iterator[Finding]:
        instance = max(problem.instances, key=lambda item: item.scores.numel())
        stream = seeds.generator(context.seed, "wall_clock", problem.name, instance.name, device=context.device)
        scores = timing_batch(instance.scores.to(context.device, context.dtype), generator=stream)
        for name, estimator in estimators.items():
            with single_thread():
                yield Finding(name, "peak_memory", float(training_memory(estimator, problem.oracle, instance.loss, scores)))

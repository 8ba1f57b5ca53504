"""Compiled kernels: the hot loops, apart from the mathematics. Here is how an operation selects one, and how it is run.

The folder of a structure holds functions over contiguous arrays whose first dimension is the batch, in ``cpu.py``. `find` selects the one
of an operation, for tensors on the CPU; `Kernel.computed` runs it, and computes the rows that it refuses by the torch reference. Everything
else runs the references, in which the oracles are written, on a GPU too. Kernels are compiled on first use and cached on disk. Importing
this package compiles nothing and does not load the compilers.
"""

import importlib
import importlib.util
import math
import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

from ..numerics import share_rows

GRAIN = 400_000
"""Inner-loop steps of a sum that a thread must get for its start to pay: some 200 microseconds, where to wake it takes 100."""

PER_NUMBER = 8
"""Such steps for each number that a kernel gets besides its rows: a uniform of a sampler, which walks, or a direction."""

FLOATING = (torch.float32, torch.float64)
"""The dtypes of scores that kernels take."""

CERTIFYING = ("log_partition", "marginals", "covariance_product", "sample", "sample_parts")
"""Operations whose kernels may refuse rows outside their range: their last array, bool ``[b]``, is True for the rows that they computed."""

ELSEWHERE = {"birkhoff": "..assignment.cpu_birkhoff", "bounds": ".bounds", "philox": ".philox"}
"""Kernels that are not in the ``cpu.py`` of a folder of their name."""

Output = tuple[tuple[int, ...], torch.dtype | None]
"""One result of an operation: its shape after the batch, and its dtype, that of the scores where it is None."""

Reference = Callable[..., Sequence[Tensor]]
"""The results of a kernel's inputs in plain torch."""

_Function = Callable[..., None]


_WANTED = os.environ.get("STRUCTGRAD_KERNELS") or "on"
if _WANTED not in ("on", "off"):
    raise ValueError(f"the environment variable STRUCTGRAD_KERNELS got {_WANTED!r}; expected on or off; unset it for on")

running: ContextVar[bool] = ContextVar("structgrad_kernels_running", default=_WANTED == "on")
"""Whether kernels run in this context."""

_observer: ContextVar[Callable[..., None] | None] = ContextVar("structgrad_kernels_observer", default=None)
"""Calls kernels in the place of `launch`, in this context."""


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def disabled() -> Iterator[None]:
    """Run the torch references instead of the kernels, in this context; ``STRUCTGRAD_KERNELS=off`` in the environment does so everywhere.

    A gradient is computed by kernels again if its backward runs outside of the context.

    Example:
        >>> import torch
        >>> from structgrad.oracles import LinearChain, kernels
        >>> scores = torch.zeros(2, 3, 3)
        >>> with kernels.disabled():
        ...     LinearChain().log_partition(scores)
        tensor(2.1972)
    """
    with _set(running, False):
        yield


@contextmanager
def recorded() -> Iterator[list[_Function]]:
    """List the kernels that are called in this context, in their order.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> with recorded() as functions:
        ...     best = Categorical().argmax(torch.zeros(2, 3))
        >>> [function.__name__ for function in functions]
        ['argmax']
    """
    functions: list[_Function] = []

    def call(function: _Function, arrays: Sequence[np.ndarray], options: tuple[Any, ...]) -> None:
        functions.append(function)
        function(*arrays, *options)

    with _set(_observer, call):
        yield functions


@contextmanager
def shown_to_torch() -> Iterator[None]:
    """Let torch's record of its memory show the results and the workspaces of kernels, in this context, in one thread each.

    Numba asks Python for memory, which Python traces meanwhile: that is slow.
    """

    def call(function: _Function, arrays: Sequence[np.ndarray], options: tuple[Any, ...]) -> None:
        # The interpreter keeps released tuples to use them again: as long as there are some, the call takes none from memory.
        spare = [tuple([None] * size) for size in range(20) for _ in range(16)]
        del spare
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        function(*arrays, *options)
        torch.empty(tracemalloc.get_traced_memory()[1] - before, dtype=torch.uint8)

    traced = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with _set(_observer, call):
            yield
    finally:
        if not traced:
            tracemalloc.stop()


def find(structure: str | None, operation: str, rows: Tensor, options: tuple[Any, ...] = ()) -> "Kernel | None":
    """Select the kernel of an operation for rows ``[b, *event]``; None where the torch reference is to run."""
    module = module_of(structure) if structure is not None and rows.is_cpu and running.get() else None
    function = getattr(module, operation, None)
    if module is None or not callable(function):  # a package of kernels may have a module of that name
        return None
    return Kernel(function, options, module.operations(tuple(rows.shape[1:])), operation not in CERTIFYING)


def search(
    structure: str, operation: str, rows: Tensor, output: Output, options: tuple[Any, ...], event: tuple[int, ...] | None = None
) -> Tensor:
    """The result of a kernel that has no reference, for rows [b, ...] on any device: they are copied to the CPU, and it is copied back.

    Such kernels choose structures, by steps that would wait for a device or take hundreds of launches. They serve in every context.
    """
    module, (shape, dtype) = module_of(structure), output
    kernel = Kernel(getattr(module, operation), options, module.operations(tuple(event or rows.shape[1:])))
    result = torch.zeros((len(rows), *shape), dtype=dtype or rows.dtype)
    kernel(rows.cpu().contiguous(), result)
    return result.to(rows.device)


@cache
def module_of(name: str) -> Any:
    """The module of some kernels; None without one, and for derivations, whose executor takes more arguments."""
    place = importlib.util.resolve_name(ELSEWHERE.get(name, f"..{name}.cpu"), __package__)
    with suppress(ModuleNotFoundError):  # a structure without a folder
        if name != "derivations" and importlib.util.find_spec(place) is not None:
            return importlib.import_module(place)
    return None


def reach(values: Tensor, limit: float) -> int:
    """0 if no number exceeds a limit, 1 if some are -inf besides, 2 if some are larger, 3 if one is NaN or +inf.

    Values are looked at on the CPU alone, where elsewhere it would synchronise, and under no transform: 1 where they are not.
    """
    if not values.is_cpu or maybe_current_level() is not None:
        return 1
    values = values.detach() if values.requires_grad else values
    values = share_rows(values, 0) if 0 in values.stride() else values
    if values.dtype in FLOATING and running.get():
        return int(module_of("bounds").reach(values.contiguous().numpy().ravel(), limit))
    if not bool((values < math.inf).all()):
        return 3
    forbidden = values == -math.inf
    return int(forbidden.any()) if bool((forbidden | (values.abs() <= limit)).all()) else 2


class Kernel(NamedTuple):
    """A compiled function, ready to be called with contiguous CPU tensors that share their first dimension.

    Attributes:
        function: takes arrays, results last, then the options. Results hold zeros before.
        options: scalars.
        operations: inner-loop steps of a row, roughly.
        complete: whether it computes every row, and has no certificates to write.
        wider: the options with which it computes most of the rows that it refuses; empty where there are none.
    """

    function: _Function
    options: tuple[Any, ...]
    operations: int
    complete: bool = False
    wider: tuple[Any, ...] = ()

    def __call__(self, *tensors: Tensor) -> None:
        launch(self.function, [tensor.detach().numpy() for tensor in tensors], self.options, self.operations)

    def computed(self, inputs: tuple[Tensor, ...], outputs: Sequence[Output | None], reference: Reference) -> list[Tensor]:
        """Results [b, ...] of inputs [b, ...] without gradients; one that is None is like the first input.

        Rows that the kernel refuses are computed by the reference, in float64.
        """
        arrays, results, first, steps = list[np.ndarray](), list[Tensor](), inputs[0], self.operations
        # NumPy leaves large zeros to the system, which has pages of them; torch writes them, and records their memory.
        recorded = _observer.get() is not None
        for given in inputs:
            arrays.append(given.contiguous().numpy())
            if len(arrays) > 1:
                steps += PER_NUMBER * given[:1].numel()
        for output in outputs:
            size, dtype = (first.shape, first.dtype) if output is None else ((first.shape[0], *output[0]), output[1] or first.dtype)
            arrays.append(array := torch.zeros(size, dtype=dtype).numpy() if recorded else np.zeros(size, _NUMPY[dtype]))
            results.append(torch.from_numpy(array))
        if self.complete:
            launch(self.function, arrays, self.options, steps)
            return results
        arrays.append(certified := np.zeros(first.shape[0], np.bool_))
        launch(self.function, arrays, self.options, steps)
        if b"\0" in certified.tobytes():  # a reduction takes longer than a kernel of one row
            refused = torch.from_numpy(np.flatnonzero(~certified))
            again = tuple(given[refused] for given in inputs)
            if self.wider:
                found: Sequence[Tensor] = self._replace(options=self.wider, wider=()).computed(again, outputs, reference)
            else:
                found = reference(*(given.double() for given in again))
            for result, values in zip(results, found, strict=True):
                result[refused] = values.to(result.dtype)
        return results


_NUMPY = {dtype: np.dtype(str(dtype).removeprefix("torch.")) for dtype in (torch.float32, torch.float64, torch.bool, torch.int64)}


def launch(function: _Function, arrays: Sequence[Any], options: tuple[Any, ...], operations: int) -> None:
    """Call a kernel over the first dimension of arrays, in as many threads as torch uses where that pays.

    Rows are independent of each other, so that the result does not depend on how they are split.
    """
    rows, observer = len(arrays[0]), _observer.get()
    threads = min(rows, rows * operations // GRAIN)
    if observer is not None:
        observer(function, arrays, options)
    elif threads <= 1 or (threads := min(threads, torch.get_num_threads())) <= 1:
        function(*arrays, *options)
    else:
        edges = [rows * i // threads for i in range(threads + 1)]
        slices = [slice(first, last) for first, last in pairwise(edges)]
        others = [_pool(os.getpid(), threads - 1).submit(function, *(array[part] for array in arrays), *options) for part in slices[1:]]
        function(*(array[slices[0]] for array in arrays), *options)
        for other in others:
            other.result()


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kernels release the interpreter's lock. A forked process has none of its parent's threads, hence a pool of its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="structgrad-kernel")

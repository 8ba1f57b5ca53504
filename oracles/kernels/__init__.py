"""Compiled kernels: the hot loops, apart from the mathematics.

The folder of a structure holds functions over contiguous arrays whose first dimension is the batch, in ``cpu.py``; here is what they
share. `find` selects the kernel of an operation on the CPU. Everything else runs the torch references, in which the oracles are written,
on a GPU too. Kernels are compiled on first use and cached on disk. Importing this package compiles nothing and does not load the
compilers.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import maybe_current_level

from ..numerics import share_rows
from . import switch

GRAIN = 400_000
"""Inner-loop steps of a sum that a thread must get for its start to pay: some 200 microseconds, where to wake it takes 100."""

UNIFORM = 50
"""Such steps of a sampler's walk for each uniform that it takes."""

LIGHT = {"argmax": 5, "argmax_parts": 5}
"""Operations whose steps take a fraction of those of a sum: one by so many."""

HUGE = 2**25
"""Bytes from which on the allocator hands out pages that were never touched before."""

SMALL = 2**14
"""Bytes up to which the fixed cost of an allocation is what counts."""

_NUMPY = {dtype: np.dtype(str(dtype).removeprefix("torch.")) for dtype in (torch.float32, torch.float64, torch.bool, torch.int64)}

FLOATING = (torch.float32, torch.float64)
"""The dtypes of scores that kernels take."""

CERTIFYING = ("log_partition", "marginals", "covariance_product", "sample", "sample_parts")
"""Operations whose kernels may refuse rows outside their range: their last array, bool ``[b]``, is True for the rows that they computed."""

Output = tuple[tuple[int, ...], torch.dtype | None]
"""One result of an operation: its shape after the batch, and its dtype, that of the scores where it is None."""

Reference = Callable[..., Sequence[Tensor]]
"""The results of a kernel's inputs in plain torch."""

_Function = Callable[..., None]


@contextmanager
def disabled() -> Iterator[None]:
    """Run the torch references instead of the kernels, in this context; ``STRUCTGRAD_KERNELS=off`` in the environment does so everywhere.

    Example:
        >>> import torch
        >>> from structgrad.oracles import LinearChain, kernels
        >>> scores = torch.zeros(2, 3, 3)
        >>> with kernels.disabled():
        ...     LinearChain().log_partition(scores)
        tensor(2.1972)
    """
    with switch.serving_as(False):
        yield


_observer: ContextVar[Callable[..., None] | None] = ContextVar("structgrad_kernels_observer", default=None)
"""Calls kernels in the place of `launch`, in this context: of a function, its arrays and its options."""


@contextmanager
def _observed(observer: Callable[..., None]) -> Iterator[None]:
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@contextmanager
def recorded() -> Iterator[list[_Function]]:
    """The kernels that are called in this context, in their order, in one thread each.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> with recorded() as functions:
        ...     best = Categorical().argmax(torch.zeros(2, 3))
        >>> [function.__name__ for function in functions]
        ['argmax']
    """
    functions: list[_Function] = []

    def call(function: _Function, arrays: list[np.ndarray], options: tuple[Any, ...]) -> None:
        functions.append(function)
        function(*arrays, *options)

    with _observed(call):
        yield functions


@contextmanager
def shown_to_torch() -> Iterator[None]:
    """Let torch's own record of its memory show what kernels on the CPU take, in this context: results, and the workspace of every call.

    Each call runs in one thread. Python traces its memory meanwhile, which slows it.
    """
    traced = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        with _observed(_call_and_show):
            yield
    finally:
        if not traced:
            tracemalloc.stop()


class Kernel(NamedTuple):
    """A compiled function, ready to be called with contiguous CPU tensors that share their first dimension."""

    function: _Function
    options: tuple[Any, ...]
    operations: int
    complete: bool = False  # computes every row, and has no certificates to write

    def __call__(self, *tensors: Tensor) -> None:
        launch(self.function, [tensor.detach().numpy() for tensor in tensors], self.options, self.operations)

    def computed(self, inputs: tuple[Tensor, ...], outputs: Sequence[Output], reference: Reference, *, uniforms: int = 0) -> list[Tensor]:
        """Results [b, ...] of inputs [b, ...] without gradients. Rows that the kernel refuses are computed by the reference, in float64.

        So many uniforms for each row are work too: the walks that take them.
        """
        arrays, results = [given.contiguous().numpy() for given in inputs], []
        rows, operations = arrays[0].shape[0], self.operations + UNIFORM * uniforms
        for shape, dtype in outputs:
            array, result = _made((rows, *shape), dtype or inputs[0].dtype)
            arrays.append(array)
            results.append(result)
        if self.complete:
            launch(self.function, arrays, self.options, operations)
            return results
        certified = np.zeros(rows, np.bool_)
        arrays.append(certified)
        launch(self.function, arrays, self.options, operations)
        if b"\0" in certified.tobytes():  # a reduction takes longer than a kernel of one row
            refused = torch.from_numpy(np.flatnonzero(~certified))
            found = reference(*(given[refused].double() for given in inputs))
            for result, values in zip(results, found, strict=True):
                result[refused] = values.to(result.dtype)
        return results


def enabled(rows: Tensor) -> bool:
    """Whether kernels serve these rows: float32 or float64 on the CPU."""
    return rows.device.type == "cpu" and rows.dtype in FLOATING and switch.SERVING.get()


def find(structure: str | None, operation: str, rows: Tensor, options: tuple[Any, ...] = ()) -> Kernel | None:
    """The kernel of an operation for rows [b, *event] on the CPU, or None where the torch reference is to run."""
    if structure is None or not switch.SERVING.get() or rows.dtype not in FLOATING or not rows.is_cpu:
        return None
    return _planned(structure, operation, rows.shape[1:], options)


def find_unranking(structure: str | None, ranks: Tensor, event: tuple[int, ...], options: tuple[Any, ...]) -> Kernel | None:
    """The kernel that lists structures of an event by ranks [c] on the CPU, or None where the torch reference is to run."""
    if structure is None or not switch.SERVING.get() or not ranks.is_cpu:
        return None
    return _planned("unranking", structure, torch.Size(event), options)


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros for a kernel's results.

    NumPy allocates the small ones, which takes a quarter of the time, and those from `HUGE` on: it asks for huge pages, which takes a
    quarter too.
    """
    return _made(shape, dtype)[1]


def _made(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[np.ndarray, Tensor]:
    """`zeros`, as an array and as a tensor."""
    kind = _NUMPY.get(dtype)
    if kind is None or SMALL <= math.prod(shape) * kind.itemsize < HUGE or _observer.get():
        result = torch.empty(shape, dtype=dtype)
        array = result.numpy()
        array.fill(0)
        return array, result
    array = np.zeros(shape, kind)
    return array, torch.from_numpy(array)


def converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """`Tensor.to` of values without gradients.

    Where torch has several threads, NumPy converts many numbers, to the same ones: threads of OpenMP, which torch would wake, spin for a
    while where those of kernels want to run.
    """
    if values.dtype == dtype:
        return values
    if dtype not in FLOATING:
        return values.to(dtype)
    if torch.get_num_threads() > 1 and values.is_cpu and values.dtype in FLOATING and values.numel() * 8 >= SMALL and not _observer.get():
        with np.errstate(over="ignore", under="ignore"):
            return torch.from_numpy(values.numpy().astype(_NUMPY[dtype]))
    return values.float() if dtype == torch.float32 else values.double()  # in two thirds of the time


def reach(values: Tensor, limit: float) -> int:
    """0 if no number exceeds a limit, 1 if some are -inf besides, 2 if some are larger, 3 if one is NaN or +inf.

    Values are looked at on the CPU alone, where elsewhere it would synchronise, and under no transform: 1 where they are not.
    """
    if not values.is_cpu or maybe_current_level() is not None:
        return 1
    values = share_rows(values.detach(), 0) if 0 in values.stride() else values.detach()
    if values.dtype in FLOATING and switch.SERVING.get():
        return int(_bounds().reach(values.contiguous().numpy().ravel(), limit))
    if not bool((values < math.inf).all()):
        return 3
    forbidden = values == -math.inf
    return int(forbidden.any()) if bool((forbidden | (values.abs() <= limit)).all()) else 2


@cache
def _bounds() -> Any:
    return importlib.import_module(".bounds", __package__)


def in_one_thread(function: _Function, arguments: Sequence[Any]) -> None:
    """Call a kernel whose arguments `launch` cannot split by rows."""
    if (observer := _observer.get()) is None:
        function(*arguments)
    else:
        observer(function, arguments, ())


def launch(function: _Function, arrays: list[np.ndarray], options: tuple[Any, ...], operations: int) -> None:
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


def _call_and_show(function: _Function, arrays: list[np.ndarray], options: tuple[Any, ...]) -> None:
    """Call a kernel, then take as much from torch, for a moment, as it took at most: numba asks Python for its memory, which traces it."""
    # The interpreter keeps released tuples to use them again: as long as there are some, the call takes none from memory.
    spare = [tuple([None] * size) for size in range(20) for _ in range(16)]
    del spare
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    function(*arrays, *options)
    torch.empty(tracemalloc.get_traced_memory()[1] - before, dtype=torch.uint8)


ELSEWHERE = {"birkhoff": "..assignment.cpu_birkhoff", "philox": ".philox", "unranking": ".unranking"}
"""Kernels that are not in the ``cpu.py`` of a folder of their name."""


@cache
def _module(name: str) -> Any:
    """The module of some kernels; None without one, and for derivations, whose executor takes more arguments."""
    place = importlib.util.resolve_name(ELSEWHERE.get(name, f"..{name}.cpu"), __package__)
    with suppress(ModuleNotFoundError):  # a structure without a folder
        if name != "derivations" and importlib.util.find_spec(place) is not None:
            return importlib.import_module(place)
    return None


@lru_cache(maxsize=4096)
def _planned(structure: str, operation: str, event: torch.Size, options: tuple[Any, ...]) -> Kernel | None:
    """The kernel of an operation on rows of an event on the CPU."""
    module = _module(structure)
    if module is None:
        return None
    function = getattr(module, operation, None)
    if not callable(function):  # a package of kernels may have a module of that name
        return None
    steps = module.operations(tuple(event)) // LIGHT.get(operation, 1)
    return Kernel(function, options, steps, operation not in CERTIFYING)


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Kernels release the interpreter's lock. A forked process has none of its parent's threads, hence a pool of its own."""
    return ThreadPoolExecutor(threads, thread_name_prefix="structgrad-kernel")

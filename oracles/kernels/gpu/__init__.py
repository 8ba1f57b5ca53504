"""Kernels of the GPU, in Triton: one program per problem, one launch per batch.

A module has the name of the CPU's module for the same structure, and its functions have the same names and arguments: tensors that share
their first dimension, rows first, results last, then the oracle's options. What they keep:

* results hold anything when a function gets them, and it writes every entry, ignored ones with 0;
* nothing waits for the device, no value is read on the host, and memory comes from torch alone: an operation fits into a CUDA graph;
* the same input gives the same bits: no atomic sums;
* there is no range to certify, because they compute with logarithms or with scales of their own: in the dtype of the rows, but for
  samples, which are float64 throughout, like those of the CPU.

A module may limit itself by ``serves(operation, event, dtype, options)``; what it does not serve goes to the torch twins. Triton comes with
the CUDA builds of torch; without it, everything runs on the twins. On the CPU its interpreter runs the same kernels, slowly, for tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

_Function = Callable[..., None]

_interpreting: ContextVar[bool] = ContextVar("structgrad_kernels_interpreting", default=False)


class DeviceKernel(NamedTuple):
    """A function that launches kernels on the device of its tensors."""

    function: _Function
    options: tuple[Any, ...]

    def __call__(self, *tensors: Tensor) -> None:
        with torch.cuda.device_of(tensors[0]):
            self.function(*tensors, *self.options)

    def certify(self, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> None:
        """Call it; there is no row whose range does not suffice."""
        self(*inputs, *results)

    @staticmethod
    def results(shape: tuple[int, ...], rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Room for results: not filled, which would take a launch of its own."""
        return torch.empty(shape, dtype=dtype or rows.dtype, device=rows.device)


@contextmanager
def interpreted() -> Iterator[None]:
    """Run these kernels on CPU tensors by Triton's interpreter, in this context: to test them where there is no GPU.

    Raises:
        RuntimeError: where the variable TRITON_INTERPRET was not 1 when the process began; Triton decides when kernels are defined.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("`interpreted` got no TRITON_INTERPRET=1; expected that variable in the environment before the process starts")
    token = _interpreting.set(True)
    try:
        yield
    finally:
        _interpreting.reset(token)


def takes(tensor: Tensor) -> bool:
    """Whether these kernels are for this tensor's device."""
    return (tensor.is_cuda or (_interpreting.get() and tensor.device.type == "cpu")) and _available()


def find(structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> DeviceKernel | None:
    """The kernel of an operation, or None where the torch twin is to run."""
    function = _function(structure, operation, event, dtype, options)
    return None if function is None else DeviceKernel(function, options)


@cache
def _available() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=4096)
def _function(structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> _Function | None:
    if importlib.util.find_spec(f".{structure}", __name__) is None:
        return None
    module = importlib.import_module(f".{structure}", __name__)
    function: _Function | None = getattr(module, operation, None)
    serves = getattr(module, "serves", None)
    return function if serves is None or serves(operation, event, dtype, options) else None

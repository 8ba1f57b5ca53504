"""Kernels of the GPU, in Triton: one program per problem, one launch per batch.

The ``gpu.py`` of a structure stands beside its ``cpu.py``, and its functions have the same names and arguments: tensors that share
their first dimension, rows first, results last, then the oracle's options. What they keep:

* results hold anything when a function gets them, and it writes every entry, ignored ones with 0;
* nothing waits for the device, no value is read on the host, and memory comes from torch alone: an operation fits into a CUDA graph, but
  for its first use on a card, when `first_use` compares the kernel with plain torch;
* the same input gives the same bits: no atomic sums;
* there is no range to certify, because they compute with logarithms or with scales of their own: in the dtype of the rows, but for
  samples, which are float64 throughout, like those of the CPU.

A module may limit itself by ``serves(operation, event, dtype, options)``; what it does not serve goes to the torch references. Triton comes
with the CUDA builds of torch; without it, everything runs on the references. On the CPU its interpreter runs the same kernels, slowly, for
tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import modules, switch
from ..notices import say
from . import first_use
from .first_use import Reference, Trial, Use

T = TypeVar("T")

_Function = Callable[..., None]

Room = tuple[tuple[int, ...], torch.dtype]
"""The shape and the dtype of a result."""

LEAST_CAPABILITY = (7, 0)
"""Of the cards that Triton compiles for."""

_interpreting: ContextVar[bool] = ContextVar("structgrad_kernels_interpreting", default=False)
_comparing: ContextVar[bool] = ContextVar("structgrad_kernels_comparing", default=False)

interpreting = _interpreting.get
"""Whether Triton's interpreter is asked for in this context."""

_trusting = False

_TRUSTED = Use("", "", trusted=True)


class DeviceKernel(NamedTuple):
    """A function that launches kernels on the device of its tensors."""

    function: _Function
    options: tuple[Any, ...]
    use: Use = _TRUSTED

    def __call__(self, *tensors: Tensor) -> None:
        with torch.cuda.device_of(tensors[0]):
            self.function(*tensors, *self.options)

    def run(self, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], reference: Reference) -> None:
        """Write results: by the kernel, or by its reference where the kernel does not serve on this device; see `first_use`."""

        def by_reference() -> None:
            for result, value in zip(results, reference(*inputs), strict=True):
                result.copy_(value)

        if not self.use.proven:
            self.judge(lambda: self._trial(inputs, results, reference))
        self.attempt(lambda: self(*inputs, *results), by_reference)

    def run_certified(self, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], reference: Reference) -> None:
        """The same: there is no row whose range does not suffice."""
        self.run(inputs, results, reference)

    def computed(
        self,
        inputs: tuple[Tensor, ...],
        rooms: tuple[tuple[tuple[int, ...], torch.dtype], ...],
        reference: Reference,
        *,
        certified: bool = True,
    ) -> tuple[Tensor, ...]:
        """Results, as `run` writes them."""
        results = tuple(self.results(shape, inputs[0], dtype) for shape, dtype in rooms)
        self.run(inputs, results, reference)
        return results

    def drawing(self, uniforms: Tensor) -> DeviceKernel:
        """The same: a launch has no threads to deal."""
        return self

    def judge(self, trial: Callable[[], Trial]) -> None:
        """Before it serves for the first time: compare it with plain torch."""
        if not self.use.proven and not self.use.refused:
            first_use.judge(self.use, trial)

    def attempt(self, launch: Callable[[], T], otherwise: Callable[[], T]) -> T:
        """What a launch gives; where it fails, what plain torch gives, which is then asked from the beginning.

        Raises:
            Exception: what plain torch raises too, memory that ran out, and what a launch raises in the capture of a CUDA graph.
        """
        if self.use.refused:
            return otherwise()
        try:
            return launch()
        except Exception as error:
            if self.use.trusted or isinstance(error, torch.AcceleratorError) or _capturing():
                raise
            failure = first_use.out_of_memory_or(error)
        result = otherwise()
        self.use.fail(failure)
        return result

    def _trial(self, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], reference: Reference) -> Trial:
        def launch(given: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            made = tuple(
                torch.full(value.shape, math.nan if result.is_floating_point() else 1, dtype=result.dtype, device=given[0].device)
                for value, result in zip(expected, results, strict=True)
            )
            self(*given, *made)
            return made

        return Trial(first_use.problem(self.use, inputs, self.options), reference, launch)

    @staticmethod
    def results(shape: tuple[int, ...], rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Room for results: not filled, which would take a launch of its own."""
        return torch.empty(shape, dtype=dtype or rows.dtype, device=rows.device)


@contextmanager
def interpreted(*, comparing: bool = False) -> Iterator[None]:
    """Run these kernels on CPU tensors by Triton's interpreter, in this context: to test them where there is no GPU.

    Args:
        comparing: whether they are compared with plain torch when they are first used, and given up where they fail, as on a device.

    Raises:
        RuntimeError: where the variable TRITON_INTERPRET was not 1 when the process began; Triton decides when kernels are defined.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("`interpreted` got no TRITON_INTERPRET=1; expected that variable in the environment before the process starts")
    tokens = _interpreting.set(True), _comparing.set(comparing), switch.APART.set(True)
    try:
        yield
    finally:
        _interpreting.reset(tokens[0])
        _comparing.reset(tokens[1])
        switch.APART.reset(tokens[2])


@contextmanager
def trusted() -> Iterator[None]:
    """Let kernels of this process serve without being compared, and let their errors pass: to test the kernels themselves."""
    global _trusting  # of the process: gradients are computed in other threads
    before, _trusting = _trusting, True
    try:
        yield
    finally:
        _trusting = before


def takes(tensor: Tensor) -> bool:
    """Whether these kernels are for this tensor's device."""
    if tensor.is_cuda:
        return not unserved(tensor.get_device())
    return _interpreting.get() and tensor.device.type == "cpu" and _available()


@cache
def unserved(device: int) -> str:
    """Why no kernel serves on a CUDA device; empty where kernels do."""
    if torch.version.hip is not None:
        return "ROCm, where programs have other widths"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return f"compute capability {'.'.join(map(str, capability))}, below {'.'.join(map(str, LEAST_CAPABILITY))}"
    if not _available():
        return "no Triton"
    try:
        importlib.import_module("triton").runtime.driver.active.get_current_target()
    except Exception as error:  # whatever it is, no kernel can be launched
        why, advice = first_use.in_short(error), first_use.advice_on(error)
        if switch.CHOSEN == "check":
            raise RuntimeError(
                f"Triton cannot launch kernels: {why}; expected that it can, as {switch.VARIABLE}=check asks; {advice}"
            ) from error
        say(f"Triton cannot launch kernels: {why}; operations on CUDA devices go on in plain torch, more slowly; {advice}", why)
        return f"Triton cannot launch kernels: {why}"
    return ""


def find(
    structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...], device: int
) -> DeviceKernel | None:
    """The kernel of an operation on a device (below 0: the interpreter), or None where the torch reference is to run."""
    kernel = _kernel(structure, operation, event, dtype, options, device, _trusts(device))
    return None if kernel is None or kernel.use.refused else kernel


def serving(
    structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, function: _Function, options: tuple[Any, ...], device: int
) -> DeviceKernel | None:
    """A function from outside of this package as the kernel of an operation on a device, or None where it was given up there."""
    if _trusts(device):
        return DeviceKernel(function, options)
    use = first_use.use_of(structure, operation, event, dtype, options, device)
    return None if use.refused else DeviceKernel(function, options, use)


def _trusts(device: int) -> bool:
    return _trusting if device >= 0 else not _comparing.get()


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@cache
def _available() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=4096)
def _kernel(
    structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...], device: int, trusted: bool
) -> DeviceKernel | None:
    function = _function(structure, operation, event, dtype, options)
    if function is None or trusted:
        return None if function is None else DeviceKernel(function, options)
    return DeviceKernel(function, options, first_use.use_of(structure, operation, event, dtype, options, device))


def _function(structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[Any, ...]) -> _Function | None:
    name = modules.module_of(structure, "gpu")
    if name is None:
        return None
    module = importlib.import_module(name)
    function: _Function | None = getattr(module, operation, None)
    serves = getattr(module, "serves", None)
    return function if serves is None or serves(operation, event, dtype, options) else None

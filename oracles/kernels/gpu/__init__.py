"""Kernels of the GPU: which devices they serve, and how one is called, compared with plain torch, and given up.

One executor, `structgrad.oracles.derivations.gpu`, serves what states its derivations; everything else on a device is plain torch. What
its functions keep:

* results hold anything when a function gets them, and it writes every entry, ignored ones with 0;
* nothing waits for the device, no value is read on the host, and memory comes from torch alone: an operation fits into a CUDA graph, but
  for its first use on a card, when `first_use` compares it with plain torch;
* the same input gives the same bits: no atomic sums;
* there is no range to certify, because they compute with logarithms: in the dtype of the rows, but for samples, which are float64
  throughout, like those of the CPU.

Triton comes with the CUDA builds of torch; without it, everything runs in plain torch. On the CPU its interpreter runs the same kernels,
slowly, for tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import switch
from ..notices import say
from . import first_use
from .first_use import Output, Reference, Use

LEAST_CAPABILITY = (7, 0)
"""Of the cards that Triton compiles for."""

_interpreting: ContextVar[bool] = ContextVar("structgrad_kernels_interpreting", default=False)

interpreting = _interpreting.get
"""Whether Triton's interpreter is asked for in this context."""

_trusting = False


class DeviceKernel(NamedTuple):
    """A function that launches kernels on the device of its tensors: rows first, results last, then its options."""

    function: Callable[..., None]
    options: tuple[Any, ...]
    use: Use

    def __call__(self, *tensors: Tensor) -> None:
        with torch.cuda.device_of(tensors[0]):
            self.function(*tensors, *self.options)

    def drawing(self, uniforms: Tensor) -> DeviceKernel:
        """The same: a launch has no threads to deal."""
        return self

    def computed(self, inputs: tuple[Tensor, ...], outputs: Sequence[Output], reference: Reference) -> list[Tensor]:
        """Results of inputs without gradients: by the kernel, or by its reference where the kernel does not serve on this device.

        Raises:
            Exception: what plain torch raises too, memory that ran out, and what a launch raises in the capture of a CUDA graph.
        """
        inputs = tuple(map(Tensor.contiguous, inputs))
        rooms = [((len(inputs[0]), *shape), dtype or inputs[0].dtype) for shape, dtype in outputs]
        if not self.use.proven and not self.use.refused:
            first_use.judge(self.use, self.__call__, inputs, rooms, reference)
        failure = None
        if not self.use.refused:
            # Not filled, which would take a launch of its own.
            results = [torch.empty(shape, dtype=dtype, device=inputs[0].device) for shape, dtype in rooms]
            try:
                self(*inputs, *results)
                return results
            except Exception as error:
                if self.use.trusted or isinstance(error, torch.AcceleratorError) or _capturing():
                    raise
                failure = first_use.out_of_memory_or(error)
        found = [value.to(dtype) for value, (_, dtype) in zip(reference(*inputs), rooms, strict=True)]
        if failure is not None:
            self.use.fail(failure)
        return found


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


def serving(name: str, kind: tuple[Any, ...], function: Callable[..., None], options: tuple[Any, ...], device: int) -> DeviceKernel | None:
    """A function as the kernel of an operation on a device, or None where it was given up there.

    Args:
        name: of the structure and the operation.
        kind: what Triton compiles the same programs for.
        function: of inputs, results and options.
        options: after its tensors.
        device: below 0 the interpreter.
    """
    use = Use(name, device, trusted=True) if _trusting else first_use.use_of(name, kind, device)
    return None if use.refused else DeviceKernel(function, options, use)


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@cache
def _available() -> bool:
    return importlib.util.find_spec("triton") is not None

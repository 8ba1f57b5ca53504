"""A device of compute capability 9.0 that is not there: Triton binds, specialises, compiles and launches for it as for any other.

Triton itself is left as it is. Its launcher is compiled, and calls a driver's library (``pretended_cuda.c``) that takes what a device takes
and runs nothing. Kernels must have been defined without Triton's interpreter, and tensors lie in the memory of the host, or nowhere
(``meta``). This needs what Triton needs on every machine: a C compiler and Python's headers.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from structgrad.oracles.kernels import gpu

CAPABILITY = 90


class Driver(nvidia.CudaDriver):
    """CUDA's, of a device that is always the current one."""

    def __init__(self) -> None:
        _load_library()
        super().__init__()
        self.get_current_device = lambda: 0
        self.get_current_stream = lambda device: 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", CAPABILITY, 32)


_FOLDER = tempfile.TemporaryDirectory()
"""For as long as the process lives."""


def _load_library() -> None:
    """Where the process finds ``libcuda.so.1`` loaded, it looks for no other."""
    library = Path(_FOLDER.name, "libcuda.so.1")
    headers = Path(nvidia.__file__).with_name("include")
    compiler = os.environ.get("CC") or shutil.which("gcc") or "clang"
    options = ["-shared", "-fPIC", "-w", f"-I{headers}", "-Wl,-soname,libcuda.so.1", "-o", str(library)]
    subprocess.run([compiler, str(Path(__file__).with_name("pretended_cuda.c")), *options], check=True)
    ctypes.CDLL(str(library))
    library.with_suffix("").symlink_to(library)
    # For Triton to link with, by either name; on the machine that has a device, the same launcher finds that device's library.
    os.environ["TRITON_LIBCUDA_PATH"] = _FOLDER.name


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        kernel: the function.
        grid: of programs.
        compiled: what Triton made of it; None where that, or the launch, failed.
        seconds: of CPU time, with those of the compiler.
        error: why.
    """

    kernel: JITFunction
    grid: tuple[int, ...]
    compiled: Any
    seconds: float
    error: Exception | None


@contextmanager
def launched() -> Iterator[list[Launch]]:
    """The launches of this context, in which kernels of the GPU serve tensors of the host; what they are to write is 0."""
    launches: list[Launch] = []
    original = JITFunction.run

    def run(kernel: JITFunction, *args: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> Any:
        start, compiled, error = _cpu_seconds(), None, None
        try:
            if math.prod(grid) >= 2**31:
                # Triton multiplies 32-bit numbers, and silently launches nothing where the product is negative.
                raise ValueError(f"grid {grid} has more programs than Triton launches")
            compiled = original(kernel, *args, grid=grid, warmup=warmup, **named)
        except Exception as raised:
            error = raised
            raise
        finally:
            launches.append(Launch(kernel, tuple(grid), compiled, _cpu_seconds() - start, error))
        return compiled

    JITFunction.run = run
    token = gpu._interpreting.set(True)
    try:
        with _Zeroed():
            yield launches
    finally:
        JITFunction.run = original
        gpu._interpreting.reset(token)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Zeroed(TorchFunctionMode):
    """What is left to kernels to write holds 0: any other number might send what follows astray."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result.zero_() if function in (torch.empty, torch.empty_like, torch.Tensor.new_empty) else result


def set_up() -> None:
    """Make it Triton's device, for the rest of the process."""
    driver.set_active(Driver())

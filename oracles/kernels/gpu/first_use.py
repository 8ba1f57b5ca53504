"""First use of a kernel on a device: it is compared with plain torch there; where it fails, it is given up for the process.

What is compared is what is in use: for the event shape and dtype of the call, and for all sizes for which Triton compiles the same
programs. Rows hold numbers that float32 adds exactly; the reference is plain torch in float64 on the CPU. That waits for the device, once.
"""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .. import switch
from ..notices import say

Reference = Callable[..., Sequence[Tensor]]
"""The results of a kernel's inputs in plain torch."""

Output = tuple[tuple[int, ...], torch.dtype | None]
"""One result of an operation: its shape after the batch, and its dtype, that of the scores where it is None."""

Room = tuple[tuple[int, ...], torch.dtype]
"""The shape and the dtype of a result."""

SCALES = (1.0, 0.25, 4.0)
"""Scales of the compared rows. In those of the second, one part in 16 is forbidden."""

STEPS = 1024
"""Scores are multiples of 1 / STEPS up to 4, which float32 adds without rounding: both find the same best structure."""

LARGEST = 2**16
"""Entries of an event up to which plain torch takes less than a second or two; larger ones serve without a comparison."""

SAMPLES = 32
"""The most samples of a row that are compared."""

_judging = threading.Lock()


class Use:
    """The verdict of this process on a kernel of a device. Errors of a trusted kernel are raised, for tests."""

    __slots__ = ("device", "name", "proven", "refused", "trusted")

    def __init__(self, name: str, device: int, *, trusted: bool = False) -> None:
        self.name, self.device, self.trusted = name, device, trusted
        self.proven, self.refused = trusted, ""

    def refuse(self, why: str, cause: str, advice: str, error: Exception | None = None) -> None:
        """Let it serve no longer, and say so.

        Raises:
            RuntimeError: instead, where the environment asks for a check.
        """
        on = "Triton's interpreter" if self.device < 0 else f"cuda:{self.device}"
        sentence = f"the kernel `{self.name}` does not serve on {on}: {why}"
        if switch.CHOSEN == "check":
            raise RuntimeError(f"{sentence}; expected that it does, as {switch.VARIABLE}=check asks; {advice}") from error
        self.refused = why
        say(f"{sentence}; its operation goes on in plain torch, more slowly; {advice}", cause)

    def fail(self, error: Exception) -> None:
        """Let it serve no longer, because a launch raised an error that its reference does not share."""
        cause = in_short(error)
        self.refuse(cause, cause, advice_on(error), error)


@cache
def use_of(name: str, kind: tuple[Any, ...], device: int) -> Use:
    """The one record in this process of a kernel, for events of one kind, on a device."""
    return Use(name, device)


def judge(use: Use, launch: Callable[..., None], inputs: tuple[Tensor, ...], rooms: Sequence[Room], reference: Reference) -> None:
    """Find out whether a kernel may serve, by rows like those of a call.

    Raises:
        RuntimeError: in the capture of a CUDA graph, where no result can be looked at; where the kernel broke CUDA for this process; and
            where it does not serve, if the environment asks for a check.
    """
    with _judging:
        if use.proven or use.refused or inputs[0][:1].numel() > LARGEST:
            return
        if use.device >= 0 and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the kernel `{use.name}` got its first call inside the capture of a CUDA graph; expected one before, in which it is "
                "compiled and compared with plain torch; call the operation once before the capture, with scores of the same shape"
            )
        mode = torch.cuda.get_sync_debug_mode() if use.device >= 0 else 0
        if use.device >= 0:
            torch.cuda.set_sync_debug_mode(0)  # the comparison waits for the device, also where the caller forbids that
            torch.cuda.synchronize(use.device)  # an error of earlier launches is not the kernel's
        try:
            # In a thread of its own, free of what the caller has set for torch: modes, transforms, streams, gradients, autocasting.
            with ThreadPoolExecutor(1) as pool:
                pool.submit(_compare, use, launch, inputs, rooms, reference).result()
        except torch.AcceleratorError as error:
            said = str(error).strip().split("\n")[0]
            raise RuntimeError(
                f"the kernel `{use.name}` broke CUDA when it was compared with plain torch ({said}), and nothing more can be computed in "
                f"this process; start it again with {switch.VARIABLE}=off"
            ) from error
        finally:
            if use.device >= 0:
                torch.cuda.set_sync_debug_mode(mode)


def _compare(use: Use, launch: Callable[..., None], inputs: tuple[Tensor, ...], rooms: Sequence[Room], reference: Reference) -> None:
    from .. import disabled  # imported here, because it imports this

    # Where nothing is feasible, the kernel's best structure is any.
    given = _problem(inputs, forbidding=".argmax " not in use.name, uniforms=".sample " in use.name)
    with disabled():
        expected = reference(*(value.double() for value in given))
    found = tuple(
        torch.full(value.shape, math.nan, dtype=dtype, device=inputs[0].device) for value, (_, dtype) in zip(expected, rooms, strict=True)
    )
    try:
        launch(*(value.to(inputs[0].device) for value in given), *found)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        use.fail(out_of_memory_or(error))
        return
    said = (_difference(ours.cpu().double(), theirs.double(), given[0]) for ours, theirs in zip(found, expected, strict=True))
    wrong = "; ".join(filter(None, said))
    if wrong:
        use.refuse(f"it differs from plain torch: {wrong}", use.name, "report it with what `structgrad doctor` says")
    use.proven = not wrong


def _problem(inputs: tuple[Tensor, ...], *, forbidding: bool, uniforms: bool) -> tuple[Tensor, ...]:
    """Inputs like those of a call, on the CPU: a few rows of several scales, with directions or uniforms."""
    generator, (rows, *others) = torch.Generator().manual_seed(1), inputs
    shape, scale = (len(SCALES), *rows.shape[1:]), torch.tensor(SCALES).reshape(-1, *[1] * (rows.ndim - 1))
    steps = torch.randint(-4 * STEPS, 4 * STEPS + 1, (2, *shape), generator=generator).double() / STEPS
    made = [steps[0] * scale]
    if forbidding:
        made[0][1][torch.rand(shape[1:], generator=generator) < 1 / 16] = -math.inf
    for other in others:
        size = (len(SCALES), min(other.shape[1], SAMPLES), *other.shape[2:])
        made.append(torch.rand(size, generator=generator, dtype=torch.float64) if uniforms else steps[1] / 4)
    return tuple(value.to(given.dtype) for value, given in zip(made, inputs, strict=True))


def _difference(found: Tensor, expected: Tensor, rows: Tensor) -> str:
    """In words; empty where the numbers agree up to what rounding can make of results of these rows, infinite ones exactly."""
    greatest = torch.where(rows > -math.inf, rows.double().abs(), 0).flatten(1).amax(1)
    size = torch.where(expected.isfinite(), expected.abs(), 0).reshape(len(expected), -1).amax(1)
    allowed = (1e-9 + 2 * torch.finfo(rows.dtype).eps * (1 + greatest * sum(rows.shape[1:]))) * (1 + size)
    apart = torch.where(found == expected, 0, (found - expected).abs()).nan_to_num(math.inf, math.inf)
    excess = int((apart > allowed.reshape(-1, *[1] * (expected.ndim - 1))).sum())
    largest = f"by up to {float(apart.max()):.3g} where {float(allowed.min()):.1g} is rounding"
    return f"{excess} of {apart.numel()} numbers, {largest}" if excess else ""


def out_of_memory_or(error: Exception) -> Exception:
    """The error of a launch.

    Raises:
        torch.OutOfMemoryError: it is that; Triton has no class for it.
    """
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    if isinstance(error, RuntimeError) and str(error).startswith("Triton Error") and "out of memory" in str(error):
        raise torch.OutOfMemoryError(str(error)) from error
    return error


def in_short(error: Exception) -> str:
    """One line of an error, the same for the same cause."""
    if isinstance(error, subprocess.CalledProcessError):
        # The rest of a command names temporary files.
        return f"{error.cmd if isinstance(error.cmd, str) else error.cmd[0]} ended with {error.returncode}"
    return " ".join(f"{type(error).__name__}: {error}".partition("Repro command")[0].split())[:200]


def advice_on(error: Exception) -> str:
    """Advice on a kernel that cannot be launched."""
    if isinstance(error, subprocess.CalledProcessError) or "C compiler" in str(error):
        return "install a C compiler and the headers of Python (such as gcc and python3-dev), which Triton needs"
    if "ptxas" in str(error) and "is not defined" in str(error):  # Value 'sm_120' is not defined for option 'gpu-name'
        return "install a torch, with its Triton, that knows this card"
    return "`structgrad doctor` shows the devices that kernels can use"

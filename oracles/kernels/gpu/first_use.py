"""First use of a kernel on a device: it is compared with plain torch there; where it fails, it is given up.

What is compared is what is in use: a kernel for the event shape, dtype and options of the call, for all sizes for which Triton compiles the
same program. Its rows are numbers that float32 adds exactly, its reference is plain torch in float64 on the CPU. That waits for the device,
once for a kernel and a card: verdicts are kept on disk, see `verdicts`.
"""

from __future__ import annotations

import math
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from .. import switch
from ..notices import say
from . import verdicts

T = TypeVar("T")
Reference = Callable[..., tuple[Tensor, ...]]
"""The results of a kernel's inputs in plain torch."""

INTERPRETER = -1
"""Stands for a device."""

SCALES = (1.0, 0.25, 4.0)
"""Of the rows that are compared; those of the second have forbidden parts."""

FORBIDDEN = 1 / 16
"""Of the parts of such a row."""

STEPS = 1024
"""Scores are multiples of 1 / STEPS up to 4, which float32 adds without rounding: both find the same best structure."""

LARGEST = 128
LARGEST_PROJECTION = 64
LARGEST_ALIGNMENT = 512
LARGEST_LINE = 4096
"""Sizes of an event up to which plain torch takes less than a second or two; a kernel for larger ones is compared at these."""

DERIVED = "derivations."
"""What the names of structures begin with that one executor serves by their derivations, which are those of one event."""

MOST_SAMPLES = 32
MOST_RANKS = 64


class Use:
    """What is known of a kernel on a device, for sizes of one kind.

    Attributes:
        structure, operation: what it computes.
        name: and for which kind of sizes.
        device: the index of a CUDA device, or `INTERPRETER`.
        trusted: whether nothing is asked and nothing caught: its errors are what a test wants to see.
        proven: whether it agreed with plain torch.
        refused: why it does not serve, empty where nothing is known against it.
    """

    __slots__ = ("device", "name", "operation", "proven", "refused", "structure", "trusted")

    def __init__(self, structure: str, operation: str, kind: str = "", device: int = INTERPRETER, *, trusted: bool = False) -> None:
        self.structure, self.operation, self.device, self.trusted = structure, operation, device, trusted
        self.name = f"{structure}.{operation} {kind}"
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
        """Let it serve no longer in this process, because a launch raised an error that its reference does not share."""
        cause = in_short(error)
        self.refuse(cause, cause, advice_on(error), error)
        if of_all(error):
            _without[self.device] = cause


class Trial(NamedTuple):
    """A tiny problem for a kernel.

    Attributes:
        inputs: on the CPU; rows first.
        reference: gives the results in plain torch.
        launch: gives those of the kernel, for inputs on its device and for the expected results, whose shapes it may need.
    """

    inputs: tuple[Tensor, ...]
    reference: Reference
    launch: Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], tuple[Tensor, ...]]


def use_of(structure: str, operation: str, event: tuple[int, ...], dtype: torch.dtype, options: tuple[object, ...], device: int) -> Use:
    """The one record in this process of a kernel, for events of one kind, on a device."""
    return _use(structure, operation, kind(capped(structure, operation, event, options), dtype, options), device)


_use = cache(Use)


_judging = threading.Lock()

_without: dict[int, str] = {}
"""Devices for which nothing can be compiled now, and why: each attempt would take a second and print what Triton asks to be sent."""


def judge(use: Use, trial: Callable[[], Trial]) -> None:
    """Find out whether a kernel may serve, from the disk or by a trial.

    Raises:
        RuntimeError: inside the capture of a CUDA graph, where no result can be looked at; where the kernel broke CUDA for this process;
            and where it does not serve, if the environment asks for a check.
    """
    with _judging:
        if use.proven or use.refused:
            return
        if use.device in _without:
            use.refused = _without[use.device]
            return
        known = None if switch.CHOSEN == "check" else verdicts.recorded(use.device).get(use.name)
        if known is None:
            known = _tried(use, trial)
        if known == verdicts.RIGHT:
            use.proven = True
        elif known is not None:
            advice = f"report it with what `structgrad doctor` says; delete {verdicts.file(use.device)} to have it compared anew"
            use.refuse(f"it differs from plain torch: {known}", use.name, advice)


def _tried(use: Use, trial: Callable[[], Trial]) -> str | None:
    """A verdict, which is recorded; a kernel that cannot be launched fails, and gets none."""
    if use.device >= 0:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"the kernel `{use.name}` got its first call inside the capture of a CUDA graph; expected one before, in which it is "
                "compiled and compared with plain torch; call the operation once before the capture, with scores of the same shape"
            )
        torch.cuda.synchronize(use.device)  # an error of what was launched before is not the kernel's
    try:
        verdict = _compared_or_failed(use, trial)
    except torch.AcceleratorError as error:
        said = str(error).strip().split("\n")[0]
        verdicts.record(use.device, use.name, f"it broke CUDA ({said})")
        raise RuntimeError(
            f"the kernel `{use.name}` broke CUDA when it was compared with plain torch ({said}), and nothing more can be computed in this "
            "process; start it again: the operation goes on in plain torch"
        ) from error
    if verdict is not None:
        verdicts.record(use.device, use.name, verdict)
    return verdict


def _compared_or_failed(use: Use, trial: Callable[[], Trial]) -> str | None:
    try:
        with _waiting(use.device):
            return apart(lambda: compared(trial(), use.device))
    except LaunchError as error:
        if use.device >= 0:
            torch.cuda.synchronize(use.device)  # Triton gives an error that CUDA met before for one of its own
        use.fail(out_of_memory_or(error.error))
        return None


@contextmanager
def _waiting(device: int) -> Iterator[None]:
    """Wait for a device though torch was asked to report or refuse that."""
    mode = torch.cuda.get_sync_debug_mode() if device >= 0 else 0
    if mode:
        torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


class LaunchError(Exception):
    """A kernel raised an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def compared(trial: Trial, device: int) -> str:
    """How a kernel differs from plain torch on a problem; empty where it does not."""
    from .. import disabled  # imported here, because it imports this

    with disabled():
        expected = trial.reference(*(given.double() if given.is_floating_point() else given for given in trial.inputs))
    place = torch.device("cuda", device) if device >= 0 else torch.device("cpu")
    given = tuple(value.to(place) for value in trial.inputs)
    try:
        found = trial.launch(given, expected)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        raise LaunchError(error) from error
    tolerance = _tolerance(trial.inputs[0])
    differences = (_difference(ours.cpu(), theirs, tolerance) for ours, theirs in zip(found, expected, strict=True))
    return "; ".join(said for said in differences if said)


def _tolerance(rows: Tensor) -> Tensor:
    """What rounding can make of results, for each row."""
    if not rows.is_floating_point():
        return torch.zeros(len(rows), dtype=torch.float64)
    greatest = torch.where(rows > -math.inf, rows.double().abs(), 0).flatten(1).amax(1)
    return 1e-9 + 2 * torch.finfo(rows.dtype).eps * (1 + greatest * sum(rows.shape[1:]))


def _difference(found: Tensor, expected: Tensor, tolerance: Tensor) -> str:
    """In words; empty where the numbers agree, infinite ones exactly."""
    ours, theirs = found.double(), expected.double()
    if ours.shape != theirs.shape:
        return f"shape {tuple(ours.shape)} for {tuple(theirs.shape)}"
    size = torch.where(theirs.isfinite(), theirs.abs(), 0).reshape(len(theirs), -1).amax(1)
    allowed = (tolerance * (1 + size)).reshape(-1, *[1] * (theirs.ndim - 1))
    apart = torch.where(ours == theirs, 0, (ours - theirs).abs()).nan_to_num(math.inf, math.inf)
    excess = apart > allowed
    if not bool(excess.any()):
        return ""
    return (
        f"{int(excess.sum())} of {excess.numel()} numbers, by up to {float(apart.max()):.3g} where {float(allowed.min()):.1g} is rounding"
    )


def apart(call: Callable[[], T]) -> T:
    """In a thread of its own, free of what its caller has set for torch: modes, transforms, streams, gradients, autocasting."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


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
        command = error.cmd if isinstance(error.cmd, str) else error.cmd[0]
        return f"{command} ended with {error.returncode}"
    return " ".join(f"{type(error).__name__}: {error}".partition("Repro command")[0].split())[:200]


def advice_on(error: Exception) -> str:
    """What to do about a kernel that cannot be launched."""
    if _lacks_compiler(error):
        return "install a C compiler and the headers of Python (such as gcc and python3-dev), which Triton needs"
    if _lacks_card(error):
        return "install a torch, with its Triton, that knows this card"
    return "`structgrad doctor` lists what is served by what"


def of_all(error: Exception) -> bool:
    """Whether every kernel would fail so."""
    return _lacks_compiler(error) or _lacks_card(error)


def _lacks_compiler(error: Exception) -> bool:
    return isinstance(error, subprocess.CalledProcessError) or "C compiler" in str(error)


def _lacks_card(error: Exception) -> bool:
    """In the words of Triton's assembler: ``Value 'sm_120' is not defined for option 'gpu-name'``."""
    return "ptxas" in str(error) and "is not defined" in str(error)


def capped(structure: str, operation: str, event: tuple[int, ...], options: tuple[object, ...]) -> tuple[int, ...]:
    """The event at which a kernel is compared."""
    if operation == "sample" or structure.startswith(DERIVED):
        # Their number of uniforms belongs to the event; and they need no derivative.
        return event
    if len(event) == 1:
        # With room for the parts that a subset must have.
        most = max([LARGEST_LINE, *(2 * option for option in options if isinstance(option, int))])
    elif operation == "project":
        most = LARGEST_PROJECTION
    else:
        most = LARGEST_ALIGNMENT if structure == "alignment" else LARGEST
    return tuple(min(size, most) for size in event)


def kind(event: tuple[int, ...], dtype: torch.dtype, options: tuple[object, ...]) -> str:
    """The sizes for which Triton compiles the same programs: blocks are powers of two, and multiples of 16 are known to be."""
    shape = "x".join(map(_extent, event))
    chosen = "".join(f" {option if isinstance(option, bool) else _extent(option)}" for option in options if isinstance(option, int))
    return f"{shape} {str(dtype).removeprefix('torch.')}{chosen}"


def _extent(size: int) -> str:
    """A power of two, or one more; else between which of them, and whether it is a multiple of 16."""
    block = 1 << max(size - 1, 0).bit_length()
    if size == block:
        return f"{size}"
    if size - 1 == block // 2:
        return f"{size - 1}+1"
    return f"<{block}{'' if size % 16 else '/16'}"


def problem(use: Use, given: tuple[Tensor, ...], options: tuple[object, ...]) -> tuple[Tensor, ...]:
    """Inputs like those of a call, on the CPU: few rows, and their event `capped`."""
    generator, operation = torch.Generator().manual_seed(1), use.operation
    if use.structure == "unranking":
        # There is a structure of rank 0, and one of every rank up to those of the call.
        most = int(given[0].max()) if len(given[0]) else 0
        return (torch.tensor(sorted({most * place // (MOST_RANKS - 1) for place in range(MOST_RANKS)})),)
    if operation == "uniforms":
        keys = torch.randint(-(2**63), 2**63 - 1, (len(SCALES),), generator=generator)
        return keys, torch.arange(len(SCALES)) * 1000
    event = capped(use.structure, operation, tuple(given[0].shape[1:]), options)
    rows = scores(event, generator, forbidding=operation != "argmax").to(given[0].dtype)
    if operation == "solve":
        return rows - rows.amax(1, keepdim=True), torch.tensor([0.5, 0.0, 1.3], dtype=rows.dtype)
    if operation == "covariance_product":
        direction = scores(event, generator, forbidding=False).to(rows.dtype)
        return rows, direction / direction.abs().amax()
    if operation == "sample":
        size = (len(SCALES), min(given[1].shape[1], MOST_SAMPLES), given[1].shape[2])
        return rows, torch.rand(size, generator=generator, dtype=torch.float64)
    return (rows,)


def scores(event: tuple[int, ...], generator: torch.Generator, *, forbidding: bool) -> Tensor:
    """Rows [3, *event], float64, of several scales."""
    shape = (len(SCALES), *event)
    steps = torch.randint(-4 * STEPS, 4 * STEPS + 1, shape, generator=generator).double()
    rows = steps / STEPS * torch.tensor(SCALES).reshape(-1, *[1] * len(event))
    if forbidding:
        rows[1][torch.rand(event, generator=generator) < FORBIDDEN] = -math.inf
    return rows

"""What may happen to a call in a process of its own; see `test_isolation`, and `tests.reports.verbs.test_doctor_device`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def fine(number: int) -> dict[str, Any]:
    print("this goes to standard error")  # noqa: T201
    return {"number": number, "process": os.getpid()}


def raising(number: int) -> dict[str, Any]:
    raise RuntimeError(f"no {number}\nat all")


def greedy(limit: float, wanted: int) -> dict[str, Any]:
    # Imports torch, which would cost every process here seconds.
    from structgrad.suites.speed.comparison import limit_memory

    limit_memory(limit)
    return {"got": np.ones(wanted, dtype=np.uint8).size}


def no_number(number: int) -> dict[str, Any]:
    return {"number": float("nan")}


def leaving(number: int) -> dict[str, Any]:
    sys.stderr.write("a last word\n")
    sys.stderr.flush()
    os._exit(9)


def killed(number: int) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def crashing(number: int) -> dict[str, Any]:
    return {"read": ctypes.string_at(number)}


def sleeping(number: int) -> dict[str, Any]:
    time.sleep(10_000)
    return {}


def with_a_child(path: str) -> dict[str, Any]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(10_000)
    return {}


def planted(step: str, case: str, operation: str, batch: int, device: str) -> dict[str, Any]:
    """A step of `structgrad doctor --device`, of which some end badly."""
    match operation, step:
        case "argmax", "right":
            return {"off": {"float32": 0.25, "float64": 0.0}}
        case "log_partition", "right":
            os.kill(os.getpid(), signal.SIGKILL)
        case "log_partition", "structgrad":
            os._exit(9)
        case "marginals", "torch":
            time.sleep(10_000)
        case "sample", "structgrad":
            return {"seconds": 1.0, "repeats": False, "finite": True, "kernel": True}
        case "sample64", "structgrad":
            from tests.suites import planted_at_import

            return {"module": planted_at_import.__name__}
        case "project", "structgrad":
            raise MemoryError("CUDA out of memory, as it were")
        case "marginals", _:
            from structgrad.suites.speed.device import measure

            return measure(step, case, operation, batch, device)
    return {"off": {}} if step == "right" else {"seconds": 1.0, "ours": 0.5}

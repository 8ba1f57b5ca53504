"""Errors of launches: which of them they are, and what to do about them."""

from __future__ import annotations

import subprocess

import torch


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

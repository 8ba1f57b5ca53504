"""Verdicts on kernels that were compared with plain torch, kept on disk: by device, and by the versions of all they are made of.

A file holds a line for every verdict. Lines are only ever appended, each by one write, so that processes do not wait for each other; what
cannot be read is skipped, and what cannot be written is found anew by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
from functools import cache
from pathlib import Path

import torch

from ....user_cache import user_cache
from .. import modules

RIGHT = ""
"""The verdict on a kernel that agrees; else it says how it differs."""


def recorded(device: int) -> dict[str, str]:
    """Verdicts by the names of kernels, on a CUDA device; a device below 0 is Triton's interpreter."""
    found: dict[str, str] = {}
    try:
        lines = file(device).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, RuntimeError):  # no such file, or no home
        return found
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kernel, wrong = (json.loads(line)[key] for key in ("kernel", "wrong"))
            if isinstance(kernel, str) and isinstance(wrong, str):
                found[kernel] = wrong
    return found


def record(device: int, kernel: str, wrong: str) -> None:
    """Add a verdict."""
    # Begun on a line of its own, whatever a process that was killed has left behind.
    line = "\n" + json.dumps({"kernel": kernel, "wrong": wrong} | identity(device)) + "\n"
    with contextlib.suppress(OSError, RuntimeError):
        path = file(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        place = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(place, line.encode())
        finally:
            os.close(place)


def file(device: int) -> Path:
    """Where the verdicts on a device are."""
    name = hashlib.blake2b(json.dumps(identity(device)).encode(), digest_size=8).hexdigest()
    return user_cache() / f"kernels-{name}.jsonl"


@cache
def identity(device: int) -> dict[str, str]:
    """What a verdict holds for."""
    triton = importlib.import_module("triton")
    where = {"device": "Triton's interpreter"}
    if device >= 0:
        major, minor = torch.cuda.get_device_capability(device)
        where = {"device": torch.cuda.get_device_name(device), "capability": f"{major}.{minor}"}
    return where | {"torch": torch.__version__, "triton": triton.__version__, "source": _source()}


def _source() -> str:
    """Of the kernels themselves."""
    found = hashlib.blake2b(digest_size=8)
    for path in modules.files("gpu"):
        found.update(path.read_bytes())
    return found.hexdigest()

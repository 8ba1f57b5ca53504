"""Modules of kernels: which one holds those of a structure for a kind of device.

They lie in the folder of their structure, in ``cpu.py`` and ``gpu.py`` and files beside them; what several structures share lies here.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "gpu"]

_ROOM = __name__.rpartition(".kernels.")[0]

_PARTS = {"birkhoff": ("assignment", "_birkhoff"), "entmax": ("simplex", "_entmax")}
"""Kernels beside those of a structure: the folder, and what their file is called behind the kind of device."""

_SHARED = ("bounds", "philox", "unranking")
"""Kernels of no structure alone."""

_APART = ("derivations",)
"""An executor that takes derivations besides, and is asked for by who has them."""


@cache
def module_of(kernels: str, device: Device) -> str | None:
    """The module of some kernels, None where there is none.

    Example:
        >>> module_of("subset", "cpu"), module_of("categorical", "cpu")
        ('structgrad.oracles.subset.cpu', None)
    """
    if kernels in _APART:
        return None
    if kernels in _SHARED:
        name = f"{_ROOM}.kernels.{kernels}" if device == "cpu" else f"{_ROOM}.kernels.gpu.{kernels}"
    else:
        folder, part = _PARTS.get(kernels, (kernels, ""))
        name = f"{_ROOM}.{folder}.{device}{part}"
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:  # a structure without a folder
        return None


def files(device: Device) -> list[Path]:
    """The sources of all kernels for a kind of device, and of what they share."""
    room = Path(__file__).parents[1]
    shared = room / "kernels" if device == "cpu" else room / "kernels" / "gpu"
    beside = {room / "derivations" / "device.py"} if device == "gpu" else set()
    return sorted({*shared.glob("*.py"), *room.glob(f"*/{device}*.py"), *room.glob(f"*/{device}/*.py"), *beside})

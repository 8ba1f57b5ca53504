"""Modules of kernels on the CPU: the one of each structure.

Kernels of a structure are in its folder, in ``cpu*.py``. Kernels that several structures share are in this folder.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

_ROOM = __name__.rpartition(".kernels.")[0]

_PARTS = {"birkhoff": ("assignment", "_birkhoff")}
"""Further kernels of a structure: its folder, and the end of the file name after ``cpu``."""

_SHARED = ("bounds", "philox", "unranking")
"""Kernels of no structure alone."""

_APART = ("derivations",)
"""An executor that takes derivations besides, and is asked for by who has them."""


@cache
def module_of(kernels: str) -> str | None:
    """The module of some kernels, None where there is none.

    Example:
        >>> module_of("subset"), module_of("categorical")
        ('structgrad.oracles.subset.cpu', None)
    """
    if kernels in _APART:
        return None
    folder, part = _PARTS.get(kernels, (kernels, ""))
    name = f"{_ROOM}.kernels.{kernels}" if kernels in _SHARED else f"{_ROOM}.{folder}.cpu{part}"
    try:
        return name if importlib.util.find_spec(name) is not None else None
    except ModuleNotFoundError:  # a structure without a folder
        return None


def files() -> list[Path]:
    """The sources of all kernels, and of what they share."""
    room = Path(__file__).parents[1]
    return sorted({*(room / "kernels").glob("*.py"), *room.glob("*/cpu*.py"), *room.glob("*/cpu/*.py")})

"""Engines: workers on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..planning.plan import Machine, Plan
from ..work import Cell
from .base import Engine
from .local import LocalEngine


def _ray(plan: Plan, machine: Machine, folder: Path, limit: Callable[[Cell], float]) -> Engine:
    from .ray import RayEngine

    return RayEngine(plan, machine, folder, limit)


ENGINES: dict[str, Callable[[Plan, Machine, Path, Callable[[Cell], float]], Engine]] = {"local": LocalEngine, "ray": _ray}
"""By name; the library of an engine is imported when it is chosen."""

__all__ = ["ENGINES", "Engine"]

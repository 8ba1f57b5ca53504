"""Engines: workers on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..planning.plan import Machine, Plan
from .base import Engine, Limit
from .local import LocalEngine


def _ray(plan: Plan, machine: Machine, folder: Path, limit: Limit) -> Engine:
    from .ray import RayEngine

    return RayEngine(plan, machine, folder, limit)


ENGINES: dict[str, Callable[[Plan, Machine, Path, Limit], Engine]] = {"local": LocalEngine, "ray": _ray}
"""By name; the library of an engine is imported when it is chosen."""

"""Engines: workers on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable

from ..planning.plan import Machine, Plan
from .base import Engine
from .local import LocalEngine


def _local(plan: Plan, machine: Machine) -> Engine:
    return LocalEngine(plan, machine)


def _ray(plan: Plan, machine: Machine) -> Engine:
    from .ray import RayEngine

    return RayEngine(plan, machine)


ENGINES: dict[str, Callable[[Plan, Machine], Engine]] = {"local": _local, "ray": _ray}
"""By name; what an engine needs is imported when it is chosen."""

__all__ = ["ENGINES", "Engine"]

"""Tasks: what models with latent structure learn, and how to train them with every estimator."""

from __future__ import annotations

from importlib import import_module

from ...oracles.registry import unknown
from .task import Batch, LatentModel, Split, Task, TaskLoss

__all__ = ["TASKS", "Batch", "LatentModel", "Split", "Task", "TaskLoss", "make_task"]

TASKS: dict[str, str] = {
    "clusters": "clusters:Clusters",
}
"""Where every task is, by name; modules are imported when they are asked for."""


def make_task(name: str) -> Task:
    """A task by name.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> make_task("clusters").steps
        500
    """
    if name not in TASKS:
        raise ValueError(unknown(name, TASKS, "task"))
    module, _, attribute = TASKS[name].partition(":")
    task: Task = getattr(import_module(f".{module}", __name__), attribute)()
    return task

"""Tasks: data and models with a latent structure, and their training with every estimator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from ...oracles import Oracle, registry
from .module_task import ModuleTask
from .task import Batch, LatentModel, Split, Task, TaskLoss

__all__ = ["TASKS", "Batch", "LatentModel", "ModuleTask", "Split", "Task", "TaskLoss", "make_task"]

TASKS: dict[str, str] = {
    "clusters": "clusters:Clusters",
    "l2x_switch": "l2x_switch:L2XSwitch",
    "fsdd": "speech:SpokenDigits",
    "matching": "language.matching:Matching",
    "listops": "language.listops:ListOps",
    "listops_frozen": "language.listops:ListOpsFrozen",
    "listops_generated": "language.listops:ListOpsGenerated",
    "listops_parser": "language.listops:ListOpsParser",
    "ner": "language.ner:NamedEntities",
    "parsing": "language.treebank:Parsing",
    "pipeline": "language.treebank:Pipeline",
    "vae": "speech:AutoEncoder",
}
"""Module and class of every task, by name. Modules are imported on first use."""


class _Modules(Mapping[str, type[Task]]):
    """The classes of `TASKS`, each imported on first use."""

    def __getitem__(self, name: str) -> type[Task]:
        module, _, attribute = TASKS[name].partition(":")
        return getattr(import_module(f".{module}", __name__), attribute)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[str]:
        return iter(TASKS)

    def __len__(self) -> int:
        return len(TASKS)


def make_task(name: str) -> Task:
    """The task of a name such as ``clusters[start=pretrained]``, ``my_module:MyTask`` or ``./my_file.py:MyTask``.

    Raises:
        ValueError: an unknown name, an option that the task does not take, or an object that is no task.

    Example:
        >>> make_task("clusters[clusters=4]").oracle
        Categorical()
    """
    head = registry.parse(name)[0]
    if ":" in head and isinstance(found := registry.imported(head, "task"), type) and issubclass(found, Oracle):
        raise ValueError(
            f"got {name!r}, an oracle; expected a task, which has data and an encoder too: `structgrad init --task` writes one, whose "
            f"`oracle` may be {found.__name__}"
        )
    task = registry.build(name, _Modules(), "task")
    if not isinstance(task, Task):
        raise ValueError(f"got {name!r}, a {type(task).__name__}; expected a task")
    if not task.rates:
        raise ValueError(f"`{task.name}` got rates=(); expected at least one learning rate")
    return task

"""Tasks: data and models with a latent structure, and their training with every estimator."""

from importlib import import_module

from ...oracles import Oracle, registry
from .own import ModuleTask, with_own_loss
from .task import Batch, LatentModel, Split, Task, TaskLoss

__all__ = ["TASKS", "Batch", "LatentModel", "ModuleTask", "Split", "Task", "TaskLoss", "make_task"]

TASKS: dict[str, str] = {
    name: module
    for module, names in (
        ("synthetic", "clusters l2x_switch"),
        ("speech", "fsdd"),
        ("language.matching", "matching"),
        ("language.listops", "listops listops_frozen listops_generated listops_parser"),
        ("language.ner", "ner"),
        ("language.treebank", "parsing pipeline"),
        ("speech", "vae"),
        ("generated.decisions", "paths paths_squared ranking ranking_gain ranking_pairs budget budget_sum budget_coverage"),
        ("generated.sequences", "tags tags_frozen tags_elbo segments segments_pretrained transcripts warping"),
        ("speech", "vae_bits"),
        ("synthetic", "clusters_pretrained"),
        ("generated.trees", "heads influence influence_squared algebra algebra_soft"),
        ("generated.sequences", "gates gates_frozen"),
    )
    for name in names.split()
}
"""The module of every task, by name. Modules are imported on first use."""


def make_task(name: str) -> Task:
    """The task of a name such as ``clusters[start=pretrained]``, ``my_module:MyTask`` or ``./my_file.py:MyTask``.

    Any of them takes the option ``loss=./my_file.py:loss``, see `with_own_loss`.

    Raises:
        ValueError: an unknown name, an option that the task does not take, or an object that is no task.

    Example:
        >>> make_task("clusters[clusters=4]").oracle
        Categorical()
    """
    head, given = registry.parse(name)
    loss = given.pop("loss", "")
    if ":" in head and isinstance(found := registry.imported(head, "task"), type) and issubclass(found, Oracle):
        raise ValueError(
            f"got {name!r}, an oracle; expected a task, which has data and an encoder too: `structgrad init --task` writes one, whose "
            f"`oracle` may be {found.__name__}"
        )
    kinds = vars(import_module(f".{TASKS[head]}", __name__)).values() if head in TASKS else ()
    known = {head: next(kind for kind in kinds if getattr(kind, "name", "") == head)} if kinds else dict.fromkeys(TASKS)
    rest = ",".join(f"{key}={value}" for key, value in given.items())
    task = registry.build(f"{head}[{rest}]" if loss else name, known, "task")
    if not isinstance(task, Task):
        raise ValueError(f"got {name!r}, a {type(task).__name__}; expected a task")
    if not task.rates:
        raise ValueError(f"`{task.name}` got rates=(); expected at least one learning rate")
    return with_own_loss(task, loss) if loss else task

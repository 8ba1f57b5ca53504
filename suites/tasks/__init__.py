"""Tasks: data and models with a latent structure, and their training with every estimator."""

from importlib import import_module

from ...oracles import Oracle, registry
from .module_task import ModuleTask
from .own_losses import with_own_loss
from .task import Batch, LatentModel, Split, Task, TaskLoss

__all__ = ["TASKS", "Batch", "LatentModel", "ModuleTask", "Split", "Task", "TaskLoss", "make_task"]

TASKS: dict[str, str] = {
    "clusters": "clusters:Clusters",
    "l2x_switch": "l2x_switch:L2XSwitch",
    "fsdd": "speech:SpokenDigits",
    "matching": "language.matching:Matching",
    "listops": "language.listops:ListOps",
    "listops_frozen": "language.listops:ListopsFrozen",
    "listops_generated": "language.listops:ListopsGenerated",
    "listops_parser": "language.listops:ListOpsParser",
    "ner": "language.ner:NamedEntities",
    "parsing": "language.treebank:Parsing",
    "pipeline": "language.treebank:Pipeline",
    "vae": "speech:AutoEncoder",
    "paths": "generated.decisions:Paths",
    "paths_squared": "generated.decisions:PathsSquared",
    "ranking": "generated.decisions:Ranking",
    "ranking_gain": "generated.decisions:RankingGain",
    "ranking_pairs": "generated.decisions:RankingPairs",
    "budget": "generated.decisions:Budget",
    "budget_sum": "generated.decisions:BudgetSum",
    "budget_coverage": "generated.decisions:BudgetCoverage",
    "tags": "generated.sequences:Tags",
    "tags_frozen": "generated.sequences:TagsFrozen",
    "tags_elbo": "generated.sequences:TagsElbo",
    "segments": "generated.sequences:Segments",
    "segments_pretrained": "generated.sequences:SegmentsPretrained",
    "transcripts": "generated.sequences:Transcripts",
    "warping": "generated.sequences:Warping",
    "vae_bits": "speech:VaeBits",
    "clusters_pretrained": "clusters:ClustersPretrained",
    "heads": "generated.trees:Heads",
    "influence": "generated.trees:Influence",
    "influence_squared": "generated.trees:InfluenceSquared",
    "algebra": "generated.trees:Algebra",
    "algebra_soft": "generated.trees:AlgebraSoft",
    "gates": "generated.sequences:Gates",
    "gates_frozen": "generated.sequences:GatesFrozen",
}
"""Module and class of every task, by name. Modules are imported on first use."""


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
    module, _, attribute = TASKS.get(head, "").partition(":")
    known = {head: getattr(import_module(f".{module}", __name__), attribute)} if module else dict.fromkeys(TASKS)
    rest = ",".join(f"{key}={value}" for key, value in given.items())
    task = registry.build(f"{head}[{rest}]" if loss else name, known, "task")
    if not isinstance(task, Task):
        raise ValueError(f"got {name!r}, a {type(task).__name__}; expected a task")
    if not task.rates:
        raise ValueError(f"`{task.name}` got rates=(); expected at least one learning rate")
    return with_own_loss(task, loss) if loss else task

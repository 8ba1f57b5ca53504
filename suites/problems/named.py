"""Problems by name: real score files, built-in regimes that match them in entropy, a user's own file, and tasks.

``task:NAME`` has seeds as instances, and ``learnt:NAME`` items along a run of training.
"""

import fnmatch
import functools
import glob
import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from ...estimators import make_estimator
from ...estimators.base import Estimator
from ...oracles.capabilities import Oracle
from ...oracles.capabilities.ragged import Inside
from ...oracles.registry import unknown
from ...oracles.sources import own_fault
from ..base import LEARNT, TASK, Instance, Problem, ProblemLoss, split_loss
from ..tasks import TASKS, make_task
from ..tasks.own import ends, imported_loss, smoothness
from ..tasks.references import LEARNT_STAGES, learnt_model, reference_name
from ..tasks.task import Batch, LatentModel, Split, Task, TaskLoss
from ..trust import DATA_VARIABLE
from .losses import LOSSES, Downstream, Offset, make_loss
from .real import REAL
from .regimes import ENTROPY_STAGES, REGIMES, STAGES, Items, RegimeItems, number_of
from .score_files import ScoreFile, ScoreTables, read_arrays
from .sized import is_sized, refuse_unsized, sized_name, sized_regime, sized_structure

SEEDS = 1000  # seeds of a block: a plan with another seed trains with others

TASK_PROBLEMS: dict[str, str] = {f"{TASK}{name}": f"learning the task {name}, seed by seed" for name in TASKS} | {
    f"{LEARNT}{name}": f"items of the task {name} along a run of the exact gradient; @ESTIMATOR for another run" for name in TASKS
}

REAL_PROBLEMS: dict[str, str] = {name: summary for name, (_, summary, *_) in REAL.items()}

BUILT_IN_PROBLEMS: dict[str, str] = {name: regime.summary for name, regime in REGIMES.items()}

PROBLEMS: dict[str, str] = {**REAL_PROBLEMS, **BUILT_IN_PROBLEMS, **TASK_PROBLEMS}  # every problem that has a name, and one line on it
OWN_LOSS = "own"  # the name for the default loss of a problem
LOSS_NAMES = (OWN_LOSS, *LOSSES)  # the losses that a plan may name


def tried_loss(name: str, function: Callable[[Tensor], Tensor], oracle: Oracle, scores: Tensor, **known: Any) -> TaskLoss:
    """A function of structures, ``[..., *event] -> [...]``, as a loss. Its derivative and its values in the hull are tried out."""
    differentiable, inside_hull = smoothness(function, *ends(oracle, scores.double().unsqueeze(0)))
    return TaskLoss(function, name, differentiable, inside_hull, extension="formula" if inside_hull else "none", **known)


def is_code(name: str) -> bool:
    """Whether a name means a loss of one's own, such as ``./mine.py:loss``."""
    return ":" in name


def own_loss(name: str, instance: Instance, oracle: Oracle) -> TaskLoss:
    """The loss that a name means for an instance, whose own loss is that of the problem.

    A function with the one parameter ``instance`` is a factory: it is called with the instance, and returns the loss.

    Raises:
        ValueError: what the name means cannot be imported, or is no function, or the factory raises.
    """
    found = imported_loss(name, "expected a function [..., *event] -> [...] of structures")
    function, factory = found, False
    with suppress(TypeError, ValueError):  # some built-in functions have no signature
        factory = [*inspect.signature(found).parameters] == ["instance"]
    if factory:
        try:
            function = found(instance)
        except Exception as error:  # it may be anybody's
            text = ", in ".join([str(error), *(own_fault(error) or ())[1:]])
            raise ValueError(f"the loss {name!r} raised {type(error).__name__} for the instance {instance.name}: {text}") from error
        if not callable(function):
            raise ValueError(f"the loss {name!r} made a {type(function).__name__} of an instance; expected a function of structures")
    return tried_loss(name, function, oracle, instance.scores, varies=True)


def with_loss(name: str, loss: str) -> str:
    """The problem of the same scores with a loss of `LOSS_NAMES`, or one's own; one with a loss, and a task, keep theirs."""
    if loss not in LOSS_NAMES and not is_code(loss):
        raise ValueError(unknown(loss, LOSS_NAMES, "loss"))
    if is_code(loss) and comes_from_task(name) and "loss=" not in name:  # one of predictions and labels, see `with_own_loss`
        task, mark, learner = name.partition("@")
        return (f"{task[:-1]},loss={loss}]" if task.endswith("]") else f"{task}[loss={loss}]") + mark + learner
    return name if loss == OWN_LOSS or comes_from_task(name) or split_loss(name)[1] else f"{name}@{loss}"


def available(data: str | None) -> tuple[str, ...]:
    """The default problems: real ones whose files are in the folder, or the built-in ones if there are none."""
    found = () if data is None else tuple(name for name, (file, *_) in REAL.items() if (Path(data) / f"{file}.npz").is_file())
    return found or tuple(BUILT_IN_PROBLEMS)


def stages_of(name: str) -> tuple[str, ...]:
    """The stages that a run measures by default; `load` takes other ``h=<number>`` in (0, 1), or ``gamma=<number>`` above 0, too."""
    if comes_from_task(name):
        _task(name)  # ValueError if it is unknown, or unavailable here
        return ("training",) if is_task(name) else tuple(LEARNT_STAGES)
    name, _ = split_loss(name)
    if name in REGIMES or is_sized(name):
        return (*STAGES, *ENTROPY_STAGES)
    if name not in REAL:
        refuse_unsized(name)
        raise ValueError(unknown(name, PROBLEMS, "problem"))
    return REAL[name][2].stages


def load(  # noqa: PLR0913
    name: str, stage: str, *, instances: int, data: str | None, offset: float = 0.0, seed: int = 0, trained: bool = True
) -> Problem:
    """A named problem: float64 scores on the CPU, and one loss per instance.

    Names are keys of `PROBLEMS`, structures with their sizes, such as ``subset[n=10,k=5]``, and tasks with their sizes. A suffix ``@loss``
    takes another loss, a key of `LOSSES` or one's own (see `own_loss`); scores and gold structures stay the same. The stage is one of
    `stages_of`, or has another number. In a real set of the folder ``data``, instances are spread evenly over its items by length;
    built-in ones are numbered from 0. The offset is added to every loss. Everything random follows from the seed: built-in scores, drawn
    gold structures and random losses. For ``trained`` see `load_task`.
    """
    if comes_from_task(name):
        return load_task(name, stage, instances=instances, offset=offset, seed=seed, trained=trained)
    scores, loss = split_loss(name)
    stages = stages_of(scores)
    key, most = ("gamma", math.inf) if scores in REAL else ("h", 1.0)
    numbered = any(known.startswith(f"{key}=") for known in stages)
    if stage not in stages and not (numbered and number_of(stage, key, most) is not None):
        more = f" {key}=<number> in (0, {most:g}) is a stage too" if numbered else ""
        raise ValueError(f"{scores} {unknown(stage, stages, 'stage')}{more}")
    return _problem(_items(scores, seed, data), (name, stage), instances, loss, offset)


def _items(name: str, seed: int, data: str | None) -> Items:
    if name in REGIMES:
        return _regime_items(name, seed, type(REGIMES[name].oracle))
    if is_sized(name):
        return _regime_items(sized_name(name), seed, type(sized_structure(name)[0]))
    file, _, kind, layout = REAL[name]
    if data is None:
        raise ValueError(
            f"`load` got the problem {name!r} without a folder of score files; "
            f"set {DATA_VARIABLE}, or take one of {', '.join(BUILT_IN_PROBLEMS)}, which need none"
        )
    return kind(name, seed, file, read_arrays(Path(data) / f"{file}.npz"), layout)


@functools.lru_cache(maxsize=256)
def _regime_items(name: str, seed: int, kind: type[Oracle]) -> Items:
    """Items kept for the scales of their stages, shared by losses; an oracle whose file has changed has another class."""
    return RegimeItems(name, seed, REGIMES[name] if name in REGIMES else sized_regime(name))


def from_file(file: ScoreFile, loss: str | None = None, *, offset: float = 0.0) -> Problem:
    """The problem of a score file with the stage ``file``; another ``loss``, a key of `LOSSES`, replaces its own, and is in the name."""
    try:
        items = ScoreTables(file)
        name = items.name if loss is None else with_loss(items.name, loss)
        return _problem(items, (name, "file"), len(items.lengths) if file.instances is None else file.instances, loss, offset)
    except ValueError as error:
        path = str(Path(file.path))
        raise ValueError(str(error) if str(error).startswith(path) else f"{path}: {error}") from error


def _problem(items: Items, where: tuple[str, str], instances: int, loss: str | None, offset: float) -> Problem:
    loss, stage, indices, found = loss or items.default_loss, where[1], items.chosen(instances), []
    items.prepare(stage, indices)
    for index in indices:
        name, scores = items.item_name(index), items.scores(index, stage)
        named = items.default_loss if is_code(loss) else loss
        made: ProblemLoss | None = items.downstream(index, stage) if named == Downstream.name else None
        if made is None:
            if named not in LOSSES:
                raise ValueError(unknown(named, LOSSES, "loss"))
            # The two extensions of one discrete loss share their random numbers.
            seed = items.key("loss", LOSSES[named].discrete or named, name)
            made = make_loss(named, items.gold(index), items.oracle, seed=seed)
        if is_code(loss):
            made = own_loss(loss, Instance(name, scores, made), items.oracle)
        found.append(Instance(name, scores, made if offset == 0 else Offset(made, offset)))
    return Problem(*where, items.oracle, tuple(found), items.source)


@dataclass(frozen=True, eq=False)
class TaskProblem(Problem):
    """A problem that comes from a task."""

    task: Task
    seeds: tuple[int, ...]  # as many as instances; for a task they are its instances


def is_task(name: str) -> bool:
    """Whether a problem is the training of a task, such as ``task:clusters``."""
    return name.startswith(TASK)


def kinds_of(name: str) -> tuple[str, ...]:
    """The kinds of suites that measure a problem, see `Suite.measures`."""
    if is_task(name):
        return ("tasks", "references")
    return ("learnt", "scores", "references") if name.startswith(LEARNT) else ("scores",)


def learner_of(name: str, task: Task) -> Estimator[Any]:
    """The estimator of the run that items come from: the one after ``@`` in a problem's name, or the reference."""
    return make_estimator(name.partition("@")[2] or reference_name(task, training=True))


def comes_from_task(name: str) -> bool:
    """Whether a problem is a task, or comes from learning one."""
    return name.startswith((TASK, LEARNT))


def task_names(pattern: str) -> list[str]:
    """The problems of a pattern, such as ``task:listops*``: tasks that are available here, or the one that is named."""
    if not glob.has_magic(pattern.partition("[")[0]):
        _task(pattern)
        return [pattern]
    matched = fnmatch.filter(TASK_PROBLEMS, pattern)
    if not matched:
        raise ValueError(unknown(pattern, TASK_PROBLEMS, "problem"))
    return [name for name in matched if make_task(name.partition(":")[2]).unavailable() is None]


def load_task(  # noqa: PLR0913 - a problem, and the run that it comes from
    name: str, stage: str, *, instances: int, offset: float = 0.0, seed: int = 0, trained: bool = True
) -> TaskProblem:
    """The problem of a task, see `load`.

    Instances of ``task:NAME`` are seeds; those of ``learnt:NAME`` or ``learnt:NAME@ESTIMATOR`` are items of the test split, spread evenly.
    The seed is the block of the seeds; items come from the run of its first one. If not ``trained``, items are those of the untrained
    model, which have the same shapes and losses.
    """
    task = _task(name)
    if stage not in (known := stages_of(name)):
        raise ValueError(f"{name} {unknown(stage, known, 'stage')}")
    if offset != 0:
        raise ValueError(f"{name} got offset={offset:g}; a task has a loss of its own, leave --offset out")
    first = seed * SEEDS
    seeds = tuple(range(first, first + instances))
    if is_task(name):
        found = [_item(f"seed={number}", own, own.model(number), "train", 0) for number in seeds for own in (task.at(number),)]
    else:
        split = task.at(first)
        size = split.size("test")
        if instances > size:
            raise ValueError(f"{name} got instances={instances}; expected 1 to {size}, the number of items in its test split")
        model = learnt_model(split, learner_of(name, split), first, stage) if trained else split.model(first)
        numbers = [(2 * i + 1) * size // (2 * instances) for i in range(instances)]
        found = [_item(f"item-{number}", split, model, "test", number) for number in numbers]
    return TaskProblem(name, stage, task.oracle, tuple(found), f"task {task.name}, version {task.version}", task, seeds)


def _task(name: str) -> Task:
    task = make_task(name.partition(":")[2].partition("@")[0])
    reason = task.unavailable()
    if reason is not None:
        raise ValueError(f"the problem {name} is not available: {reason}")
    empty = [split for split in get_args(Split) if task.size(split) < 1]
    if empty:
        raise ValueError(f"the problem {name} is not available: {', '.join(empty)} would have no items; choose other sizes")
    return task


def _item(name: str, task: Task, model: LatentModel, split: Split, number: int) -> Instance:
    """One item with a model: its scores and loss in double precision."""
    exact = model.double().requires_grad_(False)
    batch = task.batch(split, torch.tensor([number])).double()
    scores = task.scores(exact, batch)
    loss, items = within(task, batch, task.loss(exact, batch), scores), -task.oracle.event_ndim - 1
    gold = None if loss.gold is None else loss.gold[0]
    return Instance(name, scores[0], replace(loss, call=lambda structure: loss(structure.unsqueeze(items))[..., 0], gold=gold))


def within(task: Task, batch: Batch, loss: TaskLoss, scores: Tensor) -> TaskLoss:
    """The loss of a batch as training sees it, which has no gradient in the padding."""
    if batch.lengths is None:
        return loss
    return replace(loss, call=Inside(loss, task.oracle, batch.lengths, tuple(scores.shape[1:])))

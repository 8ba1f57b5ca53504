"""Problems by name: real score files, built-in regimes that match them in entropy, and a user's own file."""

from __future__ import annotations

import functools
import math
from pathlib import Path

from ...oracles.capabilities import Oracle
from ...oracles.registry import unknown
from ..base import Instance, Problem, split_loss
from ..trust import DATA_VARIABLE
from .learning import TASK_PROBLEMS, comes_from_task, load_task, stages_of_task
from .losses import LOSSES, Downstream, Offset, make_loss
from .real import REAL
from .regimes import ENTROPY_STAGES, REGIMES, STAGES, Items, RegimeItems, number_of
from .score_files import ScoreFile, ScoreTables, read_arrays
from .sized import is_sized, refuse_unsized, sized_name, sized_regime, sized_structure

REAL_PROBLEMS: dict[str, str] = {name: summary for name, (_, summary, *_) in REAL.items()}

BUILT_IN_PROBLEMS: dict[str, str] = {name: regime.summary for name, regime in REGIMES.items()}

PROBLEMS: dict[str, str] = {**REAL_PROBLEMS, **BUILT_IN_PROBLEMS, **TASK_PROBLEMS}  # every problem that has a name, and one line on it
OWN_LOSS = "own"  # the name for the default loss of a problem
LOSS_NAMES = (OWN_LOSS, *LOSSES)  # the losses that a plan may name


def with_loss(name: str, loss: str) -> str:
    """The problem of the same scores with a loss of `LOSS_NAMES`; a problem that names one already, and a task, stay the same."""
    if loss not in LOSS_NAMES:
        raise ValueError(unknown(loss, LOSS_NAMES, "loss"))
    return name if loss == OWN_LOSS or comes_from_task(name) or split_loss(name)[1] else f"{name}@{loss}"


def available(data: str | None) -> tuple[str, ...]:
    """The default problems: real ones whose files are in the folder, or the built-in ones if there are none."""
    found = () if data is None else tuple(name for name, (file, *_) in REAL.items() if (Path(data) / f"{file}.npz").is_file())
    return found or tuple(BUILT_IN_PROBLEMS)


def stages_of(name: str) -> tuple[str, ...]:
    """The stages of a named problem that a run measures by default.

    All have stages of training except ``dtw_speech``, which has temperatures, and tasks, which have the one stage ``training``. Built-in
    problems have normalised entropies too. `load` also takes other numbers: ``h=<number>`` in (0, 1), ``gamma=<number>`` above 0.
    """
    if comes_from_task(name):
        return stages_of_task(name)
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
    takes another loss, a key of `LOSSES`; scores and gold structures stay the same. The stage is one of `stages_of`, or has another number.
    In a real set of the folder ``data``, instances are spread evenly over its items by length; built-in ones are numbered from 0. The
    offset is added to every loss. Everything random follows from the seed: built-in scores, drawn gold structures and random losses. For
    ``trained`` see `load_task`.
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
    """The problem of a user's own score file, named after the file, with the stage ``file``.

    Another ``loss``, a key of `LOSSES`, replaces that of the file, and its name follows that of the problem.
    """
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
        made = items.downstream(index, stage) if loss == Downstream.name else None
        if made is None:
            if loss not in LOSSES:
                raise ValueError(unknown(loss, LOSSES, "loss"))
            # The two extensions of one discrete loss share their random numbers.
            seed = items.key("loss", LOSSES[loss].discrete or loss, name)
            made = make_loss(loss, items.gold(index), items.oracle, seed=seed)
        found.append(Instance(name, scores, made if offset == 0 else Offset(made, offset)))
    return Problem(*where, items.oracle, tuple(found), items.source)

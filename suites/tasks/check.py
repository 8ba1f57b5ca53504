"""Checks of the contract of a task, on which training and measuring rely."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

import torch
from torch import Tensor

from ...estimators import StraightThrough
from .task import Batch, LatentModel, Split, Task
from .training import Job, Training

ITEMS = 4
"""Items of the batches that are checked."""

SEARCHED = 256
"""Items among which the shortest are found."""

NEAR = 1e-4
"""Distance from a structure at which a loss is tested."""


def check_task(task: Task, *, trained: bool = True) -> list[str]:
    """Check a task, and return one sentence per fault.

    Args:
        task: the task, with its data.
        trained: whether floor and ceiling are trained too, to check that the true structures help.

    Example:
        >>> from structgrad.suites.tasks import make_task
        >>> check_task(make_task("clusters[train=500,heldout=200]"), trained=False)
        []
    """
    if (reason := task.unavailable()) is not None:
        return [f"{task.name} cannot be checked: {reason}"]
    checks: list[Callable[[Task], Iterator[str]]] = [_batches, _scores, _losses, _padding, _same_again, _judged, _parameters, _precision]
    found: list[str] = []
    for check in [_sizes, *checks, _stacked, *([_bounds] if trained else [])]:
        try:
            found += [f"{task.name}: {sentence}" for sentence in check(task)]
        except Exception as error:  # the task may raise anything
            found.append(f"{task.name}: {check.__name__.strip('_').replace('_', ' ')} failed with {type(error).__name__}: {error}")
        if check is _sizes and found:
            break
    return found


def _first(task: Task, split: Split = "train") -> Batch:
    return task.batch(split, torch.arange(ITEMS))


def _tensors(batch: Batch) -> dict[str, Tensor]:
    named = {f"inputs[{i}]": part for i, part in enumerate(batch.inputs)} | {"labels": batch.labels}
    return named | {name: part for name in ("lengths", "gold") if (part := getattr(batch, name)) is not None}


def _sizes(task: Task) -> Iterator[str]:
    """Every split has enough items."""
    for split in get_args(Split):
        if (size := task.size(split)) < ITEMS:
            yield f"the split {split} has {size} items; expected at least {ITEMS}"


def _batches(task: Task) -> Iterator[str]:
    """Tensors of a batch have one row for each item."""
    for split in get_args(Split):
        for name, part in _tensors(_first(task, split)).items():
            if len(part) != ITEMS:
                yield f"{name} of {ITEMS} items of the split {split} has shape {tuple(part.shape)}; expected {ITEMS} rows"


def _scores(task: Task) -> Iterator[str]:
    """Scores are ``[b, *event]`` of one event shape, each item's by itself."""
    model, batch, shapes = task.model(0), _first(task), set()
    for split in get_args(Split):
        scores = task.scores(model, _first(task, split))
        shapes.add(tuple(scores.shape[1:]))
        if scores.ndim != 1 + task.oracle.event_ndim or len(scores) != ITEMS:
            event = f"an event of {task.oracle.event_ndim}"
            yield f"scores of {ITEMS} items have shape {tuple(scores.shape)}; expected [{ITEMS}, *event], {event}"
            return
        if scores.dtype != torch.float32 or not bool((scores < torch.inf).all()):
            yield f"scores are {scores.dtype}, with a largest of {float(scores.max()):g}; expected finite float32, or -inf where forbidden"
    if len(shapes) > 1:
        yield f"scores have the event shapes {sorted(shapes)}; expected one, padded by lengths where items differ"
    if batch.gold is not None and tuple(batch.gold.shape[1:]) not in shapes:
        yield f"gold structures have the event shape {tuple(batch.gold.shape[1:])}; expected {next(iter(shapes))}, as the scores"
    together, alone = task.scores(model, batch)[:1], task.scores(model, task.batch("train", torch.arange(1)))
    if together.shape == alone.shape and not _close(together, alone):
        yield "the scores of an item depend on the other items of its batch; expected those of the item alone"


def _losses(task: Task) -> Iterator[str]:
    """One value per structure, independent of the others; soft and hard losses agree at a structure."""
    model, batch = task.model(0), _first(task)
    loss, structures = task.loss(model, batch), _structures(task, model, batch)
    values = loss(structures).detach()
    if values.shape != structures.shape[: structures.ndim - task.oracle.event_ndim]:
        yield (
            f"the loss of structures of shape {tuple(structures.shape)} has shape {tuple(values.shape)}; expected one value per structure: "
            "leading dimensions come before that of the items"
        )
        return
    if not _close(loss(structures[0]), values[0]):
        yield "the loss of a structure depends on the other structures of a call; expected a value of its own"
    if loss.inside_hull:
        near = (1 - NEAR) * structures + NEAR * structures.flip(0)
        jump = float((loss(near).detach() - values).abs().max())
        if jump > 0.05 * float(values.abs().max() + 1):
            yield f"the loss jumps by {jump:.3g} next to a structure; expected soft and hard losses that agree on structures"
    if loss.differentiable:
        point = structures[0].clone().requires_grad_()
        value = loss(point).sum()
        if not value.requires_grad or torch.autograd.grad(value, point, allow_unused=True)[0] is None:
            yield "the loss says that it is differentiable, and has no gradient in the structure; say differentiable=False"


def _structures(task: Task, model: LatentModel, batch: Batch) -> Tensor:
    """Best structures of scores with more and more noise, ``[3, b, *event]``."""
    scores = task.scores(model, batch).detach()
    noise = torch.randn((3, *scores.shape), generator=torch.Generator().manual_seed(0))
    return task.oracle.argmax(scores + torch.tensor([0.0, 1.0, 4.0]).reshape(-1, *[1] * scores.ndim) * noise)


def _padding(task: Task) -> Iterator[str]:
    """Structures within the lengths, losses and judgements do not depend on the padding."""
    known = task.batch("train", torch.arange(min(SEARCHED, task.size("train")))).lengths
    if known is None:
        return
    size = known.flatten(1).sum(1) if known.ndim > 1 else known
    batch, model, oracle = task.batch("train", size.argsort(stable=True)[:ITEMS]), task.model(0), task.oracle
    assert batch.lengths is not None
    scores, loss, structures = task.scores(model, batch).detach(), task.loss(model, batch), _structures(task, model, batch)
    event = tuple(scores.shape[1:])
    inside = oracle.length_mask(event, batch.lengths).expand(ITEMS, *event)
    if not torch.equal(oracle.argmax(scores) * inside, oracle.argmax(scores, lengths=batch.lengths) * inside):
        yield "the best structures are others when the oracle gets lengths=; expected scores that `oracle.pad(scores, lengths)` has padded"
    changed = torch.where(inside, structures, 1 - structures)
    if not _close(loss(changed), loss(structures)):
        yield "the loss depends on the parts of a structure in the padding; expected the same loss whatever stands there"
    judged, again = (task.judge(model, batch, z[0]) for z in (structures, changed))
    for metric, values in judged.items():
        if not _close(values.double(), again[metric].double()):
            yield f"`judge` gives another {metric} when the padding of a structure changes; expected the same whatever stands there"


def _same_again(task: Task) -> Iterator[str]:
    """Models, batches and evaluations depend on seeds and sizes alone."""
    one, two, other = (list(task.model(seed).parameters()) for seed in (0, 0, 1))
    if not all(map(torch.equal, one, two)):
        yield "two models of one seed differ; expected parameters that follow from the seed alone"
    if all(map(torch.equal, one, other)):
        yield "the models of two seeds are equal; expected fresh parameters for every seed"
    if not all(map(torch.equal, _tensors(_first(task)).values(), _tensors(_first(task)).values())):
        yield "a batch is another one when it is asked for again; expected items that follow from their numbers"
    model = task.model(0)
    if task.evaluate(model) != task.evaluate(model):
        yield "two evaluations of one model differ; expected no randomness, such as dropout"


def _judged(task: Task) -> Iterator[str]:
    """Judgements are numbers per item, means of which are accuracies."""
    model, batch = task.model(0), _first(task)
    for metric, values in task.judge(model, batch, _structures(task, model, batch)[0]).items():
        if tuple(values.shape) != (ITEMS,):
            yield f"`judge` gives {metric} of shape {tuple(values.shape)} for {ITEMS} items; expected one number per item"
    found = task.evaluate(model, "validation")
    if not 0 <= found.get("accuracy", -1.0) <= 1:
        yield f"`evaluate` gives {found}; expected an accuracy between 0 and 1"
    if bool(task.structured) != ("structure_accuracy" in found):
        yield f"structured is {task.structured!r}, and `evaluate` gives {', '.join(found)}; expected structure_accuracy where it has a name"


def _parameters(task: Task) -> Iterator[str]:
    """The optimiser gets every trainable parameter once."""
    model = task.model(0)
    given = [id(parameter) for group in task.parameter_groups(model, task.rates[0]) for parameter in group["params"]]
    wanted = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    if sorted(given) != sorted(wanted):
        yield f"`parameter_groups` has {len(given)} parameters; expected the {len(wanted)} that require gradients, each once"
    if not any(parameter.requires_grad for parameter in model.encoder.parameters()):
        yield "no parameter of the encoder requires a gradient; expected one that learns"


def _precision(task: Task) -> Iterator[str]:
    """Scores and losses also exist in double precision, in which gradients are measured."""
    model, batch = task.model(0), _first(task)
    floats, doubles = task.scores(model, batch), batch.double()
    exact = task.scores(model.double(), doubles)
    values = task.loss(model, doubles)(task.oracle.argmax(exact))
    if exact.dtype != torch.float64 or values.dtype != torch.float64:
        yield f"a model in double precision gives scores of {exact.dtype} and losses of {values.dtype}; expected float64 of both"
    elif not _close(floats, exact.float(), 1e-3):
        yield "scores in double precision are others; expected the same up to rounding"


def _stacked(task: Task) -> Iterator[str]:
    """Scores and losses of stacked seeds equal those of single ones."""
    if not task.stackable or not task.loss(task.model(0), _first(task)).differentiable:
        return
    jobs, found = [Job(seed, task.rates[0]) for seed in (0, 1)], []
    for some in (jobs, jobs[:1], jobs[1:]):
        training = Training(task, StraightThrough(), some)
        training.runs.load([draw() for draw in training.orders])
        scores = training.runs.scores()
        found.append((scores, training.runs.loss()(task.oracle.argmax(scores))))
    together, *alone = found
    if not all(_close(stacked[i], own[k], 1e-3) for k, stacked in enumerate(together) for i, own in enumerate(alone)):
        yield "seeds side by side have other scores or losses than alone; expected the same, or stackable = False"


def _bounds(task: Task) -> Iterator[str]:
    """The true structures improve accuracy."""
    floor, ceiling = task.floor(0)["accuracy"], task.ceiling(0)["accuracy"]
    if not ceiling > floor:
        yield f"the ceiling is {ceiling:.3g} and the floor {floor:.3g}; expected a task on which structures help"


def _close(one: Tensor, other: Tensor, tolerance: float = 1e-4) -> bool:
    return torch.allclose(one.detach(), other.detach(), rtol=tolerance, atol=tolerance)

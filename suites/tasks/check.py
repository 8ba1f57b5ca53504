"""Checks of the contract of a task, on which training and measuring rely."""

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from .task import Batch, LatentModel, Split, Task, TaskLoss

ITEMS = 4  # items of the batches that are checked
NEAR = 1e-4  # distance from a structure at which a loss is tested


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
    found: list[str] = []
    try:
        found.extend(f"{task.name}: {sentence}" for sentence in _faults(task, trained))
    except Exception as error:  # the task may raise anything
        found.append(f"{task.name} failed with {type(error).__name__}: {error}")
    return found


def _faults(task: Task, trained: bool) -> Iterator[str]:
    """Faults in the order of a step of training; those that spoil later checks end them."""
    if wrong := [*_of_items(task)]:
        yield from wrong
        return
    items, model, event = torch.arange(ITEMS), task.model(0), task.oracle.event_ndim
    batch = task.batch("train", items)
    scores = task.scores(model, batch).detach()
    if scores.ndim != 1 + event or len(scores) != ITEMS:
        yield f"scores of {ITEMS} items have shape {tuple(scores.shape)}; expected [{ITEMS}, *event], an event of {event}"
        return
    if scores.dtype != torch.float32 or not bool((scores < torch.inf).all()):
        yield f"scores are {scores.dtype}, with a largest of {float(scores.max()):g}; expected finite float32, or -inf where forbidden"
    shapes = {tuple(task.scores(model, task.batch(split, items)).shape[1:]) for split in get_args(Split)}
    shapes |= {tuple(part.shape[1:]) for part in (batch.gold,) if part is not None}
    if len(shapes) > 1:
        yield f"scores and true structures have the event shapes {sorted(shapes)}; expected one, padded by lengths where items differ"
    if not _close(scores[:1], task.scores(model, task.batch("train", items[:1]))):
        yield "the scores of an item depend on the other items of its batch; expected those of the item alone"
    structures, loss = _structures(task, scores), task.loss(model, batch)
    if (shape := loss(structures).shape) != structures.shape[: structures.ndim - event]:
        yield (
            f"the loss of structures of shape {tuple(structures.shape)} has shape {tuple(shape)}; expected one value per structure: "
            "leading dimensions come before that of the items"
        )
        return
    yield from _of_loss(loss, structures)
    yield from _of_padding(task, model)
    yield from _of_results(task, model, batch, structures[0])
    yield from _of_precision(task, batch)
    if trained and not (ceiling := task.ceiling(0)) > (floor := task.floor(0)):
        yield f"the ceiling is {ceiling:.3g} and the floor {floor:.3g}; expected a task on which structures help"


def _of_items(task: Task) -> Iterator[str]:
    """Every split has enough items, and tensors of a batch have one row for each, the same ones again."""
    for split in get_args(Split):
        if (size := task.size(split)) < ITEMS:
            yield f"the split {split} has {size} items; expected at least {ITEMS}"
            return
        parts, again = (_tensors(task.batch(split, torch.arange(ITEMS))) for _ in range(2))
        for name, part in parts.items():
            if len(part) != ITEMS:
                yield f"{name} of {ITEMS} items of the split {split} has shape {tuple(part.shape)}; expected {ITEMS} rows"
            if not torch.equal(part, again[name]):
                yield f"{name} of a batch is another one when it is asked for again; expected items that follow from their numbers"


def _of_loss(loss: TaskLoss, structures: Tensor) -> Iterator[str]:
    """One value per structure, independent of the others; soft and hard losses agree at a structure."""
    values = loss(structures).detach()
    if not _close(loss(structures[0]), values[0]):
        yield "the loss of a structure depends on the other structures of a call; expected a value of its own"
    if loss.inside_hull:
        jump = float((loss((1 - NEAR) * structures + NEAR * structures.flip(0)).detach() - values).abs().max())
        if jump > 0.05 * float(values.abs().max() + 1):
            yield f"the loss jumps by {jump:.3g} next to a structure; expected soft and hard losses that agree on structures"
    if loss.differentiable:
        point = structures[0].clone().requires_grad_()
        value = loss(point).sum()
        if not value.requires_grad or torch.autograd.grad(value, point, allow_unused=True)[0] is None:
            yield "the loss says that it is differentiable, and has no gradient in the structure; say differentiable=False"


def _of_padding(task: Task, model: LatentModel) -> Iterator[str]:
    """Structures within the lengths, losses and judgements do not depend on the padding."""
    known = task.batch("train", torch.arange(min(256, task.size("train")))).lengths
    if known is None:
        return
    batch, oracle = task.batch("train", known.reshape(len(known), -1).sum(1).argsort(stable=True)[:ITEMS]), task.oracle
    assert batch.lengths is not None
    scores, loss = task.scores(model, batch).detach(), task.loss(model, batch)
    inside = oracle.length_mask(tuple(scores.shape[1:]), batch.lengths).expand(scores.shape)
    if not torch.equal(oracle.argmax(scores) * inside, oracle.argmax(scores, lengths=batch.lengths) * inside):
        yield "the best structures are others when the oracle gets lengths=; expected scores that `oracle.pad(scores, lengths)` has padded"
    structures = _structures(task, scores)
    changed = torch.where(inside, structures, 1 - structures)
    if not _close(loss(changed), loss(structures)):
        yield "the loss depends on the parts of a structure in the padding; expected the same loss whatever stands there"
    judged, again = (task.judge(model, batch, z[0]) for z in (structures, changed))
    for metric, values in judged.items():
        if not _close(values.double(), again[metric].double()):
            yield f"`judge` gives another {metric} when the padding of a structure changes; expected the same whatever stands there"


def _of_results(task: Task, model: LatentModel, batch: Batch, structure: Tensor) -> Iterator[str]:
    """Models follow from seeds, all parameters are trained, and judgements are numbers per item, whose means are accuracies."""
    one, two, other = (list(task.model(seed).parameters()) for seed in (0, 0, 1))
    if not all(map(torch.equal, one, two)):
        yield "two models of one seed differ; expected parameters that follow from the seed alone"
    if all(map(torch.equal, one, other)):
        yield "the models of two seeds are equal; expected fresh parameters for every seed"
    given = [id(parameter) for group in task.parameter_groups(model, task.rates[0]) for parameter in group["params"]]
    wanted = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    if sorted(given) != sorted(wanted):
        yield f"`parameter_groups` has {len(given)} parameters; expected the {len(wanted)} that require gradients, each once"
    if not any(parameter.requires_grad for parameter in model.encoder.parameters()):
        yield "no parameter of the encoder requires a gradient; expected one that learns"
    for metric, values in task.judge(model, batch, structure).items():
        if tuple(values.shape) != (ITEMS,):
            yield f"`judge` gives {metric} of shape {tuple(values.shape)} for {ITEMS} items; expected one number per item"
    found = task.evaluate(model, "validation")
    if not 0 <= found.get("accuracy", -1.0) <= 1 or found != task.evaluate(model, "validation"):
        yield f"`evaluate` gives {found}; expected an accuracy between 0 and 1, the same at every call"
    if bool(task.structured) != ("structure_accuracy" in found):
        yield f"structured is {task.structured!r}, and `evaluate` gives {', '.join(found)}; expected structure_accuracy where it has a name"


def _of_precision(task: Task, batch: Batch) -> Iterator[str]:
    """Scores and losses also exist in double precision, in which gradients are measured."""
    double, exact = batch.double(), task.model(0).double()
    scores = task.scores(exact, double)
    values = task.loss(exact, double)(task.oracle.argmax(scores))
    if scores.dtype != torch.float64 or values.dtype != torch.float64:
        yield f"a model in double precision gives scores of {scores.dtype} and losses of {values.dtype}; expected float64 of both"
    elif not torch.allclose(task.scores(task.model(0), batch).detach(), scores.detach().float(), rtol=1e-3, atol=1e-3):
        yield "scores in double precision are others; expected the same up to rounding"


def _structures(task: Task, scores: Tensor) -> Tensor:
    """Best structures of scores with more and more noise, ``[3, b, *event]``."""
    noise = torch.randn((3, *scores.shape), generator=torch.Generator().manual_seed(0))
    return task.oracle.argmax(scores + torch.tensor([0.0, 1.0, 4.0]).reshape(-1, *[1] * scores.ndim) * noise)


def _tensors(batch: Batch) -> dict[str, Tensor]:
    named = {f"inputs[{i}]": part for i, part in enumerate(batch.inputs)} | {"labels": batch.labels}
    return named | {name: part for name in ("lengths", "gold") if (part := getattr(batch, name)) is not None}


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one.detach(), other.detach(), rtol=1e-4, atol=1e-4)

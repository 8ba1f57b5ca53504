"""Your own task from two modules and a data set, and any task with your own loss: ``clusters[loss=./mine.py:loss]``."""

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset, default_collate

from ...oracles import Oracle, registry
from ...oracles.options import Count
from ...oracles.sources import digest_of, source_of
from .task import Batch, LatentModel, Rates, Split, Task, TaskLoss
from .training import fit_decoder

PerItem = Callable[[Tensor, Tensor], Tensor]  # of predictions ``[n, ...]`` and labels ``[n, ...]``: ``[n]``

NUM_TRIED = 64  # random predictions that a loss is tried on
WANTED = "expected a function of predictions and labels, with one value per item"


@dataclass(frozen=True, eq=False)
class ModuleTask(Task):
    """A task of two modules and a torch ``Dataset``: three fifths of the items are for training, one for validation, one for testing.

    Args:
        encoder: makes a module with fresh parameters, such as its class: inputs of items ``[b, ...]`` to scores ``[b, *event]``.
        decoder: makes a module too: inputs and structures ``[b, *event]``, as last argument, to predictions ``[b, ...]``.
        structures: the oracle.
        dataset: items ``(input, label)``, or ``(input, label, structure)`` if the true one is known; an input is a tensor or several.
            Items may have different lengths, given by the first dimension of their first input. Inputs and structures are padded with
            zeros, and scores and structures outside the length of an item are ignored.
        loss_per_item: predictions and labels to one value per item, such as ``nn.CrossEntropyLoss(reduction="none")``. None is the
            cross-entropy for integer labels, and the squared difference for others.
        accuracy: predictions and labels to one value per item. None is whether the largest entry is the label; for labels that are not
            integers, whether the prediction has the sign of ``label − 1/2``.
        called: the name of the task, a seed of its random numbers.

    Example:
        >>> from structgrad.oracles import Subset
        >>> from torch.utils.data import TensorDataset
        >>> class Chosen(nn.Module):
        ...     def forward(self, x, z):
        ...         return torch.stack([-(x * z).sum(-1), (x * z).sum(-1)], -1)
        >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
        >>> task = ModuleTask(lambda: nn.Linear(4, 4), Chosen, Subset(2), TensorDataset(x, (x[:, 0] > 0).long()))
        >>> task.size("train"), task.scores(task.model(0), task.batch("test", torch.arange(3))).shape
        (30, torch.Size([3, 4]))
    """

    encoder: Callable[[], nn.Module]
    decoder: Callable[[], nn.Module]
    structures: Oracle
    dataset: Dataset[Any]
    loss_per_item: PerItem | None = None
    accuracy: PerItem | None = None
    called: str = "own"
    steps: Count = 500
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 64

    summary: ClassVar[str] = "a task of one's own"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name given as ``called``."""
        return self.called

    @property
    def structured(self) -> str:  # type: ignore[override]
        """The quality of structures, if the true ones are known."""
        return "" if self._whole.gold is None else "share of the parts of the true structure that are found"

    @property
    def oracle(self) -> Oracle:
        return self.structures

    def __repr__(self) -> str:
        """A text of all that results depend on, equal in every process."""
        made = ", ".join(_identity(part) for part in (self.encoder, self.decoder, self.loss_per_item, self.accuracy) if part is not None)
        rest = {name: getattr(self, name) for name in ("structures", "called", "steps", "rates", "batch_size")}
        return f"ModuleTask({made}, {len(self.dataset)} items, {rest})"  # type: ignore[arg-type]

    @functools.cached_property
    def _whole(self) -> Batch:
        """All items in a fixed random order, padded; no lengths if all have one shape."""
        order = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
        items = [self.dataset[int(i)] for i in order]
        sizes = sorted({len(item) for item in items})
        if sizes not in ([2], [3]):
            raise ValueError(f"`ModuleTask` got items of {sizes} entries; expected (input, label) or (input, label, structure)")
        given, labels, *gold = zip(*items, strict=True)
        inputs: list[Sequence[Any]] = [*zip(*given, strict=True)] if isinstance(given[0], list | tuple) else [given]
        shapes = {tuple(part.shape) for part in inputs[0]} if isinstance(inputs[0][0], Tensor) else set()
        lengths = torch.tensor([len(part) for part in inputs[0]]) if len(shapes) > 1 else None
        return Batch(tuple(map(_padded, inputs)), default_collate(list(labels)), lengths, _padded(gold[0]).float() if gold else None)

    def data(self, split: Split) -> Batch:
        shares = {"train": (0.0, 0.6), "validation": (0.6, 0.8), "test": (0.8, 1.0)}[split]
        first, last = (round(share * len(self._whole.labels)) for share in shares)
        return self._whole.map(lambda part: part[first:last])  # views, so that the data are held once

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return self.encoder(), self.decoder()

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        scores: Tensor = model.encoder(*batch.inputs)
        padded = scores if batch.lengths is None else self.oracle.pad(scores, batch.lengths)
        if padded.shape != scores.shape:
            raise ValueError(
                f"`ModuleTask` got items of different lengths for {self.oracle.name}, which pads into a larger event; write a `Task`"
            )
        return padded

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        function = self.loss_per_item or _defaults(batch.labels)[0]
        return TaskLoss(lambda z: self._of_predictions(model, batch, z, function, "loss_per_item"), "own")

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        worth = self.accuracy or _defaults(batch.labels)[1]
        found = {"accuracy": self._of_predictions(model, batch, structure, worth, "accuracy").float()}
        if batch.gold is not None:
            parts = tuple(range(-self.oracle.event_ndim, 0))
            found["structure_accuracy"] = (structure * batch.gold).sum(parts) / batch.gold.sum(parts)
        return found

    def _of_predictions(self, model: LatentModel, batch: Batch, z: Tensor, function: PerItem, role: str) -> Tensor:
        """Values ``[..., b]``; the decoder gets a batch with one dimension for any number of structures per item."""
        items, z = z.ndim - self.oracle.event_ndim - 1, self.unpadded(batch, z)
        several = z.shape[:items]
        many = batch._replace(lengths=None, gold=None).map(lambda part: part.expand(*several, *part.shape).flatten(0, items))
        found = function(model.decoder(*many.inputs, z.flatten(0, items)), many.labels)
        if found.shape != many.labels.shape[:1]:
            raise ValueError(
                f"the {role} of a `ModuleTask` gave {tuple(found.shape)} for {len(many.labels)} items; expected one number per item, as "
                'with reduction="none"'
            )
        return found.reshape(*several, -1)

    def floor(self, seed: int) -> float:
        """The decoder trained and tested without any part."""
        model = self.model(seed)
        empty = lambda batch: torch.zeros_like(self.scores(model, batch))  # noqa: E731
        return fit_decoder(self, model, empty, rate=self.rate, seed=seed)["accuracy"]


def _padded(parts: Sequence[Any]) -> Tensor:
    shapes = {tuple(part.shape) for part in parts if isinstance(part, Tensor)}
    if len(shapes) < 2:
        return default_collate(list(parts))  # type: ignore[no-any-return]
    found: Tensor = parts[0].new_zeros((len(parts), *(max(sizes) for sizes in zip(*shapes, strict=True))))
    for row, part in zip(found, parts, strict=True):
        row[tuple(slice(size) for size in part.shape)] = part
    return found


def _defaults(labels: Tensor) -> tuple[PerItem, PerItem]:
    """The loss and the accuracy of a task that has none of its own."""
    if not labels.is_floating_point():
        return functools.partial(cross_entropy, reduction="none"), lambda found, wanted: found.argmax(-1) == wanted
    return (
        lambda found, wanted: mse_loss(found, wanted, reduction="none").unsqueeze(-1).flatten(1).mean(1),
        lambda found, wanted: ((found > 0) == (wanted > 0.5)).unsqueeze(-1).flatten(1).all(1),
    )


def _identity(part: Any) -> str:
    """The name of a function or class, and a digest of its file and the imports of that; equal in every process."""
    kind = part if inspect.isclass(part) or inspect.isroutine(part) else type(part)
    name = f"{kind.__module__.rpartition('.')[2]}.{kind.__qualname__}"
    if found := digest_of(source_of(kind)):
        return f"{name}#{found[0]}"
    try:
        source = inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        source = repr(getattr(kind, "__code__", kind))
    return f"{name}#{hashlib.blake2b(source.encode(), digest_size=4).hexdigest()}"


def imported_loss(name: str, wanted: str) -> Any:
    """The function that ``./mine.py:loss`` or ``module:loss`` means; ValueError for anything else, which says what is wanted."""
    if ":" not in name:
        raise ValueError(f"got the loss {name!r}; expected your own, such as ./mine.py:loss")
    function = registry.imported(name, "loss")
    if not callable(function):
        raise ValueError(f"got the loss {name!r}, a {type(function).__name__}; {wanted}")
    return function


def with_own_loss(task: Task, name: str) -> Task:
    """The task with a loss ``f(predictions, labels)``: ``[n, ...], [n, ...] -> [n]``, or one value per position of items with lengths.

    Predictions are those of the decoder. A task without one passes structures and the true structures, with zeros in the padding.

    Raises:
        ValueError: what the name means cannot be imported, or takes other arguments.
    """
    function = imported_loss(name, WANTED)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise ValueError(f"got the loss {name!r} for the task {task.name} ({error}); {WANTED}") from None
    if isinstance(task, ModuleTask):
        return replace(task, loss_per_item=function)
    kind: Any = _with_loss(type(task), name, function, digest_of(source_of(function)))
    return kind(**{field.name: getattr(task, field.name) for field in fields(task) if field.init})  # type: ignore[arg-type, no-any-return]


@functools.lru_cache(maxsize=64)
def _with_loss(kind: Any, name: str, function: PerItem, digest: tuple[str, ...]) -> Any:
    tried: list[tuple[bool, bool]] = []

    class WithOwnLoss(kind):  # type: ignore[misc]
        def __repr__(self) -> str:
            return f"{super().__repr__()} with the loss {name} {' '.join(digest)}"

        def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
            items = -self.oracle.event_ndim - 1

            def call(z: Tensor) -> Tensor:
                found, labels, leading = self.predict(model, batch, z), batch.labels, z.shape[: z.ndim + items]
                if found is z:
                    found, labels = self.unpadded(batch, z), self.unpadded(batch, batch.true())
                found = found.flatten(0, len(leading))
                values = function(found, labels.expand(*leading, *labels.shape).flatten(0, len(leading)))
                if values.shape[:1] != found.shape[:1]:
                    raise ValueError(f"{name} gave {tuple(values.shape)} for {len(found)} items; {WANTED}")
                values = values.unflatten(0, (*leading, z.shape[items]))
                return values if values.ndim == len(leading) + 1 or batch.lengths is None else batch.mean(values)

            if not tried:
                best, worst = ends(self.oracle, self.scores(model, batch).detach())
                predicted = self.predict(model, batch, best)
                if predicted is not best:
                    _check_predictions(function, predicted.detach(), batch.labels, f"the loss {name!r} for the task {self.name}")
                tried.append(smoothness(call, best, worst))
            return TaskLoss(call, name, *tried[0], extension="formula" if tried[0][1] else "none", gold=batch.gold)

    WithOwnLoss.__module__, WithOwnLoss.__qualname__ = kind.__module__, kind.__qualname__
    return WithOwnLoss


def _check_predictions(function: PerItem, predicted: Tensor, labels: Tensor, subject: str) -> None:
    """Refuse a loss from which no decoder can learn; what it returns for structures is examined with the problem."""
    noise = torch.randn((NUM_TRIED, *predicted.shape), generator=torch.Generator().manual_seed(0)).flatten(0, 1).requires_grad_()
    with contextlib.suppress(RuntimeError, TypeError, IndexError), torch.enable_grad():
        values = function(noise, labels.expand(NUM_TRIED, *labels.shape).flatten(0, 1))
        least, most = (float(end.detach()) for end in (values.min(), values.max()))
        if values.shape[:1] == noise.shape[:1] and least == most:
            raise ValueError(f"{subject} gave {least:g} for all predictions; expected one that depends on them")
        if not values.requires_grad:
            raise ValueError(f"{subject} gives values only, from which its decoder cannot learn; expected one with a derivative")


def ends(oracle: Oracle, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The best and the worst structures; a forbidden part stays forbidden."""
    return oracle.argmax(scores), oracle.argmax(torch.where(scores > -torch.inf, -scores, scores))


def smoothness(function: Callable[[Tensor], Any], best: Tensor, worst: Tensor) -> tuple[bool, bool]:
    """Whether a loss has a derivative at a structure, and finite values and derivatives between two of them."""

    def has_gradient(point: Tensor) -> bool:
        point = point.clone().requires_grad_()
        try:
            with torch.enable_grad():
                losses = function(point)
                (gradient,) = torch.autograd.grad(losses.sum(), point, allow_unused=True)
        except Exception:  # what is wrong with it at a structure is said by `examine_loss`
            return False
        return gradient is not None and bool(losses.isfinite().all() and gradient.isfinite().all())

    return (differentiable := has_gradient(best)), differentiable and has_gradient((best + worst) / 2)

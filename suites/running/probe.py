"""A probe in a layer that trains: scores and losses of some of its steps, and what other estimators would have done there."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...estimators import StructuredLayer, make_estimator
from ...estimators.layer import PROBES
from ...oracles import Oracle
from ..base import Instance, Problem, Row, estimator_name
from ..measures.suite import EFFORTS, Effort
from ..problems.named import tried_loss
from ..tasks.task import TaskLoss
from .cells import measured
from .planning.plan import Plan
from .planning.presets import FIRST_ESTIMATORS
from .runner import Results, derive
from .work import Cell


@dataclass(eq=False)
class _Record:
    """One step: scores of a few items, the size of each, the shape of the batch, and the loss with the weights that it had."""

    step: int
    scores: Tensor  # ``[items, *event]``, float64
    places: list[int]  # of the items in the batch
    sizes: list[tuple[int, ...]]  # lengths of the items, in the units of the oracle
    batch: tuple[int, ...]
    device: torch.device
    loss: Callable[[Tensor], Tensor] | None = None
    weights: list[tuple[Tensor, Tensor, torch.device]] = field(default_factory=list)  # tensors, their values at this step on the CPU
    modules: list[nn.Module] = field(default_factory=list)

    def keep(self, loss: Callable[[Tensor], Tensor]) -> None:
        own = loss.func if isinstance(loss, functools.partial) else loss  # partials of partials are one
        self.loss = _Frozen(self, str(getattr(own, "__module__", ""))).of(loss)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Give modules the weights of this step, in double precision and evaluation mode, for a while."""
        modes = [(part, part.training) for module in self.modules for part in module.modules()]
        live = [(tensor, tensor.data) for tensor, _, _ in self.weights]
        try:
            for part, _ in modes:
                part.training = False
            for tensor, value, device in self.weights:
                tensor.data = value.to(device, torch.float64 if value.is_floating_point() else None)
            yield
        finally:
            for part, mode in modes:
                part.training = mode
            for tensor, data in live:
                tensor.data = data


@dataclass(eq=False)
class _Frozen:
    """Copies of what a loss refers to; modules stay, and a record keeps their weights."""

    record: _Record
    module: str
    made: dict[int, Any] = field(default_factory=dict)

    def of(self, value: Any) -> Any:  # noqa: C901, PLR0911 - a case for each kind of value
        if id(value) in self.made:
            return self.made[id(value)]
        if isinstance(value, nn.Module):
            tensors = {id(tensor): tensor for tensor in (*value.parameters(), *value.buffers())}
            self.record.modules.append(value)
            self.record.weights += [(tensor, tensor.detach().to("cpu", copy=True), tensor.device) for tensor in tensors.values()]
            self.made[id(value)] = value
            return value
        if isinstance(value, Tensor):
            copied = self.made[id(value)] = value.detach().to("cpu", copy=True)
            self.record.weights.append((copied, copied.data, value.device))
            return copied
        if isinstance(value, np.ndarray):
            return self.made.setdefault(id(value), value.copy())
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *map(self.of, value.args), **{k: self.of(v) for k, v in value.keywords.items()})
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.of(value.__self__))
        if type(value) is tuple:
            return tuple(map(self.of, value))
        if type(value) in (list, dict):  # it may hold itself
            made = self.made[id(value)] = type(value)()
            made.extend(map(self.of, value)) if type(value) is list else made.update((key, self.of(one)) for key, one in value.items())
            return made
        if isinstance(value, FunctionType) and value.__module__ == self.module:
            cells, names = tuple(CellType() for _ in value.__closure__ or ()), dict(value.__globals__)
            made = self.made[id(value)] = FunctionType(value.__code__, names, value.__name__, None, cells)
            made.__defaults__, made.__kwdefaults__ = self.of(value.__defaults__), self.of(value.__kwdefaults__)
            for cell, old in zip(cells, value.__closure__ or (), strict=True):
                with contextlib.suppress(ValueError):  # it is not set yet
                    cell.cell_contents = self.of(old.cell_contents)
            names |= {name: self.of(names[name]) for name in _names(value.__code__) if name in names}
            return made
        if type(value).__module__ == self.module and hasattr(value, "__dict__") and not isinstance(value, type):
            made = self.made[id(value)] = copy.copy(value)
            vars(made).update({key: self.of(one) for key, one in vars(value).items()})
            return made
        return value


def _names(code: CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)


def _loss_of_item(record: _Record, item: int, oracle: Oracle, scores: Tensor) -> TaskLoss:
    """The loss of one item of a batch: all items get its structure, and the others' losses are left out."""
    place, event, batch = record.places[item], tuple(record.scores.shape[1:]), record.batch
    pads = [pad for whole, own in zip(event, scores.shape, strict=True) for pad in (whole - own, 0)][::-1]

    def call(structure: Tensor) -> Tensor:
        assert record.loss is not None
        leading = structure.shape[: structure.ndim - len(event)]
        whole = nn.functional.pad(structure, pads).reshape(*leading, *[1] * len(batch), *event)
        losses = record.loss(whole.expand(*leading, *batch, *event).to(record.device, torch.float64))
        return losses.to(structure).reshape(*leading, -1)[..., place]

    return tried_loss("training", call, oracle, scores)


class Probe:
    """Records scores, losses and batches of a layer while it trains, to compare estimators on them.

    A step is a training call of the layer. At every ``every``-th one, the scores of the first items that are not empty are copied to the
    CPU. So are the tensors and arrays that the loss refers to, and all weights of its modules: in their dtype, once for each record.
    ``lambda z: self.decoder(z)`` keeps the weights of ``self``; after ``decoder = self.decoder``, ``lambda z: decoder(z)`` keeps fewer.
    `measure` and `save` may be called at any time.

    Args:
        layer: its `surrogate` and `train_step` hand on the loss. After `forward`, give it by `loss`.
        every: steps from one record to the next.
        keep: the most records. When there are more, every second one is dropped, and ``every`` doubles.
        items: items of a batch that are recorded.

    Example:
        >>> layer, scores = StructuredLayer("subset[k=2]", "rloo"), nn.Parameter(torch.zeros(3, 4))
        >>> target, optimiser = torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.optim.Adam([scores], lr=0.1)
        >>> probe = Probe(layer, every=10)
        >>> for _ in range(20):
        ...     optimiser.zero_grad()
        ...     layer.surrogate(lambda z: (z - target).square().sum(-1) ** 2, scores).mean().backward()
        ...     optimiser.step()
        >>> found = probe.measure(["rloo", "ste"]).frame
        >>> list(found["stage"].unique())
        ['step=0', 'step=10']
    """

    def __init__(self, layer: StructuredLayer, every: int = 200, *, keep: int = 16, items: int = 4) -> None:
        for name, value in (("every", every), ("keep", keep), ("items", items)):
            if value < 1:
                raise ValueError(f"`Probe` got {name}={value}; expected at least 1")
        self.layer, self.every, self.keep, self.items = layer, every, keep, items
        self.calls, self.records = 0, list[_Record]()
        PROBES.setdefault(id(layer), []).append(self._see)

    def close(self) -> None:
        """Record no more."""
        PROBES[id(self.layer)] = [see for see in PROBES[id(self.layer)] if see != self._see]

    def _see(self, scores: Tensor, lengths: Tensor | None, loss: Callable[[Tensor], Tensor] | None) -> None:
        step, self.calls = self.calls, self.calls + 1
        if step % self.every:
            return
        split = scores.ndim - self.layer.oracle.event_ndim
        batch, event = tuple(scores.shape[:split]), tuple(scores.shape[split:])
        limits = self.layer.oracle.length_limits(event)
        given = torch.tensor(limits) if lengths is None else lengths.cpu() if len(limits) > 1 else lengths.cpu().unsqueeze(-1)
        sizes = [tuple(row) for row in given.expand(*batch, len(limits)).reshape(-1, len(limits)).tolist()]
        places = [place for place, size in enumerate(sizes) if min(size) > 0][: self.items]  # an empty item has one structure
        if not places:
            return
        rows = scores.detach().reshape(-1, *event)[places].double().cpu()
        self.records.append(_Record(step, rows, places, [sizes[place] for place in places], batch, scores.device))
        if loss is not None:
            self.records[-1].keep(loss)
        if len(self.records) > self.keep:
            self.records, self.every = self.records[::2], 2 * self.every

    def loss(self, loss: Callable[[Tensor], Tensor]) -> None:
        """Give the loss of the structures of the latest `forward`: ``[..., *batch, *event] -> [..., *batch]``."""
        if self.records and self.records[-1].step == self.calls - 1:
            self.records[-1].keep(loss)

    def measure(self, estimators: Sequence[str] = (), *, effort: Effort | None = None, seed: int = 0) -> Results:
        """Bias and variance of estimators at the recorded steps, as `run` measures them: a stage for each step.

        Args:
            estimators: names; by default ten of different kinds, and that of the layer.
            effort: precision; by default that of the preset quick.
            seed: of all random numbers.
        """
        if not any(record.loss for record in self.records):
            raise ValueError("`Probe` has no record with a loss; train with `surrogate` or `train_step`, or call `probe.loss` each time")
        names, own = list(estimators or FIRST_ESTIMATORS), estimator_name(self.layer.estimator)
        with contextlib.suppress(ValueError):  # it may hold a module, which no name has
            names += [own] if not estimators and own not in names and make_estimator(own) else []
        plan, rows = Plan(suites=("bias",), estimators=tuple(names), effort=effort or EFFORTS["quick"], seed=seed), list[Row]()
        for record in self.records:
            if record.loss is not None:
                with record.restored():
                    items = tuple(
                        Instance(f"item-{item}", scores, _loss_of_item(record, item, self.layer.oracle, scores))
                        for item, scores in enumerate(self._cut(record))
                    )
                    problem = Problem("probe", f"step={record.step}", self.layer.oracle, items, "probe")
                    cells = [Cell("bias", problem.name, problem.stage, (name,), len(items), "") for name in names]
                    rows += [row for cell in cells for row in measured(plan, problem, cell, plan.context())]
        return Results(derive(rows))

    def save(self, path: Path | str) -> Path:
        """Write the recorded scores for ``structgrad run --file``; add ``--field lengths=lengths`` if lengths differ."""
        if not self.records:
            raise ValueError("`Probe` has no record; save it after some steps of training")
        found, sizes = [one for record in self.records for one in record.scores], [one for record in self.records for one in record.sizes]
        event = tuple(map(max, zip(*(one.shape for one in found), strict=True)))
        scores = torch.zeros(len(found), *event, dtype=torch.float64)
        for row, one in zip(scores, found, strict=True):
            row[tuple(map(slice, one.shape))] = one
        step = np.repeat([record.step for record in self.records], [len(record.scores) for record in self.records])
        arrays = {"scores": scores.numpy(), "step": step}
        if set(sizes) != {tuple(self.layer.oracle.length_limits(event))}:
            arrays["lengths"] = np.array(sizes).squeeze(-1) if len(sizes[0]) == 1 else np.array(sizes)
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return Path(path)

    def _cut(self, record: _Record) -> Iterator[Tensor]:
        """The scores of each item without padding."""
        event = tuple(record.scores.shape[1:])
        for scores, size in zip(record.scores, record.sizes, strict=True):
            inside = self.layer.oracle.length_mask(event, torch.tensor(size if len(size) > 1 else size[0])).expand(event)
            yield scores[tuple(slice(int(places.max()) + 1) for places in inside.nonzero().unbind(1))]

"""A loss and an oracle that keep count of what an estimator asks of them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Loss
from ...oracles.capabilities import (
    EnumerableOracle,
    KBestOracle,
    MarginalOracle,
    Oracle,
    PolicyOracle,
    ProjectionOracle,
    RelaxedOracle,
    SamplingOracle,
)

OPERATIONS: tuple[tuple[type[Oracle], str, str], ...] = (
    (Oracle, "argmax", "argmax"),
    (MarginalOracle, "marginals", "marginals"),
    (MarginalOracle, "log_partition", "marginals"),
    (MarginalOracle, "log_prob", "marginals"),
    (MarginalOracle, "entropy", "marginals"),
    (PolicyOracle, "step_log_probs", "marginals"),
    (KBestOracle, "kbest", "kbest"),
    (RelaxedOracle, "relax", "relaxations"),
    (RelaxedOracle, "relaxed_sample", "relaxations"),
    (SamplingOracle, "sample", "samples"),
    (ProjectionOracle, "project", "projections"),
    (EnumerableOracle, "enumerate", "enumerated"),
)
"""Capability, operation, and the field of `Evaluations` that counts it."""


def _calls(kind: str) -> str:
    return f"rows given to {', '.join(f'`{name}`' for _, name, counts in OPERATIONS if counts == kind)}"


COUNTED: dict[str, str] = {
    "losses": "structures that the loss is shown",
    "loss_gradients": "structures in which the loss is differentiated",
    **{kind: _calls(kind) for kind in ("argmax", "marginals")},
    "samples": "structures that `sample` draws",
    "projections": _calls("projections"),
    "kbest": "structures that `kbest` lists",
    "relaxations": _calls("relaxations"),
}
"""What is counted, by the field of `Evaluations`; the others are passes of a size that depends on the structure, or noise."""


@dataclass
class Ledger:
    """What was asked, per batch row.

    Attributes:
        rows: of the batch. ``counts``: calls by the field of `Evaluations`. ``used``: capabilities whose operations were called.
        shapes, dtypes: of the structures that the loss saw.
        points: the structures that the loss saw, and with them the gradients that were asked for.
    """

    rows: int
    counts: Counter[str] = field(default_factory=Counter)
    used: set[type[Oracle]] = field(default_factory=set)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    points: list[Tensor] = field(default_factory=list)
    inside: bool = False

    def per_row(self, size: int) -> float:
        """A number of rows as calls per batch row."""
        return size / self.rows

    @property
    def loss_evaluations(self) -> float:
        """Losses of one estimate; a gradient counts as two more."""
        return float(self.counts["losses"] + 2 * self.counts["loss_gradients"])


def counting_loss(loss: Loss, ledger: Ledger, event_ndim: int) -> Loss:
    """The loss, which writes into the ledger."""

    def call(z: Tensor) -> Tensor:
        ledger.shapes.append(tuple(z.shape))
        ledger.dtypes.add(z.dtype)
        ledger.points.append(z.detach())
        ledger.counts["losses"] += ledger.per_row(z.shape[: z.ndim - event_ndim].numel())  # type: ignore[assignment]
        return loss(_Counted.apply(z, (ledger, event_ndim)))  # type: ignore[no-untyped-call]

    return call


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, where: tuple[Ledger, int]) -> Tensor:
        ctx.where = where
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ledger, event_ndim = ctx.where
        ledger.counts["loss_gradients"] += ledger.per_row(grads[0].shape[: grads[0].ndim - event_ndim].numel())
        return grads[0], None


def counting_oracle(oracle: Any, ledger: Ledger) -> Any:
    """The oracle as an instance of a subclass of its own class, whose public operations write into the ledger.

    What one operation calls in turn is part of it, and is not counted again.
    """
    methods = {
        name: _counted(getattr(oracle, name), (kind, capability), ledger)
        for capability, name, kind in OPERATIONS
        if isinstance(oracle, capability)
    }
    kind = type(f"Spied{type(oracle).__name__}", (type(oracle),), {name: staticmethod(method) for name, method in methods.items()})
    spied: Any = object.__new__(kind)
    spied.__dict__.update(vars(oracle))
    return spied


def _counted(original: Callable[..., Any], what: tuple[str, type[Oracle]], ledger: Ledger) -> Callable[..., Any]:
    kind, capability = what
    owner: Any = getattr(original, "__self__")  # noqa: B009 - a bound method
    event_ndim = owner.event_ndim

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        if ledger.inside:
            return original(*args, **named)
        ledger.inside = True
        try:
            result = original(*args, **named)
        finally:
            ledger.inside = False
        ledger.used.add(capability)
        ledger.counts[kind] += _size(kind, original.__name__, (args, named), result, (ledger, event_ndim))  # type: ignore[assignment]
        return result

    return call


def _size(kind: str, name: str, asked: tuple[tuple[Any, ...], dict[str, Any]], result: Any, where: tuple[Ledger, int]) -> float:
    """Calls per batch row of one operation."""
    args, named = asked
    ledger, event_ndim = where
    if kind == "enumerated":
        return float(len(result))
    if kind in ("samples", "kbest"):
        counted = result
    else:
        position = 1 if name == "log_prob" else 0
        counted = named.get("scores", args[position] if len(args) > position else result)
    return ledger.per_row(counted.shape[: counted.ndim - event_ndim].numel())

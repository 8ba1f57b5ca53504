"""A loss and an oracle that count the calls of an estimator."""

from __future__ import annotations

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
from ..oracle_proxy import hooked

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


def _rows(kind: str) -> str:
    return f"rows given to {', '.join(f'`{name}`' for _, name, counts in OPERATIONS if counts == kind)}"


COUNTED: dict[str, str] = {
    "losses": "structures that the loss is shown",
    "loss_gradients": "structures in which the loss is differentiated",
    **{kind: _rows(kind) for kind in ("argmax", "marginals")},
    "samples": "structures that `sample` draws",
    "projections": _rows("projections"),
    "kbest": "structures that `kbest` lists",
    "relaxations": _rows("relaxations"),
}
"""Meaning of the counted fields of `Evaluations`; the others are passes of a size that depends on the structure, or noise."""


@dataclass
class CallCounts:
    """Calls per row of a batch.

    Attributes:
        rows: of the batch.
        counts: calls by the field of `Evaluations`.
        used: capabilities with calls.
        shapes: shapes of the arguments of the loss.
        dtypes: their types.
        points: these arguments.
    """

    rows: int
    counts: Counter[str] = field(default_factory=Counter)
    used: set[type[Oracle]] = field(default_factory=set)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)
    points: list[Tensor] = field(default_factory=list)
    inside: bool = False

    def add(self, kind: str, structures: Tensor, event_ndim: int) -> None:
        """Count the rows ``[..., *event]`` of a tensor."""
        self.counts[kind] += structures.shape[: structures.ndim - event_ndim].numel() / self.rows  # type: ignore[assignment]

    @property
    def loss_evaluations(self) -> float:
        """Losses of one estimate; a gradient counts as two more."""
        return float(self.counts["losses"] + 2 * self.counts["loss_gradients"])


def counting_loss(loss: Loss, counts: CallCounts, event_ndim: int) -> Loss:
    """The loss, with its calls and its gradients counted."""

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, z: Tensor) -> Tensor:
            return z.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            counts.add("loss_gradients", grads[0], event_ndim)
            return grads[0]

    def call(z: Tensor) -> Tensor:
        counts.shapes.append(tuple(z.shape))
        counts.dtypes.add(z.dtype)
        counts.points.append(z.detach())
        counts.add("losses", z, event_ndim)
        return loss(Counted.apply(z))  # type: ignore[no-untyped-call]

    return call


def counting_oracle(oracle: Any, counts: CallCounts) -> Any:
    """The oracle with its public operations counted. Calls inside of one are part of it."""
    rows = {name: (capability, kind) for capability, name, kind in OPERATIONS if isinstance(oracle, capability)}

    def call(name: str, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if counts.inside:
            return original(*args, **named)
        counts.inside = True
        try:
            result = original(*args, **named)
        finally:
            counts.inside = False
        capability, kind = rows[name]
        counts.used.add(capability)
        if kind == "enumerated":
            counts.counts[kind] += len(result)
        elif kind in ("samples", "kbest"):
            counts.add(kind, result, oracle.event_ndim)
        else:
            position = 1 if name == "log_prob" else 0
            counts.add(kind, named.get("scores", args[position] if len(args) > position else result), oracle.event_ndim)
        return result

    return hooked(oracle, tuple(rows), call)

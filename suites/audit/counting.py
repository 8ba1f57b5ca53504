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

OPERATIONS: tuple[tuple[type[Oracle], str, str], ...] = (  # capability, operation, and the field of `Evaluations` that counts it
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

COUNTED: dict[str, str] = {
    "losses": "structures that the loss is shown",
    "loss_gradients": "structures in which the loss is differentiated",
}
"""Meaning of the counted fields of `Evaluations`; the others are passes of a size that depends on the structure, or noise."""
for _, _name, _field in OPERATIONS[:-1]:
    COUNTED[_field] = f"{COUNTED[_field]}, `{_name}`" if _field in COUNTED else f"rows given to `{_name}`"
COUNTED |= {"samples": "structures that `sample` draws", "kbest": "structures that `kbest` lists"}


@dataclass
class CallCounts:
    """Calls per row of a batch by the field of `Evaluations`, used capabilities, arguments of the loss, and the estimates."""

    rows: int
    event_ndim: int
    counts: Counter[str] = field(default_factory=Counter)
    used: set[type[Oracle]] = field(default_factory=set)
    points: list[Tensor] = field(default_factory=list)
    estimate: Tensor = field(default_factory=lambda: torch.empty(0))
    inside: bool = False

    @property
    def loss_evaluations(self) -> float:
        """Losses of one estimate; a gradient counts as two more."""
        return float(self.counts["losses"] + 2 * self.counts["loss_gradients"])

    def add(self, kind: str, structures: Tensor) -> None:
        """Count the rows ``[..., *event]`` of a tensor."""
        self.counts[kind] += structures.shape[: structures.ndim - self.event_ndim].numel() / self.rows  # type: ignore[assignment]

    def loss(self, loss: Loss) -> Loss:
        """The loss, with its calls and its gradients counted."""

        def call(z: Tensor) -> Tensor:
            self.points.append(z.detach())
            self.add("losses", z)
            shown = z.clone()
            if shown.requires_grad:
                shown.register_hook(lambda gradient: self.add("loss_gradients", gradient))
            return loss(shown)

        return call

    def oracle(self, oracle: Any) -> Any:
        """The oracle with its public operations counted. Calls inside of one are part of it."""
        rows = {name: (capability, kind) for capability, name, kind in OPERATIONS if isinstance(oracle, capability)}

        def call(name: str, original: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if self.inside:
                return original(*args, **named)
            self.inside = True
            try:
                result = original(*args, **named)
            finally:
                self.inside = False
            capability, kind = rows[name]
            self.used.add(capability)
            if kind == "enumerated":
                self.counts[kind] += len(result)
            elif kind in ("samples", "kbest"):
                self.add(kind, result)
            else:
                position = 1 if name == "log_prob" else 0
                self.add(kind, named.get("scores", args[position] if len(args) > position else result))
            return result

        return hooked(oracle, tuple(rows), call)

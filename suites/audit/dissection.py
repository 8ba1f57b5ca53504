"""Causes by intervention: the audit owns the loss, changes the value of one sample at a time, and reads what the estimate makes of it.

An estimate that is linear in the losses is ``ĝ = Σ_i L_i D_i + ĝ(0)``. With the structures that the loss was shown,
their scores ``s_i`` and their frequencies, the ``D_i`` show which score a loss is multiplied by, with which weight, and from which
distribution its sample came. It is used only where a mean is proven wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...estimators.base import Estimator
from ...estimators.score_function.reinforce import scores_of
from .cases import AuditLoss, Structure, seeded

ROWS = 2048
"""Estimates at the same scores."""

TOLERANCE = 1e-6
"""Relative distance below which rows of estimates are the same."""

Change = Callable[[Tensor, int, Tensor], Tensor]
"""``(values, first, structures)`` of one call of the loss, whose first sample has this number, to other values."""


def same(first: Tensor, second: Tensor, tolerance: float = TOLERANCE) -> bool:
    """Whether two tensors agree up to a share of their norm."""
    return float((first - second).norm()) <= tolerance * max(float(first.norm()), float(second.norm()), 1e-12)


@dataclass(eq=False)
class Dissection:
    """Estimates of one structure at repeated scores.

    Attributes:
        estimator: gives the same numbers for the same seed. ``structure``: small. ``scores``: ``[*event]``.
    """

    estimator: Estimator[Any]
    structure: Structure
    scores: Tensor

    def __post_init__(self) -> None:
        self.shown: list[Tensor] = []
        self.values: list[Tensor] = []
        self.differentiated = False
        self.estimate = self.run(keep=True)

    def run(self, change: Change = lambda values, first, z: values, *, keep: bool = False) -> Tensor:
        """Flat estimates ``[rows, d]`` with other losses, and the same seed."""
        loss, shape, seen = AuditLoss(self.structure), (ROWS, *self.structure.event), 0

        def call(z: Tensor) -> Tensor:
            nonlocal seen
            values = change(loss(z), seen, z)
            if z.shape[-len(shape) :] == shape:
                seen += math.prod(z.shape[: -len(shape)])
            if keep:
                self.shown.append(z.detach().double().reshape(-1, *shape))
                self.values.append(values.detach().double().reshape(-1, ROWS))
                if values.requires_grad:
                    values.register_hook(self._mark)
            return values

        rows = self.scores.expand(shape).clone()
        return self.estimator.gradient(call, self.structure.oracle, rows, generator=seeded(1, "dissection")).double().flatten(1)

    def _mark(self, _: Tensor) -> None:
        self.differentiated = True

    @cached_property
    def samples(self) -> Tensor:
        """``[N, rows, *event]``."""
        return torch.cat(self.shown)

    @cached_property
    def losses(self) -> Tensor:
        """``[N, rows]``."""
        return torch.cat(self.values)

    @property
    def size(self) -> int:
        """Losses of one estimate."""
        return len(self.samples)

    def directions(self, temperature: float = 1.0) -> Tensor:
        """``∇_θ log p(z_i; θ / T)``, flat: ``[N, rows, d]``."""
        rows = (self.scores / temperature).expand(ROWS, *self.structure.event)
        return scores_of(self.structure.oracle, self.samples, rows).flatten(2) / temperature

    @cached_property
    def log_chances(self) -> Tensor:
        """``[N, rows]``."""
        rows = self.scores.expand(self.samples.shape)
        found: Tensor = self.structure.oracle.log_prob(self.samples, rows)
        return found

    @cached_property
    def equal(self) -> Tensor:
        """Share of rows in which two samples are the same: ``[N, N]``."""
        flat = self.samples.flatten(2)
        return (flat.unsqueeze(0) == flat.unsqueeze(1)).all(-1).double().mean(-1)

    @cached_property
    def constant(self) -> Tensor:
        """The estimate where all losses are 0, ``[rows, d]``."""
        return self.run(lambda values, first, z: 0 * values)

    @cached_property
    def responses(self) -> Tensor:
        """``D_i``, ``[N, rows, d]``: by how much the estimate grows where the loss of one sample does by 1."""

        def raised(index: int) -> Change:
            def change(values: Tensor, first: int, z: Tensor) -> Tensor:
                flat = values.reshape(-1, ROWS)
                bump = (torch.arange(first, first + len(flat)) == index).to(values).unsqueeze(-1)
                return (flat + bump).reshape(values.shape)

            return change

        return torch.stack([self.run(raised(index)) - self.estimate for index in range(self.size)])

    @cached_property
    def own_weights(self) -> Tensor | None:
        """``[N, rows]`` of ``D_i = w_i s_i``; None where a loss has other scores too."""
        directions = self.directions()
        weights = (self.responses * directions).sum(-1) / directions.square().sum(-1)
        return weights if same(weights.unsqueeze(-1) * directions, self.responses) else None

    @cached_property
    def linear(self) -> bool:
        """Whether the estimate is ``Σ L_i D_i + ĝ(0)``."""
        return same((self.losses.unsqueeze(-1) * self.responses).sum(0) + self.constant, self.estimate)

    def mixture(self, directions: Tensor) -> Tensor | None:
        """A of ``D_i = Σ_j A_ij s_j``, the same in all rows; None where that does not hold."""
        columns = directions.flatten(1).mT
        found = torch.linalg.lstsq(columns, self.responses.flatten(1).mT, driver="gelsd").solution
        return found.mT if same(columns @ found, self.responses.flatten(1).mT) else None

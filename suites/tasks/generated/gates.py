"""Latent bits: gates that open some of several linear functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ....oracles import IndependentCategoricals
from ....oracles.options import Count
from ..task import Batch, LatentModel, TaskLoss
from .base import LatentTask, variant

FEATURES = 8
OUTPUTS = 3


@dataclass(frozen=True)
class Gates(LatentTask):
    """Regression by a sum of linear functions, each with a latent gate that a hyperplane opens.

    A decoder that is trained jointly may exchange gates, so that the quality of structures says little there. ``accuracy`` is the explained
    share of the squares, at least 0.

    Args:
        gates: number of bits.

    References:
        Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons for conditional computation".
    """

    gates: Count = 6
    kind: Literal["differentiable"] = "differentiable"

    name: ClassVar[str] = "gates"
    summary: ClassVar[str] = "regression by several linear functions with a latent gate each"
    scored: ClassVar[str] = "explained share of the squares"
    references: ClassVar[tuple[str, ...]] = ("bengio2013estimating",)
    family = "gates"
    oracle = IndependentCategoricals()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        planes = torch.randn(FEATURES, self.gates, generator=world)
        functions = torch.randn(FEATURES, self.gates * OUTPUTS, generator=world) / (FEATURES * self.gates) ** 0.5
        x = torch.randn(items, FEATURES, generator=draws)
        z = one_hot((x @ planes > 0).long(), 2).float()
        y = ((x @ functions).unflatten(-1, (self.gates, OUTPUTS)) * z[..., 1:]).sum(-2)
        return Batch((x,), y + 0.2 * torch.randn(y.shape, generator=draws), None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        encoder = nn.Sequential(nn.Linear(FEATURES, 2 * self.gates), nn.Unflatten(-1, (self.gates, 2)))
        return encoder, nn.Sequential(nn.Linear(FEATURES, self.gates * OUTPUTS), nn.Unflatten(-1, (self.gates, OUTPUTS)))

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return (model.decoder(batch.inputs[0]) * structure[..., 1:]).sum(-2)  # type: ignore[no-any-return]

    def _error(self, model: LatentModel, batch: Batch, z: Tensor) -> Tensor:
        return (self.predict(model, batch, z) - batch.labels).square().sum(-1)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: self._error(model, batch, z), "squared_error", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        explained = 1 - self._error(model, batch, structure) / batch.labels.square().sum(-1)
        return {"accuracy": explained.clamp(min=0), "structure_accuracy": self.quality(batch, structure)}


GatesFrozen = variant(Gates, "gates_frozen", "latent gates of linear functions that were trained before", decoding="frozen")

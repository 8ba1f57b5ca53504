"""Decisions for costs that are predicted: paths over a terrain, rankings, and selections under a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ....oracles import Alignment, Assignment, Subset
from ....oracles.options import Count
from ..task import Batch
from .base import DecisionTask, PairScorer, perceptron, variant

FEATURES = 8
TERRAINS = 6
HIDDEN = 4  # units of the perceptron that gives items their worth
TOPICS = 8
COVERED = 0.25  # chance of an item to cover a topic


@dataclass(frozen=True)
class Paths(DecisionTask):
    """Monotone paths over a square of tiles, from noisy features of every tile; a terrain has a cost, which only training knows.

    The linear loss is the regret of the path, relative to the mean cost of a path; the differentiable one is the squared distance from the
    best path, which has the same optimum. After Vlastelica, Paulus, Musil, Martius & Rolínek 2020, section 4.1.

    Args:
        side: tiles of a row.
    """

    side: Count = 5
    kind: Literal["linear", "differentiable"] = "linear"

    name: ClassVar[str] = "paths"
    summary: ClassVar[str] = "cheapest paths over tiles of unknown cost, by their regret"
    scored: ClassVar[str] = "tiles shared with the cheapest path"
    references: ClassVar[tuple[str, ...]] = ("vlastelica2020differentiation",)
    oracle = Alignment()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        looks, costs = torch.randn(TERRAINS, FEATURES, generator=world), torch.linspace(0.2, 2.0, TERRAINS)
        terrain = torch.randint(TERRAINS, (items, self.side, self.side), generator=draws)
        x = looks[terrain] + 0.7 * torch.randn(items, self.side, self.side, FEATURES, generator=draws)
        return Batch((x,), costs[terrain], None, self.oracle.argmax(-costs[terrain]))

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return nn.Sequential(perceptron(FEATURES, 16, 1), nn.Flatten(-2)), nn.Identity()

    def cost(self, batch: Batch, z: Tensor) -> Tensor:
        apart = z - batch.true()
        return (apart * batch.labels if self.kind == "linear" else apart.square()).sum((-2, -1)) / self.side


@dataclass(frozen=True)
class Ranking(DecisionTask):
    """Rankings of items by a worth that is predicted from their features; training knows the worth.

    The differentiable loss is the squared distance of the worth in the predicted order from the sorted one. The linear loss is the lost
    share of the discounted gain. The black box counts pairs in the wrong order. After Grover, Wang, Zweig & Ermon 2019.

    Args:
        ranked: items of a ranking.
    """

    ranked: Count = 5
    kind: Literal["differentiable", "linear", "black_box"] = "differentiable"

    name: ClassVar[str] = "ranking"
    summary: ClassVar[str] = "items sorted by a predicted worth, by the squared distance of the sorted worth"
    scored: ClassVar[str] = "pairs in the right order"
    references: ClassVar[tuple[str, ...]] = ("grover2019stochastic",)
    oracle = Assignment()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        first, second = torch.randn(FEATURES, HIDDEN, generator=world), torch.randn(HIDDEN, 1, generator=world)
        x = torch.randn(items, self.ranked, FEATURES, generator=draws)
        worth = ((1.5 * x @ first / FEATURES**0.5).tanh() @ second / (0.5 * HIDDEN) ** 0.5).squeeze(-1)  # with a variance of about 1
        worth = worth + 0.1 * torch.randn(items, self.ranked, generator=draws)
        ranks = worth.argsort(-1, descending=True).argsort(-1)
        return Batch((x,), worth, None, nn.functional.one_hot(ranks, self.ranked).float())

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return perceptron(FEATURES, 16, self.ranked), nn.Identity()

    def cost(self, batch: Batch, z: Tensor) -> Tensor:
        worth = batch.labels.unsqueeze(-2)
        if self.kind == "differentiable":
            return (worth @ (z - batch.true())).squeeze(-2).square().mean(-1)
        if self.kind == "black_box":
            return super().cost(batch, z)
        discounts = 1 / torch.arange(2.0, self.ranked + 2, dtype=z.dtype).log2()
        gained, best = ((worth.sigmoid() @ one).squeeze(-2) @ discounts for one in (z, batch.true()))
        return 1 - gained / best

    def success(self, batch: Batch, z: Tensor) -> Tensor:
        places, (first, last) = z @ torch.arange(self.ranked, dtype=z.dtype), torch.triu_indices(self.ranked, self.ranked, 1)
        wanted = batch.labels[..., first] > batch.labels[..., last]
        return ((places[..., first] < places[..., last]) == wanted).to(z.dtype).mean(-1)


@dataclass(frozen=True)
class Budget(DecisionTask):
    """Selections of a few items that cover many topics, which are predicted from noisy features of the items; training knows them.

    The black box is the share of the best coverage that is lost. The differentiable loss has the same values, and between selections those
    of independent items (the multilinear extension). The linear loss is modular: it counts a topic for every item. See Wilder et al. 2019.

    Args:
        offered, chosen: items, and the number of them that the budget allows.
    """

    offered: Count = 10
    chosen: Count = 3
    kind: Literal["differentiable", "linear", "black_box"] = "differentiable"

    name: ClassVar[str] = "budget"
    summary: ClassVar[str] = "three of ten items that cover most topics, by the multilinear extension"
    scored: ClassVar[str] = "share of the best value"
    references: ClassVar[tuple[str, ...]] = ("wilder2019melding",)
    best: ClassVar[str] = "exact"

    @property
    def oracle(self) -> Subset:
        return Subset(self.chosen)

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        looks = torch.randn(TOPICS, 2 * FEATURES, generator=world)
        covers = (torch.rand(items, self.offered, TOPICS, generator=draws) < COVERED).float()
        x = covers @ looks + torch.randn(items, self.offered, 2 * FEATURES, generator=draws)
        selections = self.oracle.enumerate((self.offered,))
        values = self._value(Batch((x,), covers), selections.unsqueeze(1).expand(-1, items, -1))
        return Batch((x,), covers, None, selections[values.argmax(0)])

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return PairScorer((2 * FEATURES, 2 * FEATURES), 32, lambda x: (x, x.mean(-2, keepdim=True))), nn.Identity()

    def _value(self, batch: Batch, z: Tensor) -> Tensor:
        """``[..., b, n] -> [..., b]``: the mean number of topics, or of the items that cover one."""
        if self.kind == "linear":
            return (z.unsqueeze(-1) * batch.labels).sum((-2, -1))
        return (1 - (1 - z.unsqueeze(-1) * batch.labels).prod(-2)).sum(-1)

    def success(self, batch: Batch, z: Tensor) -> Tensor:
        return self._value(batch, z) / self._value(batch, batch.true()).clamp(min=1)


PathsSquared = variant(
    Paths, "paths_squared", "cheapest paths over tiles of unknown cost, by their squared distance", kind="differentiable"
)
RankingGain = variant(Ranking, "ranking_gain", "items sorted by a predicted worth, by the discounted gain", kind="linear")
RankingPairs = variant(Ranking, "ranking_pairs", "items sorted by a predicted worth, by the pairs in the wrong order", kind="black_box")
BudgetSum = variant(Budget, "budget_sum", "three of ten items that have most topics together, each counted", kind="linear")
BudgetCoverage = variant(Budget, "budget_coverage", "three of ten items that cover most topics, by their number alone", kind="black_box")

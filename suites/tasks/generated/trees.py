"""Latent trees: heads of words, influences in a system, and the order of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from ....oracles import Constituency, ProjectiveTree, SpanningTree
from ....oracles.options import Count
from ..task import Batch, Decoding, LatentModel, TaskLoss
from ..training import judged
from .base import DECLARATIONS, GeneratedTask, LatentTask, PairScorer, perceptron, variant

FEATURES = 6
MOMENTS = 4  # moments of a series of the system
SIZE = 2  # numbers of a member of the system at a moment
VALUES = 4  # elements of the algebra
LEAST = 1e-2  # probability of a value that the tree does not give


@dataclass(frozen=True)
class Heads(LatentTask):
    """Labels of words that depend on the word and its head in a latent tree without crossing arcs.

    The tree is the best one by scores of arcs, which depend on a key of the modifier and a lock of the head. The label is whether the
    signs of a feature of the word and of another one of its head agree.

    Args:
        words: words of a sentence.
    """

    words: Count = 4
    decoding: Decoding = "frozen"

    name: ClassVar[str] = "heads"
    summary: ClassVar[str] = "labels of words by their latent heads, for a decoder that was trained on the true trees"
    oracle = ProjectiveTree()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        x = torch.randn(items, self.words + 1, FEATURES, generator=draws)
        x[:, 0] = torch.randn(FEATURES, generator=world)
        z = self.oracle.argmax(4 * x[..., :2] @ x[..., 2:4].mT)
        y = (x[..., 4] > 0) == ((z.mT @ x[..., 5:]).squeeze(-1) > 0)
        return Batch((x,), y[:, 1:].float(), None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        arcs = PairScorer((FEATURES, FEATURES), 32, lambda x: (x.unsqueeze(-2), x.unsqueeze(-3)))
        return arcs, nn.Sequential(perceptron(2 * FEATURES, 32, 1), nn.Flatten(-2))

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        x = batch.inputs[0]
        head = structure.mT @ x
        return model.decoder(torch.cat([x.expand_as(head), head], -1)[..., 1:, :])  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Influence(LatentTask):
    """The next state of every member of a system, which depends on its own state and on that of its head in a latent tree.

    Encoder and decoder get series of states. The loss is the squared error of all next states, as minus log-likelihood, and for ``elbo``
    the divergence from uniform trees. After Kipf et al. 2018, and with spanning trees Paulus et al. 2020.

    Args:
        members: members of the system without the root.
    """

    members: Count = 4
    kind: Literal["elbo", "differentiable"] = "elbo"

    name: ClassVar[str] = "influence"
    summary: ClassVar[str] = "series of a system whose members follow their heads in a latent tree, by the evidence lower bound"
    scored: ClassVar[str] = "explained share of the changes"
    references: ClassVar[tuple[str, ...]] = ("kipf2018neural", "paulus2020gradient")
    squared: ClassVar[bool] = True
    oracle = SpanningTree()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        z = self.oracle.sample(torch.zeros(items, self.members + 1, self.members + 1), 1, generator=draws)[0]
        turn = torch.linalg.qr(torch.randn(SIZE, SIZE, generator=world))[0]
        states = [torch.randn(items, self.members + 1, SIZE, generator=draws)]
        for _ in range(MOMENTS):
            noise = torch.randn(states[0].shape, generator=draws)
            follows = 0.9 * z.mT @ states[-1] @ turn + 0.8 * noise
            states.append(torch.cat([noise[:, :1], follows[:, 1:]], 1))
        series = torch.stack(states, -2)
        return Batch((series,), series[:, 1:, 1:], None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        def views(series: Tensor) -> tuple[Tensor, Tensor]:
            before, after = series[..., :-1, :], series[..., 1:, :]
            return before.unsqueeze(-3), torch.cat([before, after], -1).unsqueeze(-4)

        return PairScorer((SIZE, 2 * SIZE), 16, views, lambda hidden: hidden.square().sum(-2)), nn.Linear(SIZE, SIZE)

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        before = batch.inputs[0][..., :-1, :]
        return model.decoder((structure.mT @ before.flatten(-2)).unflatten(-1, before.shape[-2:]))[..., 1:, :, :]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Algebra(GeneratedTask):
    """The value of a product that is not associative: operators with noisy features of their precedence give the order.

    The decoder is the table of products. Between trees it mixes values along the chart. The black box is whether the value is wrong; the
    differentiable loss is the probability of a wrong value, with the same values at trees.

    Args:
        leaves: factors of a product.
    """

    leaves: Count = 6
    kind: Literal["black_box", "differentiable"] = "black_box"

    name: ClassVar[str] = "algebra"
    summary: ClassVar[str] = "products in an algebra that is not associative, with a latent order, by their right or wrong value"
    scored: ClassVar[str] = "right values"
    decoding = "frozen"
    oracle = Constituency()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        x = torch.randn(items, self.leaves - 1, FEATURES, generator=draws)
        direction = torch.nn.functional.normalize(torch.randn(FEATURES, generator=world), dim=0)
        table = torch.randint(VALUES, (VALUES, VALUES), generator=world)
        precedence = x @ direction
        # A span is in the tree if the operators around it are weaker than those inside.
        place, operator = torch.arange(self.leaves), torch.arange(self.leaves - 1)
        inside = (operator >= place.reshape(-1, 1, 1)) & (operator < place.unsqueeze(-1))
        inner = precedence.reshape(items, 1, 1, -1).masked_fill(~inside, torch.inf)
        around = pad(precedence, (1, 1), value=-torch.inf)
        outside = torch.maximum(around[:, :-1].unsqueeze(-1), around[:, 1:].unsqueeze(-2))
        z = ((inner.amin(-1) > outside) | torch.eye(self.leaves, dtype=torch.bool)).float().triu()
        values = one_hot(torch.randint(VALUES, (items, self.leaves), generator=draws), VALUES).float()
        products = one_hot(table, VALUES).float()
        labels = compose(z, values, products).argmax(-1)
        return Batch((x, values, products.expand(items, -1, -1, -1)), labels, None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return Spans(FEATURES, 16), nn.Identity()

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        return model.encoder(batch.inputs[0])  # type: ignore[no-any-return]

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return compose(structure, batch.inputs[1], batch.inputs[2][0]).clamp(min=LEAST).log()

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def wrong(z: Tensor) -> Tensor:
            chance = 1 - (compose(z, batch.inputs[1], batch.inputs[2][0]) * one_hot(batch.labels, VALUES)).sum(-1)
            return chance.round() if self.kind == "black_box" else chance

        return TaskLoss(wrong, "wrong_value", gold=batch.gold, **DECLARATIONS.get(self.kind, {}))

    def floor(self, seed: int) -> float:
        """The constant tree that is right most often in training."""
        train, model = self.data("train"), self.model(seed)
        trees = self.oracle.enumerate((self.leaves, self.leaves))
        best = max(trees, key=lambda tree: float(self.judge(model, train, tree.expand_as(train.true()))["accuracy"].mean()))
        return judged(self, model, lambda batch: best.expand_as(batch.true()))["accuracy"]


class Spans(nn.Module):
    """Scores of spans by the operators before and after, and by the sum of those inside."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.operator, self.score = perceptron(features, hidden, hidden), perceptron(3 * hidden, hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n − 1, d] -> [b, n, n]``."""
        known = pad(self.operator(x), (0, 0, 1, 1))
        sums, n = known.cumsum(-2), known.shape[-2] - 1
        left, right = known[..., :-1, :].unsqueeze(-2), known[..., 1:, :].unsqueeze(-3)
        inside = sums[..., :-1, :].unsqueeze(-3) - sums[..., :-1, :].unsqueeze(-2)
        wide = (*inside.shape[:-3], n, n, -1)
        return self.score(torch.cat([left.expand(wide), right.expand(wide), inside], -1)).squeeze(-1)  # type: ignore[no-any-return]


def compose(z: Tensor, values: Tensor, products: Tensor) -> Tensor:
    """Values ``[..., b, v]`` of leaves ``[b, n, v]`` along mixed spans ``[..., b, n, n]``, by a table ``[v, v, v]``."""
    n = z.shape[-1]
    chart = {(i, i): values[..., i, :].expand(*z.shape[:-2], -1) for i in range(n)}
    for width in range(1, n):
        for i in range(n - width):
            j = i + width
            weights = torch.stack([z[..., i, k] * z[..., k + 1, j] for k in range(i, j)], -1).clamp(min=0)
            weights = (weights + 1e-9) / (weights + 1e-9).sum(-1, keepdim=True)
            pairs = [chart[i, k].unsqueeze(-1) * chart[k + 1, j].unsqueeze(-2) for k in range(i, j)]
            mixed = (weights.unsqueeze(-1).unsqueeze(-1) * torch.stack(pairs, -3)).sum(-3)
            chart[i, j] = mixed.flatten(-2) @ products.to(z.dtype).flatten(0, 1)
    return chart[0, n - 1]


InfluenceSquared = variant(
    Influence, "influence_squared", "series of a system with a latent tree, by the squared error", kind="differentiable"
)
AlgebraSoft = variant(Algebra, "algebra_soft", "products with a latent order, by the probability of a wrong value", kind="differentiable")

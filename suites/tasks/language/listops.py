"""ListOps: the value of nested list operations, by composition along a latent binary tree."""

from __future__ import annotations

import functools
import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import Constituency
from ....oracles.options import Count
from ..cache import cached
from ..task import Batch, LatentModel, Rates, Split, Steps, Task, TaskLoss
from ..training import fit
from . import list_operations
from .compositions import ChartDecoder
from .list_operations import PADDING, ListLines

VALUES = 10
"""Labels."""


@dataclass(frozen=True)
class LineTask(Task):
    """Lines of ListOps with at least two operators; labels are their values, structures are binary trees over the tokens.

    A subclass defines how trees are scored and composed. The quality of trees is bracket recall, see `bracket_recall`. The true tree is
    left-branching within each list.

    Args:
        shortest, longest: tokens of a line.
        train, heldout: largest number of training lines, and of validation and test lines each.
        generated: whether lines are drawn by the authors' grammar; else they are read.
        dimension, hidden: size of the representations of subtrees, and units of their composition.

    References:
        Nangia & Bowman 2018, "ListOps: a diagnostic dataset for latent tree learning".
    """

    shortest: Count = 7
    longest: Count = 8
    train: Count = 2000
    heldout: Count = 500
    generated: bool = False
    dimension: Count = 32
    hidden: Count = 64
    steps: Count = 250
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 32

    references: ClassVar[tuple[str, ...]] = ("nangia2018listops",)
    structured: ClassVar[str] = "bracket recall"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest <= self.longest >= list_operations.SHORTEST:
            raise ValueError(
                f"`{self.name}` got shortest={self.shortest}, longest={self.longest}; expected shortest <= longest, and longest >= "
                f"{list_operations.SHORTEST}, the tokens of the shortest line with two operators"
            )

    def unavailable(self) -> str | None:
        return None if self.generated else list_operations.unavailable()

    def lines(self, split: Split) -> ListLines:
        """All lines of a split."""
        if self.generated:
            return list_operations.generate(split, self.shortest, self.longest, self.train, self.heldout)
        return list_operations.read(split, self.shortest, self.longest, self.train if split == "train" else self.heldout)

    def size(self, split: Split) -> int:
        return len(self.lines(split).tokens)

    def batch(self, split: Split, items: Tensor) -> Batch:
        lines = self.lines(split)
        return Batch((lines.tokens[items],), lines.labels[items], lines.lengths[items], self.structures(lines.gold[items]))

    @abstractmethod
    def structures(self, spans: Tensor) -> Tensor:
        """Trees ``[b, n, n]``, as the oracle has them."""

    @abstractmethod
    def spans(self, structures: Tensor) -> Tensor:
        """The inverse of `structures`."""

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        assert batch.lengths is not None
        return self.oracle.pad(model.encoder(*batch.inputs), batch.lengths)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def cross_entropy(z: Tensor) -> Tensor:
            log_probs: Tensor = model.decoder(*batch.inputs, batch.lengths, self._cut(batch, z)).log_softmax(-1)
            return -log_probs.gather(-1, batch.labels.expand(log_probs.shape[:-1]).unsqueeze(-1)).squeeze(-1)

        return TaskLoss(cross_entropy, "cross_entropy")

    def _cut(self, batch: Batch, z: Tensor) -> Tensor:
        """Structures ``[..., b, *event]`` with zeros in the padding."""
        assert batch.lengths is not None
        return z * self.oracle.length_mask(tuple(z.shape[z.ndim - self.oracle.event_ndim :]), batch.lengths)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        assert batch.lengths is not None
        assert batch.gold is not None
        structure = self._cut(batch, structure)
        right = model.decoder(*batch.inputs, batch.lengths, structure).argmax(-1) == batch.labels
        recall = bracket_recall(self.spans(structure), self.spans(batch.gold), batch.lengths)
        return {"accuracy": right.float(), "structure_accuracy": recall}

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, object]]:
        return [{"params": list(model.encoder.parameters()), "lr": rate}, {"params": list(model.decoder.parameters()), "lr": 0.3 * rate}]

    def floor(self, seed: int) -> Mapping[str, float]:
        """The most frequent value of the training lines, and the decoder trained on left-branching trees."""
        branching = self.taught(self.model(seed), self.left_branching, rate=0.003, seed=seed)
        return {"accuracy": self.majority(), **{f"left_branching_{metric}": value for metric, value in branching.items()}}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested on the true trees."""
        return self.taught(self.model(seed), gold, rate=0.003, seed=seed)

    def majority(self) -> float:
        """The accuracy of the most frequent value of the training lines."""
        most = self.lines("train").labels.bincount(minlength=VALUES).argmax()
        return float((self.lines("test").labels == most).float().mean())

    def taught(self, model: LatentModel, trees: Callable[[Batch], Tensor], *, rate: float, seed: int) -> dict[str, float]:
        """Means over the test set of a decoder that is trained and tested on given trees."""

        def loss(items: Tensor) -> Tensor:
            batch = self.batch("train", items)
            return self.loss(model, batch)(trees(batch)).mean()

        fit(model.decoder, loss, self, rate=rate, seed=seed)
        return self.tested(model, trees)

    @torch.no_grad()
    def tested(self, model: LatentModel, trees: Callable[[Batch], Tensor]) -> dict[str, float]:
        """Means over the test set with given trees."""
        test = self.batch("test", torch.arange(self.size("test")))
        return {metric: float(values.mean()) for metric, values in self.judge(model, test, trees(test)).items()}

    def left_branching(self, batch: Batch) -> Tensor:
        """The tree of the spans that begin with the first token, for all lines."""
        spans = torch.eye(self.longest)
        spans[0] = 1
        return self.structures(spans.expand(len(batch.labels), -1, -1))


def gold(batch: Batch) -> Tensor:
    """The true trees."""
    assert batch.gold is not None
    return batch.gold


def bracket_recall(found: Tensor, true: Tensor, lengths: Tensor) -> Tensor:
    """The share ``[b]`` of the true spans ``[b, n, n]`` that are found, without tokens and whole lines; 1 if none is left.

    Example:
        >>> left = torch.tensor([[1.0, 1, 1], [0, 1, 0], [0, 0, 1]])
        >>> right = torch.tensor([[1.0, 0, 1], [0, 1, 1], [0, 0, 1]])
        >>> bracket_recall(torch.stack([left, left]), torch.stack([left, right]), torch.tensor([3, 3]))
        tensor([1., 0.])
    """
    place = torch.arange(true.shape[-1], device=true.device)
    first, last, end = place.unsqueeze(-1), place, lengths.reshape(-1, 1, 1)
    counted = true * ((first < last) & (last < end) & ((first > 0) | (last < end - 1)))
    total = counted.sum((-2, -1))
    return torch.where(total > 0, (counted * found).sum((-2, -1)) / total.clamp(min=1), 1)


@dataclass(frozen=True)
class SpanTask(LineTask):
    """Trees scored span by span, and composed along a chart."""

    @property
    def oracle(self) -> Constituency:
        return Constituency()

    def structures(self, spans: Tensor) -> Tensor:
        return spans

    def spans(self, structures: Tensor) -> Tensor:
        return structures

    def model(self, seed: int) -> LatentModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return LatentModel(SpanScorer(PADDING + 1, 16, 32), ChartDecoder(PADDING + 1, self.dimension, self.hidden, VALUES))


@dataclass(frozen=True)
class ListOps(SpanTask):
    """Values of lines, with encoder and decoder of trees trained jointly from the values alone.

    Encoder and decoder agree early on other trees than the true ones. So predictions are better than trees: by `floor`, left-branching
    trees for all lines also predict well.
    """

    steps: Count = 400

    name: ClassVar[str] = "listops"
    summary: ClassVar[str] = "values of nested lists, with trees and composition trained jointly"


@dataclass(frozen=True)
class ListOpsFrozen(SpanTask):
    """Values of lines, with trees for a frozen decoder that was trained on the true trees.

    Args:
        pretraining: steps of the decoder, the same one for all seeds.
    """

    pretraining: Steps = 600

    name: ClassVar[str] = "listops_frozen"
    summary: ClassVar[str] = "values of nested lists, for a decoder that was trained on the true trees"

    def model(self, seed: int) -> LatentModel:
        model = super().model(seed)
        model.decoder.load_state_dict(_pretrained(replace(self, steps=1, rates=())))
        model.decoder.requires_grad_(False)
        return model

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, object]]:
        return [{"params": list(model.encoder.parameters()), "lr": rate}]

    def floor(self, seed: int) -> Mapping[str, float]:
        """The most frequent value of the training lines."""
        return {"accuracy": self.majority()}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The true trees."""
        return self.tested(self.model(seed), gold)


@dataclass(frozen=True)
class ListOpsGenerated(ListOpsFrozen):
    """`ListOpsFrozen` on generated lines, for machines without the data set."""

    generated: bool = True

    name: ClassVar[str] = "listops_generated"
    summary: ClassVar[str] = "values of generated nested lists, for a decoder that was trained on the true trees"


@functools.lru_cache(maxsize=4)
def _pretrained(task: ListOpsFrozen) -> dict[str, Tensor]:
    """The state of the decoder."""

    def train() -> dict[str, Tensor]:
        model = SpanTask.model(task, 0)
        if task.pretraining:
            replace(task, steps=task.pretraining).taught(model, gold, rate=0.003, seed=0)
        return model.decoder.state_dict()

    data = hashlib.blake2b(repr([task.lines("train").tokens.tolist()]).encode(), digest_size=8).hexdigest()
    return cached((task, data), train)


class SpanScorer(nn.Module):
    """Scores of spans by their first and last tokens, the token behind them, and the sum of their tokens.

    Args:
        tokens: number of kinds of tokens; the last is the end of a line.
        dimension, hidden: size of embeddings, and units.
    """

    def __init__(self, tokens: int, dimension: int, hidden: int) -> None:
        super().__init__()
        self.end, self.tokens = tokens - 1, nn.Embedding(tokens, dimension)
        self.first, self.last, self.next, self.bag = (nn.Linear(dimension, hidden, bias=place == 0) for place in range(4))
        self.score = nn.Linear(hidden, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[b, n] -> [b, n, n]``."""
        known = self.tokens(pad(tokens, (0, 1), value=self.end))
        before = pad(known.cumsum(-2), (0, 0, 1, 0))
        here, behind = known[..., :-1, :], known[..., 1:, :]
        starting = self.first(here) - self.bag(before[..., :-2, :])
        ending = self.last(here) + self.next(behind) + self.bag(before[..., 1:-1, :])
        scores: Tensor = self.score((starting.unsqueeze(-2) + ending.unsqueeze(-3)).relu()).squeeze(-1)
        return scores

"""ListOps: the value of nested list operations, by composition along a latent binary tree, scored by spans or by a parser."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import Constituency, Oracle, ShiftReduce
from ....oracles.options import Count
from ..cache import cached
from ..task import Batch, LatentModel, Rates, Split, Steps, Task, TaskLoss, label_loss, right, seeded
from ..training import fit_decoder, judged
from . import list_operations
from .compositions import ChartDecoder, StackDecoder, derivations_of, spans_of
from .list_operations import PADDING

VALUES = 10
"""Labels."""


@dataclass(frozen=True)
class LineTask(Task):
    """Lines of ListOps with at least two operators; labels are their values, structures are binary trees over the tokens.

    Trees are scored span by span and composed along a chart, unless a subclass has other structures. Their quality is `bracket_recall`.
    The true tree is left-branching within each list.

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

    files: ClassVar[tuple[str, ...]] = (list_operations.TRAINING_FILE, list_operations.TEST_FILE)
    references: ClassVar[tuple[str, ...]] = ("nangia2018listops",)
    structured: ClassVar[str] = "bracket recall"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest <= self.longest >= list_operations.SHORTEST:
            raise ValueError(
                f"`{self.name}` got shortest={self.shortest}, longest={self.longest}; expected shortest <= longest, and longest >= "
                f"{list_operations.SHORTEST}, the tokens of the shortest line with two operators"
            )

    @property
    def oracle(self) -> Oracle:
        return Constituency()

    def unavailable(self) -> str | None:
        reason = None if self.generated else super().unavailable()
        return reason and f"{reason}, or generate data by {self.name}[generated=True]"

    def data(self, split: Split) -> Batch:
        """All lines of a split, with trees as spans."""
        if self.generated:
            return list_operations.generate(split, self.shortest, self.longest, self.train, self.heldout)
        most = self.train if split == "train" else self.heldout
        return list_operations.read(self.paths()[split == "test"], split, self.shortest, self.longest, most)

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            return LatentModel(SpanScorer(PADDING + 1, 16, 32), ChartDecoder(PADDING + 1, self.dimension, self.hidden, VALUES))

    def batch(self, split: Split, items: Tensor) -> Batch:
        lines = super().batch(split, items)
        return lines._replace(gold=self.structures(lines.true()))

    def structures(self, spans: Tensor) -> Tensor:
        """The oracle's structures of trees, given as spans ``[b, n, n]``."""
        return spans

    def spans(self, structures: Tensor) -> Tensor:
        """The inverse of `structures`."""
        return structures

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def cross_entropy(z: Tensor) -> Tensor:
            return label_loss(model.decoder(*batch.inputs, batch.lengths, self._cut(batch, z)), batch.labels)

        return TaskLoss(cross_entropy, "cross_entropy")

    def _cut(self, batch: Batch, z: Tensor) -> Tensor:
        """Structures ``[..., b, *event]`` with zeros in the padding."""
        assert batch.lengths is not None
        return z * self.oracle.length_mask(tuple(z.shape[z.ndim - self.oracle.event_ndim :]), batch.lengths)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        assert batch.lengths is not None
        structure = self._cut(batch, structure)
        accuracy = right(model.decoder(*batch.inputs, batch.lengths, structure), batch.labels)
        recall = bracket_recall(self.spans(structure), self.spans(batch.true()), batch.lengths)
        return {"accuracy": accuracy, "structure_accuracy": recall}

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, object]]:
        return [{"params": list(model.encoder.parameters()), "lr": rate}, {"params": list(model.decoder.parameters()), "lr": 0.3 * rate}]

    def floor(self, seed: int) -> Mapping[str, float]:
        """The most frequent value of the training lines, and the decoder trained on left-branching trees."""
        branching = fit_decoder(self, self.model(seed), self.left_branching, rate=0.003, seed=seed)
        return {"accuracy": self.majority(), **{f"left_branching_{metric}": value for metric, value in branching.items()}}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested on the true trees."""
        return fit_decoder(self, self.model(seed), Batch.true, rate=0.003, seed=seed)

    def majority(self) -> float:
        """The accuracy of the most frequent value of the training lines."""
        most = self.data("train").labels.bincount(minlength=VALUES).argmax()
        return float((self.data("test").labels == most).float().mean())

    def left_branching(self, batch: Batch) -> Tensor:
        """The tree of the spans that begin with the first token, for all lines."""
        spans = torch.eye(self.longest)
        spans[0] = 1
        return self.structures(spans.expand(len(batch.labels), -1, -1))


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
class ListOps(LineTask):
    """Values of lines, with encoder and decoder of trees trained jointly from the values alone.

    Encoder and decoder agree early on other trees than the true ones. So predictions are better than trees: by `floor`, left-branching
    trees for all lines also predict well.
    """

    steps: Count = 400

    name: ClassVar[str] = "listops"
    summary: ClassVar[str] = "values of nested lists, with trees and composition trained jointly"


@dataclass(frozen=True)
class ListOpsFrozen(LineTask):
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
        return judged(self, self.model(seed), Batch.true)


@dataclass(frozen=True)
class ListOpsGenerated(ListOpsFrozen):
    """`ListOpsFrozen` on generated lines, for machines without the data set."""

    generated: bool = True

    name: ClassVar[str] = "listops_generated"
    summary: ClassVar[str] = "values of generated nested lists, for a decoder that was trained on the true trees"


@dataclass(frozen=True)
class ListOpsParser(LineTask):
    """A shift-reduce parser and the composition along its actions, trained jointly from the values of lines.

    Every state has its own policy. The scores of its actions depend on the tokens before and behind the last shift, the sum of those
    before, and the depth of the stack. `floor` also has left-branching trees.

    References:
        Havrylov, Kruszewski & Joulin 2019, "Cooperative learning of disjoint syntax and semantics".
    """

    steps: Count = 400

    name: ClassVar[str] = "listops_parser"
    summary: ClassVar[str] = "values of nested lists, by a shift-reduce parser and composition trained jointly"
    references: ClassVar[tuple[str, ...]] = ("nangia2018listops", "havrylov2019cooperative", "joulin2015inferring")

    @property
    def oracle(self) -> ShiftReduce:
        return ShiftReduce("local")

    def structures(self, spans: Tensor) -> Tensor:
        return derivations_of(spans)

    def spans(self, structures: Tensor) -> Tensor:
        return spans_of(structures).to(structures.dtype)

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            scorer = StateScorer(PADDING + 1, self.longest, 16, 32)
            return LatentModel(scorer, StackDecoder(PADDING + 1, self.dimension, self.hidden, VALUES))


@functools.lru_cache(maxsize=4)
def _pretrained(task: ListOpsFrozen) -> dict[str, Tensor]:
    """The state of the decoder."""

    def train() -> dict[str, Tensor]:
        model = LineTask.model(task, 0)
        if task.pretraining:
            fit_decoder(replace(task, steps=task.pretraining), model, Batch.true, rate=0.003, seed=0)
        return model.decoder.state_dict()

    data = hashlib.blake2b(repr([task.data("train").inputs[0].tolist()]).encode(), digest_size=8).hexdigest()
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


class StateScorer(nn.Module):
    """Scores of both actions after i shifts at depth d, by token i, the next one, the sum of the first i, and d.

    Args:
        tokens: how many kinds there are, the last for the ends of a line. ``length``: of lines, padded.
        dimension, hidden: of embeddings, and units.
    """

    def __init__(self, tokens: int, length: int, dimension: int, hidden: int) -> None:
        super().__init__()
        self.end, self.tokens, self.depths = tokens - 1, nn.Embedding(tokens, dimension), nn.Embedding(length + 1, hidden)
        self.state, self.score = nn.Linear(3 * dimension, hidden), nn.Linear(hidden, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[b, n] -> [b, n + 1, n + 1, 2]``."""
        known = self.tokens(pad(tokens, (1, 1), value=self.end))
        sums = pad(known[..., 1:-1, :].cumsum(-2), (0, 0, 1, 0))
        states = self.state(torch.cat([known[..., :-1, :], known[..., 1:, :], sums], -1))
        scores: Tensor = self.score((states.unsqueeze(-2) + self.depths.weight).relu())
        return scores

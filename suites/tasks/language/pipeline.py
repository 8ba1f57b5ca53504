"""A parser in a pipeline: pretrained, then trained through a second task that reads its trees."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....estimators import crf_loss
from ....oracles.options import Count
from ..task import Batch, LatentModel, Rates, Split, Steps, TaskLoss, label_loss, right, seeded
from ..training import fit, fit_decoder
from .treebank import Apart, ArcScorer, TreebankTask, Words, attachment


@dataclass(frozen=True)
class Pipeline(TreebankTask):
    """Grammatical relations of words, from each word and its head in a tree that a parser chose.

    The parser is pretrained on the trees of some sentences; the others are used without their trees. The estimator ``frozen`` keeps the
    parser; every other estimator continues its training through the relations. Structure quality is the unlabelled attachment score: its
    change shows whether the latent trees remain those of the grammar.

    Args:
        shortest, longest: words of a sentence. ``parsed``: sentences that the parser is trained on alone, for ``parser_steps``.
        hidden: size of embeddings and hidden layers.

    References:
        Peng, Thomson & Smith 2018, "Backpropagating through structured argmax using a SPIGOT", sections 4 and 5.
    """

    parsed: Count = 200
    parser_steps: Steps = 100
    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.001, 0.003, 0.01)
    batch_size: Count = 32

    name: ClassVar[str] = "pipeline"
    summary: ClassVar[str] = "grammatical relations through a parser that was trained alone"
    scored: ClassVar[str] = "right relations of words"
    references: ClassVar[tuple[str, ...]] = ("peng2018backpropagating",)
    structured: ClassVar[str] = "unlabelled attachment score"

    def size(self, split: Split) -> int:
        return super().size(split) - (self.parsed if split == "train" else 0)

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            decoder = Relations(self.hidden, self.longest, len(self.treebank().names))
        return LatentModel(copy.deepcopy(_parser(replace(self, steps=1, rates=()), seed)), decoder)

    def data(self, split: Split) -> Batch:
        bank = self.treebank()
        return bank.trees[split]._replace(labels=bank.relations[split])

    def batch(self, split: Split, items: Tensor) -> Batch:
        return super().batch(split, items + self.parsed if split == "train" else items)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        def per_word(z: Tensor) -> Tensor:
            return batch.mean(label_loss(model.decoder(*batch.inputs, z), batch.labels))

        return TaskLoss(per_word, "cross_entropy", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        accuracy = batch.mean(right(model.decoder(*batch.inputs, structure), batch.labels))
        return {"accuracy": accuracy, "structure_accuracy": attachment(batch, structure)}

    def floor(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested without heads."""
        reached = fit_decoder(self, self.model(seed), lambda batch: torch.zeros_like(batch.true()), rate=0.003, seed=seed)
        return {"accuracy": reached["accuracy"]}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """The decoder trained and tested on the true trees."""
        return fit_decoder(self, self.model(seed), Batch.true, rate=0.003, seed=seed)


@functools.lru_cache(maxsize=16)
def _parser(task: Pipeline, seed: int) -> ArcScorer:
    """A parser trained by the likelihood of the trees that it may see."""
    with seeded(seed):
        parser = ArcScorer(task.hidden, task.longest)

    def loss(items: Tensor) -> Tensor:
        batch = task.data("train").take(items)
        return crf_loss(task.oracle, parser(*batch.inputs), batch.true(), lengths=batch.lengths).mean()

    if task.parser_steps:  # as many items to learn from as the task leaves out
        fit(parser, loss, replace(task, steps=task.parser_steps, parsed=task.size("train")), rate=0.01, seed=seed)
    return parser


class Relations(nn.Module):
    """Relations of words: a perceptron of each word and the mean of its heads, with how far they are apart.

    Args:
        size: of embeddings and of the hidden layer.
        longest: words of a sentence.
        relations: classes.
    """

    def __init__(self, size: int, longest: int, relations: int) -> None:
        super().__init__()
        self.words = Words(size)
        self.modifier, self.head = nn.Linear(size, size), nn.Linear(size, size, bias=False)
        self.apart = Apart(size, longest)
        self.out = nn.Linear(size, relations)

    def forward(self, features: Tensor, z: Tensor) -> Tensor:
        """``[b, n + 1, f], [..., b, n + 1, n + 1] -> [..., b, n, R]``: logits."""
        embedded = self.words(features)
        z = z * features.any(-1).unsqueeze(-1)  # padding heads no word
        apart = torch.einsum("...hm,hmd->...md", z, self.apart())
        hidden = self.modifier(embedded) + z.mT @ self.head(embedded) + apart
        logits: Tensor = self.out(hidden[..., 1:, :].tanh())
        return logits

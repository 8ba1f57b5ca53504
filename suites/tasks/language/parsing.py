"""Dependency parsing with known trees, for supervised losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....oracles import ProjectiveTree
from ....oracles.options import Count
from ..real_data import absence
from ..task import Batch, LatentModel, Rates, Split, Task, TaskLoss
from ..training import train
from . import treebank


@dataclass(frozen=True)
class Parsing(Task):
    """A dependency parser of short English sentences, trained on their trees.

    Its loss is the share of words with a wrong head, so that estimators minimise risk; supervised estimators have losses of their own.
    Accuracy is the unlabelled attachment score of a sentence, structure quality the share of sentences without a mistake.

    Args:
        shortest, longest: words of a sentence. ``hidden``: size of embeddings and of the hidden layer.
    """

    shortest: Count = 4
    longest: Count = 7
    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 32

    name: ClassVar[str] = "parsing"
    summary: ClassVar[str] = "dependency parsing with known trees"
    scored: ClassVar[str] = "unlabelled attachment score"
    structured: ClassVar[str] = "whole trees"

    @property
    def oracle(self) -> ProjectiveTree:
        return ProjectiveTree()

    def unavailable(self) -> str | None:
        return absence(self.name, treebank.TRAINED, treebank.HELD_OUT)

    def size(self, split: Split) -> int:
        return len(self._trees(split).lengths)

    def _trees(self, split: Split) -> treebank.Trees:
        return treebank.treebank(self.name, self.shortest, self.longest).trees[split]

    def model(self, seed: int) -> LatentModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return LatentModel(treebank.ArcScorer(self.hidden, self.longest), nn.Identity())

    def batch(self, split: Split, items: Tensor) -> Batch:
        trees = self._trees(split)
        heads = trees.heads[items]
        return Batch((trees.features[items],), heads, trees.lengths[items], treebank.structure_of(heads))

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        assert batch.lengths is not None
        return self.oracle.pad(model.encoder(*batch.inputs), batch.lengths)

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: 1 - attachment(batch, z), "wrong_heads", vertex_degree=1, extension="linear", gold=batch.gold)

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        right = attachment(batch, structure)
        return {"accuracy": right, "structure_accuracy": (right > 1 - 1e-6).float()}

    def floor(self, seed: int) -> Mapping[str, float]:
        """Every word headed by the one before it, or all by the one after, whichever is better on the sentences to learn from."""
        chains = {side: self._chain("train", side) for side in (-1, 1)}
        return {"accuracy": self._chain("test", max(chains, key=chains.__getitem__))}

    def _chain(self, split: Split, side: int) -> float:
        trees = self._trees(split)
        places = torch.arange(1, self.longest + 1)
        lengths = trees.lengths.unsqueeze(-1)
        right = (trees.heads == torch.where(places + side > lengths, 0, places + side)) & (places <= lengths)
        return float((right.sum(-1) / trees.lengths).mean())

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """A conditional random field."""
        found = self.evaluate(train(self, "crf", rate=0.01, seed=seed))
        return {metric: found[metric] for metric in ("accuracy", "structure_accuracy")}


def attachment(batch: Batch, z: Tensor) -> Tensor:
    """``[..., b, n + 1, n + 1] -> [..., b]``: the share of words whose head is the true one, linear in z."""
    assert batch.gold is not None
    assert batch.lengths is not None
    inside = torch.arange(z.shape[-1]) <= batch.lengths.unsqueeze(-1)
    return ((z * batch.gold).sum(-2) * inside).sum(-1) / batch.lengths

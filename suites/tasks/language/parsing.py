"""Dependency parsing with known trees, for supervised losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ....oracles.options import Count
from ..task import Batch, LatentModel, Rates, Split, TaskLoss, seeded
from ..training import train
from .treebank import ArcScorer, TreebankTask, attachment


@dataclass(frozen=True)
class Parsing(TreebankTask):
    """A dependency parser of short English sentences, trained on their trees.

    Its loss is the share of words with a wrong head, so that estimators minimise risk; supervised estimators have losses of their own.
    Accuracy is the unlabelled attachment score of a sentence, structure quality the share of sentences without a mistake.

    Args:
        shortest, longest: words of a sentence. ``hidden``: size of embeddings and of the hidden layer.
    """

    hidden: Count = 32
    steps: Count = 300
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 32

    name: ClassVar[str] = "parsing"
    summary: ClassVar[str] = "dependency parsing with known trees"
    scored: ClassVar[str] = "unlabelled attachment score"
    structured: ClassVar[str] = "whole trees"

    def model(self, seed: int) -> LatentModel:
        with seeded(seed):
            return LatentModel(ArcScorer(self.hidden, self.longest), nn.Identity())

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
        trees = self.data(split)
        assert trees.lengths is not None
        places = torch.arange(1, self.longest + 1)
        lengths = trees.lengths.unsqueeze(-1)
        right = (trees.labels == torch.where(places + side > lengths, 0, places + side)) & (places <= lengths)
        return float((right.sum(-1) / trees.lengths).mean())

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """A conditional random field."""
        found = self.evaluate(train(self, "crf", rate=0.01, seed=seed))
        return {metric: found[metric] for metric in ("accuracy", "structure_accuracy")}

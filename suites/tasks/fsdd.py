"""Spoken digits: classification by a few segments of a recording."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...oracles import Subset
from ...oracles.options import Count
from .task import Batch, LatentModel, Rates, Split, Task, TaskLoss, label_loss, right, seeded
from .training import fit_decoder, train


@dataclass(frozen=True)
class SpokenDigits(Task):
    """Classify a spoken digit by a few segments of its recording, which the encoder chooses.

    A recording is cut into segments of equal length; a segment is its mean cepstral coefficients, and its position. The encoder
    scores every segment by itself, so that its choice cannot encode the digit. The decoder gets the mean of the chosen segments.

    There are few recordings, so that every seed has another split. The right segments are unknown: structures have no quality.

    Args:
        segments: segments of a recording. ``chosen``: k of them. ``hidden``: units of encoder and decoder.
        tested, validated: recordings of each digit for test and validation; the others are for training.
        fold: number of the split.
    """

    segments: Count = 12
    chosen: Count = 3
    hidden: Count = 32
    tested: Count = 5
    validated: Count = 3
    fold: int = 0
    steps: Count = 400
    rates: Rates = (0.003, 0.01, 0.03)
    batch_size: Count = 40

    name: ClassVar[str] = "fsdd"
    files: ClassVar[tuple[str, ...]] = ("timeseries/fsdd_mfcc13.npz",)
    summary: ClassVar[str] = "spoken digits by a few segments of a recording"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.segments:
            raise ValueError(f"`fsdd` got chosen={self.chosen} of segments={self.segments}; expected no more than there are")

    @property
    def oracle(self) -> Subset:
        return Subset(self.chosen)

    def at(self, seed: int) -> SpokenDigits:
        return replace(self, fold=seed)

    def data(self, split: Split) -> Batch:
        return _split(*self.paths(), self.segments, (self.tested, self.validated), self.fold)[split]

    def model(self, seed: int) -> LatentModel:
        features = self.data("train").inputs[0].shape[-1]
        with seeded(seed):
            encoder = nn.Sequential(nn.Linear(features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, 1), nn.Flatten(-2))
            return LatentModel(encoder, Chosen(self.chosen, features, self.hidden))

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: label_loss(model.decoder(*batch.inputs, z), batch.labels), "cross_entropy")

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": right(model.decoder(*batch.inputs, structure), batch.labels)}

    def floor(self, seed: int) -> Mapping[str, float]:
        """The decoder trained on random segments, and tested on 100 draws of them."""
        task, generator = self.at(seed), torch.Generator().manual_seed(seed)

        def drawn(batch: Batch, samples: int) -> Tensor:
            return self.oracle.sample(torch.zeros(len(batch.labels), self.segments), samples, generator=generator)

        one, many = (lambda batch: drawn(batch, 1)[0]), (lambda batch: drawn(batch, 100))
        return fit_decoder(task, task.model(seed), one, tested=many, rate=0.01, seed=seed)

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """Trained by the exact gradient."""
        task = self.at(seed)
        return {"accuracy": task.evaluate(train(task, "exact", rate=0.01, seed=seed))["accuracy"]}


class Chosen(nn.Module):
    """A multilayer perceptron of the mean of the k chosen segments."""

    def __init__(self, chosen: int, features: int, hidden: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.of_mean = nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 10))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        """``[b, n, d], [..., b, n] -> [..., b, 10]``: logits."""
        logits: Tensor = self.of_mean((z.unsqueeze(-2) @ x).squeeze(-2) / self.chosen)
        return logits


@functools.lru_cache(maxsize=32)
def _split(path: Path, segments: int, kept: tuple[int, int], fold: int) -> Mapping[Split, Batch]:
    """A share of each digit for every split."""
    every = _read(path, segments)
    generator = torch.Generator().manual_seed(fold)
    shares: list[tuple[Tensor, ...]] = []
    for digit in range(10):
        items = (every.labels == digit).nonzero()[:, 0]
        if sum(kept) >= len(items):
            asked = f"tested={kept[0]}, validated={kept[1]}"
            raise ValueError(f"`fsdd` got {asked} of {len(items)} recordings of each digit; expected some that are left to train with")
        items = items[torch.randperm(len(items), generator=generator)]
        shares.append(items.split([*kept, len(items) - sum(kept)]))
    test, validation, left = (torch.cat(parts) for parts in zip(*shares, strict=True))
    return {"train": every.take(left), "validation": every.take(validation), "test": every.take(test)}


@functools.lru_cache(maxsize=2)
def _read(path: Path, segments: int) -> Batch:
    """All recordings: coefficients of segments, with mean 0 and standard deviation 1 over all frames, and positions, ``[b, n, d + n]``."""
    with np.load(path) as archive:
        frames, offsets, digit = (archive[key] for key in ("features", "offsets", "digit"))
    if segments > (shortest := int(np.diff(offsets).min())):
        raise ValueError(f"`fsdd` got segments={segments}; expected at most {shortest}, the frames of the shortest recording")
    frames = (frames - frames.mean(0)) / frames.std(0)
    cuts = [np.array_split(frames[begin:end], segments) for begin, end in itertools.pairwise(offsets)]
    means = torch.tensor(np.array([[part.mean(0) for part in parts] for parts in cuts]), dtype=torch.float32)
    place = torch.eye(segments).expand(len(means), segments, segments)
    return Batch((torch.cat([means, place], -1),), torch.tensor(digit).long())

"""A variational autoencoder of spoken digits: moments of speech as a few categories."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ...estimators.enumeration import expected_loss
from ...oracles import IndependentCategoricals
from ...oracles.options import Count, NonNegative
from .task import Batch, LatentModel, Rates, Split, Task, TaskLoss, seeded
from .training import train

TEST_RECORDING, VALIDATED = 0, 6
"""The recordings of this number are the test set, and of the others every sixth is kept for validation."""


@dataclass(frozen=True)
class AutoEncoder(Task):
    """Windows of speech, coded by independent categories and decoded by a perceptron with normal noise.

    The loss of a structure is its negative log-likelihood up to a constant, and the Kullback–Leibler divergence of the encoder's code from
    the uniform one is added exactly. Together they are minus the evidence lower bound, whose exact mean is the metric ``elbo``, in nats.

    The true code is unknown, so that structures have no quality. ``accuracy`` is the explained share of the squared deviation of a window
    from the mean, at its best structure, at least 0. It is comparable with that of a relaxed code. A model may reconstruct better and have
    a worse bound.

    Args:
        categories, parts: sizes of the code.
        hidden: units of encoder and decoder.
        noise: variance of standardised coefficients.
        frames, hop: frames of a window, and between the starts of two windows.
        generated: whether windows are drawn from a random decoder of this kind; else they are read.
        drawn: number of drawn windows of each split.
    """

    categories: Count = 4
    parts: Count = 4
    hidden: Count = 64
    noise: NonNegative = 0.3
    frames: Count = 5
    hop: Count = 3
    generated: bool = False
    drawn: Count = 1000
    steps: Count = 600
    rates: Rates = (0.001, 0.003, 0.01)
    batch_size: Count = 64

    name: ClassVar[str] = "vae"
    summary: ClassVar[str] = "moments of spoken digits coded by four categories, by the evidence lower bound"
    scored: ClassVar[str] = "explained share of the variance"
    files: ClassVar[tuple[str, ...]] = ("timeseries/fsdd_mfcc13.npz",)
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "maddison2017concrete")
    stackable: ClassVar[bool] = True

    @property
    def oracle(self) -> IndependentCategoricals:
        return IndependentCategoricals()

    def unavailable(self) -> str | None:
        reason = None if self.generated else super().unavailable()
        return reason and f"{reason}, or generate data by {self.name}[generated=True]"

    def data(self, split: Split) -> Batch:
        """Windows ``[m, d]``, standardised by those for training."""
        windows = _generated(self.drawn, self.categories, self.parts) if self.generated else _read(*self.paths(), self.frames, self.hop)
        return windows[split]

    def model(self, seed: int) -> LatentModel:
        size, code = self.data("train").labels.shape[-1], self.categories * self.parts
        with seeded(seed):
            encoder = nn.Sequential(nn.Linear(size, self.hidden), nn.ReLU(), nn.Linear(self.hidden, code))
            decoder = nn.Sequential(nn.Linear(code, self.hidden), nn.ReLU(), nn.Linear(self.hidden, size))
            return LatentModel(encoder, decoder)

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        return super().scores(model, batch).unflatten(-1, (self.categories, self.parts))  # type: ignore[no-any-return]

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        return TaskLoss(lambda z: self._error(model, batch, z) / (2 * self.noise), "negative_log_likelihood")

    def _error(self, model: LatentModel, batch: Batch, z: Tensor) -> Tensor:
        error: Tensor = (model.decoder(z.flatten(-2)) - batch.labels).square().sum(-1)
        return error

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor]:
        def divergence(scores: Tensor) -> Tensor:
            log_probs = scores.log_softmax(-1)
            return (log_probs.exp() * (log_probs + math.log(self.parts))).sum((-2, -1))

        return divergence

    def judge(self, model: LatentModel, batch: Batch, structure: Tensor) -> Mapping[str, Tensor]:
        explained = 1 - self._error(model, batch, structure) / batch.labels.square().sum(-1)
        return {"accuracy": explained.clamp(min=0)}

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        oracle: Any = self.oracle
        batch = self.data(split)
        scores = self.scores(model, batch)
        cost = expected_loss(self.loss(model, batch), oracle, scores, 64) + self.regulariser(model, batch)(scores)
        return super().evaluate(model, split) | {"elbo": -float(cost.mean())}

    def floor(self, seed: int) -> Mapping[str, float]:
        """The mean of the windows to learn from, which is 0."""
        return {"accuracy": 0.0, "elbo": -float(self.data("test").labels.square().sum(-1).mean()) / (2 * self.noise)}

    def ceiling(self, seed: int) -> Mapping[str, float]:
        """Trained by the exact gradient."""
        found = self.evaluate(train(self, "exact", rate=0.003, seed=seed))
        return {metric: found[metric] for metric in ("accuracy", "elbo")}


@functools.lru_cache(maxsize=4)
def _read(path: Path, frames: int, hop: int) -> dict[Split, Batch]:
    with np.load(path) as data:
        features, offsets, recording = (data[key] for key in ("features", "offsets", "recording"))
    if frames > (shortest := int(np.diff(offsets).min())):
        raise ValueError(f"`vae` got frames={frames}; expected at most {shortest}, those of the shortest recording")
    found: dict[Split, list[Tensor]] = {"train": [], "validation": [], "test": []}
    count = 0
    for first, end, number in zip(offsets[:-1], offsets[1:], recording, strict=True):
        count += number != TEST_RECORDING
        split: Split = "test" if number == TEST_RECORDING else "validation" if count % VALIDATED == 0 else "train"
        found[split].append(torch.from_numpy(features[first:end]).unfold(0, frames, hop).flatten(1))
    return _standardised({split: torch.cat(parts) for split, parts in found.items()})


@functools.lru_cache(maxsize=4)
def _generated(items: int, categories: int, parts: int, size: int = 40) -> dict[Split, Batch]:
    """Uniform codes through a random perceptron, with noise of a third of the variance."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randn(categories, parts, size, generator=generator)
    weights = torch.randn(size, size, generator=generator) / size**0.5
    found: dict[Split, Tensor] = {}
    for split in get_args(Split):
        code = torch.randint(parts, (items, categories), generator=generator)
        mixed = places[torch.arange(categories), code].sum(1).tanh() @ weights
        found[split] = mixed + 0.5 * torch.randn(items, size, generator=generator)
    return _standardised(found)


def _standardised(windows: dict[Split, Tensor]) -> dict[Split, Batch]:
    mean, scale = windows["train"].mean(0), windows["train"].std(0)
    return {split: Batch((x := (windows[split] - mean) / scale,), x) for split in windows}

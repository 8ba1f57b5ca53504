"""Recordings of spoken digits: classification by a few segments, and a variational autoencoder of short windows."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from ...estimators.exact import expected_loss
from ...oracles import IndependentCategoricals, Subset
from ...oracles.options import Count, NonNegative
from .generated.base import perceptron, variant
from .task import Batch, LatentModel, Rates, Split, Task, TaskLoss
from .training import fit_decoder

FILE = "timeseries/fsdd_mfcc13.npz"

TEST_RECORDING, VALIDATED = 0, 6  # the autoencoder is tested on the recordings of this number, and validated on every sixth of the others


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
    files: ClassVar[tuple[str, ...]] = (FILE,)
    summary: ClassVar[str] = "spoken digits by a few segments of a recording"
    family = "speech"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chosen > self.segments:
            raise ValueError(f"`fsdd` got chosen={self.chosen} of segments={self.segments}; expected no more than there are")

    @property
    def oracle(self) -> Subset:
        return Subset(self.chosen)

    def at(self, seed: int) -> Self:
        return replace(self, fold=seed)

    def data(self, split: Split) -> Batch:
        return _split(*self.paths(), self.segments, (self.tested, self.validated), self.fold)[split]

    def modules(self) -> tuple[nn.Module, nn.Module]:
        features = self.data("train").inputs[0].shape[-1]
        return nn.Sequential(perceptron(features, self.hidden, 1), nn.Flatten(-2)), perceptron(features, self.hidden, 10)

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        """A digit from the mean of the chosen segments."""
        return model.decoder((structure.unsqueeze(-2) @ batch.inputs[0]).squeeze(-2) / self.chosen)  # type: ignore[no-any-return]

    def floor(self, seed: int) -> float:
        """The decoder trained on random segments, and tested on 100 draws of them."""
        task, generator = self.at(seed), torch.Generator().manual_seed(seed)

        def drawn(batch: Batch, samples: int) -> Tensor:
            return self.oracle.sample(torch.zeros(len(batch.labels), self.segments), samples, generator=generator)

        one, many = (lambda batch: drawn(batch, 1)[0]), (lambda batch: drawn(batch, 100))
        return fit_decoder(task, task.model(seed), one, tested=many, rate=0.01, seed=seed)["accuracy"]


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
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "moments of spoken digits coded by four categories, by the evidence lower bound"
    scored: ClassVar[str] = "explained share of the variance"
    files: ClassVar[tuple[str, ...]] = (FILE,)
    references: ClassVar[tuple[str, ...]] = ("jang2017categorical", "maddison2017concrete")
    squared: ClassVar[bool] = True
    stackable: ClassVar[bool] = True
    family, kind = "speech", "elbo"
    oracle = IndependentCategoricals()

    def data(self, split: Split) -> Batch:
        """Windows ``[m, d]``, standardised by those for training."""
        return _windows(replace(self, steps=1, rates=()), () if self.generated else self.paths())[split]

    def modules(self) -> tuple[nn.Module, nn.Module]:
        size, code = self.data("train").labels.shape[-1], self.categories * self.parts
        return perceptron(size, self.hidden, code, activation=nn.ReLU), perceptron(code, self.hidden, size, activation=nn.ReLU)

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        return super().scores(model, batch).unflatten(-1, (self.categories, self.parts))  # type: ignore[no-any-return]

    def loss(self, model: LatentModel, batch: Batch) -> TaskLoss:
        scale = 2 * self.noise
        return TaskLoss(lambda z: (self.predict(model, batch, z) - batch.labels).square().sum(-1) / scale, "negative_log_likelihood")

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return model.decoder(structure.flatten(-2))  # type: ignore[no-any-return]

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor]:
        return lambda scores: ((logs := scores.log_softmax(-1)).exp() * (logs + math.log(self.parts))).sum((-2, -1))

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        oracle: Any = self.oracle
        batch = self.data(split)
        scores = self.scores(model, batch)
        cost = expected_loss(self.loss(model, batch), oracle, scores, 64) + self.regulariser(model, batch)(scores)
        return super().evaluate(model, split) | {"elbo": -float(cost.mean())}

    def floor(self, seed: int) -> float:
        """The mean of the windows to learn from."""
        return 0.0


VaeBits = variant(
    AutoEncoder, "vae_bits", "generated points coded by eight bits, by the evidence lower bound", categories=8, parts=2, generated=True
)


@functools.lru_cache(maxsize=2)
def _recordings(path: Path, frames: int, asked: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Coefficients ``[frames, 13]`` of all recordings, their digits, and their numbers; refuse recordings that are too short."""
    with np.load(path) as archive:
        features, offsets, digit, recording = (archive[key] for key in ("features", "offsets", "digit", "recording"))
    if frames > (shortest := int(np.diff(offsets).min())):
        raise ValueError(f"{asked}={frames}; expected at most {shortest}, the frames of the shortest recording")
    return [features[first:last] for first, last in itertools.pairwise(offsets)], digit, recording


@functools.lru_cache(maxsize=32)
def _split(path: Path, segments: int, kept: tuple[int, int], fold: int) -> Mapping[Split, Batch]:
    """Coefficients of segments, with mean 0 and standard deviation 1 over all frames, and positions, ``[b, n, d + n]``."""
    recordings, digits, _ = _recordings(path, segments, "`fsdd` got segments")
    frames = np.concatenate(recordings)
    mean, scale = frames.mean(0), frames.std(0)
    cuts = [np.array_split((frames - mean) / scale, segments) for frames in recordings]
    means = torch.tensor(np.array([[part.mean(0) for part in parts] for parts in cuts]), dtype=torch.float32)
    every = Batch((torch.cat([means, torch.eye(segments).expand(len(means), -1, -1)], -1),), torch.tensor(digits).long())
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


@functools.lru_cache(maxsize=4)
def _windows(task: AutoEncoder, paths: tuple[Path, ...]) -> dict[Split, Batch]:
    found: dict[Split, list[Tensor]] = {"train": [], "validation": [], "test": []}
    if task.generated:  # uniform codes through a random perceptron, with noise of a third of the variance
        generator, size = torch.Generator().manual_seed(0), 40
        places = torch.randn(task.categories, task.parts, size, generator=generator)
        weights = torch.randn(size, size, generator=generator) / size**0.5
        for parts in found.values():
            code = torch.randint(task.parts, (task.drawn, task.categories), generator=generator)
            mixed = places[torch.arange(task.categories), code].sum(1).tanh() @ weights
            parts.append(mixed + 0.5 * torch.randn(task.drawn, size, generator=generator))
    else:
        recordings, _, numbers = _recordings(*paths, task.frames, "`vae` got frames")
        count = 0
        for recording, number in zip(recordings, numbers, strict=True):
            count += number != TEST_RECORDING
            split: Split = "test" if number == TEST_RECORDING else "validation" if count % VALIDATED == 0 else "train"
            found[split].append(torch.from_numpy(recording).unfold(0, task.frames, task.hop).flatten(1))
    windows = {split: torch.cat(parts) for split, parts in found.items()}
    mean, scale = windows["train"].mean(0), windows["train"].std(0)
    return {split: Batch((x := (rows - mean) / scale,), x) for split, rows in windows.items()}

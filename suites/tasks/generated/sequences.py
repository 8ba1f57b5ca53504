"""Latent sequences: gates, tags, segments, transcripts and alignments in time."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from ....oracles import CTC, Alignment, IndependentCategoricals, LinearChain, SemiMarkov
from ....oracles.options import Count
from ..synthetic import v_measure
from ..task import Batch, LatentModel, Split
from .base import LatentTask, perceptron, variant

FEATURES = 6
GATE_FEATURES, OUTPUTS = 8, 3


@dataclass(frozen=True)
class Gates(LatentTask):
    """Regression by a sum of linear functions, each with a latent gate that a hyperplane opens (Bengio, Léonard & Courville 2013).

    A decoder that is trained jointly may exchange gates, so that the quality of structures says little there.

    Args:
        gates: number of bits.
    """

    gates: Count = 6
    kind: Literal["differentiable"] = "differentiable"

    name: ClassVar[str] = "gates"
    summary: ClassVar[str] = "regression by several linear functions with a latent gate each"
    scored: ClassVar[str] = "explained share of the squares"
    references: ClassVar[tuple[str, ...]] = ("bengio2013estimating",)
    squared: ClassVar[bool] = True
    summed: ClassVar[bool] = True
    oracle = IndependentCategoricals()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        planes = torch.randn(GATE_FEATURES, self.gates, generator=world)
        functions = torch.randn(GATE_FEATURES, self.gates * OUTPUTS, generator=world) / (GATE_FEATURES * self.gates) ** 0.5
        x = torch.randn(items, GATE_FEATURES, generator=draws)
        z = one_hot((x @ planes > 0).long(), 2).float()
        y = ((x @ functions).unflatten(-1, (self.gates, OUTPUTS)) * z[..., 1:]).sum(-2)
        return Batch((x,), y + 0.2 * torch.randn(y.shape, generator=draws), None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        encoder = nn.Sequential(nn.Linear(GATE_FEATURES, 2 * self.gates), nn.Unflatten(-1, (self.gates, 2)))
        return encoder, nn.Sequential(nn.Linear(GATE_FEATURES, self.gates * OUTPUTS), nn.Unflatten(-1, (self.gates, OUTPUTS)))

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return (model.decoder(batch.inputs[0]) * structure[..., 1:]).sum(-2)  # type: ignore[no-any-return]


class Window(nn.Module):
    """A perceptron of each position and its two neighbours."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.inner = perceptron(3 * features, hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n, d] -> [b, n, outputs]``."""
        around = pad(x, (0, 0, 1, 1))
        return self.inner(torch.cat([around[..., :-2, :], x, around[..., 2:, :]], -1))  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """Scores of a chain: those of tags, by a module, and those of pairs of tags."""

    def __init__(self, unary: nn.Module, tags: int) -> None:
        super().__init__()
        self.unary, self.transition = unary, nn.Parameter(torch.zeros(tags, tags))

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n, d] -> [b, n, t, t]``, by unary scores ``[b, n, t]``."""
        return LinearChain.from_potentials(self.unary(x), self.transition)


@dataclass(frozen=True)
class Tags(LatentTask):
    """Labels of the points of a sequence: every latent tag has a centre and a linear classifier of its own, and tags tend to stay.

    Centres are near each other, so that the tag of a point depends on its neighbours. The decoder is linear in point and tag.

    Args:
        points, tags: points of a sequence, and number of tags.
    """

    points: Count = 5
    tags: Count = 3
    kind: Literal["likelihood", "elbo"] = "likelihood"

    name: ClassVar[str] = "tags"
    summary: ClassVar[str] = "labels of the points of a sequence, by a classifier for each latent tag"
    structured: ClassVar[str] = "V-measure"
    oracle = LinearChain()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        centres, weights = (torch.randn(self.tags, FEATURES, generator=world) for _ in range(2))
        fresh = torch.randint(self.tags, (items, self.points), generator=draws)
        stays = torch.rand(items, self.points, generator=draws) < 0.7
        z = fresh.gather(1, torch.where(stays, 0, torch.arange(self.points)).cummax(-1).values)
        noise = torch.randn(items, self.points, FEATURES, generator=draws)
        labels = ((weights[z] * noise).sum(-1) > 0).float()
        return Batch((centres[z] + noise,), labels, None, LinearChain.structure(z, self.tags, torch.float32))

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return Tagger(Window(FEATURES, 16, self.tags), self.tags), nn.Linear(FEATURES, self.tags)

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return (structure.sum(-2) * model.decoder(batch.inputs[0])).sum(-1)  # type: ignore[no-any-return]

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        points = self.data(split)
        found = LinearChain.tags(self.oracle.argmax(self.scores(model, points)))
        quality = v_measure(found.flatten(), LinearChain.tags(points.true()).flatten())
        return super().evaluate(model, split) | {"structure_accuracy": quality}


@dataclass(frozen=True)
class Segments(LatentTask):
    """Signs of the segments of a sequence: the mean of a segment shows its sign, and noisy marks show where one begins.

    The decoder predicts the sign at every point from the mean of its segment.

    Args:
        points, longest: points of a sequence, and of a segment at most.
    """

    points: Count = 9
    longest: Count = 4

    name: ClassVar[str] = "segments"
    summary: ClassVar[str] = "signs of the points of a sequence, by the means of latent segments"
    references: ClassVar[tuple[str, ...]] = ("sarawagi2004semi",)
    oracle = SemiMarkov()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        z = self.oracle.sample(torch.zeros(items, self.points, self.longest, 1, 1), 1, generator=draws)[0]
        weights, begins = _means(self.points, self.longest)
        together, starts = (z.flatten(1) @ weights.flatten(1)).unflatten(-1, (self.points, -1)), z.flatten(1) @ begins
        # A sign for every first point, spread over its segment.
        signs = torch.where(torch.rand(items, self.points, generator=draws) < 0.5, -1.0, 1.0)
        sign = ((together > 0) * (starts * signs).unsqueeze(-2)).sum(-1)
        x = torch.randn(items, self.points, FEATURES, generator=draws)
        direction, mark = (torch.nn.functional.normalize(torch.randn(FEATURES, generator=world), dim=0) for _ in range(2))
        x = x + 0.8 * sign.unsqueeze(-1) * direction + 2.5 * starts.unsqueeze(-1) * mark
        return Batch((x,), (sign > 0).float(), None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return Segmenter(FEATURES, 16, self.longest), nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(-2))

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        weights = structure.flatten(-4) @ _means(self.points, self.longest)[0].to(structure.dtype).flatten(1)
        return model.decoder(weights.unflatten(-1, (self.points, -1)) @ batch.inputs[0])  # type: ignore[no-any-return]


class Segmenter(nn.Module):
    """Scores of unlabelled segments: those of their first point, and of their length."""

    def __init__(self, features: int, hidden: int, longest: int) -> None:
        super().__init__()
        self.begin, self.length = Window(features, hidden, 1), nn.Parameter(torch.zeros(longest))

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n, d] -> [b, n, w, 1, 1]``."""
        first = pad(self.begin(x).squeeze(-1), (len(self.length) - 1, 0)).unfold(-1, len(self.length), 1).flip(-1)
        return (first + self.length).unsqueeze(-1).unsqueeze(-1)


@functools.cache
def _means(points: int, longest: int) -> tuple[Tensor, Tensor]:
    """Weights of the mean of each segment for each of its points ``[n w, n, n]``, and its first point ``[n w, n]``."""
    place = torch.arange(points)
    first = place.unsqueeze(-1) - torch.arange(longest)
    inside = (place >= first.unsqueeze(-1)) & (place <= place.reshape(-1, 1, 1))
    weights = inside / inside.sum(-1, keepdim=True)
    return (inside.unsqueeze(-1) * weights.unsqueeze(-2)).flatten(0, 1), (first.unsqueeze(-1) == place).flatten(0, 1).float()


@dataclass(frozen=True)
class Transcripts(LatentTask):
    """Accents of the symbols of a known text, whose frames are unknown: a frame shows its symbol, or a blank, and the accent, with noise.

    The encoder is a model of the symbols of frames, and the structure a path of connectionist temporal classification (Graves et al. 2006).
    The decoder predicts the accent of a symbol from the mean of its frames.

    Args:
        frames, symbols, letters: frames, symbols of a text, and symbols that exist.
    """

    frames: Count = 8
    symbols: Count = 2
    letters: Count = 5

    name: ClassVar[str] = "transcripts"
    summary: ClassVar[str] = "accents of the symbols of a text, by a latent path through its frames"
    references: ClassVar[tuple[str, ...]] = ("graves2006connectionist",)
    oracle = CTC()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        looks = torch.randn(self.letters + 1, FEATURES, generator=world)
        text = 1 + torch.rand(items, self.letters, generator=draws).argsort(-1)[:, : self.symbols]
        z = self.oracle.sample(torch.zeros(items, *self.oracle.event_shape(frames=self.frames, labels=self.symbols)), 1, generator=draws)[0]
        said = pad(torch.stack([torch.zeros_like(text), text], -1).flatten(1), (0, 1)).gather(1, CTC.states(z))
        accents = (torch.rand(items, self.symbols, generator=draws) < 0.5).float()
        loud = (z.sum(-1)[..., 1::2] @ (2 * accents - 1).unsqueeze(-1)).squeeze(-1)
        other = torch.where(torch.rand(items, self.frames, generator=draws) < 0.5, -1.0, 1.0)
        x = torch.cat([looks[said], torch.where(loud == 0, other, loud).unsqueeze(-1)], -1)
        return Batch((x + torch.randn(x.shape, generator=draws), text), accents, None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return Window(FEATURES + 1, 16, self.letters + 1), nn.Sequential(nn.Linear(FEATURES + 1, 1), nn.Flatten(-2))

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        return CTC.from_log_probs(model.encoder(batch.inputs[0]).log_softmax(-1), batch.inputs[1])

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return model.decoder(means(structure.sum(-1)[..., 1::2].mT, batch.inputs[0]))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Warping(LatentTask):
    """Classes of series by the nearest centroid after a latent alignment in time, whose metric is trained (Cuturi & Blondel 2017).

    Every class passes the same stages, with the same contents in another order, and stays for a random time in each. Other features show
    the stage. So only aligned series are near the centroid of their class.

    Args:
        points, stages, classes: points of a series, stages, and classes.
    """

    points: Count = 7
    stages: Count = 3
    classes: Count = 4

    name: ClassVar[str] = "warping"
    summary: ClassVar[str] = "classes of series by the nearest centroid, after a latent alignment in time"
    references: ClassVar[tuple[str, ...]] = ("cuturi2017soft",)
    oracle = Alignment()

    def drawn(self, items: int, world: torch.Generator, draws: torch.Generator) -> Batch:
        stages, contents = torch.randn(self.stages, FEATURES, generator=world), torch.randn(self.stages, FEATURES, generator=world)
        orders = torch.stack([torch.randperm(self.stages, generator=world) for _ in range(self.classes)])
        label = torch.randint(self.classes, (items,), generator=draws)
        z = self.oracle.sample(torch.zeros(items, self.points, self.stages), 1, generator=draws)[0]
        shown = torch.cat([stages.expand(items, -1, -1), contents[orders[label]]], -1)
        x = means(z, shown)
        return Batch((x + torch.randn(x.shape, generator=draws),), label, None, z)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        metric = nn.Linear(2 * FEATURES, FEATURES, bias=False)
        stages, classes = Nearness((self.stages, FEATURES), FEATURES), Nearness((self.classes, self.stages, 2 * FEATURES), 2)
        return nn.Sequential(metric, stages), classes

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return model.decoder(means(structure.mT, batch.inputs[0]))  # type: ignore[no-any-return]


class Nearness(nn.Module):
    """Minus squared distances ``[..., k]`` of inputs ``[..., *event]`` from centres ``[k, *event]``, divided by a scale."""

    def __init__(self, centres: tuple[int, ...], scale: float) -> None:
        super().__init__()
        self.centres, self.scale = nn.Parameter(torch.randn(centres)), scale

    def forward(self, x: Tensor) -> Tensor:
        event = self.centres.ndim - 1
        return -(x.unsqueeze(-event - 1) - self.centres).square().flatten(-event).sum(-1) / self.scale


def means(weights: Tensor, x: Tensor) -> Tensor:
    """Weighted means ``[..., m, d]`` of points ``[b, n, d]``, by weights ``[..., m, n]`` of any sum."""
    return weights @ x / weights.sum(-1, keepdim=True).clamp(min=1e-3)


TagsFrozen = variant(Tags, "tags_frozen", "labels of the points of a sequence, for classifiers that were trained before", decoding="frozen")
TagsElbo = variant(Tags, "tags_elbo", "labels of the points of a sequence, by the bound of a classifier for each latent tag", kind="elbo")
SegmentsPretrained = variant(Segments, "segments_pretrained", "signs by latent segments, after training on twenty known ones", labelled=20)
GatesFrozen = variant(Gates, "gates_frozen", "latent gates of linear functions that were trained before", decoding="frozen")

"""Synthetic tasks: clusters of points with a classifier each, and explanations of labels by a few features."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ...oracles import Categorical, Subset
from ...oracles.options import Count, NonNegative
from .generated.base import perceptron, variant
from .task import EVALUATED, Batch, LatentModel, Rates, Split, Task, label_loss, right, seeded
from .training import descend, fit, fit_decoder

PRETRAINED = 200  # steps over all labelled points


@dataclass(frozen=True)
class Clusters(Task):
    """Synthetic classification with latent clusters: ``y = sign(w_z·(x − c_z))`` for a point x of the cluster z around c_z.

    So the label says nothing of the cluster, nor the cluster of the label. The encoder is linear, the decoder bilinear in cluster and
    point. Structures are categories; their quality is the V-measure of the clustering by the encoder's best category.

    Two ways to train through a discrete choice are options here, for any estimator. With ``start=pretrained`` and the estimator ``frozen``
    the task is a pipeline. ``auxiliary`` trains the encoder jointly on points with a known cluster. See Mihaylova et al. 2020, section 5.1.

    Args:
        clusters: K. ``features``: d.
        train, heldout: training points, and points of validation and test each.
        start: ``pretrained`` trains the encoder on the labelled points first.
        auxiliary: weight of the mean cross-entropy of labelled points.
        labelled: number of training points with a known cluster, which only the two options above use.
    """

    clusters: Count = 10
    features: Count = 20
    train: Count = 5000
    heldout: Count = 2000
    start: Literal["fresh", "pretrained"] = "fresh"
    auxiliary: NonNegative = 0.0
    labelled: Count = 200
    steps: Count = 500
    rates: Rates = (0.005, 0.02, 0.05)
    batch_size: Count = 128

    name: ClassVar[str] = "clusters"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "latent clusters with a linear classifier each"
    references: ClassVar[tuple[str, ...]] = ("mihaylova2020understanding",)
    structured: ClassVar[str] = "V-measure"
    stackable: ClassVar[bool] = True
    oracle = Categorical()

    @functools.lru_cache(maxsize=12)  # noqa: B019 - few tasks, which live as long as the process
    def data(self, split: Split) -> Batch:
        """Points of a split, and whether their clusters are known; all splits share centres and classifiers."""
        items, labelled = (self.train, self.labelled) if split == "train" else (self.heldout, 0)
        world, generator = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1 + get_args(Split).index(split))
        centres, weights = (torch.randn(self.clusters, self.features, generator=world) for _ in range(2))
        z = torch.randint(self.clusters, (items,), generator=generator)
        x = centres[z] + torch.randn(items, self.features, generator=generator)
        labels = ((weights[z] * (x - centres[z])).sum(-1) > 0).float()
        return Batch((x, torch.arange(items) < labelled), labels, None, one_hot(z, self.clusters).float())

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return nn.Linear(self.features, self.clusters), nn.Linear(self.features, self.clusters)

    def model(self, seed: int) -> LatentModel:
        model = super().model(seed)
        if self.start == "pretrained":
            points = self.data("train").take(torch.arange(min(self.labelled, self.train)))
            x, z = points.inputs[0], points.true().argmax(-1)
            descend(model.encoder, lambda: cross_entropy(model.encoder(x), z), steps=PRETRAINED, rate=0.02)
        return model

    def scores(self, model: LatentModel, batch: Batch) -> Tensor:
        return model.encoder(batch.inputs[0])  # type: ignore[no-any-return]

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        """A linear classifier for each cluster, mixed between structures: ``z·(W x + b)``."""
        return (structure * model.decoder(batch.inputs[0])).sum(-1)  # type: ignore[no-any-return]

    def regulariser(self, model: LatentModel, batch: Batch) -> Callable[[Tensor], Tensor] | None:
        gold, weight = batch.gold, self.auxiliary * self.train / min(self.labelled, self.train)
        if not weight or gold is None:
            return None
        return lambda scores: -weight * torch.where(batch.inputs[1], (scores.log_softmax(-1) * gold).sum(-1), 0)

    @torch.no_grad()
    def evaluate(self, model: LatentModel, split: Split = "test") -> dict[str, float]:
        points = self.data(split)
        found = torch.cat([model.encoder(part).argmax(-1) for part in points.inputs[0].split(EVALUATED)])
        return super().evaluate(model, split) | {"structure_accuracy": v_measure(found, points.true().argmax(-1))}

    def floor(self, seed: int) -> float:
        """A linear classifier of the point."""
        (x, _), y = self.data("train")[:2]
        test = self.data("test")
        with seeded(seed):
            linear = nn.Sequential(nn.Linear(self.features, 1), nn.Flatten(0))
        fit(linear, lambda items: label_loss(linear(x[items]), y[items]).mean(), self, rate=0.01, seed=seed)
        return float(right(linear(test.inputs[0]), test.labels).mean())


ClustersPretrained = variant(
    Clusters, "clusters_pretrained", "latent clusters, after training on a few known ones", start="pretrained", labelled=50
)


def v_measure(found: Tensor, true: Tensor) -> float:
    """The harmonic mean of homogeneity and completeness of a clustering (Rosenberg & Hirschberg 2007); 1 for the same partition."""
    joint = torch.zeros(int(found.max()) + 1, int(true.max()) + 1, dtype=torch.float64)
    joint.index_put_((found, true), torch.ones(len(found), dtype=torch.float64), accumulate=True)
    joint /= joint.sum()
    of_found, of_true, both = (float(torch.special.entr(law).sum()) for law in (joint.sum(1), joint.sum(0), joint))
    shared = of_found + of_true - both
    return 2 * shared / (of_found + of_true) if of_found + of_true > 0 else 1.0


FEATURES, CHOSEN = 10, 5
RELEVANT = ((0, 1, 2, 3, 9), (4, 5, 6, 7, 9))
"""Features that determine the label if the switch, the last feature, is positive, and if it is negative."""


@dataclass(frozen=True)
class L2XSwitch(Task):
    """Learning to explain: a decoder predicts the label from the five features that the encoder picks for the item.

    Ten standard normal features, of which the last has mean 3 or −3. Where it is positive, the log-odds of the label 1 are
    ``4 − Σ x_i²`` over features 1 to 4 ("orange skin"); where it is negative, ``100 sin(0.2 x₅) − |x₆| − x₇ − exp(−x₈) + 2.4`` ("nonlinear
    additive"). Labels are drawn, so that no model predicts all of them. The quality of structures is the precision: the share of the picked
    features that determine the label, including the switch.

    The decoder gets the features scaled by their parts, and the parts, also between structures. After Chen, Song, Wainwright & Jordan
    2018, section 4.1. Their code copies features 1 to 4 over 5 to 8 instead of exchanging them; here features are independent.

    Args:
        hidden: units of both layers of encoder and decoder.
        train, heldout: training items, and items of validation and test each.
    """

    hidden: Count = 64
    train: Count = 20_000
    heldout: Count = 4000
    steps: Count = 800
    rates: Rates = (0.001, 0.003, 0.01)
    batch_size: Count = 128

    name: ClassVar[str] = "l2x_switch"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "labels explained by five of ten features, which a switch exchanges"
    references: ClassVar[tuple[str, ...]] = ("chen2018learning",)
    structured: ClassVar[str] = "precision"
    stackable: ClassVar[bool] = True
    family = "explanations"
    oracle = Subset(CHOSEN)

    @functools.lru_cache(maxsize=12)  # noqa: B019 - few tasks, which live as long as the process
    def data(self, split: Split) -> Batch:
        """Items of a split, drawn once, with the features that determine the label."""
        items, generator = self.train if split == "train" else self.heldout, torch.Generator().manual_seed(get_args(Split).index(split))
        x = torch.randn(items, FEATURES, generator=generator)
        switch = torch.rand(items, generator=generator) < 0.5
        x[:, -1] += torch.where(switch, 3.0, -3.0)
        first, second, third, fourth = x[:, 4:8].unbind(-1)
        orange = 4 - x[:, :4].square().sum(-1)
        additive = 100 * (0.2 * first).sin() - second.abs() - third - (-fourth).exp() + 2.4
        y = torch.rand(items, generator=generator) < torch.where(switch, orange, additive).sigmoid()
        masks = torch.zeros(2, FEATURES).scatter_(1, torch.tensor(RELEVANT), 1.0)
        return Batch((x,), y.float(), None, masks[(~switch).long()])

    def modules(self) -> tuple[nn.Module, nn.Module]:
        hidden = (self.hidden, self.hidden)
        return perceptron(FEATURES, *hidden, FEATURES, activation=nn.ReLU), perceptron(2 * FEATURES, *hidden, 1, activation=nn.ReLU)

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        """A label from the features that the structure picks."""
        return model.decoder(torch.cat([structure * batch.inputs[0], structure], -1)).squeeze(-1)  # type: ignore[no-any-return]

    def quality(self, batch: Batch, structure: Tensor) -> Tensor:
        return (structure * batch.true()).sum(-1) / CHOSEN

    def floor(self, seed: int) -> float:
        """The decoder trained and tested on subsets that are drawn uniformly."""
        generator = torch.Generator().manual_seed(seed)
        drawn = lambda batch: self.oracle.argmax(torch.rand(batch.inputs[0].shape, generator=generator))  # noqa: E731
        return fit_decoder(self, self.model(seed), drawn, rate=0.003, seed=seed)["accuracy"]

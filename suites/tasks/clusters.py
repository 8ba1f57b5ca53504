"""Latent categories: every cluster has a linear classifier of its own, and the cluster of a point is not observed."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from ...oracles import Categorical
from ...oracles.options import Count, NonNegative
from .generated.base import variant
from .task import EVALUATED, Batch, LatentModel, Rates, Split, Task, label_loss, right, seeded
from .training import descend, fit

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

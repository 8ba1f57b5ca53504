"""Explanations by a few features: a switch decides which five of ten features determine the label."""

import functools
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor, nn

from ...oracles import Subset
from ...oracles.options import Count
from .generated.base import perceptron
from .task import Batch, LatentModel, Rates, Split, Task
from .training import fit_decoder

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

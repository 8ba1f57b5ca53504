"""Sentences about tasks that break the contract."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from structgrad.oracles import Subset
from structgrad.suites.tasks import TASKS, ModuleTask, make_task
from structgrad.suites.tasks.check import check_task
from structgrad.suites.tasks.clusters import Clusters
from structgrad.suites.tasks.task import Batch

SIZES = {"clusters": 3, "features": 4, "train": 200, "heldout": 100, "steps": 20}


@pytest.mark.parametrize("name", TASKS)
def test_every_task_keeps_the_contract(name: str) -> None:
    task = make_task(name)
    if (reason := task.unavailable()) is not None:
        pytest.skip(reason)
    assert check_task(task, trained=False) == []


def test_true_structures_help() -> None:
    assert check_task(replace(Clusters(**SIZES), steps=60)) == []


@dataclass(frozen=True)
class Rows(Clusters):
    def batch(self, split, items):
        batch = super().batch(split, items)
        return batch._replace(labels=batch.labels[:1])


@dataclass(frozen=True)
class Reduced(Clusters):
    def loss(self, model, batch):
        plain = super().loss(model, batch)
        return replace(plain, call=lambda z: plain(z).mean(-1))


@dataclass(frozen=True)
class Mixed(Clusters):
    def scores(self, model, batch):
        plain = super().scores(model, batch)
        return plain - plain.mean(0)


@dataclass(frozen=True)
class Coupled(Clusters):
    def loss(self, model, batch):
        plain = super().loss(model, batch)
        return replace(plain, call=lambda z: plain(z) - plain(z).mean())


@dataclass(frozen=True)
class Jumping(Clusters):
    def loss(self, model, batch):
        plain = super().loss(model, batch)
        return replace(plain, call=lambda z: plain(z) + 10.0 * (z.amax(-1) < 1))


@dataclass(frozen=True)
class Flat(Clusters):
    def loss(self, model, batch):
        plain = super().loss(model, batch)
        return replace(plain, call=lambda z: plain(z.detach()).detach(), inside_hull=False)


@dataclass(frozen=True)
class Unseeded(Clusters):
    def model(self, seed):
        model = super().model(seed)
        with torch.no_grad():
            model.encoder.bias.add_(torch.randn(()))
        return model


@dataclass(frozen=True)
class OneModel(Clusters):
    def model(self, seed):
        return super().model(0)


@dataclass(frozen=True)
class Changing(Clusters):
    def batch(self, split, items):
        batch = super().batch(split, items)
        return Batch((batch.inputs[0] + torch.randn(()),), batch.labels, None, batch.gold)


@dataclass(frozen=True)
class Unnamed(Clusters):
    structured: ClassVar[str] = ""


@dataclass(frozen=True)
class Twice(Clusters):
    def parameter_groups(self, model, rate):
        return [*super().parameter_groups(model, rate), {"params": list(model.encoder.parameters()), "lr": rate}]


@dataclass(frozen=True)
class Single(Clusters):
    def scores(self, model, batch):
        return super().scores(model, batch).float()


@dataclass(frozen=True)
class Unstackable(Clusters):
    def scores(self, model, batch):
        plain = super().scores(model, batch)
        return plain * (2.0 if torch._C._functorch.is_batchedtensor(plain) else 1.0)


@dataclass(frozen=True)
class Useless(Clusters):
    def ceiling(self, seed):
        return self.floor(seed)


@dataclass(frozen=True)
class Raising(Clusters):
    def judge(self, model, batch, structure):
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Rows, r"labels of 4 items of the split train has shape \(1,\); expected 4 rows"),
        (Reduced, r"the loss of structures of shape \(3, 4, 3\) has shape \(3,\); expected one value per structure"),
        (Mixed, "the scores of an item depend on the other items of its batch"),
        (Coupled, "the loss of a structure depends on the other structures of a call"),
        (Jumping, "the loss jumps by 10 next to a structure; expected soft and hard losses that agree on structures"),
        (Flat, "has no gradient in the structure; say differentiable=False"),
        (Unseeded, "two models of one seed differ"),
        (OneModel, "the models of two seeds are equal"),
        (Changing, "a batch is another one when it is asked for again"),
        (Unnamed, "expected structure_accuracy where it has a name"),
        (Twice, "`parameter_groups` has 6 parameters; expected the 4 that require gradients, each once"),
        (Single, "gives scores of torch.float32 and losses of torch.float64; expected float64 of both"),
        (Unstackable, "seeds side by side have other scores or losses than alone; expected the same, or stackable = False"),
        (Useless, "expected a task on which structures help"),
        (Raising, "judged failed with KeyError: 'nothing'"),
    ],
)
def test_a_fault_is_told(kind: type[Clusters], sentence: str) -> None:
    found = check_task(kind(**SIZES), trained=kind is Useless)
    assert any(re.search(sentence, line) for line in found), found


class Counting(torch.nn.Module):
    def forward(self, x, z):
        return torch.stack([-(x * z).sum(-1), (x * z).sum(-1)], -1)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(()))

    def forward(self, x):
        return self.weight * x


def ragged(kind: type[ModuleTask] = ModuleTask) -> ModuleTask:
    """Two of three to six numbers, whose sum has the label as its sign."""
    draws = torch.Generator().manual_seed(0)
    items = [torch.randn(int(size), generator=draws) for size in torch.randint(3, 7, (60,), generator=draws)]
    return kind(Weighted, Counting, Subset(2), [(x, int(x.topk(2).values.sum() > 0)) for x in items])


class Unpadded(ModuleTask):
    def scores(self, model, batch):
        return model.encoder(*batch.inputs)


class ReadsPadding(ModuleTask):
    def loss(self, model, batch):
        plain = super().loss(model, batch)
        return replace(plain, call=lambda z: plain(z) + z.sum(-1))


class JudgesPadding(ModuleTask):
    def judge(self, model, batch, structure):
        return {"accuracy": structure.mean(-1).clamp(0, 1)}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (Unpadded, r"others when the oracle gets lengths=; expected scores that `oracle.pad\(scores, lengths\)` has padded"),
        (ReadsPadding, "the loss depends on the parts of a structure in the padding"),
        (JudgesPadding, "`judge` gives another accuracy when the padding of a structure changes"),
    ],
)
def test_nothing_depends_on_the_padding(kind: type[ModuleTask], sentence: str) -> None:
    found = check_task(ragged(kind), trained=False)
    assert any(re.search(sentence, line) for line in found), found
    assert check_task(ragged(), trained=False) == []


def test_a_task_without_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clusters, "unavailable", lambda self: "no points are there")
    assert check_task(Clusters(**SIZES)) == ["clusters cannot be checked: no points are there"]


def test_too_few_items_are_all_that_is_said():
    assert check_task(make_task("clusters[train=2]"), trained=False) == ["clusters: the split train has 2 items; expected at least 4"]

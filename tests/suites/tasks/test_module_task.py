"""Tasks of two modules and a data set."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from structgrad.oracles import Assignment, Subset
from structgrad.suites.tasks import ModuleTask
from structgrad.suites.tasks.check import check_task
from structgrad.suites.tasks.training import train

X = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
GOLD = torch.zeros(500, 4).scatter(1, torch.where(X[:, :1] > 0, torch.tensor([1, 2]), torch.tensor([0, 3])), 1.0)
Y = ((X * GOLD).sum(1) > 0).long()


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x, z):
        assert x.shape == z.shape
        return self.out(x * z)


def encoder():
    return nn.Linear(4, 4)


def own(*data, **options):
    return ModuleTask(encoder, Decoder, Subset(2), TensorDataset(*data), **{"steps": 60, "rates": (0.05,), **options})


@pytest.mark.parametrize("data", [(X, Y), (X, Y, GOLD), (X, Y.float().unsqueeze(-1).expand(-1, 2).contiguous())])
def test_a_task_of_two_modules_keeps_the_contract(data):
    assert check_task(own(*data), trained=False) == []


def test_true_structures_help():
    task = own(X, Y, GOLD, steps=200)
    assert task.ceiling(0) > 0.95
    assert task.floor(0) < 0.85


def test_splits_share_no_item_and_are_the_same_again():
    one, again = (own(torch.arange(500.0).unsqueeze(1).expand(-1, 4), Y) for _ in range(2))
    splits = [[task.data(split).inputs[0][:, 0].tolist() for split in ("train", "validation", "test")] for task in (one, again)]
    assert [len(items) for items in splits[0]] == [300, 100, 100]
    assert len({item for items in splits[0] for item in items}) == 500
    assert splits[0] == splits[1]


def test_items_of_different_lengths_are_padded():
    draws = torch.Generator().manual_seed(0)
    items = [torch.randn(3 + number % 3, 4, generator=draws) for number in range(50)]
    gold = [torch.eye(len(x))[torch.randperm(len(x), generator=draws)] for x in items]
    scorer = lambda: nn.Linear(4, 5)  # noqa: E731 - scores of pairs, of the longest item
    task = ModuleTask(scorer, Sized, Assignment(), [(x, 0, z) for x, z in zip(items, gold, strict=True)], steps=2)
    batch = task.batch("train", torch.arange(30))
    assert batch.inputs[0].shape == (30, 5, 4)
    assert sorted(set(batch.lengths.tolist())) == [3, 4, 5]
    scores = task.scores(task.model(0), batch)
    best, within = Assignment().argmax(scores), Assignment().argmax(scores, lengths=batch.lengths)
    mask = Assignment().length_mask((5, 5), batch.lengths)
    assert torch.equal(best * mask, within)
    assert torch.equal(batch.gold.sum((-2, -1)), batch.lengths.float())
    model = train(ModuleTask(scorer, Sized, Assignment(), [(x, 0) for x in items], steps=2), "rloo", rate=0.01, seed=0)
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


class Sized(nn.Module):
    """Fails if a structure has a part in the padding, which has no row of numbers."""

    def forward(self, x, z):
        assert torch.equal(z.sum(-1) > 0, x.abs().sum(-1) > 0)
        return torch.stack([z[..., 0, 0], -z[..., 0, 0]], -1)


def test_the_text_of_a_task_is_the_same_in_every_process():
    code = "from tests.suites.tasks.test_module_task import *; print(repr(own(X, Y, loss_per_item=nn.CrossEntropyLoss(reduction='none'))))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert there == repr(own(X, Y, loss_per_item=nn.CrossEntropyLoss(reduction="none")))
    assert repr(own(X, Y, batch_size=3)) != repr(own(X, Y))
    assert repr(dataclasses.replace(own(X, Y), decoder=encoder)) != repr(own(X, Y))


def test_wrong_items_and_losses_are_refused():
    with pytest.raises(
        ValueError, match=r"`ModuleTask` got items of \[1\] entries; expected \(input, label\) or \(input, label, structure\)"
    ):
        own(X).batch("test", torch.arange(3))
    task = own(X, Y, loss_per_item=nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match=r"the loss_per_item of a `ModuleTask` gave \(\) for 3 items; expected one number"):
        task.loss(task.model(0), task.batch("test", torch.arange(3)))(GOLD[:3])

"""The switch: relevant features of labels, and accuracy with the right features."""

from __future__ import annotations

import pytest
import torch

from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.l2x_switch import L2XSwitch

TINY = L2XSwitch(hidden=16, train=1000, heldout=400, steps=150)


def test_by_name():
    assert make_task("l2x_switch") == L2XSwitch()


def test_data_is_the_same_whenever_it_is_drawn_and_differs_between_splits():
    items = torch.arange(50)
    first, again, test = TINY.batch("train", items), L2XSwitch(train=1000, heldout=400).batch("train", items), TINY.batch("test", items)
    assert torch.equal(first.inputs[0], again.inputs[0])
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.inputs[0][:, 0], test.inputs[0][:, 0])


def test_the_label_hangs_on_the_features_of_its_side_of_the_switch():
    batch = TINY.batch("train", torch.arange(1000))
    (x,), y, gold = batch.inputs, batch.labels, batch.gold
    assert gold is not None
    assert torch.equal(gold[:, 0] > 0, gold[:, 4] == 0)
    assert bool((gold.sum(-1) == 5).all())
    assert bool((gold[:, 9] == 1).all())
    positive = gold[:, 0] > 0
    assert float(x[positive, 9].mean()) == pytest.approx(3, abs=0.2)
    assert float(x[~positive, 9].mean()) == pytest.approx(-3, abs=0.2)
    # Beyond the orange's skin labels are 0; with the additive labels, the sign of the fifth feature nearly decides.
    skin = x[:, :4].square().sum(-1)
    assert float(y[positive & (skin > 8)].mean()) < 0.1
    assert float(y[positive & (skin < 2)].mean()) > 0.8
    assert float((y == (x[:, 4] > 0))[~positive].float().mean()) > 0.9


def test_precision_counts_the_picked_features_that_matter():
    batch = TINY.batch("train", torch.arange(3))
    assert batch.gold is not None
    found = TINY.judge(TINY.model(0), batch, torch.stack([batch.gold[0], 1 - batch.gold[1], torch.ones(10)]))
    assert found["structure_accuracy"].tolist() == [1, 0, 1]
    assert set(found["accuracy"].tolist()) <= {0.0, 1.0}


def test_the_loss_gives_one_value_per_structure_and_sees_nothing_of_other_features():
    batch, model = TINY.batch("train", torch.arange(4)), TINY.model(0)
    assert batch.gold is not None
    structures = torch.stack([batch.gold, 1 - batch.gold, torch.full((4, 10), 0.5)])
    losses = TINY.loss(model, batch)(structures)
    assert losses.shape == (3, 4)
    hidden = batch._replace(inputs=(batch.inputs[0] * batch.gold,))
    after = TINY.loss(model, hidden)(structures)
    assert torch.equal(losses[0], after[0])
    assert not torch.equal(losses[1], after[1])


def test_models_are_a_function_of_the_seed():
    states = [torch.cat([parameter.flatten() for parameter in TINY.model(seed).parameters()]) for seed in (0, 0, 1)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_the_features_that_matter_beat_drawn_ones():
    floor, ceiling = TINY.floor(0), TINY.ceiling(0)
    assert floor == TINY.floor(0)
    assert floor["accuracy"] + 0.1 < ceiling["accuracy"]
    assert floor["structure_accuracy"] == pytest.approx(0.5, abs=0.02)
    assert ceiling["structure_accuracy"] == 1

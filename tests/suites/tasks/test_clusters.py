"""Latent clusters, and properties of all tasks."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import TASKS, make_task
from structgrad.suites.tasks.clusters import Clusters, v_measure
from structgrad.suites.tasks.training import BatchOrder, train

SMALL = Clusters(clusters=3, features=6, train=400, heldout=200, labelled=50, steps=60)


def test_a_label_says_nothing_of_its_cluster() -> None:
    batch = Clusters().batch("train", torch.arange(5000))
    assert batch.gold is not None
    shares = (batch.gold * batch.labels.unsqueeze(-1)).sum(0) / batch.gold.sum(0)
    assert ((shares - 0.5).abs() < 0.1).all()


def test_splits_share_the_centres_and_no_point() -> None:
    train, test = (SMALL.batch(split, torch.arange(200)) for split in ("train", "test"))  # type: ignore[arg-type]
    assert train.gold is not None
    assert test.gold is not None
    centres = [batch.gold.mT @ batch.inputs[0] / batch.gold.sum(0).unsqueeze(-1) for batch in (train, test)]
    assert (centres[0] - centres[1]).abs().max() < 1
    assert not torch.isclose(train.inputs[0], test.inputs[0]).all(-1).any()


def test_points_are_the_same_for_all_sizes_of_steps() -> None:
    longer = Clusters(clusters=3, features=6, train=400, heldout=200, steps=7, batch_size=3)
    items = torch.tensor([5, 0, 3])
    assert torch.equal(SMALL.batch("test", items).inputs[0], longer.batch("test", items).inputs[0])


def test_what_is_learnt_lies_between_floor_and_ceiling() -> None:
    floor, ceiling = SMALL.floor(0)["accuracy"], SMALL.ceiling(0)["accuracy"]
    model = train(SMALL, make_estimator("exact"), rate=0.05, seed=0)
    assert floor + 0.05 < SMALL.evaluate(model)["accuracy"] <= ceiling + 0.02


def test_an_encoder_may_be_trained_beforehand() -> None:
    fresh, trained = (task.evaluate(task.model(0))["structure_accuracy"] for task in (SMALL, _with(start="pretrained")))
    assert fresh < 0.3
    assert trained > 0.6


def test_an_encoder_may_be_trained_along_on_points_whose_cluster_is_known() -> None:
    """The estimator returns no gradient, so that the encoder learns from the labelled points only."""
    task = _with(auxiliary=1.0)
    learnt = task.evaluate(train(task, make_estimator("frozen"), rate=0.02, seed=0))["structure_accuracy"]
    assert task.evaluate(task.model(0))["structure_accuracy"] < 0.3
    assert learnt > 0.6


def _with(**options: object) -> Clusters:
    return Clusters(**{**vars(SMALL), **options})  # type: ignore[arg-type]


def test_every_item_comes_once_in_an_epoch() -> None:
    draw = BatchOrder(SMALL, 0, 400)
    epoch = torch.cat([draw() for _ in range(3)])
    assert len(epoch.unique()) == 3 * 128
    assert not torch.equal(BatchOrder(SMALL, 0, 400)(), BatchOrder(SMALL, 1, 400)())
    assert torch.equal(BatchOrder(SMALL, 0, 400)(), epoch[:128])


def test_the_v_measure_is_that_of_its_authors() -> None:
    """Rosenberg & Hirschberg 2007: one cluster for all has no homogeneity; splitting a class costs completeness."""
    assert v_measure(torch.zeros(4, dtype=torch.long), torch.tensor([0, 0, 1, 1])) == 0
    assert v_measure(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 1, 1])) == pytest.approx(2 / 3)


def test_a_structure_and_its_one_hot_cost_the_same() -> None:
    model, batch = SMALL.model(0), SMALL.batch("train", torch.arange(10))
    loss = SMALL.loss(model, batch)
    every = one_hot(torch.arange(3), 3).float().unsqueeze(1).expand(3, 10, 3)
    assert torch.equal(loss(every)[1], loss(every[1]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clusterz", "got the unknown task 'clusterz'; did you mean clusters"),
        ("clusters[start=warm]", "`clusters` got start=warm; expected 'fresh' or 'pretrained'"),
        ("clusters[clusters=0]", "`clusters` got clusters=0; expected an integer >= 1"),
        ("math:pi", "got 'math:pi', a float; expected a task"),
    ],
)
def test_wrong_names_and_options_of_tasks_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"expected|did you mean") as error:
        make_task(name)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("task", TASKS)
def test_no_task_takes_what_cannot_be_trained(task: str) -> None:
    for option in ("steps", "batch_size"):
        with pytest.raises(ValueError, match=f"^`{task}` got {option}=0; expected an integer >= 1$"):
            make_task(f"{task}[{option}=0]")
    with pytest.raises(ValueError, match=rf"^`{task}` got rates=\(0,\); expected a tuple, each a finite number > 0$"):
        type(make_task(task))(rates=(0,))
    with pytest.raises(ValueError, match=rf"^`{task}` got rates=\(\); expected at least one learning rate$"):
        make_task(f"{task}[rates=()]")

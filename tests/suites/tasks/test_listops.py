"""Tasks on lines of ListOps: structures, their quality, and a decoder that is trained once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language import list_operations, listops
from structgrad.suites.tasks.language.listops import ListOps, ListOpsFrozen, ListOpsGenerated, bracket_recall, gold
from structgrad.suites.tasks.training import train

SIZES: dict[str, Any] = {"shortest": 7, "longest": 7, "train": 300, "heldout": 60, "dimension": 12, "hidden": 16}
TINY = ListOpsGenerated(**SIZES, pretraining=150, steps=40)
JOINT = ListOps(**SIZES, generated=True, steps=100)


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("name", ["listops", "listops_frozen", "listops_generated"])
def test_by_name(name: str) -> None:
    assert make_task(name).name == name


def test_recall_counts_the_spans_of_the_line_alone() -> None:
    true = torch.eye(5)
    true[0] = 1
    true[2, 3] = 1
    found = torch.eye(5)
    found[0, 3] = found[0, 4] = found[2, 3] = found[1, 3] = 1
    # Of five tokens (0, 1), (0, 2), (0, 3) and (2, 3) count, of four the whole is (0, 3), of two nothing is left.
    recall = bracket_recall(found.expand(3, -1, -1), true.expand(3, -1, -1), torch.tensor([5, 4, 2]))
    assert recall.tolist() == pytest.approx([2 / 4, 1 / 3, 1])


@pytest.mark.parametrize("task", [TINY, JOINT])
def test_true_trees_are_judged_right_and_are_structures(task: listops.SpanTask) -> None:
    batch, model = task.batch("train", torch.arange(8)), task.model(0)
    scores = task.scores(model, batch)
    assert bool((task.oracle.rank(gold(batch)) >= 0).all())
    assert bool(task.oracle.log_prob(gold(batch), scores).isfinite().all())
    assert task.judge(model, batch, gold(batch))["structure_accuracy"].tolist() == [1] * 8
    assert task.loss(model, batch)(torch.stack([gold(batch), task.oracle.argmax(scores)])).shape == (2, 8)


def test_losses_of_trees_agree_between_both_ways_to_evaluate_them() -> None:
    task = ListOpsGenerated(**SIZES | {"longest": 8}, pretraining=0)
    batch, model = task.batch("train", torch.arange(12)), task.model(0)
    trees = task.oracle.sample(task.scores(model, batch), 3, generator=torch.Generator().manual_seed(0))
    loss = task.loss(model, batch)
    assert torch.allclose(loss(trees), loss(trees.clone().requires_grad_()), atol=1e-5)


def test_a_frozen_decoder_is_the_same_for_all_seeds_and_stays_as_it_is() -> None:
    models = [TINY.model(0), TINY.model(1), train(TINY, make_estimator("ste"), rate=0.01, seed=0, steps=2)]
    states = [torch.cat([parameter.flatten() for parameter in model.decoder.parameters()]) for model in models]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert not any(parameter.requires_grad for parameter in models[0].decoder.parameters())
    assert not torch.equal(models[0].encoder.tokens.weight, models[1].encoder.tokens.weight)


def test_a_frozen_decoder_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TINY.model(0).decoder.state_dict()
    listops._pretrained.cache_clear()
    monkeypatch.setattr(listops, "fit", lambda *args, **named: pytest.fail("trained again"))
    assert all(torch.equal(value, first[name]) for name, value in TINY.model(0).decoder.state_dict().items())


def test_true_trees_beat_the_most_frequent_value() -> None:
    assert TINY.floor(0)["accuracy"] + 0.2 < TINY.ceiling(0)["accuracy"]


def test_learning_the_exact_gradient_finds_trees() -> None:
    before, after = TINY.model(0), train(TINY, make_estimator("exact"), rate=0.03, seed=0)
    found = [TINY.evaluate(model)["structure_accuracy"] for model in (before, after)]
    assert found[0] + 0.3 < found[1]


def test_left_branching_is_beside_the_floor_of_learning_both() -> None:
    floor, ceiling = JOINT.floor(0), JOINT.ceiling(0)
    assert floor["accuracy"] < floor["left_branching_accuracy"] < ceiling["accuracy"]
    assert 0 < floor["left_branching_structure_accuracy"] < 1 == ceiling["structure_accuracy"]


def test_both_have_rates_of_their_own() -> None:
    model = JOINT.model(0)
    encoder, decoder = JOINT.parameter_groups(model, 0.01)
    assert (encoder["lr"], decoder["lr"]) == (0.01, pytest.approx(0.003))
    assert encoder["params"] == list(model.encoder.parameters())
    assert decoder["params"] == list(model.decoder.parameters())


def test_without_the_real_lines_a_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert ListOpsFrozen().unavailable() == list_operations.unavailable() is not None
    assert ListOpsGenerated().unavailable() is None


@pytest.mark.skipif(list_operations.unavailable() is not None, reason=str(list_operations.unavailable()))
def test_real_lines_make_batches_of_one_shape() -> None:
    batch = ListOpsFrozen().batch("test", torch.arange(5))
    assert (batch.inputs[0].shape, gold(batch).shape) == ((5, 8), (5, 8, 8))

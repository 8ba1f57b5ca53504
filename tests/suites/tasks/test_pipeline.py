"""A parser in a pipeline: trained alone, frozen, or trained on through the relations of words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language import pipeline, treebank
from structgrad.suites.tasks.language.pipeline import Pipeline
from structgrad.suites.tasks.training import train
from tests.suites.tasks import contracts, treebanks

TINY = Pipeline(shortest=4, longest=5, parsed=14, parser_steps=20, hidden=8, steps=40, batch_size=10)


@pytest.fixture(autouse=True)
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    treebanks.write(tmp_path)
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))
    pipeline._parser.cache_clear()


def test_contract():
    contracts.check_reproducible(TINY, treebank._read)
    contracts.check_loss(TINY)
    contracts.check_stackable(TINY)


def test_the_parser_has_sentences_of_its_own():
    assert TINY.size("train") == 40
    assert torch.equal(TINY.batch("train", torch.tensor([0])).labels[0], TINY._treebank().trees["train"].relations[14])
    assert torch.equal(TINY.batch("test", torch.tensor([0])).labels[0], TINY._treebank().trees["test"].relations[0])


def test_the_parser_is_trained_alone_and_everybody_gets_a_copy():
    untrained = replace(TINY, parser_steps=0)
    before, after = (task.evaluate(task.model(0))["structure_accuracy"] for task in (untrained, TINY))
    assert after > before + 0.1
    with torch.no_grad():
        TINY.model(0).encoder.out.weight.zero_()
    assert TINY.evaluate(TINY.model(0))["structure_accuracy"] == after


def test_a_frozen_parser_stays_and_others_move():
    start = TINY.model(0)
    for name, stays in (("frozen", True), ("structured_attention", False)):
        model = train(TINY, make_estimator(name), rate=0.01, seed=0)
        same = [torch.equal(one, other) for one, other in zip(start.encoder.parameters(), model.encoder.parameters(), strict=True)]
        assert all(same) == stays, name
        assert TINY.evaluate(model)["accuracy"] > TINY.evaluate(start)["accuracy"]


def test_accuracy_is_over_words():
    batch, model = TINY.batch("train", torch.arange(10)), TINY.model(0)
    assert batch.gold is not None
    judged = TINY.judge(model, batch, batch.gold)
    said = model.decoder(*batch.inputs, batch.gold).argmax(-1)
    expected = [(said[i, :n] == batch.labels[i, :n]).float().mean() for i, n in enumerate(batch.lengths.tolist())]
    torch.testing.assert_close(judged["accuracy"], torch.stack(expected))
    assert (judged["structure_accuracy"] == 1).all()


def test_true_heads_tell_more_than_none():
    task = replace(TINY, steps=100)
    assert task.ceiling(0)["accuracy"] > task.floor(0)["accuracy"] + 0.05
    assert task.ceiling(0)["structure_accuracy"] == 1.0


def test_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert TINY.unavailable() is None
    (tmp_path / "elsewhere").mkdir()
    contracts.check_absence(TINY, monkeypatch, tmp_path / "elsewhere", treebank.TRAINED)


def test_by_name():
    assert make_task("pipeline") == Pipeline()

"""Parsing with known trees: attachment, floors, and supervised estimators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language import treebank
from structgrad.suites.tasks.language.parsing import Parsing, attachment
from structgrad.suites.tasks.training import train
from tests.suites.tasks import contracts, treebanks

TINY = Parsing(shortest=4, longest=5, hidden=8, steps=40, batch_size=10)


@pytest.fixture(autouse=True)
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    treebanks.write(tmp_path)
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))


def test_contract():
    contracts.check_reproducible(TINY, treebank._read)
    contracts.check_loss(TINY)
    contracts.check_stackable(TINY)


def test_attachment_counts_heads_of_words():
    batch = TINY.batch("train", torch.arange(20))
    assert batch.gold is not None
    wrong = batch.labels.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % 5
    found = treebank.structure_of(wrong)
    expected = 1 - 1 / batch.lengths
    torch.testing.assert_close(attachment(batch, found), expected)
    torch.testing.assert_close(attachment(batch, torch.stack([batch.gold, found]))[0], torch.ones(20))
    model = TINY.model(0)
    torch.testing.assert_close(TINY.loss(model, batch)(found), 1 - expected)
    judged = TINY.judge(model, batch, torch.cat([found[:10], batch.gold[10:]]))
    assert judged["structure_accuracy"].tolist() == [0.0] * 10 + [1.0] * 10
    torch.testing.assert_close(judged["accuracy"], torch.cat([expected[:10], torch.ones(10)]))


def test_the_floor_is_the_better_chain():
    one = Parsing(shortest=4, longest=4, steps=1)  # sentences 1 and 3 of the patterns: heads 2 3 0 3 and 2 0 2 2
    test = one.batch("test", torch.arange(one.size("test")))
    after = torch.tensor([2, 3, 4, 0])
    assert one.floor(0)["accuracy"] == pytest.approx(float((test.labels == after).float().mean()))


@pytest.mark.parametrize("name", ["crf", "margin_sparsemap", "perceptron", "rloo"])
def test_what_is_told_the_trees_learns_them(name: str):
    found = TINY.evaluate(train(TINY, make_estimator(name), rate=0.03, seed=0))
    assert found["accuracy"] > TINY.floor(0)["accuracy"] + 0.2


def test_the_ceiling_is_above_the_floor():
    assert TINY.ceiling(0)["accuracy"] > TINY.floor(0)["accuracy"] + 0.2


def test_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert TINY.unavailable() is None
    (tmp_path / "elsewhere").mkdir()
    contracts.check_absence(TINY, monkeypatch, tmp_path / "elsewhere", treebank.TRAINED)


def test_by_name():
    assert make_task("parsing") == Parsing()

"""Named entities: readers, spans, F1 of a whole split, and supervised estimators."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from structgrad.estimators import make_estimator
from structgrad.oracles import LinearChain
from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language import ner
from structgrad.suites.tasks.language.ner import TAGS, TESTED, TRAINED, Counts, NamedEntities, counts_of, f1, features_of, read_iob, spans
from structgrad.suites.tasks.training import train
from tests.suites.tasks import contracts

TINY = NamedEntities(longest=6, hidden=8, steps=40, batch_size=10)

PATTERNS = (
    (("Mr", "O"), ("Doe", "B-PER"), ("X", "I-PER"), ("sleeps", "O")),
    (("in", "O"), ("Town", "B-LOC")),
    (("the", "O"), ("Firm", "B-ORG"), ("sells", "O"), ("in", "O"), ("Town", "B-LOC"), (".", "O")),
    (("no", "O"),),  # too short
    (("nothing", "O"), ("here", "O"), ("of", "O"), ("any", "O"), ("kind", "O"), ("at", "O"), ("all", "O")),  # too long
)


@pytest.fixture(autouse=True)
def sentences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of a few patterns, whose names are new in every sentence."""
    generator = np.random.default_rng(0)

    def text(count: int) -> str:
        blocks = []
        for _ in range(count):
            rows = enumerate(PATTERNS[generator.integers(len(PATTERNS))], 1)
            lines = [f"{i}\t{word if tag == 'O' else word + str(generator.integers(99))}\t{tag}\t-\t-" for i, (word, tag) in rows]
            blocks.append("\n".join(["# text", *lines]))
        return "\n\n".join(blocks) + "\n\n"

    (tmp_path / "ner").mkdir()
    (tmp_path / TRAINED).write_bytes(gzip.compress(text(80).encode()))
    (tmp_path / TESTED).write_text(text(30))
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))


def test_contract():
    contracts.check_reproducible(TINY, ner._read, ner._hashed)
    contracts.check_loss(TINY)
    contracts.check_stackable(TINY)


def test_rows_are_read():
    text = "# text\n1\tin\tO\t-\t-\n2\ttampa\tB-LOC\t-\tsomebody\n\n# text\n1\tHi\tO\t-\t-\n\n"
    assert list(read_iob(text)) == [(["in", "tampa"], ["O", "B-LOC"]), (["Hi"], ["O"])]


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O O", set()),
        ("B-PER I-PER O", {(0, 2, "PER")}),
        ("B-PER B-PER", {(0, 1, "PER"), (1, 2, "PER")}),
        ("I-LOC I-LOC", {(0, 2, "LOC")}),
        ("B-ORG I-LOC I-LOC", {(0, 1, "ORG"), (1, 3, "LOC")}),
        ("O I-PER B-PER I-PER I-PER", {(1, 2, "PER"), (2, 5, "PER")}),
    ],
)
def test_spans(tags: str, found: set[tuple[int, int, str]]):
    assert spans(tags.split()) == found


def test_f1_is_of_all_spans_together():
    counts = [counts_of(["B-PER", "I-PER", "O"], ["B-PER", "O", "B-LOC"]), counts_of(["B-LOC"], ["B-LOC"]), counts_of(["O"], ["O"])]
    assert counts == [(1, 2, 0), (1, 1, 1), (0, 0, 0)]
    assert f1(counts) == pytest.approx(2 * 1 / (2 + 3))
    assert f1([Counts(0, 0, 0)]) == 1.0


def test_features_of_words():
    first, second = features_of(["in", "Tampa2"])
    assert first == (
        "word=in",
        "lower=in",
        "begin=in",
        "end=in",
        "shape=x",
        "before=<s>",
        "after=tampa2",
        "shape before=-x-",
        "shape after=Xx9",
    )
    assert second[:5] == ("word=Tampa2", "lower=tampa2", "begin=tam", "end=pa2", "shape=Xx9")
    assert second[5:7] == ("before=in", "after=</s>")


def test_short_and_long_sentences_are_left_out_and_padding_is_completed_as_the_oracle_does():
    assert {split: TINY.size(split) for split in ("train", "validation", "test")} == {"train": 36, "validation": 5, "test": 14}
    batch = TINY.batch("train", torch.arange(10))
    assert batch.lengths is not None
    assert batch.gold is not None
    assert set(batch.lengths.tolist()) == {2, 4, 6}
    assert torch.equal(TINY.oracle.argmax(TINY.oracle.pad(10 * batch.gold, batch.lengths)), batch.gold)


def test_the_loss_is_the_share_of_wrong_tags():
    batch, model = TINY.batch("train", torch.arange(10)), TINY.model(0)
    assert batch.lengths is not None
    wrong = batch.labels.clone()
    wrong[:, 1] = (wrong[:, 1] + 1) % len(TAGS)
    structure = LinearChain.structure(wrong, len(TAGS), torch.float32)
    torch.testing.assert_close(TINY.loss(model, batch)(structure), 1 / batch.lengths)
    judged = TINY.judge(model, batch, structure)
    torch.testing.assert_close(judged["structure_accuracy"], 1 - 1 / batch.lengths)
    expected = [f1([counts_of([TAGS[t] for t in one[:n]], [TAGS[t] for t in other[:n]])]) for one, other, n in _rows(batch, wrong)]
    assert judged["accuracy"].tolist() == pytest.approx(expected)


def _rows(batch, wrong):
    return zip(batch.labels.tolist(), wrong.tolist(), batch.lengths.tolist(), strict=True)


def test_a_split_is_evaluated_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    model = train(TINY, make_estimator("crf"), rate=0.02, seed=0, steps=12)
    found = TINY.evaluate(model)
    batch = TINY.batch("test", torch.arange(TINY.size("test")))
    with torch.no_grad():
        said = LinearChain.tags(TINY.oracle.argmax(TINY.scores(model, batch)))
    expected = f1(counts_of([TAGS[t] for t in one[:n]], [TAGS[t] for t in other[:n]]) for one, other, n in _rows(batch, said))
    assert found["accuracy"] == pytest.approx(expected)
    assert 0 < expected < 1
    assert set(found) == {"accuracy", "structure_accuracy", "relaxed_accuracy"}
    monkeypatch.setattr(ner, "EVALUATED", 7)
    assert TINY.evaluate(model) == pytest.approx(found)


@pytest.mark.parametrize("name", ["crf", "perceptron", "sparsemap_loss", "margin_sparsemap", "differentiable_dp_loss"])
def test_what_is_told_the_tags_learns_them(name: str):
    found = TINY.evaluate(train(TINY, make_estimator(name), rate=0.02, seed=0))
    assert found["accuracy"] > TINY.floor(0)["accuracy"] + 0.2


def test_the_floor_knows_words_it_has_seen():
    words = ner._words(TINY)
    known = {word for one in words["train"] for word, tag in zip(*one, strict=True) if tag != "O"}
    true = [(word, tag) for one in words["test"] for word, tag in zip(*one, strict=True)]
    assert 0 < sum(word in known for word, tag in true if tag != "O") < sum(tag != "O" for _, tag in true)
    assert 0 < TINY.floor(0)["accuracy"] < TINY.ceiling(0)["accuracy"]


def test_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert TINY.unavailable() is None
    (tmp_path / "elsewhere").mkdir()
    contracts.check_absence(TINY, monkeypatch, tmp_path / "elsewhere", TRAINED)


def test_by_name():
    assert make_task("ner") == NamedEntities()


@contracts.needs(TRAINED, TESTED)
def test_real_sentences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("STRUCTGRAD_TASK_DATA")
    task = NamedEntities()
    assert {split: task.size(split) for split in ("train", "validation", "test")} == {"train": 1227, "validation": 137, "test": 607}
    assert 0.25 < task.floor(0)["accuracy"] < 0.35

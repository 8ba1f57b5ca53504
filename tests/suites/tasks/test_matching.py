"""Matchings of words: readers, blocks, features, and accuracies without and with the annotators' links."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from structgrad.suites.tasks import make_task
from structgrad.suites.tasks.language import matching
from structgrad.suites.tasks.language.matching import ALIGNED, PARALLEL, CoOccurrence, Matching, blocks_of, read_links
from tests.suites.tasks import contracts

TINY = Matching(longest=5, hidden=8, steps=60, batch_size=20)
HEADER = "book\tid\tfr\ten\tlinks\n"


def line(story: str, french: str, english: str, links: str) -> str:
    return f"{story}\t0\t{french}\t{english}\t{links}\n"


@pytest.fixture(autouse=True)
def stories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of nine words, in order, whose translations are the same words with a letter before."""
    generator = np.random.default_rng(0)
    written = HEADER
    for story, count in (("Any", 30), ("ChatBotte_MasterCat", 6), ("LaVision_TheVision", 12)):
        for _ in range(count):
            words = [f"w{number}" for number in generator.choice(60, 9, replace=False)]
            written += line(story, " ".join(words), " ".join(f"x{word}" for word in words), " ".join(f"{i}-{i}" for i in range(9)))
    (tmp_path / "alignment").mkdir()
    (tmp_path / ALIGNED).write_text(written)
    (tmp_path / PARALLEL).write_bytes(gzip.compress(b"book\tfr\ten\nnovel\tL'eau.\tWater.\n"))
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))


def test_contract():
    contracts.check_reproducible(TINY, matching._read, matching._sorter)
    contracts.check_loss(TINY)
    contracts.check_stackable(TINY)


def test_links_that_are_sure_and_alone():
    text = HEADER + line("s", 'le "grand roi dort', 'the "great king sleeps', "3-0 1-1 2-2 2p1 0p3")
    (read,) = read_links(text)
    assert read == ("s", ["le", '"grand', "roi", "dort"], ["the", '"great', "king", "sleeps"], [(3, 0)])


def test_blocks_take_links_in_turn_and_number_columns_within():
    words = [f"w{i}" for i in range(12)]
    links = [(0, 5), (1, 0), (3, 2), (4, 9), (5, 1), (6, 3), (7, 4), (8, 6), (9, 7), (10, 8)]
    sentence = matching.MatchingSentence("s", words, words, links)
    found = [gold.tolist() for _, gold in blocks_of(sentence, CoOccurrence([(words, words)]), 5)]
    assert found == [[2, 0, 1, 3], [0, 1, 2, 3, 4]]  # of the tenth link no block is left


def test_features_of_a_pair():
    together = CoOccurrence([(["Le", "roi"], ["the", "king"]), (["le", "."], ["the", "."]), (["le"], ["it"])])
    found = together.features(["le", "."], ["THE", "."])
    torch.testing.assert_close(found[0, 0], torch.tensor([4 / 5, math.log(3 / 2), 2 / 7, -1 / 5, 0.0]))
    torch.testing.assert_close(found[1, 1], torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0]))
    assert CoOccurrence([(["abc"], ["abd"])]).features(["abc"], ["abd"])[0, 0, 2] == 0.5


def test_a_block_is_there_as_it_was_and_shuffled_with_its_links():
    blocks = matching._blocks(TINY)["train"]
    assert blocks.label.tolist() == [0.0, 1.0] * 60
    assert set(blocks.lengths.tolist()) == {4, 5}
    assert torch.equal(blocks.lengths[::2], blocks.lengths[1::2])
    # Matched pairs have the same features in both; and padding is matched to itself.
    matched = (blocks.gold.unsqueeze(-1) * blocks.pairs).sum(-2)
    assert torch.equal(matched[::2], matched[1::2])
    assert torch.equal(blocks.gold[::2], torch.eye(5).expand(60, 5, 5))
    shuffled = blocks.gold[1::2]
    assert (shuffled.argmax(-1) != torch.arange(5)).any(-1).all()
    four = blocks.lengths[1::2] == 4
    assert (shuffled[four][:, 4, 4] == 1).all()
    assert blocks.pairs[blocks.lengths == 4][:, 4].abs().sum() == blocks.pairs[blocks.lengths == 4][:, :, 4].abs().sum() == 0


def test_structures_are_judged_by_the_words_inside():
    batch = TINY.batch("train", torch.tensor([0]))
    swapped = batch.gold.clone()
    swapped[:, :2] = swapped[:, :2].flip(1)
    judged = TINY.judge(TINY.model(0), batch, swapped)
    assert judged["structure_accuracy"].tolist() == [0.5]


def test_decoders_know_order_beforehand_and_are_not_shared():
    orders = torch.eye(5)[torch.tensor([[0, 1, 2, 3, 4], [3, 1, 0, 2, 4]])]
    model = TINY.model(0)
    with torch.no_grad():
        assert (model.decoder(torch.tensor([4, 4]), orders) > 0).tolist() == [False, True]
        model.decoder.of_step[2].bias += 100
        assert not (TINY.model(0).decoder(torch.tensor([4, 4]), orders) > 0).all()


def test_stories_are_kept_apart():
    assert {split: TINY.size(split) for split in ("train", "validation", "test")} == {"train": 120, "validation": 24, "test": 48}


def test_who_knows_the_links_beats_who_guesses():
    assert TINY.floor(0) == {"accuracy": 0.5}
    assert TINY.ceiling(0)["accuracy"] > 0.8
    assert TINY.ceiling(0)["structure_accuracy"] == 1.0


def test_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert TINY.unavailable() is None
    (tmp_path / "elsewhere").mkdir()
    contracts.check_absence(TINY, monkeypatch, tmp_path / "elsewhere", ALIGNED)


def test_by_name():
    assert make_task("matching") == Matching()


@contracts.needs(ALIGNED, PARALLEL)
def test_real_blocks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("STRUCTGRAD_TASK_DATA")
    assert {split: Matching().size(split) for split in ("train", "validation", "test")} == {"train": 2064, "validation": 444, "test": 612}


def test_the_decoder_is_trained_wherever_a_model_is_asked_for():
    matching._sorter.cache_clear()
    with torch.no_grad():
        untouched = matching._sorter(4, 4, 0)
    matching._sorter.cache_clear()
    assert all(map(torch.equal, untouched.parameters(), matching._sorter(4, 4, 0).parameters()))

"""Tasks on files: readers, features, losses and metrics, on the data of `tests.suites.tasks.data`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from structgrad.oracles import LinearChain, ProjectiveTree
from structgrad.suites.tasks.language import matching
from structgrad.suites.tasks.language.matching import Matching
from structgrad.suites.tasks.language.ner import TAGS, NamedEntities, f1, features_of, spans
from structgrad.suites.tasks.language.treebank import Parsing, Pipeline, Word, attachment, bucket, read_conllu, usable
from structgrad.suites.tasks.speech import AutoEncoder, SpokenDigits
from structgrad.suites.tasks.training import train

DIGITS = SpokenDigits(segments=5, chosen=1, hidden=8, tested=2, validated=1)
MATCHING = Matching(longest=5, hidden=8)
NER = NamedEntities(longest=6, hidden=8, steps=40, batch_size=10)
PARSING = Parsing(shortest=4, longest=5, hidden=8, steps=40, batch_size=10)
PIPELINE = Pipeline(shortest=4, longest=5, parsed=14, parser_steps=20, hidden=8, steps=40, batch_size=10)

pytestmark = pytest.mark.usefixtures("written")


@pytest.mark.parametrize(
    ("task", "sizes"),
    [(MATCHING, (120, 24, 48)), (NER, (36, 5, 14)), (PARSING, (54, 6, 20)), (PIPELINE, (40, 6, 20)), (DIGITS, (30, 10, 20))],
)
def test_sizes_of_splits(task, sizes):
    assert tuple(map(task.size, ("train", "validation", "test"))) == sizes


# Recordings.


def test_every_seed_has_its_own_split():
    assert DIGITS.at(3) == replace(DIGITS, fold=3)
    one, other = (DIGITS.at(seed).batch("test", torch.arange(20)).inputs[0] for seed in (3, 4))
    assert not torch.equal(one, other)


def test_windows_of_speech_are_split_by_recordings():
    """A recording of 10 or 15 frames has 2 or 4 windows; every tenth recording is for testing."""
    task = AutoEncoder()
    sizes = [task.size(split) for split in ("train", "validation", "test")]
    assert sum(sizes) == sum(2 * (len_ // 5 - 1) for len_ in np.diff(np.load(task.paths()[0])["offsets"]))
    assert sizes[0] > sizes[2] > sizes[1] > 0
    assert task.data("test").labels.shape[1] == 50


# Matchings.


def test_features_of_a_pair():
    known = ({"le": {0, 1, 2}, "roi": {0}, ".": {1}, "abc": {3}}, {"the": {0, 1}, "king": {0}, ".": {1}, "abd": {3}})
    assert matching.pair_features("le", "the", known) == pytest.approx([4 / 5, math.log(3 / 2), 2 / 7, -1 / 5, 0.0])
    assert matching.pair_features(".", ".", known) == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert matching.pair_features("abc", "abd", known)[2] == 0.5


def test_a_block_occurs_in_order_and_shuffled_with_its_links():
    blocks = MATCHING.data("train")
    (pairs,) = blocks.inputs
    assert blocks.labels.tolist() == [0.0, 1.0] * 60
    assert set(blocks.lengths.tolist()) == {4, 5}
    assert torch.equal(blocks.lengths[::2], blocks.lengths[1::2])
    # Matched pairs have the same features in both; and padding is matched to itself.
    matched = (blocks.gold.unsqueeze(-1) * pairs).sum(-2)
    assert torch.equal(matched[::2], matched[1::2])
    assert torch.equal(blocks.gold[::2], torch.eye(5).expand(60, 5, 5))
    shuffled = blocks.gold[1::2]
    assert (shuffled.argmax(-1) != torch.arange(5)).any(-1).all()
    four = blocks.lengths == 4
    assert (blocks.gold[four][:, 4, 4] == 1).all()
    assert pairs[four][:, 4].abs().sum() == pairs[four][:, :, 4].abs().sum() == 0


def test_matched_words_are_counted_within_the_length():
    batch = MATCHING.batch("train", torch.tensor([0]))
    swapped = batch.true().clone()
    swapped[:, :2] = swapped[:, :2].flip(1)
    assert MATCHING.judge(MATCHING.model(0), batch, swapped)["structure_accuracy"].tolist() == [0.5]


def test_decoders_are_pretrained_and_copied():
    orders = torch.eye(5)[torch.tensor([[0, 1, 2, 3, 4], [3, 1, 0, 2, 4]])]
    with torch.no_grad():  # a model may be built there, and its decoder is trained all the same
        matching._sorter.cache_clear()
        model = MATCHING.model(0)
        assert (model.decoder(torch.tensor([4, 4]), orders) > 0).tolist() == [False, True]
        model.decoder.of_step[2].bias += 100
        assert not (MATCHING.model(0).decoder(torch.tensor([4, 4]), orders) > 0).all()


# Named entities.


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
    true, said = [["B-PER", "I-PER", "O"], ["B-LOC"], ["O"]], [["B-PER", "O", "B-LOC"], ["B-LOC"], ["O"]]
    assert f1(true, said) == pytest.approx(2 * 1 / (2 + 3))
    assert f1([["O"]], [["O"]]) == 1.0


def test_features_of_words():
    first, second = features_of(["in", "Tampa2"])
    assert first[:7] == ("word=in", "lower=in", "begin=in", "end=in", "shape=x", "before=<s>", "after=tampa2")
    assert first[7:] == ("shape before=-x-", "shape after=Xx9")
    assert second[:7] == ("word=Tampa2", "lower=tampa2", "begin=tam", "end=pa2", "shape=Xx9", "before=in", "after=</s>")


def test_the_loss_is_the_share_of_wrong_tags():
    batch, model = NER.batch("train", torch.arange(10)), NER.model(0)
    wrong = batch.labels.clone()
    wrong[:, 1] = (wrong[:, 1] + 1) % len(TAGS)
    structure = LinearChain.structure(wrong, len(TAGS), torch.float32)
    torch.testing.assert_close(NER.loss(model, batch)(structure), 1 / batch.lengths)
    judged = NER.judge(model, batch, structure)
    torch.testing.assert_close(judged["structure_accuracy"], 1 - 1 / batch.lengths)
    assert judged["accuracy"].tolist() == pytest.approx([f1([one], [other]) for one, other in names_within(batch, wrong)])


def names_within(batch, predicted) -> list[tuple[list[str], list[str]]]:
    rows = zip(batch.labels.tolist(), predicted.tolist(), batch.lengths.tolist(), strict=True)
    return [([TAGS[t] for t in one[:n]], [TAGS[t] for t in other[:n]]) for one, other, n in rows]


def test_f1_is_that_of_a_whole_split():
    model = train(NER, "crf", rate=0.02, seed=0, steps=12)
    found = NER.evaluate(model)
    batch = NER.batch("test", torch.arange(NER.size("test")))
    with torch.no_grad():
        predicted = LinearChain.tags(NER.oracle.argmax(NER.scores(model, batch)))
    assert found["accuracy"] == pytest.approx(f1(*zip(*names_within(batch, predicted), strict=True)))
    assert 0 < found["accuracy"] < 1
    assert set(found) == {"accuracy", "structure_accuracy", "relaxed_accuracy"}


@pytest.mark.parametrize(
    ("task", "name"),
    [
        *((NER, name) for name in ("crf", "perceptron", "sparsemap_loss", "margin_sparsemap", "differentiable_dp_loss")),
        *((PARSING, name) for name in ("crf", "margin_sparsemap", "perceptron", "rloo")),
    ],
)
def test_supervised_estimators_learn(task, name: str):
    found = task.evaluate(train(task, name, rate=0.03 if task is PARSING else 0.02, seed=0))
    assert found["accuracy"] > task.floor(0) + 0.2


# Trees.


def test_ranges_and_empty_nodes_are_no_words():
    row = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_\n"
    rows = [("1-2", "don't", "_", "_", "_"), (1, "do", "AUX", 3, "aux:pass"), (2, "n't", "PART", 3, "advmod"), (3, "Go", "VERB", 0, "root")]
    text = "".join(row.format(*fields) for fields in (*rows, ("3.1", "go", "VERB", "_", "_"))) + "\n# two\n"
    one, two = read_conllu(text + row.format(1, "Yes", "INTJ", 0, "root") + "\n")
    assert one == [("do", "AUX", 3, "aux"), ("n't", "PART", 3, "advmod"), ("Go", "VERB", 0, "root")]
    assert two == [("Yes", "INTJ", 0, "root")]


def sentence(*heads: int) -> list[Word]:
    return [Word("w", "X", head, "dep") for head in heads]


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        ((2, 0, 2), True),
        ((2, 0), False),  # too short
        ((2, 0, 2, 3, 4), False),  # too long
        ((0, 0, 2), False),  # two roots
        ((3, 4, 0, 3), False),  # 1-3 and 2-4 cross
        ((3, 0, 2), False),  # 1-3 crosses the arc from the root
    ],
)
def test_usable_sentences(heads: tuple[int, ...], expected: bool):
    assert usable(sentence(*heads), 3, 4) is expected


def test_numbers_of_features_are_the_same_in_every_process():
    assert [bucket("word=the", 1000), bucket("word=a", 1000)] == [957, 460]


def test_attachment_is_the_share_of_right_heads():
    batch, model = PARSING.batch("train", torch.arange(20)), PARSING.model(0)
    wrong = batch.labels.clone()
    wrong[:, 0] = (wrong[:, 0] + 1) % 5
    found, expected = ProjectiveTree.structure(wrong, torch.float32), 1 - 1 / batch.lengths
    torch.testing.assert_close(attachment(batch, torch.stack([batch.true(), found])), torch.stack([torch.ones(20), expected]))
    torch.testing.assert_close(PARSING.loss(model, batch)(found), 1 - expected)
    judged = PARSING.judge(model, batch, torch.cat([found[:10], batch.true()[10:]]))
    assert judged["structure_accuracy"].tolist() == [0.0] * 10 + [1.0] * 10
    torch.testing.assert_close(judged["accuracy"], torch.cat([expected[:10], torch.ones(10)]))


def test_the_parser_of_the_pipeline_is_pretrained_and_copied():
    untrained = replace(PIPELINE, parser_steps=0)
    before, after = (task.evaluate(task.model(0))["structure_accuracy"] for task in (untrained, PIPELINE))
    assert after > before + 0.1
    with torch.no_grad():
        PIPELINE.model(0).encoder.out.weight.zero_()
    assert PIPELINE.evaluate(PIPELINE.model(0))["structure_accuracy"] == after


@pytest.mark.parametrize(("name", "stays"), [("frozen", True), ("structured_attention", False)])
def test_only_a_frozen_parser_stays(name: str, stays: bool):
    start, model = PIPELINE.model(0), train(PIPELINE, name, rate=0.01, seed=0)
    same = [torch.equal(one, other) for one, other in zip(start.encoder.parameters(), model.encoder.parameters(), strict=True)]
    assert all(same) == stays
    assert PIPELINE.evaluate(model)["accuracy"] > PIPELINE.evaluate(start)["accuracy"]

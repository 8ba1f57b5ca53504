"""Treebanks: reading, selection and padding of sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from structgrad.oracles import ProjectiveTree
from structgrad.suites.tasks.language.treebank import (
    HELD_OUT,
    TRAINED,
    ArcScorer,
    Sentence,
    bucket,
    read_conllu,
    structure_of,
    tensors,
    treebank,
    usable,
)
from tests.suites.tasks import contracts, treebanks

TEXT = """# sent_id = one
1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tdo\tdo\tAUX\tVBP\t_\t3\taux:pass\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = two
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_

"""


def test_words_alone_are_read():
    one, two = read_conllu(TEXT)
    assert one == (["do", "n't", "Go"], ["AUX", "PART", "VERB"], [3, 3, 0], ["aux", "advmod", "root"])
    assert two == (["Yes"], ["INTJ"], [0], ["root"])


def sentence(*heads: int) -> Sentence:
    return Sentence(["w"] * len(heads), ["X"] * len(heads), heads, ["dep"] * len(heads))


@pytest.mark.parametrize(
    ("heads", "usable_"),
    [
        ((2, 0, 2), True),
        ((2, 0), False),  # too short
        ((2, 0, 2, 3, 4), False),  # too long
        ((0, 0, 2), False),  # two roots
        ((3, 4, 0, 3), False),  # 1-3 and 2-4 cross
        ((3, 0, 2), False),  # 1-3 crosses the arc from the root
    ],
)
def test_usable_sentences(heads: tuple[int, ...], usable_: bool):
    assert usable(sentence(*heads), 3, 4) is usable_


def test_padding_completes_a_tree_as_the_oracle_does():
    trees = tensors([sentence(2, 0), sentence(2, 0, 4, 2)], 4, ("dep", "unseen"))
    gold = structure_of(trees.heads)
    assert trees.lengths.tolist() == [2, 4]
    oracle = ProjectiveTree()
    assert torch.equal(oracle.argmax(oracle.pad(10 * gold, trees.lengths)), gold)
    assert not trees.features[0, 3:].any()
    assert trees.features[0, :3].all()
    assert trees.features[0, 0].tolist() == trees.features[1, 0].tolist() != trees.features[0, 1].tolist()


def test_relations_by_number():
    known = tensors([Sentence(["a", "b"], ["X", "X"], [0, 1], ["root", "odd"])], 2, ("obj", "root", "unseen"))
    assert known.relations.tolist() == [[1, 2]]


def test_features_are_the_same_in_every_process():
    assert [bucket("word=the", 1000), bucket("word=a", 1000)] == [957, 460]


def test_arcs_are_scored_by_both_ends_their_neighbours_and_their_distance():
    scorer = ArcScorer(4, 5)
    features = torch.randint(1, 50, (1, 6, 5), generator=torch.Generator().manual_seed(0))
    changed = features.clone()
    changed[0, 5] = 77
    moved = scorer(features)[0] != scorer(changed)[0]
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[4:] = expected[:, 4:] = True
    assert torch.equal(moved, expected)
    before = scorer(features)
    with torch.no_grad():
        scorer.apart.table[5 + 2] += 1.0
    assert torch.equal((scorer(features) != before)[0].nonzero(), torch.stack([torch.arange(4), torch.arange(2, 6)], -1))


def test_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    treebanks.write(tmp_path)
    monkeypatch.setenv("STRUCTGRAD_TASK_DATA", str(tmp_path))
    trees, relations = treebank("parsing", 4, 5)
    assert {split: len(part.lengths) for split, part in trees.items()} == {"train": 54, "validation": 6, "test": 20}
    assert relations == ("advmod", "compound", "det", "nsubj", "obj", "punct", "root", "unseen")


@contracts.needs(TRAINED, HELD_OUT)
def test_real_sentences():
    trees, relations = treebank("parsing", 4, 7)
    assert {split: len(part.lengths) for split, part in trees.items()} == {"train": 697, "validation": 78, "test": 223}
    assert len(relations) == 34
    oracle, gold = ProjectiveTree(), structure_of(trees["test"].heads)
    assert torch.equal(oracle.argmax(oracle.pad(10 * gold, trees["test"].lengths)), gold)

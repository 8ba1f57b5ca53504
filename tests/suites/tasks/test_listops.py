"""Tasks on lines of ListOps: values, trees, generated lines, and decoders that are trained once."""

from typing import Any

import pytest
import torch

from structgrad.oracles import ShiftReduce
from structgrad.suites.tasks.language import listops
from structgrad.suites.tasks.language.listops import (
    PADDING,
    TOKENS,
    ListOps,
    ListopsGenerated,
    ListOpsParser,
    encoded,
    generate,
    parsed,
)
from structgrad.suites.tasks.training import train
from structgrad.suites.trust import task_file

SIZES: dict[str, Any] = {"shortest": 7, "longest": 7, "train": 300, "heldout": 60, "dimension": 12, "hidden": 16}
TINY = ListopsGenerated(**SIZES, pretraining=150, steps=40)
JOINT = ListOps(**SIZES, generated=True, steps=100)
PARSER = ListOpsParser(longest=8, train=60, heldout=20, generated=True, dimension=8, hidden=8, steps=2, batch_size=8)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 4 2 9 ]", 4),
        ("[MED 4 7 1 9 ]", 5),
        ("[SM 4 2 9 ]", 5),
        ("[FIRST 4 2 9 ]", 4),
        ("[LAST 4 2 9 ]", 9),
        ("[LAST 4 [MIN 3 [MAX 2 8 ] ] ]", 3),
    ],
)
def test_values(line: str, value: int) -> None:
    assert parsed(line.split())[0] == value


def test_a_line_as_tensors() -> None:
    lines = encoded([["[MAX", "2", "9", "]"], ["[MIN", "[FIRST", "3", "]", "1", "]"]], 7)
    assert [[TOKENS[token] for token in row if token != PADDING] for row in lines.inputs[0].tolist()] == [
        ["[MAX", "2", "9", "]"],
        ["[MIN", "[FIRST", "3", "]", "1", "]"],
    ]
    assert lines.lengths.tolist() == [4, 6]
    assert lines.labels.tolist() == [9, 1]
    wide = [[(i, j) for i in range(7) for j in range(i + 1, 7) if tree[i, j]] for tree in lines.gold]
    assert wide == [[(0, j) for j in range(1, 7)], [(0, 3), (0, 4), (0, 5), (0, 6), (1, 2), (1, 3)]]


def test_generated_lines_are_distinct_and_fit() -> None:
    splits = [generate(split, 7, 8, 60, 20) for split in ("train", "validation", "test")]
    generate.cache_clear()
    assert torch.equal(generate("train", 7, 8, 60, 20).inputs[0], splits[0].inputs[0])
    tokens = [tuple(row) for lines in splits for row in lines.inputs[0].tolist()]
    assert len(set(tokens)) == len(tokens) == 100
    assert set(splits[0].lengths.tolist()) == {7, 8}
    assert bool(((splits[0].inputs[0] < 6).sum(-1) >= 2).all())


def test_more_lines_than_exist_are_refused(monkeypatch):
    monkeypatch.setattr(listops, "PATIENCE", 30)
    with pytest.raises(ValueError, match=r"^`generate` found \d+ lines of 7 to 7 tokens; expected 200200: ask for fewer, or longer ones$"):
        generate("train", 7, 7, 200_000, 100)


@pytest.mark.skipif(task_file(ListOps.files[0]) is None, reason="the real lines are not here")
def test_values_and_trees_of_real_lines() -> None:
    """The file has them; trees are binary, and left-branching within each list."""
    path = task_file(ListOps.files[0])
    assert path is not None
    for line in path.read_text().splitlines()[:200]:
        value, _, bracketing = line.partition("\t")
        open_, known, place = [], [], 0
        for token in bracketing.split():
            if token == "(":
                open_.append(place)
            elif token == ")":
                known.append((open_.pop(), place - 1))
            else:
                place += 1
        found, spans = parsed([token for token in bracketing.split() if token not in "()"])
        assert (found, sorted(spans)) == (int(value), sorted(known))


def test_a_frozen_decoder_is_the_same_for_all_seeds_and_is_not_trained() -> None:
    models = [TINY.model(0), TINY.model(1), train(TINY, "ste", rate=0.01, seed=0, steps=2)]
    states = [torch.cat([parameter.flatten() for parameter in model.decoder.parameters()]) for model in models]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])
    assert not any(parameter.requires_grad for parameter in models[0].decoder.parameters())
    assert not torch.equal(models[0].encoder.tokens.weight, models[1].encoder.tokens.weight)


def test_the_decoder_has_a_smaller_rate() -> None:
    model = JOINT.model(0)
    encoder, decoder = JOINT.parameter_groups(model, 0.01)
    assert (encoder["lr"], decoder["lr"]) == (0.01, pytest.approx(0.003))
    assert (encoder["params"], decoder["params"]) == (list(model.encoder.parameters()), list(model.decoder.parameters()))


def test_the_actions_of_a_line() -> None:
    """After an operator SHIFT, after an argument REDUCE, after the end of a list that is an argument REDUCE twice."""
    batch = PARSER.batch("train", torch.arange(60))
    assert batch.lengths is not None
    derivations = ShiftReduce.actions(batch.true())
    for tokens, length, actions in zip(batch.inputs[0].tolist(), batch.lengths.tolist(), derivations.tolist(), strict=True):
        expected: list[int] = []
        open_ = 0
        for token in tokens[:length]:
            expected.append(0)
            if token < 6:
                open_ += 1
            else:
                expected.append(1)
            if token == 16:
                open_ -= 1
                expected.extend([1] * (open_ > 0))
        assert actions[: 2 * length - 1] == expected

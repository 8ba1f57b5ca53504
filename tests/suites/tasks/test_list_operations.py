"""Lines of ListOps: values, trees, and lines that are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from structgrad.suites.tasks.language import list_operations
from structgrad.suites.tasks.language.list_operations import PADDING, TOKENS, encoded, generate, leaves, parsed, read, value_of


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
    assert value_of(line.split()) == value


def test_a_line_as_tensors() -> None:
    lines = encoded([parsed("( ( ( [MAX 2 ) 9 ) ] )"), parsed("( ( ( [MIN ( ( [FIRST 3 ) ] ) ) 1 ) ] )")], 7)
    assert [[TOKENS[token] for token in row if token != PADDING] for row in lines.tokens.tolist()] == [
        ["[MAX", "2", "9", "]"],
        ["[MIN", "[FIRST", "3", "]", "1", "]"],
    ]
    assert lines.lengths.tolist() == [4, 6]
    assert lines.labels.tolist() == [9, 1]
    wide = [[(i, j) for i in range(7) for j in range(i + 1, 7) if tree[i, j]] for tree in lines.gold]
    assert wide == [[(0, j) for j in range(1, 7)], [(0, 3), (0, 4), (0, 5), (0, 6), (1, 2), (1, 3)]]


def test_generated_lines_are_the_same_whenever_they_are_drawn_and_are_there_once() -> None:
    splits = [generate(split, 7, 8, 60, 20) for split in ("train", "validation", "test")]
    generate.cache_clear()
    assert torch.equal(generate("train", 7, 8, 60, 20).tokens, splits[0].tokens)
    tokens = [tuple(row) for lines in splits for row in lines.tokens.tolist()]
    assert len(set(tokens)) == len(tokens) == 100


def test_generated_lines_fit() -> None:
    lines = generate("train", 7, 8, 60, 20)
    assert set(lines.lengths.tolist()) == {7, 8}
    assert bool(((lines.tokens < 6).sum(-1) >= 2).all())
    assert lines.gold.shape == (60, 8, 8)


def test_more_lines_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr(list_operations, "PATIENCE", 30)
    with pytest.raises(ValueError, match=r"^`generate` found \d+ lines of 7 to 7 tokens; expected 200200: ask for fewer, or longer ones$"):
        list_operations.generate("train", 7, 7, 200_000, 100)


@pytest.mark.skipif(list_operations.unavailable() is not None, reason=str(list_operations.unavailable()))
def test_real_lines() -> None:
    path = list_operations.task_file(list_operations.TRAINING_FILE)
    assert path is not None
    for line in path.read_text().splitlines()[:200]:
        value, _, bracketing = line.partition("\t")
        assert value_of(leaves(parsed(bracketing))) == int(value)
    assert [len(read(split, 7, 8, 10_000).tokens) for split in ("train", "validation", "test")] == [622, 150, 190]


def test_absent_lines_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    expected = "there is no listops/train_4000.tsv and no listops/heldout_short.tsv among the data of tasks"
    assert list_operations.unavailable() == expected
    with pytest.raises(ValueError, match=f"{expected}; set STRUCTGRAD_TASK_DATA to the folder that holds it, or choose generated lines"):
        read("test", 7, 8, 10)

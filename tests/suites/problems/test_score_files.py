from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from structgrad.oracles import SpanningTree
from structgrad.suites.problems.score_files import ScoreFile, ScoreTables, read_arrays

RANDOM = np.random.default_rng(0)
ARRAYS: dict[str, Any] = {"scores": RANDOM.standard_normal((3, 4)), "lengths": np.array([2, 3, 4]), "words": np.array(["a", "bc", "d"])}


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "file.npz", **arrays)
    return folder / "file.npz"


# Reading.


def test_npz_comes_back_as_it_was(tmp_path: Path) -> None:
    read = read_arrays(saved(tmp_path, **ARRAYS))
    assert list(read) == list(ARRAYS)
    for key, array in ARRAYS.items():
        np.testing.assert_array_equal(read[key], array)
        assert read[key].dtype == array.dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_safetensors_come_back_in_a_dtype_that_numpy_knows(tmp_path: Path, dtype: torch.dtype) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensor = torch.tensor([[1.5, -2.0, 3.25]]).to(dtype)
    safetensors.save_file({"scores": tensor}, tmp_path / "a.safetensors")
    read = read_arrays(tmp_path / "a.safetensors")["scores"]
    assert read.dtype == {torch.float64: np.float64, torch.int64: np.int64}.get(dtype, np.float32)
    np.testing.assert_array_equal(read, tensor.double().numpy())


class Trap:
    """Its unpickling would leave a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def test_pickles_are_refused_and_not_run(tmp_path: Path) -> None:
    trap = np.empty(1, dtype=object)
    trap[0] = Trap(tmp_path / "mark")
    path = saved(tmp_path, good=np.zeros(2), bad=trap)
    message = r"file\.npz: 'bad' is an object array, a pickle, and pickles are refused .*pad the items .*lengths"
    with pytest.raises(ValueError, match=message):
        read_arrays(path)
    path.write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(ValueError, match=r"file\.npz: not an \.npz archive"):
        read_arrays(path)
    assert not (tmp_path / "mark").exists()


def test_damaged_files_are_refused_in_one_sentence_or_harmless(tmp_path: Path) -> None:
    whole = saved(tmp_path, **ARRAYS).read_bytes()
    damaged, complaints = tmp_path / "damaged.npz", []
    for size in range(0, len(whole) - 1, 7):
        damaged.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"^\S*damaged\.npz: .*cut off"):
            read_arrays(damaged)
    np.savez_compressed(damaged, **ARRAYS)
    whole = damaged.read_bytes()
    for place in range(0, len(whole), 5):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            read_arrays(damaged)
        except ValueError as error:
            complaints.append(str(error))
    assert all(text.startswith(f"{damaged}: ") for text in complaints)
    assert len(complaints) > len(whole) // 5 // 2


# Score files.


UNARY, TRANSITION = RANDOM.standard_normal((3, 4, 2)), RANDOM.standard_normal((2, 2))
START, END = RANDOM.standard_normal(2), RANDOM.standard_normal(2)
TAGS = np.array([[0, 1, -1, -1], [1, 1, 0, -1], [0, 0, 1, 1]])
CHAIN = {"unary": UNARY, "transition": TRANSITION, "start": START, "end": END, "tags": TAGS, "lengths": np.array([2, 3, 4])}


def chain_file(path: Path, **options: Any) -> ScoreFile:
    named: dict[str, Any] = {
        "scores": "unary",
        "transition": "transition",
        "start": "start",
        "end": "end",
        "gold": "tags",
        "lengths": "lengths",
    }
    return ScoreFile(str(path), **{**named, **options})


@pytest.mark.parametrize("meaning", ["score", "cost"])
def test_chain_scores_are_sums_of_potentials(tmp_path: Path, meaning: Any) -> None:
    tables = ScoreTables(chain_file(saved(tmp_path, **CHAIN), meaning=meaning, temperature=2.0))
    assert tables.lengths.tolist() == [2, 3, 4]
    sign = 0.5 if meaning == "score" else -0.5
    for item, length in enumerate((2, 3, 4)):
        scores, gold = tables.scores(item), tables.gold(item)
        assert scores.shape == gold.shape == (length, 2, 2)
        tags = TAGS[item, :length]
        expected = START[tags[0]] + END[tags[-1]] + sum(UNARY[item, i, tags[i]] for i in range(length))
        expected += sum(TRANSITION[tags[i - 1], tags[i]] for i in range(1, length))
        assert float((gold * scores).sum()) == pytest.approx(sign * expected)


def test_gold_of_trees_may_be_heads(tmp_path: Path) -> None:
    heads = torch.tensor([[0, 1, 1], [2, 0, 2]])
    path = saved(tmp_path, scores=RANDOM.standard_normal((2, 4, 4)), heads=heads.numpy())
    tables = ScoreTables(ScoreFile(str(path), "spanning_tree", gold="heads"))
    assert torch.equal(torch.stack([tables.gold(0), tables.gold(1)]), SpanningTree.structure(heads, torch.float64))

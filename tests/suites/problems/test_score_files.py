"""Score files: reading, fields, items of several sizes, and warnings about padding."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from structgrad.oracles import make_oracle
from structgrad.suites.problems.score_files import ScoreFile, ScoreTables, read_arrays
from tests.helpers import seeded

RANDOM = np.random.default_rng(0)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "file.npz", **arrays)
    return folder / "file.npz"


# Reading.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_safetensors_come_back_in_a_dtype_that_numpy_knows(tmp_path: Path, dtype: torch.dtype) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensor = torch.tensor([[1.5, -2.0, 3.25]]).to(dtype)
    safetensors.save_file({"scores": tensor}, tmp_path / "a.safetensors")
    read = read_arrays(tmp_path / "a.safetensors")["scores"]
    assert read.dtype == {torch.float64: np.float64, torch.int64: np.int64}.get(dtype, np.float32)
    np.testing.assert_array_equal(read, tensor.double().numpy())


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


@dataclass(frozen=True)
class Case:
    """An oracle, the shape that a file stores, lengths of its items, and the shapes that the items have there."""

    structure: str
    stored: tuple[int, ...]
    lengths: tuple[Any, ...]
    items: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return self.structure


CASES = [
    Case("categorical", (6,), (6, 2), ((6,), (2,))),
    Case("subset[k=2]", (6,), (6, 3), ((6,), (3,))),
    Case("categories", (5, 3), (5, 2), ((5, 3), (2, 3))),
    Case("linear_chain", (5, 3, 3), (5, 2), ((5, 3, 3), (2, 3, 3))),
    Case("spanning_tree", (6, 6), (5, 2), ((6, 6), (3, 3))),
    Case("projective_tree", (6, 6), (5, 2), ((6, 6), (3, 3))),
    Case("constituency", (6, 6), (6, 3), ((6, 6), (3, 3))),
    Case("shift_reduce", (6, 6, 2), (5, 3), ((6, 6, 2), (4, 4, 2))),
    Case("alignment", (6, 5), ((6, 5), (2, 4)), ((6, 5), (2, 4))),
    Case("assignment", (5, 5), (5, 2), ((5, 5), (2, 2))),
]
ragged = pytest.mark.parametrize("case", CASES, ids=str)


def table(path: Path, case: Case, values: np.ndarray, **more: Any) -> ScoreFile:
    np.savez(path, scores=values, **more)
    named = {"gold": "gold" if "gold" in more else None, "lengths": "words" if "words" in more else None}
    return ScoreFile(str(path), case.structure, **named)


def together(folder: Path, case: Case, values: np.ndarray, **more: Any) -> ScoreFile:
    return table(folder / "together.npz", case, values, words=np.array(case.lengths), **more)


def padded(case: Case, seed: int = 0, filling: float = np.nan) -> np.ndarray:
    """Scores of two items; the padding holds numbers that are no scores."""
    values = np.full((2, *case.stored), filling)
    for item, shape in enumerate(case.items):
        values[(item, *map(slice, shape))] = np.random.default_rng(seed + item).normal(size=shape)
    return values


@ragged
def test_scores_and_gold_are_those_of_a_file_with_the_item_alone(case: Case, tmp_path: Path) -> None:
    values, oracle = padded(case), make_oracle(case.structure)
    gold, expected = np.full_like(values, 7.0), []
    for item, shape in enumerate(case.items):
        cut = (slice(item, item + 1), *map(slice, shape))
        scores = ScoreTables(table(tmp_path / f"alone{item}.npz", case, values[cut])).scores(0)
        assert scores.isfinite().any()
        expected.append((scores, oracle.sample(scores, generator=seeded(item))))
        gold[(item, *map(slice, shape))] = expected[-1][1]
    tables = ScoreTables(together(tmp_path, case, values, gold=gold))
    for item, (scores, structure) in enumerate(expected):
        assert torch.equal(tables.scores(item), scores)
        assert torch.equal(tables.gold(item), structure)


# What looks like padding.


def test_an_item_without_length_is_refused(tmp_path: Path) -> None:
    message = r"key 'empty' has shape \(3,\), dtype int64 and values from 0 to 4; expected 3 integers from 1 to 4"
    with pytest.raises(ValueError, match=message):
        ScoreTables(chain_file(saved(tmp_path, **CHAIN, empty=np.array([0, 3, 4])), lengths="empty"))

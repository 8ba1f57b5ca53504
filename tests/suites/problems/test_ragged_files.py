"""Items of several sizes in one file: with lengths, as in a file of their own; without, a warning about padding."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from structgrad.oracles import make_oracle
from structgrad.suites.problems.score_files import PaddingWarning, ScoreFile, ScoreTables
from tests.helpers import seeded


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


def warned(file: ScoreFile) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ScoreTables(file)
    return [str(warning.message) for warning in caught if issubclass(warning.category, PaddingWarning)]


@ragged
@pytest.mark.parametrize("filling", [0.0, -np.inf, np.nan])
def test_constant_ends_are_told(case: Case, filling: float, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    (said,) = warned(table(path, case, padded(case, filling=filling)))
    assert said.startswith(f"{path}: 1 of 2 items, such as 1, end in parts of one value: possible padding is measured as scores;")
    assert "--field lengths=NAME (`ScoreFile(lengths=...)` in Python)" in said
    assert warned(together(tmp_path, case, padded(case, filling=filling))) == []


@ragged
def test_scores_without_padding_are_none_of_it(case: Case, tmp_path: Path) -> None:
    for values in (np.random.default_rng(0).normal(size=(2, *case.stored)), np.zeros((2, *case.stored))):
        assert warned(table(tmp_path / "a.npz", case, values)) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"lengths": np.array([5, 3])}, "the array 'lengths' is named by no field: .* by --field lengths=lengths "),
        ({"N": np.array([4, 4])}, "the array 'N' is named by no field: .* by --field lengths=N "),
        ({"mask": np.array([[1, 1, 0], [1, 1, 1]]) == 1}, "the array 'mask' is named by no field: .* by --field lengths=NAME "),
        ({"lengths": np.array([5, 5])}, None),
        ({"lengths": np.array([5, 3, 2])}, None),
        ({"heads": np.array([5, 3])}, None),
        ({"mask": np.ones((2, 3))}, None),
    ],
)
def test_an_array_that_is_called_lengths_is_named(more: dict[str, np.ndarray], said: str | None, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, scores=np.random.default_rng(0).normal(size=(2, 6, 6)), **more)
    found = warned(ScoreFile(str(path), "spanning_tree"))
    assert len(found) == (said is not None)
    if said is not None:
        assert re.search(said, found[0])

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import SpanningTree
from structgrad.oracles.kernels import philox
from tests.helpers import chi_square_p_value

Drawn = tuple[Tensor, Tensor]


@pytest.fixture
def popping(gpu_kernels: torch.device) -> ModuleType:
    from structgrad.oracles.spanning_tree.gpu import cycle_popping

    return cycle_popping


def drawn(popping: ModuleType, device: torch.device, rows: Tensor, uniforms: Tensor, root_words: Tensor | None, **options: int) -> Drawn:
    """Structures and what is unfinished; results hold something else before, and so do ignored entries."""
    rows = rows.clone()
    rows[:, :, 0] = math.nan
    rows.diagonal(dim1=1, dim2=2).fill_(math.nan)
    shape = (*uniforms.shape[:2], *rows.shape[1:])
    structures = torch.full(shape, math.nan, dtype=rows.dtype, device=device)
    unfinished = torch.rand(shape[:2], device=device) < 0.5
    roots = None if root_words is None else root_words.to(device)
    popping.popped(rows.to(device), uniforms.to(device), structures, unfinished, roots, **options)
    return structures.cpu(), unfinished.cpu()


def popped_one_by_one(scores: Tensor, uniforms: Tensor, root_word: int | None) -> list[int]:
    """The heads that Wilson's algorithm finds beneath the same stacks, which pops a cycle at a time."""
    weights = scores.double().clone().fill_diagonal_(-math.inf)
    if root_word is not None:
        weights[0] = -math.inf
    chances = weights.softmax(0).cumsum(0).numpy()
    key, tail = ([int(bits) for bits in uniforms.numpy().view(np.uint64)] + [0])[:2]
    depth = [0] * len(scores)

    def draw(word: int) -> int:
        counter = [word, depth[word], tail & 0xFFFFFFFF, tail >> 32]
        words = np.empty((1, 4), np.uint64)
        philox.words(np.array([counter], np.uint64), np.array([[key & 0xFFFFFFFF, key >> 32]], np.uint64), words)
        depth[word] += 1
        return int((chances[:, word] <= ((int(words[0, 0]) << 32 | int(words[0, 1])) >> 11) * 2.0**-53).sum())

    heads = [0] + [0 if word == root_word else draw(word) for word in range(1, len(scores))]
    while cycle := some_cycle(heads):
        for word in cycle:
            heads[word] = draw(word)
    return heads[1:]


def some_cycle(heads: list[int]) -> list[int]:
    for word in reversed(range(len(heads))):
        path = [word]
        while path[-1] > 0 and heads[path[-1]] not in path:
            path.append(heads[path[-1]])
        if path[-1] > 0:
            return path[path.index(heads[path[-1]]) :]
    return []


@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize(("n", "samples"), [(1, 2), (4, 3), (6, 9)])
def test_the_order_of_popping_does_not_matter(
    n: int, samples: int, single_root: bool, popping: ModuleType, gpu_kernels: torch.device
) -> None:
    dtype = torch.float32 if n == 4 else torch.float64
    rows = torch.randn(2, n + 1, n + 1, dtype=dtype)
    rows[1] = rows[1].masked_fill(torch.rand(n + 1, n + 1) < 0.2, -math.inf) + 1e3
    # Every word has a way to the root, and to word n where that is the only one below the root.
    rows[:, [0, n]] = rows[:, [0, n]].clamp(min=-1.0)
    uniforms = torch.rand(2, samples, n, dtype=torch.float64)
    roots = torch.full((2, samples), n) if single_root else None
    structures, unfinished = drawn(popping, gpu_kernels, rows, uniforms, roots)
    expected = [[popped_one_by_one(row, one, n if single_root else None) for one in many] for row, many in zip(rows, uniforms, strict=True)]
    assert not bool(unfinished.any())
    assert torch.equal(structures, SpanningTree.structure(torch.tensor(expected), dtype))


@pytest.mark.parametrize("single_root", [True, False])
def test_the_law_of_trees(single_root: bool, popping: ModuleType, gpu_kernels: torch.device) -> None:
    oracle, samples = SpanningTree(single_root=single_root), 1500
    rows = 0.7 * torch.randn(1, 4, 4, dtype=torch.float64)
    rows[0, 1, 2] = -math.inf
    uniforms = torch.rand(1, samples, 3, dtype=torch.float64)
    roots = torch.multinomial(oracle.marginals(rows)[:, 0, 1:], samples, replacement=True) + 1 if single_root else None
    structures, unfinished = drawn(popping, gpu_kernels, rows, uniforms, roots, together=2048)
    assert not bool(unfinished.any())
    trees = oracle.enumerate((4, 4)).double()
    feasible = trees[:, 1, 2] == 0
    totals = (torch.where(trees > 0, rows[0], 0) * trees).sum((1, 2))
    probabilities = torch.where(feasible, totals, -math.inf).softmax(0)
    counts = oracle.rank(structures[0].double()).bincount(minlength=len(trees))
    assert int(counts[~feasible].sum()) == 0
    assert chi_square_p_value(counts, probabilities) > 1e-4


def test_gives_up_what_takes_too_long(popping: ModuleType, gpu_kernels: torch.device) -> None:
    rows = torch.zeros(3, 4, 4, dtype=torch.float64)
    rows[0, 0] = 5.0
    # Two words that want each other, and one without a head.
    rows[1, 1, 2] = rows[1, 2, 1] = 1e3
    rows[2, :, 2] = -math.inf
    uniforms = torch.rand(3, 3, 3, dtype=torch.float64)
    structures, unfinished = drawn(popping, gpu_kernels, rows, uniforms, None, rounds=5)
    assert unfinished.tolist() == [[False] * 3, [True] * 3, [True] * 3]
    assert torch.equal(structures[0].sum((1, 2)), torch.full((3,), 3.0, dtype=torch.float64))
    assert int(structures[1:].sum()) == 0
    structures, unfinished = drawn(popping, gpu_kernels, rows[:1], uniforms[:1], torch.tensor([[1, 0, 3]]), rounds=5)
    assert unfinished.tolist() == [[False, True, False]]
    assert structures[0].sum((1, 2)).tolist() == [3.0, 0.0, 3.0]

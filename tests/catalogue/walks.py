"""Sparsemax, and the walks of relaxed dynamic programmes whose every step is one, in numpy; complex rows give exact derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from structgrad.oracles import DERIVED, Alignment, Constituency, LinearChain, ProjectiveTree, ShiftReduce, Subset, TiedChain


def sparsemax(values: np.ndarray) -> tuple[complex, np.ndarray]:
    """The greatest ⟨p, x⟩ − ½‖p‖² over the simplex and its p, by trying every size of the support."""
    best: complex = -math.inf
    found = np.zeros_like(values)
    order = np.argsort(-values)
    for size in range(1, int(np.isfinite(values).sum()) + 1):
        p = np.zeros_like(values)
        p[order[:size]] = values[order[:size]] - (values[order[:size]].sum() - 1) / size
        finite = np.where(np.isfinite(values), values, 0)
        if (p.real >= 0).all() and (value := p @ finite - p @ p / 2).real > best.real:
            best, found = value, p
    return best, found


def walk_of_tied_chain(row: np.ndarray) -> np.ndarray:
    """That of the chain whose every edge has the score of its tag and of its transition."""
    lines, tags = row.shape
    length = lines - tags
    edges = np.stack([row[i] + (row[length:] if i else np.zeros((tags, tags))) for i in range(length)])
    expected = walk_of_chain(edges)
    return np.concatenate([expected.sum(1), expected[1:].sum(0)])


def walk_of_chain(row: np.ndarray) -> np.ndarray:
    """The law of the tag before, given the tag after, from the last to the first; and the expected structure under it."""
    length, tags = row.shape[:2]
    values, steps = [row[0, 0]], []
    for i in range(1, length):
        found = [sparsemax(values[-1] + row[i, :, c]) for c in range(tags)]
        values.append(np.array([value for value, _ in found]))
        steps.append(np.stack([p for _, p in found], axis=1))
    expected, here = np.zeros_like(row), sparsemax(values[-1])[1]
    for i in range(length - 1, 0, -1):
        expected[i] = steps[i - 1] * here
        here = expected[i].sum(1)
    expected[0, 0] = here
    return expected


def walk_of_alignment(row: np.ndarray) -> np.ndarray:
    """The law of the cell before, given the cell after; and the expected structure under it."""
    values, steps = np.full(row.shape, -math.inf, row.dtype), {}
    for i, j in np.ndindex(*row.shape):
        before = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        reached = np.array([values[cell] if min(cell) >= 0 else -math.inf for cell in before])
        best, p = (0.0, np.zeros(3, row.dtype)) if i == j == 0 else sparsemax(reached)
        values[i, j] = row[i, j] + best
        steps[i, j] = list(zip(before, p, strict=True))
    expected = np.zeros_like(row)
    expected[-1, -1] = 1
    for cell in reversed(list(np.ndindex(*row.shape))):
        for previous, p in steps[cell]:
            if p.real > 0:
                expected[previous] += p * expected[cell]
    return expected if values[-1, -1].real > -math.inf else 0 * expected


def walk_of_derivations(oracle: Any, row: np.ndarray) -> np.ndarray:
    """The law of the edge below each node, one node after the other; and the expected structure under it."""
    graph = oracle.derivations(row.shape)
    scores = np.append(row.flatten(), 0)
    values = np.array([0, -math.inf] + [0] * (graph.nodes - 2), row.dtype)
    steps = []
    for level in graph.levels:
        for head in range(len(level.first)):
            first, parts = level.first[head].numpy(), np.broadcast_to(level.parts[head].numpy(), len(level.first[head]))
            second = np.zeros_like(first) if level.second is None else level.second[head].numpy()
            values[level.start + head], p = sparsemax(values[first] + values[second] + scores[parts])
            steps.append((level.start + head, first, second, parts, p))
    reached, expected = np.zeros_like(values), np.zeros_like(scores)
    reached[graph.root] = values[graph.root].real > -math.inf
    for node, *targets, parts, p in reversed(steps):
        for places, totals in (*((target, reached) for target in targets), (parts, expected)):
            np.add.at(totals, places, p * reached[node])
    return expected[:-1].reshape(row.shape)


STATED = (Constituency, ProjectiveTree, ShiftReduce, Subset, *DERIVED.values())

WALKS: dict[type[Any], Callable[[Any, np.ndarray], np.ndarray]] = {
    LinearChain: lambda oracle, row: walk_of_chain(row),
    TiedChain: lambda oracle, row: walk_of_tied_chain(row),
    Alignment: lambda oracle, row: walk_of_alignment(row),
    **dict.fromkeys(STATED, walk_of_derivations),
}
"""From an oracle and natural parameters [*event]."""

"""Sparsemax, and the walks of relaxed dynamic programmes whose every step is one, in numpy; complex rows give exact derivatives."""

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
    expected = walk_of_derivations(LinearChain(), edges)
    return np.concatenate([expected.sum(1), expected[1:].sum(0)])


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


STATED = (LinearChain, Alignment, Constituency, ProjectiveTree, ShiftReduce, Subset, *DERIVED.values())

WALKS: dict[type[Any], Callable[[Any, np.ndarray], np.ndarray]] = {
    TiedChain: lambda oracle, row: walk_of_tied_chain(row),
    **dict.fromkeys(STATED, walk_of_derivations),
}
"""From an oracle and natural parameters [*event]."""

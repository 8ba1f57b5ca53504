"""Attention mappings and sparse laws of one row in numpy: by exhausting patterns, by root finding, by pooling one violator at a time.

A mapping takes an estimator and the scores of the allowed parts of one category, and gives their probabilities and the matrix dp/dθ.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from tests.catalogue.walks import sparsemax

Mapped = tuple[np.ndarray, np.ndarray]


def sparse_law(estimator: Any, values: np.ndarray) -> np.ndarray:
    """The sparsemax of the scores of structures, of the k best alone where the estimator has a k; 0 where nothing is feasible."""
    kept = np.argsort(-values, kind="stable")[: getattr(estimator, "k", len(values))]
    law = np.zeros_like(values)
    law[kept] = sparsemax(values[kept])[1]
    return law


def root(excess: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(excess, low, high, xtol=1e-300, rtol=1e-15))


def centred(s: np.ndarray) -> np.ndarray:
    """diag(s) − ssᵀ/Σs."""
    return np.diag(s) - np.outer(s, s) / s.sum() if s.sum() > 0 else np.zeros((len(s), len(s)))


def entmax(estimator: Any, row: np.ndarray) -> Mapped:
    alpha = float(estimator.alpha)
    if alpha == 1:
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        return p, centred(p)
    x = (alpha - 1) * row

    def power(threshold: float) -> np.ndarray:
        return np.maximum(x - threshold, 0) ** (1 / (alpha - 1))

    p = power(root(lambda threshold: power(threshold).sum() - 1, x.max() - 1.5, x.max()))
    return p, centred(np.where(p > 0, np.where(p > 0, p, 1) ** (2 - alpha), 0))


def averaging(groups: list[list[int]], signs: np.ndarray) -> np.ndarray:
    """The matrix that averages over groups with signs; what is in no group goes to 0."""
    matrix = np.zeros((len(signs), len(signs)))
    for group in groups:
        matrix[np.ix_(group, group)] = np.outer(signs[group], signs[group]) / len(group)
    return matrix


def fusedmax(estimator: Any, row: np.ndarray) -> Mapped:
    """The least ``½‖p − θ‖² + λ Σ|p_(i+1) − p_i|`` among the minima of all patterns of runs, signs of their steps and runs at 0."""
    n, strength = len(row), estimator.strength
    best, found, groups = math.inf, row, [[0]]
    for cuts in itertools.product((False, True), repeat=n - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), n]
        runs = [list(range(a, b)) for a, b in itertools.pairwise(edges)]
        for steps, used in itertools.product(
            itertools.product((-1, 1), repeat=len(runs) - 1), itertools.product((False, True), repeat=len(runs))
        ):
            if not any(used):
                continue
            pull = np.append(steps, 0) - np.append(0, steps)
            level = np.array([row[run].sum() for run in runs]) + strength * pull
            sizes, inside = np.array([len(run) for run in runs]), np.array(used)
            threshold = (level[inside].sum() - 1) / sizes[inside].sum()
            levels = np.where(inside, level / sizes - threshold, 0)
            p = np.repeat(levels, sizes)
            value = ((p - row) ** 2).sum() / 2 + strength * np.abs(np.diff(p)).sum()
            # Of patterns that give one point, the coarsest: parts that are equal move together.
            if (p >= 0).all() and (value < best - 1e-12 or (value < best + 1e-12 and len(runs) < len(groups))):
                best, found, groups = value, p, runs
    used_groups = [run for run in groups if found[run[0]] > 0]
    average = averaging(used_groups, np.ones(n))
    return found, centred((found > 0).astype(float)) @ average


def oscarmax(estimator: Any, row: np.ndarray) -> Mapped:
    signs = np.where(row < 0, -1.0, 1.0) if estimator.magnitudes else np.ones(len(row))
    order = np.argsort(-signs * row, kind="stable")
    blocks: list[list[int]] = []
    lowered = np.zeros(len(row))
    for rank, part in enumerate(order):
        lowered[part] = signs[part] * row[part] - estimator.strength * (len(row) - 1 - rank)
        blocks.append([part])
        while len(blocks) > 1 and lowered[blocks[-2]].mean() < lowered[blocks[-1]].mean():
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    moving = [block for block in blocks if not estimator.magnitudes or lowered[block].mean() >= 0]
    fused = np.zeros(len(row))
    for block in moving:
        fused[block] = signs[block] * lowered[block].mean()
    p = sparsemax(fused)[1]
    return p, centred((p > 0).astype(float)) @ averaging(moving, signs)


def bound(estimator: Any, row: np.ndarray) -> float:
    return float(max(estimator.upper, 1 / len(row)))


def csparsemax(estimator: Any, row: np.ndarray) -> Mapped:
    upper = bound(estimator, row)
    if upper * len(row) <= 1:
        return np.full(len(row), 1 / len(row)), np.zeros((len(row), len(row)))
    threshold = root(lambda t: np.clip(row - t, 0, upper).sum() - 1, row.min() - upper, row.max())
    p = np.clip(row - threshold, 0, upper)
    return p, centred(((p > 0) & (p < upper)).astype(float))


def csoftmax(estimator: Any, row: np.ndarray) -> Mapped:
    """Whoever is above the bound is set to it, and the others share the rest, until nobody is."""
    upper = bound(estimator, row)
    held = np.zeros(len(row), dtype=bool)
    if upper * len(row) <= 1:
        return np.full(len(row), 1 / len(row)), np.zeros((len(row), len(row)))
    while True:
        weights = np.where(held, 0, np.exp(row - row[~held].max()))
        p = np.where(held, upper, weights / weights.sum() * (1 - upper * held.sum()))
        if not (p > upper * (1 + 1e-12)).any():
            return p, centred(np.where(held, 0, p))
        held |= p > upper


MAPPINGS: dict[str, Callable[[Any, np.ndarray], Mapped]] = {
    "entmax": entmax,
    "fusedmax": fusedmax,
    "oscarmax": oscarmax,
    "csparsemax": csparsemax,
    "csoftmax": csoftmax,
}


def point(estimator: Any, scores: Tensor) -> Tensor:
    """The probabilities of one row of scores [*event]."""
    found = np.zeros(scores.shape)
    for category in np.ndindex(*scores.shape[:-1]):
        allowed = np.isfinite(scores.numpy()[category])
        found[category][allowed] = MAPPINGS[estimator.name](estimator, scores.numpy()[category][allowed])[0]
    return torch.from_numpy(found)


def pulled(estimator: Any, scores: Tensor, gamma: Tensor) -> Tensor:
    """The transposed Jacobians of one row of scores [*event] times γ."""
    found = np.zeros(scores.shape)
    for category in np.ndindex(*scores.shape[:-1]):
        allowed = np.isfinite(scores.numpy()[category])
        jacobian = MAPPINGS[estimator.name](estimator, scores.numpy()[category][allowed])[1]
        found[category][allowed] = jacobian.T @ gamma.numpy()[category][allowed]
    return torch.from_numpy(found)

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ShiftReduce, kernels

GLOBAL, LOCAL = ShiftReduce(), ShiftReduce("local")


def random_scores(leaves: int, scale: float = 1.0, batch: tuple[int, ...] = (), mask: float = 0.0, seed: int = 0) -> Tensor:
    """Scores whose ignored entries are NaN."""
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(*batch, leaves + 1, leaves + 1, 2, generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < mask, -math.inf)
    return torch.where(GLOBAL.read_mask((leaves + 1, leaves + 1, 2)), scores, math.nan)


def visited(actions: list[int]) -> list[tuple[int, int, int]]:
    """The parts (shifts, depth, action) of a derivation."""
    shifts, depth, parts = 0, 0, []
    for action in actions:
        parts.append((shifts, depth, action))
        shifts, depth = (shifts, depth - 1) if action else (shifts + 1, depth + 1)
    return parts


def catalan(leaves: int) -> int:
    return math.comb(2 * leaves - 2, leaves - 1) // leaves


@pytest.mark.parametrize("leaves", [3, 12, 30])
def test_equal_scores_give_ballot_numbers(leaves: int) -> None:
    """The share of derivations that use a part, from the reflection principle."""

    def prefixes(shifts: int, depth: int) -> Fraction:
        steps = 2 * shifts - depth
        return Fraction(depth, steps) * math.comb(steps, shifts) if steps else Fraction(1)

    def suffixes(shifts: int, depth: int) -> int:
        left, steps = leaves - shifts, 2 * (leaves - shifts) + depth - 1
        return math.comb(steps, left) - math.comb(steps, left + depth) if left >= 0 and depth >= 1 else 0

    marginals = GLOBAL.marginals(torch.zeros(leaves + 1, leaves + 1, 2, dtype=torch.float64))
    for i in range(leaves + 1):
        for d in range(min(i, 1), i + 1):
            for action, after in ((0, suffixes(i + 1, d + 1)), (1, suffixes(i, d - 1))):
                assert marginals[i, d, action].item() == pytest.approx(
                    float(prefixes(i, d) * after / catalan(leaves)), rel=1e-12, abs=1e-300
                )


# Against other algorithms.


def exact_law(row: np.ndarray) -> tuple[Any, dict[tuple[int, int, int], Any]]:
    """Log-partition and marginals of one row in 60 digits, by recursion on states as fractions of weights."""
    leaves = len(row) - 1
    with mpmath.workdps(60):
        weights = {(i, d, a): mpmath.exp(mpmath.mpf(float(row[i, d, a]))) for i in range(leaves + 1) for d in range(i + 1) for a in (0, 1)}

        def following(i: int, d: int) -> list[tuple[int, int, int]]:
            actions = [(i + 1, d + 1, 0)] if i < leaves else []
            return actions + ([(i, d - 1, 1)] if d > 1 else [])

        after = {(leaves, 1): mpmath.mpf(1)}
        states = [(i, d) for i in range(leaves, -1, -1) for d in range(min(i, 1), i + 1)]
        for i, d in states:
            if (i, d) != (leaves, 1):
                after[i, d] = mpmath.fsum(weights[i, d, a] * after[x, y] for x, y, a in following(i, d))
        before = dict.fromkeys(states, mpmath.mpf(0))
        before[0, 0] = mpmath.mpf(1)
        marginals = {}
        for i, d in reversed(states):
            for x, y, a in following(i, d):
                before[x, y] += before[i, d] * weights[i, d, a]
                marginals[i, d, a] = before[i, d] * weights[i, d, a] * after[x, y] / after[0, 0]
        return mpmath.log(after[0, 0]), marginals


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0, 1000.0])
def test_thirty_leaves_in_sixty_digits(scale: float, compiled: bool) -> None:
    scores = random_scores(30, scale)
    expected, parts = exact_law(scores.nan_to_num().numpy())
    if compiled:
        log_partition, marginals = GLOBAL.log_partition(scores), GLOBAL.marginals(scores)
    else:
        with kernels.disabled():
            log_partition, marginals = GLOBAL.log_partition(scores), GLOBAL.marginals(scores)
    assert log_partition.item() == pytest.approx(float(expected), rel=1e-13)
    found = torch.tensor([marginals[part] for part in parts])
    torch.testing.assert_close(found, torch.tensor([float(p) for p in parts.values()], dtype=torch.float64), rtol=1e-9, atol=1e-15)


# Conversions, ties, extremes, messages.


@pytest.mark.parametrize("leaves", [1, 2, 5])
def test_actions_and_structure_are_inverse(leaves: int) -> None:
    every = GLOBAL.enumerate((leaves + 1, leaves + 1, 2))
    actions = ShiftReduce.actions(every)
    assert actions.shape == (len(every), 2 * leaves - 1)
    assert torch.equal(ShiftReduce.structure(actions), every)
    assert ShiftReduce.structure(actions, torch.bool).dtype == torch.bool
    assert torch.equal(ShiftReduce.actions(every.bool()), actions)
    pairs = torch.stack([every, every.flip(0)])
    assert torch.equal(ShiftReduce.structure(ShiftReduce.actions(pairs)), pairs)
    for structure, derivation in zip(every, actions.tolist(), strict=True):
        assert [tuple(part) for part in structure.nonzero().tolist()] == sorted(visited(derivation))


@pytest.mark.parametrize("compiled", [True, False])
def test_of_equal_scores_the_one_that_shifts_first(compiled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (50, 6, 6, 2), generator=generator).double()
    every = GLOBAL.enumerate((6, 6, 2), dtype=torch.float64)
    first = (scores.flatten(1) @ every.flatten(1).T).numpy().argmax(1)
    if compiled:
        best = GLOBAL.argmax(scores)
    else:
        with kernels.disabled():
            best = GLOBAL.argmax(scores)
    assert torch.equal(best, every[first])
    assert torch.equal(GLOBAL.kbest(scores, 1)[0], best)
    assert ShiftReduce.actions(GLOBAL.argmax(torch.zeros(6, 6, 2))).tolist() == [0] * 5 + [1] * 4


@pytest.mark.parametrize("shape", [(4,), (2, 6), (), (0,)])
def test_actions_must_be_odd_in_number(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`structure` got actions of shape \(.*\); expected \[\*batch, 2n - 1\] for n leaves"):
        ShiftReduce.structure(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("actions", [[0, 1, 0], [0, 0, 0], [1, 0, 0], [0, 2, 1], [0, 0, 1, 1, 0], [1]])
def test_actions_must_be_a_derivation(actions: list[int]) -> None:
    with pytest.raises(
        ValueError, match=r"`structure` got actions (that are no derivation; expected 0 or 1, from an|from 0 to 2; expected)"
    ):
        ShiftReduce.structure(torch.tensor([actions]))


# Real scores.

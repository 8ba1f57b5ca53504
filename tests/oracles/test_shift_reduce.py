from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from structgrad.oracles import ShiftReduce, kernels

GLOBAL, LOCAL = ShiftReduce(), ShiftReduce("local")
both = pytest.mark.parametrize("oracle", [GLOBAL, LOCAL], ids=["global", "local"])

ROOT = Path(__file__).resolve().parents[2]
FILES = [folder / "shift_reduce_listops.npz" for folder in (ROOT / "data/scores", ROOT.parent / "shared/data/scores")]
FILE = next((file for file in FILES if file.exists()), None)
needs_scores = pytest.mark.skipif(FILE is None, reason="the real score files are in neither data/scores nor ../shared/data/scores")


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


# Counts and the order of derivations.


def test_counts_are_catalan_numbers() -> None:
    assert [GLOBAL.count((n + 1, n + 1, 2)) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]
    assert GLOBAL.count((1001, 1001, 2)) == catalan(1000)
    for n in range(1, 9):
        assert len(GLOBAL.enumerate((n + 1, n + 1, 2))) == catalan(n)


def binary_trees(first: int, last: int) -> list[Any]:
    if last - first == 1:
        return [first]
    return [
        (left, right)
        for middle in range(first + 1, last)
        for left in binary_trees(first, middle)
        for right in binary_trees(middle, last)
    ]  # fmt: skip


def built_tree(actions: list[int]) -> Any:
    stack: list[Any] = []
    leaves = 0
    for action in actions:
        if action:
            right, left = stack.pop(), stack.pop()
            stack.append((left, right))
        else:
            stack.append(leaves)
            leaves += 1
    (tree,) = stack
    return tree


@pytest.mark.parametrize("leaves", [1, 2, 3, 6, 8])
def test_derivations_are_the_binary_trees(leaves: int) -> None:
    actions = ShiftReduce.actions(GLOBAL.enumerate((leaves + 1, leaves + 1, 2))).tolist()
    built = [built_tree(derivation) for derivation in actions]
    assert len(set(built)) == len(built)
    assert set(built) == set(binary_trees(0, leaves))


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


def test_ranks_of_a_large_space() -> None:
    event, count = (36, 36, 2), catalan(35)
    ranks = torch.tensor([0, 1, 12345678901234567, count // 2, count - 2, count - 1])
    structures = GLOBAL._unrank(ranks, event)
    assert torch.equal(GLOBAL.rank(structures), ranks)
    actions = ShiftReduce.actions(structures).tolist()
    assert actions[0] == [0] * 35 + [1] * 34
    assert actions[-1] == [0] + [0, 1] * 34
    assert actions == sorted(actions)
    with pytest.raises(ValueError, match=r"`rank` got a space of [\d.e+]+ structures; expected at most 2\*\*62"):
        GLOBAL.rank(torch.zeros(38, 38, 2))


def test_what_is_no_structure_has_some_rank() -> None:
    assert GLOBAL.rank(torch.ones(5, 5, 2)).shape == ()
    assert GLOBAL.rank(torch.zeros(3, 5, 5, 2)).shape == (3,)


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("mask", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("scale", [0.05, 1.0, 10.0, 50.0, 300.0, 1000.0])
@pytest.mark.parametrize("leaves", [1, 2, 5, 21])
def test_kernels_are_their_references(leaves: int, scale: float, mask: float, dtype: torch.dtype) -> None:
    scores = random_scores(leaves, scale, (9,), mask).to(dtype)
    direction = torch.randn(scores.shape, dtype=dtype)

    def results() -> tuple[Tensor, ...]:
        leaf = scores.clone().requires_grad_()
        marginals = GLOBAL.marginals(leaf)
        (product,) = torch.autograd.grad(marginals, leaf, direction)
        best = GLOBAL.argmax(scores)
        total = torch.where(best != 0, scores, 0).sum((1, 2, 3))
        return total, GLOBAL.log_partition(scores), marginals.detach(), product

    double = dtype == torch.float64
    with kernels.disabled():
        expected = results()
        drawn = GLOBAL.sample(scores, 5, generator=torch.Generator().manual_seed(0))
    # The float32 reference subtracts logarithms of some 40 nats, whose unit in the last place is 4e-6.
    for found, reference in zip(results(), expected, strict=True):
        torch.testing.assert_close(found, reference, rtol=1e-11 if double else 1e-4, atol=(1e-13 if double else 1e-5) * max(scale, 1.0))
    assert torch.equal(GLOBAL.sample(scores, 5, generator=torch.Generator().manual_seed(0)), drawn)


def test_a_count_beyond_the_range_goes_to_the_reference() -> None:
    leaves = 600
    scores = torch.zeros(2, leaves + 1, leaves + 1, 2, dtype=torch.float64)
    scores[1, :, 2:, 0] = -math.inf
    expected = math.lgamma(2 * leaves - 1) - 2 * math.lgamma(leaves) - math.log(leaves)
    torch.testing.assert_close(GLOBAL.log_partition(scores), torch.tensor([expected, 0.0], dtype=torch.float64), rtol=1e-11, atol=1e-9)


# Lengths.

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "argmax": lambda oracle, scores, **kw: oracle.argmax(scores, **kw),
    "log_partition": lambda oracle, scores, **kw: oracle.log_partition(scores, **kw),
    "marginals": lambda oracle, scores, **kw: oracle.marginals(scores, **kw),
    "entropy": lambda oracle, scores, **kw: oracle.entropy(scores, **kw),
    "project": lambda oracle, scores, **kw: oracle.project(scores, **kw).mean,
    "steps": lambda oracle, scores, **kw: oracle.step_log_probs(scores, **kw).nan_to_num(neginf=0),
}


@both
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_shorter_item_is_the_item_alone(oracle: ShiftReduce, operation: str) -> None:
    lengths = torch.tensor([1, 2, 3, 5, 6])
    scores = random_scores(6, 2.0, (5,)).nan_to_num(7.0)
    together = OPERATIONS[operation](oracle, scores, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        short = scores[row, : length + 1, : length + 1]
        expected = OPERATIONS[operation](oracle, short)
        found = together[row] if expected.ndim == 0 else together[row, : length + 1, : length + 1]
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
        if expected.ndim:
            assert together[row].count_nonzero() == found.count_nonzero()


@both
def test_padded_scores_hold_one_free_completion(oracle: ShiftReduce) -> None:
    scores, lengths = random_scores(7, 2.0, (4,)), torch.tensor([1, 3, 4, 7])
    padded = oracle.pad(scores, lengths)
    every = oracle.enumerate((8, 8, 2), dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        possible = every[oracle.log_prob(every, padded[row]) > -math.inf]
        assert len(possible) == catalan(length)
        endings = {tuple(actions[2 * length - 1 :]) for actions in ShiftReduce.actions(possible).tolist()}
        assert endings == {(0, 1) * (7 - length)}
        free = possible[:, length:].sum(0) > 0
        assert bool((padded[row, length:][free & ~oracle._inside((8, 8, 2), torch.tensor(length))[length:]] == 0).all())
    torch.testing.assert_close(oracle.log_partition(padded), oracle.log_partition(scores, lengths=lengths))


@both
def test_samples_of_shorter_items(oracle: ShiftReduce) -> None:
    scores, lengths = random_scores(6, 1.0, (3,)), torch.tensor([2, 4, 6])
    samples = oracle.sample(scores, 20_000, generator=torch.Generator().manual_seed(0), lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = oracle.marginals(scores[row, : length + 1, : length + 1])
        torch.testing.assert_close(samples[:, row, : length + 1, : length + 1].mean(0), alone, rtol=0, atol=0.02)
        assert bool((samples[:, row].sum((1, 2, 3)) == 2 * length - 1).all())


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


@both
@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_peaked_scores_stay_finite(oracle: ShiftReduce, scale: float) -> None:
    scores = random_scores(40, scale, (3,)).requires_grad_()
    marginals, entropy = oracle.marginals(scores), oracle.entropy(scores)
    gradients = torch.autograd.grad(entropy.sum() + marginals.square().sum(), scores)
    assert all(bool(value.isfinite().all()) for value in (marginals, entropy, *gradients))
    torch.testing.assert_close(marginals.sum((1, 2, 3)), torch.full((3,), 79.0, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_the_projection_of_many_leaves_is_certified(seed: int) -> None:
    scores = random_scores(12, 1.0, (4,), mask=0.03, seed=seed)
    solution = GLOBAL.project(scores)
    feasible = GLOBAL.feasible(scores)
    assert bool((solution.gap[feasible] < 1e-9).all())
    assert bool((solution.mean[feasible].sum((1, 2, 3)) - 23 < 1e-9).all())
    with kernels.disabled():
        torch.testing.assert_close(GLOBAL.project(scores).mean, solution.mean, rtol=0, atol=1e-9)


def test_the_event_shape_by_name() -> None:
    assert ShiftReduce.event_shape(length=5) == (6, 6, 2)
    with pytest.raises(ValueError, match=r"`shift_reduce.event_shape` got sizes tags; expected length"):
        ShiftReduce.event_shape(tags=3)


@pytest.mark.parametrize("shape", [(4, 3, 2), (4, 4, 3), (1, 1, 2)])
def test_scores_must_have_the_shape_of_states_and_actions(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`argmax` got event shape \(.*\); expected \(n \+ 1, n \+ 1, 2\) for n leaves, n at least 1"):
        GLOBAL.argmax(torch.zeros(shape))


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


@needs_scores
@pytest.mark.parametrize(
    "name", ["small_action_init", "small_action_early", "small_action_final", "large_action_early", "large_action_final"]
)
def test_the_best_of_real_scores_is_at_least_the_gold_derivation(name: str) -> None:
    assert FILE is not None
    with np.load(FILE, allow_pickle=False) as data:
        size = name.split("_")[0]
        scores, lengths, gold = data[name], data[f"{size}_length"], data[f"{size}_gold_actions"]
    scores, lengths = torch.from_numpy(scores), torch.from_numpy(lengths)
    best = GLOBAL.argmax(scores, lengths=lengths)
    found = torch.where(best != 0, scores, 0).double().sum((1, 2, 3))
    for row, length in enumerate(lengths.tolist()):
        expected = sum(float(scores[row][part]) for part in visited(gold[row, : 2 * length - 1].tolist()))
        assert found[row] >= expected - 1e-5
    # They are the logarithms of a policy.
    torch.testing.assert_close(GLOBAL.log_partition(scores, lengths=lengths), torch.zeros(len(scores)), rtol=0, atol=2e-5)
    torch.testing.assert_close(GLOBAL.marginals(scores, lengths=lengths), LOCAL.marginals(scores, lengths=lengths), rtol=0, atol=2e-5)

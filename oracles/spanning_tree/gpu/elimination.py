"""Elimination of words from tables of weights; the mathematics is that of `structgrad.oracles.spanning_tree.elimination`.

A table ``[n, n]`` holds at (h, m) the weight of the arc from word h to word m, both counted from 0; the root's arcs are beside it.
Elimination never subtracts, so that weights may be plain numbers wherever none of them is lost to the range of float64. Nothing needs to
be watched on the way: row and column of a word stay as they were when it was taken out, so that a look at them afterwards (`out_of_range`)
shows whether every factor of every product was large enough. Where one was not, the same steps are taken again on logarithms (``logs``),
on which there is no limit, at the price of an exponential and a logarithm for every number and step.

In registers, a step reads a row and a column out of the table by sums in which all but one term are 0, and adds their product to all of
it: n steps, each of some ten instructions for every number of the table. Everything is float64, which is no bottleneck beside those reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST = tl.constexpr(1e-150)
"""The least weight that is not 0: products of two are still normal numbers."""

LARGEST = tl.constexpr(1e150)


@triton.jit
def is_open(certain, item, logs: tl.constexpr):
    """Whether this attempt is to compute an item: the first one all, the one in logarithms those in which the first lost a weight."""
    todo = True
    if logs:
        todo = tl.load(certain + item) == 0
    return todo


@triton.jit
def close(certain, item, held, logs: tl.constexpr):
    """Let the next attempt know."""
    if not logs:
        tl.store(certain + item, held)


@triton.jit
def load_weights(row, words, single_root: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """Weights [block, block] and [block] of one row of scores, the logarithm of what every tree was divided by, and whether none is lost.

    Each word's heads are shifted by their maximum; with a single root that of the words, and then the root's arcs by theirs.
    """
    place = tl.arange(0, block)
    inside = place < words
    arcs = inside[:, None] & inside[None, :] & (place[:, None] != place[None, :])
    weights = tl.load(row + (place[:, None] + 1) * (words + 1) + place[None, :] + 1, mask=arcs, other=-float("inf")).to(tl.float64)
    root = tl.load(row + place + 1, mask=inside, other=-float("inf")).to(tl.float64)
    top = tl.max(weights, 0)
    if not single_root:
        top = tl.maximum(top, root)
    top = finite(top)
    weights -= top[None, :]
    root -= top
    shift = tl.sum(top, 0)
    if single_root:
        best = finite(tl.max(root, 0))
        root -= best
        shift += best
    certain = tl.full((), 1, tl.int32)
    if not logs:
        allowed = weights > -float("inf")
        root_allowed = root > -float("inf")
        weights = tl.exp(weights)
        root = tl.exp(root)
        lost = tl.sum(tl.sum((allowed & (weights < SMALLEST)).to(tl.int32), 1), 0) + tl.sum(
            (root_allowed & (root < SMALLEST)).to(tl.int32), 0
        )
        certain = tl.where(lost == 0, certain, 0)
    return weights, root, shift, certain


@triton.jit
def finite(values):
    """0 in the place of -inf."""
    return tl.where(values > -float("inf"), values, 0.0)


@triton.jit
def pick(values, chosen, axis: tl.constexpr, logs: tl.constexpr):
    """The number at the one place that is chosen along an axis."""
    if logs:
        return tl.max(tl.where(chosen, values, -float("inf")), axis)
    return tl.sum(tl.where(chosen, values, 0.0), axis)


@triton.jit
def times(a, b, logs: tl.constexpr):
    """The product of weights, or of their logarithms."""
    if logs:
        return a + b
    return a * b


@triton.jit
def plus(a, b, logs: tl.constexpr):
    """The sum of weights, or of their logarithms."""
    if logs:
        high = tl.maximum(a, b)
        return high + tl.log(1.0 + tl.exp(tl.minimum(a, b) - finite(high)))
    return a + b


@triton.jit
def total_of(values, axis: tl.constexpr, logs: tl.constexpr):
    """The sum along an axis."""
    if logs:
        top = finite(tl.max(values, axis))
        total = tl.sum(tl.exp(values - tl.expand_dims(top, axis)), axis)
        return tl.where(total > 0.0, top + tl.log(tl.where(total > 0.0, total, 1.0)), -float("inf"))
    return tl.sum(values, axis)


@triton.jit
def over(values, total, logs: tl.constexpr):
    """Numbers divided by a total; what is divided by 0 stays."""
    if logs:
        return values - finite(total)
    return values * (1.0 / tl.where(total > 0.0, total, 1.0))


@triton.jit
def logarithm(value, logs: tl.constexpr):
    """The logarithm of a number; -inf of 0."""
    if logs:
        return value
    return tl.where(value > 0.0, tl.log(tl.where(value > 0.0, value, 1.0)), -float("inf"))


@triton.jit
def out_of_range(values):
    """Whether numbers are not 0, but too small or too large for their products."""
    return ((values != 0.0) & ~((values >= SMALLEST) & (values <= LARGEST))).to(tl.int32)


@triton.jit
def to_chances(heads, root, rates, root_rates, rooted, logs: tl.constexpr, along: tl.constexpr):
    """Divide the weights [c, n] and [c] of the heads of a word by their sum; the root's counts in it where ``rooted`` [c].

    Where it does not, and no other word is left to head this one, all walks end here: the word takes the root's place, and its pivot is
    the root's own arc. ``rates`` are derivatives along a direction where ``along`` says so: of the weights, or of their logarithms.

    Returns:
        The chances of heads, their rates, whether the word ends all walks, and the pivot: what it multiplies every tree by.
    """
    zero: tl.constexpr = -float("inf") if logs else 0.0
    total = total_of(heads, 1, logs)
    total = tl.where(rooted > 0, plus(total, root, logs), total)
    end = (rooted == 0) & (total == zero)
    chance = over(heads, total[:, None], logs)
    root_chance = tl.where(end, zero, over(root, total, logs))
    if along:
        if logs:
            slope = tl.sum(tl.exp(chance) * rates, 1)
            slope += tl.where(rooted > 0, tl.exp(tl.where(rooted > 0, root_chance, 0.0)) * root_rates, 0.0)
            rates = rates - slope[:, None]
            root_rates = root_rates - slope
        else:
            slope = tl.sum(rates, 1) + tl.where(rooted > 0, root_rates, 0.0)
            rates = over(rates - chance * slope[:, None], total[:, None], False)
            root_rates = tl.where(end, 0.0, over(root_rates - root_chance * slope, total, False))
    return chance, root_chance, rates, root_rates, end, tl.where(end, root, total)


@triton.jit
def lead(weights, chance, row, rates, chance_rates, row_rates, logs: tl.constexpr, along: tl.constexpr):
    """Let arcs lead over a word too: weights, the chances of their heads for that word and its own arcs, and their rates."""
    led = times(chance, row, logs)
    result = plus(weights, led, logs)
    if along:
        if logs:
            safe = finite(result)
            rates = tl.exp(weights - safe) * rates + tl.exp(led - safe) * (chance_rates + row_rates)
        else:
            rates = rates + (chance * row_rates + chance_rates * row)
    return result, rates


@triton.jit
def take_out(weights, root, rooted, k, others, logs: tl.constexpr):
    """Eliminate word k of a table [n, n] in registers, of which only ``others`` [n] are left; its column gets the chances of its heads.

    Returns:
        The weights afterwards, whether the root's arcs count from now on (int32 [1]), and the pivot [1]; see `to_chances`.
    """
    place = tl.arange(0, weights.shape[0])
    here = place == k
    zero: tl.constexpr = -float("inf") if logs else 0.0
    heads = tl.where(others, pick(weights, here[None, :], 1, logs), zero)[None, :]
    row = tl.where(others, pick(weights, here[:, None], 0, logs), zero)
    from_root = pick(root, here, 0, logs) + tl.zeros((1,), tl.float64)
    chance, root_chance, _, _, end, pivot = to_chances(heads, from_root, heads, from_root, rooted, logs, False)
    chances = tl.expand_dims(tl.max(chance, 0), 1)
    led, _ = lead(weights, chances, row[None, :], weights, weights, weights, logs, False)
    root_led, _ = lead(root, root_chance, row, root, root, root, logs, False)
    weights = tl.where(here[None, :] & others[:, None], chances, led)
    root = tl.where(here, root_chance, tl.where(end & others, row, root_led))
    return weights, root, tl.where(end, 1, rooted), pivot

"""Charts of binary trees: the weights of all trees over each span, what surrounds them, and the derivatives of both, for one row [n, n].

Charts are kept *by width*: row w holds the spans of w + 1 tokens by their first token, so that the cuts of many spans of one width are
summed side by side, all from contiguous memory. Scores of the spans of two tokens and more are gathered in the same order; those of single
tokens, which are in every tree, are only added to the log-partition.

The exponential domain: every span weighs ``exp(score − shift)``, with one shift per row, which all trees pay n − 1 times. It is guessed
from the mean and deviation of the scores; where that does not do, it is the score of the best tree over n − 1. A row is certified where all
sums of trees over a span, with its own weight and without, lie between `LOW` and `HIGH`, or are exactly 0. Then what is lost is below 1e-16
of its sum on the way up; and below 1e-20 of 1 on the way down, where sums need no lower limit: less than 1e-307 is lost, and multiplied by
at most `HIGH`.

The innermost loops end at a place, not after a number of steps: the compiler unrolls the latter until their places no longer fit the
registers, which doubles the time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .compilation import compiled, inner, uncounted
from .exponential import exponentials
from .lanes import WIDTH, add, divide, greatest, least, load, multiply, multiply_add, spread, store, subtract, where_greater

Array = NDArray[Any]

LOW, HIGH = 1e-290, 1e280

EXPONENT = 600.0
"""The greatest size of an exponent of a weight."""

RATE, DEVIATION = 1.2, 1.1
"""By how much the log-weight of all trees grows with each token: about ``mean + RATE + DEVIATION · deviation`` of Gaussian scores."""


class ChartWorkspace(NamedTuple):
    """Room for one row of n tokens. Numbers by width are padded to whole vectors; charts have `WIDTH` zeros before and after each row."""

    starts: Array  # [n + 1] where the spans of w + 1 tokens begin among the numbers by width
    scores: Array  # by width, as the next four; padded with -inf, so that weights are padded with 0
    weights: Array
    sums: Array  # over the cuts of each span
    results: Array
    rates: Array  # the direction of a derivative
    inside: Array  # charts: the weight of all trees over a span
    around: Array  # what surrounds it, with its own weight
    inside_rate: Array
    around_rate: Array
    best: Array  # the greatest score, -inf where `inside` has zeros
    spans: Array  # [n, 3] those still to be cut: first token, last token, place in preorder
    lanes: Array  # [5 · WIDTH]


@uncounted
def stride(n: int) -> int:
    """From one row of a chart to the next."""
    return (n + WIDTH - 1) // WIDTH * WIDTH + WIDTH


@compiled
def workspace(n: int, charts: int) -> ChartWorkspace:
    """Room for rows of n tokens and so many charts: 1 for what goes up alone, 2 with what comes down, 4 with derivatives."""
    starts = np.zeros(n + 1, np.int64)
    for w in range(1, n):
        starts[w + 1] = starts[w] + (n - w + WIDTH - 1) // WIDTH * WIDTH
    size = WIDTH + n * stride(n)
    numbers, tables = np.zeros((5, starts[n])), np.zeros((charts, size))
    numbers[0] = -np.inf
    tables[0, WIDTH : WIDTH + n] = 1.0
    best = np.full(size, -np.inf)
    best[WIDTH : WIDTH + n] = 0.0
    return ChartWorkspace(
        starts, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
        tables[0], tables[1 % charts], tables[2 % charts], tables[3 % charts], best, np.empty((n, 3), np.int64), np.empty(5 * WIDTH),
    )  # fmt: skip


@uncounted
def gather(row: Array, starts: Array, by_width: Array) -> float:
    """Gather the spans of two tokens and more; gives the sum of the single tokens."""
    n, leaves = row.shape[0], 0.0
    for i in range(n):
        leaves += row[i, i]
        for w in range(1, n - i):
            by_width[starts[w] + i] = row[i, i + w]
    return leaves


@uncounted
def scatter(by_width: Array, starts: Array, leaf: float, matrix: Array) -> None:
    """Write numbers by width, and one for all single tokens, into a matrix [n, n]."""
    n = matrix.shape[0]
    for i in range(n):
        matrix[i, i] = leaf
        for w in range(1, n - i):
            matrix[i, i + w] = by_width[starts[w] + i]


@inner
def _guess(space: ChartWorkspace) -> tuple[float, float, float]:
    """A shift from the mean and deviation of the scores that are not forbidden, and the least and the greatest of those."""
    forbidden, zero, one, lanes = spread(-np.inf), spread(0.0), spread(1.0), space.lanes
    low, high, total, squares, count = spread(np.inf), forbidden, zero, zero, zero
    for t in range(0, space.scores.size, WIDTH):
        score = load(space.scores, t)
        allowed = where_greater(score, forbidden, one, zero)
        known = where_greater(score, forbidden, score, zero)
        low = where_greater(score, forbidden, least(score, low), low)
        high, count = greatest(score, high), add(count, allowed)
        total, squares = add(total, known), multiply_add(known, known, squares)
    for place, vector in enumerate((low, high, total, squares, count)):
        store(lanes, place * WIDTH, vector)
    for lane in range(1, WIDTH):
        lanes[0] = min(lanes[0], lanes[lane])
        lanes[WIDTH] = max(lanes[WIDTH], lanes[WIDTH + lane])
        for place in range(2, 5):
            lanes[place * WIDTH] += lanes[place * WIDTH + lane]
    number = max(lanes[4 * WIDTH], 1.0)
    mean = lanes[2 * WIDTH] / number
    variance = lanes[3 * WIDTH] / number - mean * mean
    return mean + RATE + DEVIATION * np.sqrt(max(variance, 0.0)), lanes[0], lanes[WIDTH]


@uncounted
def _go_up(space: ChartWorkspace) -> bool:
    """Fill the chart `inside` from the weights; gives whether it is certain."""
    n, chart, step, lanes = len(space.spans), space.inside, stride(len(space.spans)), space.lanes
    zero, one = spread(0.0), spread(1.0)
    low, high, lost = one, one, zero
    for w in range(1, n):
        for i in range(0, n - w, WIDTH):
            left, right, stop, total = WIDTH + i, WIDTH + (w - 1) * step + i + 1, WIDTH + w * step + i, zero
            while left != stop:
                total = multiply_add(load(chart, left), load(chart, right), total)
                left, right = left + step, right + 1 - step
            weight = load(space.weights, space.starts[w] + i)
            total = where_greater(weight, zero, total, zero)
            value = multiply(weight, total)
            store(space.sums, space.starts[w] + i, total)
            store(chart, WIDTH + w * step + i, value)
            high = greatest(greatest(total, value), high)
            low = where_greater(value, zero, least(least(total, value), low), low)
            lost = where_greater(value, zero, lost, add(lost, weight))
    store(lanes, 0, low)
    store(lanes, WIDTH, high)
    store(lanes, 2 * WIDTH, lost)
    fits, exact = True, True
    for lane in range(WIDTH):
        fits = fits and lanes[lane] >= LOW and lanes[WIDTH + lane] <= HIGH
        exact = exact and lanes[2 * WIDTH + lane] == 0.0
    return fits and (exact or _zeros_are_exact(space))


@uncounted
def _zeros_are_exact(space: ChartWorkspace) -> bool:
    """Whether every span of weight 0 is forbidden, or has in every cut a part of weight 0."""
    n, chart, step, exact = len(space.spans), space.inside, stride(len(space.spans)), True
    for w in range(1, n):
        for i in range(n - w):
            if chart[WIDTH + w * step + i] == 0.0 and space.weights[space.starts[w] + i] > 0.0:
                for d in range(w):
                    exact = exact and (chart[WIDTH + d * step + i] == 0.0 or chart[WIDTH + (w - 1 - d) * step + i + d + 1] == 0.0)
    return exact


@uncounted
def find_best(space: ChartWorkspace) -> float:
    """Fill the chart `best`; gives the score of the best tree, without its single tokens."""
    n, chart, step, nothing = len(space.spans), space.best, stride(len(space.spans)), spread(-np.inf)
    for w in range(1, n):
        for i in range(0, n - w, WIDTH):
            left, right, stop, total = WIDTH + i, WIDTH + (w - 1) * step + i + 1, WIDTH + w * step + i, nothing
            while left != stop:
                total = greatest(total, add(load(chart, left), load(chart, right)))
                left, right = left + step, right + 1 - step
            store(chart, WIDTH + w * step + i, add(total, load(space.scores, space.starts[w] + i)))
    return float(chart[WIDTH + (n - 1) * step])


@inner
def evaluate(space: ChartWorkspace, leaves: float) -> tuple[float, bool]:
    """The log-partition of the gathered scores, and whether it is certain; fills the chart `inside`."""
    n = len(space.spans)
    if leaves == -np.inf:
        return -np.inf, True
    shift, low, high = _guess(space)
    for attempt in range(2):
        if attempt:
            shift = find_best(space) / max(n - 1, 1)
            if shift == -np.inf:
                return -np.inf, True
        if low - shift >= -EXPONENT and high - shift <= EXPONENT:
            exponentials(space.scores, shift, space.weights)
            if _go_up(space):
                return np.log(space.inside[WIDTH + (n - 1) * stride(n)]) + shift * (n - 1) + leaves, True
    return -np.inf, False


@uncounted
def go_down(space: ChartWorkspace) -> None:
    """Marginals by width, from the widest span down, and the chart `around`."""
    n, inside, around, step, zero = len(space.spans), space.inside, space.around, stride(len(space.spans)), spread(0.0)
    space.results[space.starts[n - 1]] = 1.0
    around[WIDTH + (n - 1) * step] = 1.0 / space.sums[space.starts[n - 1]]
    for w in range(n - 2, 0, -1):
        for i in range(0, n - w, WIDTH):
            # As the left part of wider spans, then as the right part.
            wider, sibling, total = WIDTH + (w + 1) * step + i, WIDTH + i + w + 1, zero
            stop = wider + (n - 1 - w - i) * step
            while wider != stop:
                total = multiply_add(load(around, wider), load(inside, sibling), total)
                wider, sibling = wider + step, sibling + step
            wider, sibling, other = WIDTH + (w + 1) * step + i - 1, WIDTH + i - 1, zero
            stop = wider + min(i + WIDTH - 1, n - 1 - w) * (step - 1)
            while wider != stop:
                other = multiply_add(load(around, wider), load(inside, sibling), other)
                wider, sibling = wider + step - 1, sibling + step - 1
            total, value = add(total, other), load(inside, WIDTH + w * step + i)
            store(space.results, space.starts[w] + i, where_greater(value, zero, multiply(total, value), zero))
            weighted = multiply(total, load(space.weights, space.starts[w] + i))
            store(around, WIDTH + w * step + i, where_greater(value, zero, weighted, zero))


@inner
def scale_rates(space: ChartWorkspace) -> float:
    """Divide the direction by its greatest entry, which is given; 0 for forbidden spans, and for the sentence, which is in every tree."""
    zero, top = spread(0.0), spread(0.0)
    for t in range(0, space.rates.size, WIDTH):
        rate = where_greater(load(space.weights, t), zero, load(space.rates, t), zero)
        store(space.rates, t, rate)
        top = greatest(top, greatest(rate, subtract(zero, rate)))
    space.rates[space.starts[len(space.spans) - 1]] = 0.0
    store(space.lanes, 0, top)
    scale = space.lanes[:WIDTH].max()
    for t in range(0, space.rates.size if scale > 0.0 else 0, WIDTH):
        store(space.rates, t, divide(load(space.rates, t), spread(scale)))
    return float(scale)


@uncounted
def go_up_rates(space: ChartWorkspace) -> None:
    """Derivatives of `_go_up`: the chart `inside_rate`."""
    n, inside, rates, step, zero = len(space.spans), space.inside, space.inside_rate, stride(len(space.spans)), spread(0.0)
    for w in range(1, n):
        for i in range(0, n - w, WIDTH):
            left, right, stop, total, other = WIDTH + i, WIDTH + (w - 1) * step + i + 1, WIDTH + w * step + i, zero, zero
            while left != stop:
                total = multiply_add(load(rates, left), load(inside, right), total)
                other = multiply_add(load(inside, left), load(rates, right), other)
                left, right = left + step, right + 1 - step
            here = WIDTH + w * step + i
            weighted = multiply(add(total, other), load(space.weights, space.starts[w] + i))
            store(rates, here, multiply_add(load(inside, here), load(space.rates, space.starts[w] + i), weighted))


@uncounted
def go_down_rates(space: ChartWorkspace, scale: float) -> None:
    """Derivatives of `go_down`, times a number, in place of the marginals."""
    n, inside, around, step, zero = len(space.spans), space.inside, space.around, stride(len(space.spans)), spread(0.0)
    inside_rate, around_rate, top = space.inside_rate, space.around_rate, WIDTH + (n - 1) * stride(n)
    around_rate[top] = -around[top] * inside_rate[top] / inside[top]
    space.results[space.starts[n - 1]] = 0.0
    for w in range(n - 2, 0, -1):
        for i in range(0, n - w, WIDTH):
            wider, sibling, total, other = WIDTH + (w + 1) * step + i, WIDTH + i + w + 1, zero, zero
            stop = wider + (n - 1 - w - i) * step
            while wider != stop:
                total = multiply_add(load(around_rate, wider), load(inside, sibling), total)
                other = multiply_add(load(around, wider), load(inside_rate, sibling), other)
                wider, sibling = wider + step, sibling + step
            wider, sibling = WIDTH + (w + 1) * step + i - 1, WIDTH + i - 1
            stop = wider + min(i + WIDTH - 1, n - 1 - w) * (step - 1)
            while wider != stop:
                total = multiply_add(load(around_rate, wider), load(inside, sibling), total)
                other = multiply_add(load(around, wider), load(inside_rate, sibling), other)
                wider, sibling = wider + step - 1, sibling + step - 1
            here, place, total = WIDTH + w * step + i, space.starts[w] + i, add(total, other)
            value, weight = load(inside, here), load(space.weights, place)
            # The marginal is total · value, so that what it gains with the value is its share of that.
            share = multiply(divide(load(inside_rate, here), value), load(space.results, place))
            result = multiply(multiply_add(total, value, share), spread(scale))
            store(space.results, place, where_greater(value, zero, result, zero))
            rise = multiply_add(load(around, here), load(space.rates, place), multiply(total, weight))
            store(around_rate, here, where_greater(value, zero, rise, zero))

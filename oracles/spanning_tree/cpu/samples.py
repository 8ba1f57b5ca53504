"""Exact samples of spanning trees from an elimination: words come back one after the other."""

from ...kernels.compilation import Array, uncounted
from ..elimination import TOP
from .elimination import LANES, place

HEAD, OVER, WAITING, NEXT = 0, 1, 2, 3
"""Rows of ``words``: the head of a word; the word over which the arc from there leads, or 0; the first word whose arc leads over this one,
and the next one of the same."""


@uncounted
def draw(direct: Array, weights: Array, totals: Array, lane: int, uniforms: Array, single_root: bool, rest: Array, words: Array) -> None:
    """Fill ``words[HEAD]`` with the heads of one tree of the item of a lane.

    Tables are those before and after the elimination; the columns of the latter hold the chances of heads, its rows the weights of children
    at that time, and ``totals`` what the heads of each word weighed together. A word has one uniform [n] for all of its choices: what a
    choice leaves of it, in ``rest`` [n + 1], is uniform again. ``words`` is int64 [4, n + 1].
    """
    size = len(rest)
    table = lane, size * LANES, LANES, lane
    head, waiting, following = words[HEAD], words[WAITING], words[NEXT]
    for k in range(1, size):
        rest[k], waiting[k] = uniforms[k - 1], 0
    for k in range(1, size):
        if waiting[k] == 0:
            head[k], rest[k] = _pick(weights, table, k, 1 if single_root and k > 1 else 0, rest[k])
        else:
            head[k] = _inherited(words, k)
        _lead_over(direct, weights, table, head[k], k, weights[place(table, head[k], k)] * totals[k * LANES + lane], rest, words)
        child = waiting[k]
        while child > 0:
            after = following[child]
            head[child] = k
            _lead_over(direct, weights, table, k, child, weights[place(table, k, child)], rest, words)
            child = after


@uncounted
def _pick(weights: Array, table: tuple[int, int, int, int], k: int, first: int, uniform: float) -> tuple[int, float]:
    """A head of word k below it, and what is left of the uniform."""
    start, last = 0.0, 0
    for h in range(first, k):
        chance = weights[place(table, h, k)]
        if uniform < start + chance:
            return h, min((uniform - start) / chance, TOP)
        start += chance
        last = h if chance > 0.0 else last
    return last, TOP


@uncounted
def _inherited(words: Array, k: int) -> int:
    """The head of the last word that leads over k, on the way to the root from the lowest one that does."""
    head, over, following = words[HEAD], words[OVER], words[NEXT]
    first = words[WAITING, k]
    child = following[first]
    while child > 0:
        first = min(first, child)
        child = following[child]
    last, position = first, head[first]
    while position > 0:
        if over[position] == k:
            last = position
        position = head[position]
    return int(head[last])


@uncounted
def _lead_over(
    direct: Array, weights: Array, table: tuple[int, int, int, int], h: int, m: int, total: float, rest: Array, words: Array
) -> None:
    """Choose over which word the arc from h to m leads, and let m wait for it."""
    point, start, chance = rest[m] * total, 0.0, direct[place(table, h, m)]
    if point < chance:
        rest[m] = min(point / chance, TOP)
        words[OVER, m] = 0
        return
    chosen, left = 0, TOP
    for k in range(max(h, m) + 1, len(rest)):
        start += chance
        chance = weights[place(table, h, k)] * weights[place(table, k, m)]
        if point < start + chance:
            chosen, left = k, min((point - start) / chance, TOP)
            break
        # Where rounding leaves nothing for the last word, it takes what is left.
        chosen = k if chance > 0.0 else chosen
    rest[m] = left
    words[OVER, m] = chosen
    if chosen > 0:
        words[NEXT, m] = words[WAITING, chosen]
        words[WAITING, chosen] = m

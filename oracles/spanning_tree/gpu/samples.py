"""Exact samples of spanning trees: words come back one after the other (see `structgrad.oracles.spanning_tree.elimination`).

One elimination serves all samples of an item. It leaves three tables ``[n + 1, n + 1]`` of logarithms, by position: the weights before it;
the chances of heads above the diagonal, with the weights of a word's own arcs below it; and the same with rows and columns exchanged, so
that whatever a choice reads is contiguous. Then a warp goes back through it for some samples at once, n steps; a choice among n numbers
is a running sum over lanes, and a step makes one for its word and one for each word that gets it as its head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .elimination import close, finite, is_open, load_weights, logarithm, out_of_range, pick, take_out

TOP = tl.constexpr(1 - 2**-53)
"""The greatest uniform below 1."""


def room(words: int) -> int:
    """Numbers in the workspace of an item."""
    return 3 * (words + 1) ** 2 + 1


@triton.jit(do_not_specialize=["words", "room"])
def prepare(rows, workspace, certain, words, room, single_root: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """Fill the tables of one item; after them comes the word that was eliminated last, which has position 1, or 0 without a tree."""
    item = tl.program_id(0).to(tl.int64)
    if is_open(certain, item, logs):
        held = _fill(rows + item * (words + 1) * (words + 1), workspace + item * room, words, single_root, block, logs)
        close(certain, item, held, logs)


@triton.jit
def _fill(row, tables, words, single_root: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """Eliminate all words; with a single root, one that no other word is left to head changes places with word 1."""
    zero: tl.constexpr = -float("inf") if logs else 0.0
    weights, root, _, certain = load_weights(row, words, single_root, block, logs)
    place = tl.arange(0, block)
    left = (place < words).to(tl.int32)
    pivots = tl.full((block,), 0.0 if logs else 1.0, tl.float64)
    last = tl.zeros((), tl.int32)
    feasible = tl.full((), 1, tl.int32)
    k = words - 1
    while k >= 0:
        word = k + tl.zeros((), tl.int32)
        rooted = tl.full((1,), 1, tl.int32)
        if single_root:
            heads = tl.where((left > 0) & (place != k), pick(weights, (place == k)[None, :], 1, logs), zero)
            stuck = (tl.max(heads, 0) == zero) & (last == 0) & (k > 0)
            last = tl.where(stuck, k, last)
            word = tl.where(stuck, 0, tl.where(k == 0, last, k))
            rooted = rooted * tl.where(k == 0, 1, 0)
        left = tl.where(place == word, 0, left)
        weights, root, after, pivot = take_out(weights, root, rooted, word, left > 0, logs)
        pivots = tl.where(place == word, pivot, pivots)
        feasible = tl.where((tl.max(pivot, 0) > zero) & (tl.max(after - rooted, 0) == 0), feasible, 0)
        k -= 1
    size = words + 1
    position = 1 + tl.where(place == 0, last, tl.where(place == last, 0, place))
    inside = place < words
    both = inside[:, None] & inside[None, :]
    own = position[:, None] * size + position[None, :]
    tl.store(tables + size * size + own, logarithm(weights, logs), mask=both)
    tl.store(tables + 2 * size * size + position[None, :] * size + position[:, None], logarithm(weights, logs), mask=both)
    tl.store(tables + size * size + position, logarithm(root, logs), mask=inside)
    tl.store(tables + 2 * size * size + position * size, logarithm(root, logs), mask=inside)
    if not logs:
        lost = tl.sum(tl.sum(out_of_range(weights), 1) + out_of_range(root) + out_of_range(pivots), 0)
        certain = tl.where(lost == 0, certain, 0)
    weights, root, _, _ = load_weights(row, words, single_root, block, True)
    tl.store(tables + own, weights, mask=both)
    tl.store(tables + position, root, mask=inside)
    tl.store(tables + 3 * size * size, tl.where(feasible > 0, last + 1, 0).to(tl.float64))
    return certain


@triton.jit(do_not_specialize=["words", "room", "samples"])
def draw(workspace, uniforms, structures, words, room, samples, single_root: tl.constexpr, group: tl.constexpr, block: tl.constexpr):
    """Trees of some samples [group] of one item."""
    groups = (samples + group - 1) // group
    item = (tl.program_id(0) // groups).to(tl.int64)
    tables = workspace + item * room
    sample = (tl.program_id(0) % groups) * group + tl.arange(0, group)
    there = (sample < samples)[:, None]
    number = item * samples + sample
    size = words + 1
    last = tl.load(tables + 3 * size * size).to(tl.int32)
    place = tl.arange(0, block)[None, :]
    inside = there & (place < size)
    rest = tl.load(uniforms + number[:, None] * words + place - 1, mask=inside & (place > 0), other=0.0)
    head = tl.zeros((group, block), tl.int32)
    over = tl.zeros((group, block), tl.int32)
    k = tl.full((), 1, tl.int32)
    while k < tl.where(last > 0, size, 0):
        children = (over == k) & (place < k)
        mine = tl.sum(tl.where(place == k, rest, 0.0), 1)
        lowest = tl.where((k > 1) & single_root, 1, 0)
        heads = tl.load(tables + 2 * size * size + k * size + place, mask=(place >= lowest) & (place < k), other=-float("inf"))
        own, left = _search(heads + tl.zeros((group, block), tl.float64), mine, place, block)
        some = tl.max(children.to(tl.int32), 1) > 0
        chosen = tl.where(some, _inherited(head, over, children, place, k, block), own)
        leads, left = _lead_over(tables, chosen, k + tl.zeros((group,), tl.int32), tl.where(some, mine, left), place, k, size, block)
        here = place == k
        head = tl.where(here, chosen[:, None], head)
        over = tl.where(here, leads[:, None], over)
        rest = tl.where(here, left[:, None], rest)
        waiting = children.to(tl.int32)
        while tl.max(tl.max(waiting, 1), 0) > 0:
            child = tl.min(tl.where(waiting > 0, place, block), 1)
            safe = tl.where(child < block, child, 1)
            mine = tl.sum(tl.where(place == child[:, None], rest, 0.0), 1)
            leads, left = _lead_over(tables, k + tl.zeros((group,), tl.int32), safe, mine, place, k, size, block)
            adopted = place == child[:, None]
            head = tl.where(adopted, k, head)
            over = tl.where(adopted, leads[:, None], over)
            rest = tl.where(adopted, left[:, None], rest)
            waiting = tl.where(adopted, 0, waiting)
        k += 1
    # Position 1 is that of the word that was eliminated last, which has left its own to word 1.
    word = tl.where(place == 1, last, tl.where(place == last, 1, place))
    h = tl.zeros((), tl.int32)
    while h < size:
        row = tl.where(h == 1, last, tl.where(h == last, 1, h))
        row = tl.where(last > 0, row, h)
        tree = (place > 0) & (head == h) & (last > 0)
        where = tl.where(last > 0, word, place)
        tl.store(structures + (number[:, None] * size + row) * size + where, tree.to(structures.dtype.element_ty), mask=inside)
        h += 1


@triton.jit
def _at(values, number, place):
    """The number at one place of each row."""
    return tl.sum(tl.where(place == number[:, None], values, 0), 1)


@triton.jit
def _search(logits, uniform, place, block: tl.constexpr):
    """Choices [g] among logits [g, c] by uniforms, never of probability 0; and what is left of the uniforms."""
    weights = tl.exp(logits - finite(tl.max(logits, 1))[:, None])
    ends = tl.cumsum(weights, 1)
    point = uniform * tl.sum(weights, 1)
    possible = weights > 0.0
    number = tl.min(tl.where(possible & (ends > point[:, None]), place, block), 1)
    # Where rounding leaves nothing, the last one takes it.
    number = tl.where(number < block, number, tl.max(tl.where(possible, place, 0), 1))
    weight = _at(weights, number, place)
    rest = (point - _at(ends - weights, number, place)) / tl.where(weight > 0.0, weight, 1.0)
    return number, tl.minimum(tl.maximum(rest, 0.0), TOP)


@triton.jit
def _inherited(head, over, children, place, k, block: tl.constexpr):
    """The head of the last word that leads over k, on the way to the root from the lowest one that does."""
    last = tl.min(tl.where(children, place, block), 1)
    position = _at(head, last, place)
    while tl.max(position, 0) > 0:
        last = tl.where((position > 0) & (_at(over, position, place) == k), position, last)
        position = tl.where(position > 0, _at(head, position, place), 0)
    return _at(head, last, place)


@triton.jit
def _lead_over(tables, h, m, uniform, place, k, size, block: tl.constexpr):
    """Over which word after k the arc from h to m leads, 0 for none; and what is left of its uniform."""
    later = (place > k) & (place < size)
    chance = tl.load(tables + size * size + h[:, None] * size + place, mask=later, other=-float("inf"))
    child = tl.load(tables + 2 * size * size + m[:, None] * size + place, mask=later, other=-float("inf"))
    direct = tl.load(tables + h * size + m)
    return _search(tl.where(place == 0, direct[:, None], chance + child), uniform, place, block)

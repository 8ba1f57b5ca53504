"""Marginals of spanning trees: chances of escape before every word, in O(n³), as in `structgrad.oracles.spanning_tree.marginals`.

The words of a block are halved again and again: in one half of them the others are eliminated, and in a copy, whose words are in reversed
order, the other way round; so that each word is alone once. All blocks of a level go in lockstep, n steps altogether; the chances come back
from the halves, those of the words that were taken out from those of their heads, in n steps again.

Tables lie in a workspace that one program reads again and again, out of its multiprocessor's cache: level 0 holds the whole item, level
l ≥ 1 the 2^l halves that the blocks of the level before were made into. A block of w words has a column of w + 1 numbers for each of them,
the weights of its heads, the root first; then whether the root's arcs count, and the word that took its place, or −1. On the way back, the
chances of escape before the words that a half kept take the place of their weights. A step works on ``lines`` columns at once, whatever
block they are from, so that one piece of code serves all levels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .elimination import SMALLEST, finite, lead, logarithm, out_of_range, plus, times, to_chances, total_of

EXTRA = tl.constexpr(2)
"""Numbers of a block beside its columns."""


def halvings(words: int) -> int:
    """How often words are halved until each is alone."""
    return (words - 1).bit_length()


def room(words: int) -> int:
    """Numbers in the workspace of an item; twice as many where derivatives go along."""
    widths = [words, *(-(-words >> level) for level in range(halvings(words)))]
    return sum(2**level * (width * (width + 1) + 2) for level, width in enumerate(widths))


@triton.jit
def words_at(words, level):
    """Words of a block after so many halvings."""
    return (words + (1 << level) - 1) >> level


@triton.jit
def record(width):
    """How many numbers the block of so many words takes."""
    return (width + 1) * width + EXTRA


@triton.jit
def begin(row, tables, words, single_root: tl.constexpr, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """Make the weights of a row of scores the block of level 0, column by column; see `elimination.load_weights` for what it gives."""
    place = tl.arange(0, block)[None, :]
    shift = tl.zeros((lines,), tl.float64)
    best = tl.full((lines,), -float("inf"), tl.float64)
    lost = tl.zeros((lines, block), tl.int32)
    done = words * 0
    while done < words:
        m = done + tl.arange(0, lines)
        there = m < words
        inside = there[:, None] & (place < words)
        arcs = inside & (m[:, None] != place)
        weights = tl.load(row + (place + 1) * (words + 1) + m[:, None] + 1, mask=arcs, other=-float("inf")).to(tl.float64)
        root = tl.load(row + m + 1, mask=there, other=-float("inf")).to(tl.float64)
        top = tl.max(weights, 1)
        top = finite(top if single_root else tl.maximum(top, root))
        weights -= top[:, None]
        root -= top
        shift += top
        best = tl.maximum(best, root)
        if not logs:
            allowed = weights > -float("inf")
            weights = tl.exp(weights)
            lost = lost | (allowed & (weights < SMALLEST)).to(tl.int32)
        column = tables + m * (words + 1)
        tl.store(column[:, None] + 1 + place, weights, mask=inside)
        tl.store(column, root, mask=there)
        done += lines
    tl.store(tables + (words + 1) * words, tl.full((), 0.0 if single_root else 1.0, tl.float64))
    tl.debug_barrier()
    best = finite(tl.max(best, 0)) if single_root else tl.zeros((), tl.float64)
    m = tl.arange(0, block)
    root = tl.load(tables + m * (words + 1), mask=m < words, other=-float("inf")) - best
    certain = tl.full((), 1, tl.int32)
    if not logs:
        allowed = root > -float("inf")
        root = tl.exp(root)
        few = tl.max(tl.max(lost, 1), 0) + tl.max((allowed & (root < SMALLEST)).to(tl.int32), 0)
        certain = tl.where(few == 0, certain, 0)
    tl.debug_barrier()
    tl.store(tables + m * (words + 1), root, mask=m < words)
    tl.debug_barrier()
    return tl.sum(shift, 0) + best, certain


@triton.jit
def begin_rates(direction, tables, rates, words, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr):
    """Make a direction the rates of the block of level 0: those of the logarithms of weights, or of the weights themselves."""
    zero: tl.constexpr = -float("inf") if logs else 0.0
    place = tl.arange(0, block)[None, :]
    done = words * 0
    while done < words:
        m = done + tl.arange(0, lines)
        there = m < words
        column = m * (words + 1)
        heads = column[:, None] + 1 + place
        inside = there[:, None] & (place < words)
        weights = tl.load(tables + heads, mask=inside, other=zero)
        root = tl.load(tables + column, mask=there, other=zero)
        along = tl.load(direction + (place + 1) * (words + 1) + m[:, None] + 1, mask=weights > zero, other=0.0).to(tl.float64)
        root_along = tl.load(direction + m + 1, mask=root > zero, other=0.0).to(tl.float64)
        if not logs:
            along *= weights
            root_along *= root
        tl.store(rates + heads, along, mask=inside)
        tl.store(rates + column, root_along, mask=there)
        done += lines
    tl.store(rates + (words + 1) * words, tl.zeros((), tl.float64))


@triton.jit
def _copy(target, source, count, width, parent, lines: tl.constexpr, block: tl.constexpr):
    """Copy what blocks kept into their halves of ``width`` words: as it is, and in reversed order."""
    place = tl.arange(0, block)[None, :]
    done = count * 0
    while done < count * width:
        line = done + tl.arange(0, lines)
        number = line // width
        m = line - number * width
        there = number < count
        second = (number & 1) == 1
        block_at = source + (number >> 1) * record(parent)
        column = block_at + tl.where(second, width - 1 - m, m) * (parent + 1)
        inside = there[:, None] & (place < width)
        turned = tl.where(second[:, None], width - 1 - place, place)
        half = target + number * record(width)
        own = half + m * (width + 1)
        tl.store(own[:, None] + 1 + place, tl.load(column[:, None] + 1 + turned, mask=inside, other=0.0), mask=inside)
        tl.store(own, tl.load(column, mask=there, other=0.0), mask=there)
        rooted = tl.load(block_at + (parent + 1) * parent, mask=there, other=0.0)
        extra = half + (width + 1) * width
        tl.store(extra, rooted, mask=there & (m == 0))
        tl.store(extra + 1, tl.full((lines,), -1.0, tl.float64), mask=there & (m == 0))
        done += lines
    tl.debug_barrier()


@triton.jit
def _divide(tables, rates, count, width, k, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Turn the columns of word k into chances; gives the logarithm of the pivot in the first block, and which numbers are lost."""
    place = tl.arange(0, block)[None, :]
    zero: tl.constexpr = -float("inf") if logs else 0.0
    lost = tl.zeros((lines, block), tl.int32)
    product = tl.zeros((lines,), tl.float64)
    done = count * 0
    while done < count:
        number = done + tl.arange(0, lines)
        there = number < count
        column = number * record(width) + k * (width + 1)
        extra = tables + number * record(width) + (width + 1) * width
        heads = column[:, None] + 1 + place
        inside = there[:, None] & (place < k)
        weights = tl.load(tables + heads, mask=inside, other=zero)
        root = tl.load(tables + column, mask=there, other=zero)
        if along:
            slopes = tl.load(rates + heads, mask=inside, other=0.0)
            root_slopes = tl.load(rates + column, mask=there, other=0.0)
        else:
            slopes, root_slopes = weights, root
        rooted = tl.load(extra, mask=there, other=1.0)
        chance, root_chance, slopes, root_slopes, end, pivot = to_chances(weights, root, slopes, root_slopes, rooted, logs, along)
        # Every warp has read before one writes.
        tl.debug_barrier()
        tl.store(tables + heads, chance, mask=inside)
        tl.store(tables + column, root_chance, mask=there)
        if along:
            tl.store(rates + heads, slopes, mask=inside)
            tl.store(rates + column, root_slopes, mask=there)
        tl.store(extra, tl.full((lines,), 1.0, tl.float64), mask=there & end)
        tl.store(extra + 1, tl.zeros((lines,), tl.float64) + k, mask=there & end)
        product += tl.where(number == 0, logarithm(pivot, logs), 0.0)
        if not logs:
            lost = lost | out_of_range(chance) | (out_of_range(root_chance) | out_of_range(pivot))[:, None]
        done += lines
    tl.debug_barrier()
    return tl.sum(product, 0), lost


@triton.jit
def _lead(tables, rates, count, width, k, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Let all arcs between the words below k lead over word k too; gives which numbers are lost."""
    place = tl.arange(0, block)[None, :]
    zero: tl.constexpr = -float("inf") if logs else 0.0
    lost = tl.zeros((lines,), tl.int32)
    done = count * 0
    while done < count * k:
        line = done + tl.arange(0, lines)
        number = line // k
        m = line - number * k
        there = number < count
        own = number * record(width) + m * (width + 1)
        column = number * record(width) + k * (width + 1)
        inside = there[:, None] & (place < k)
        mine = own[:, None] + 1 + place
        theirs = column[:, None] + 1 + place
        row = tl.load(tables + own + 1 + k, mask=there, other=zero)
        weights = tl.load(tables + mine, mask=inside, other=zero)
        chance = tl.load(tables + theirs, mask=inside, other=zero)
        root = tl.load(tables + own, mask=there, other=zero)
        root_chance = tl.load(tables + column, mask=there, other=zero)
        end = tl.load(tables + number * record(width) + (width + 1) * width + 1, mask=there, other=-1.0) == k
        if along:
            row_slope = tl.load(rates + own + 1 + k, mask=there, other=0.0)
            slopes = tl.load(rates + mine, mask=inside, other=0.0)
            chance_slopes = tl.load(rates + theirs, mask=inside, other=0.0)
            root_slope = tl.load(rates + own, mask=there, other=0.0)
            root_chance_slope = tl.load(rates + column, mask=there, other=0.0)
        else:
            row_slope, slopes, chance_slopes, root_slope, root_chance_slope = row, weights, chance, root, root_chance
        weights, slopes = lead(weights, chance, row[:, None], slopes, chance_slopes, row_slope[:, None], logs, along)
        root, root_slope = lead(root, root_chance, row, root_slope, root_chance_slope, row_slope, logs, along)
        tl.store(tables + mine, weights, mask=inside)
        tl.store(tables + own, tl.where(end, row, root), mask=there)
        if along:
            tl.store(rates + mine, slopes, mask=inside)
            tl.store(rates + own, tl.where(end, row_slope, root_slope), mask=there)
        if not logs:
            lost = lost | out_of_range(row)
        done += lines
    tl.debug_barrier()
    return lost


@triton.jit
def _combine(tables, below, count, width, kept, fewer, zero: tl.constexpr, lines: tl.constexpr, block: tl.constexpr):
    """Copy the chances before ``kept`` words from those in halves, which kept ``fewer`` of them; the halves share a word where odd."""
    done = count * 0
    while done < count * kept:
        line = done + tl.arange(0, lines)
        number = line // kept
        target = line - number * kept
        there = number < count
        escapes, from_root = halved(below, number, target, there, kept, fewer, zero, block)
        own = tables + number * record(width) + target * (width + 1)
        place = tl.arange(0, block)[None, :]
        tl.store(own[:, None] + 1 + place, escapes, mask=there[:, None] & (place < kept))
        tl.store(own, from_root, mask=there)
        done += lines
    tl.debug_barrier()


@triton.jit
def halved(below, number, target, there, width, kept, zero: tl.constexpr, block: tl.constexpr):
    """Chances of escape [lines, block] and from the root [lines] before words of blocks, out of the halves that hold these."""
    second = target >= kept
    column = below + (2 * number + second.to(tl.int32)) * record(width) + tl.where(second, width - 1 - target, target) * (width + 1)
    place = tl.arange(0, block)[None, :]
    turned = tl.where(second[:, None], width - 1 - place, place)
    escapes = tl.load(column[:, None] + 1 + turned, mask=there[:, None] & (place < width), other=zero)
    return escapes, tl.load(column, mask=there, other=zero)


@triton.jit
def _begin(tables, count, width, zero: tl.constexpr, one: tl.constexpr, lines: tl.constexpr):
    """Where one word alone is left: the way to the root is free, and none leads from the word itself."""
    done = count * 0
    while done < count:
        number = done + tl.arange(0, lines)
        own = tables + number * record(width)
        tl.store(own, tl.full((lines,), one, tl.float64), mask=number < count)
        tl.store(own + 1, tl.full((lines,), zero, tl.float64), mask=number < count)
        done += lines
    tl.debug_barrier()


@triton.jit
def _return(tables, rates, count, width, kept, k, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Chances of escape from word k, from those of its heads."""
    place = tl.arange(0, block)[None, :]
    zero: tl.constexpr = -float("inf") if logs else 0.0
    one: tl.constexpr = 0.0 if logs else 1.0
    done = count * 0
    while done < count * kept:
        line = done + tl.arange(0, lines)
        number = line // kept
        there = number < count
        own = number * record(width) + (line - number * kept) * (width + 1)
        column = number * record(width) + k * (width + 1)
        inside = there[:, None] & (place < k)
        mine = own[:, None] + 1 + place
        theirs = column[:, None] + 1 + place
        led = times(tl.load(tables + theirs, mask=inside, other=zero), tl.load(tables + mine, mask=inside, other=zero), logs)
        from_root = tl.load(tables + own, mask=there, other=zero)
        root_led = times(tl.load(tables + column, mask=there, other=zero), from_root, logs)
        onward = plus(total_of(led, 1, logs), root_led, logs)
        end = tl.load(tables + number * record(width) + (width + 1) * width + 1, mask=there, other=-1.0) == k
        if along:
            slopes = tl.load(rates + mine, mask=inside, other=0.0)
            chance_slopes = tl.load(rates + theirs, mask=inside, other=0.0)
            root_slope = tl.load(rates + column, mask=there, other=0.0)
            if logs:
                safe = finite(onward)
                slope = tl.sum(tl.exp(led - safe[:, None]) * (slopes + chance_slopes), 1) + tl.exp(root_led - safe) * root_slope
            else:
                chance = tl.load(tables + theirs, mask=inside, other=0.0)
                slope = tl.sum(chance * slopes + chance_slopes * tl.load(tables + mine, mask=inside, other=0.0), 1) + root_slope * from_root
            tl.store(rates + own + 1 + k, tl.where(end, 0.0, slope), mask=there)
        tl.store(tables + own + 1 + k, tl.where(end, one, onward), mask=there)
        tl.store(tables + own, tl.where(end, zero, from_root), mask=there)
        done += lines
    tl.debug_barrier()


@triton.jit
def escape(tables, rates, words, halvings, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Fill the first two levels with chances of escape; gives the logarithm of the weight of all trees, and whether no weight was lost.

    For one word alone there is nothing to do, and that logarithm is the arc's own.
    """
    tl.debug_barrier()
    total, lost, start = _descend(tables, rates, words, halvings, lines, block, logs, along)
    last = tl.load(tables + start)
    certain = tl.full((), 1, tl.int32)
    if not logs:
        certain = tl.where((tl.max(tl.max(lost, 1), 0) == 0) & (out_of_range(last) == 0), certain, 0)
    tl.debug_barrier()
    _ascend(tables, rates, words, halvings, start, lines, block, logs, along)
    return total + logarithm(last, logs), certain


@triton.jit
def _descend(tables, rates, words, halvings, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Halve until every word is alone; gives the logarithm of the first block's pivots, which numbers are lost, and where it ended."""
    lost = tl.zeros((lines, block), tl.int32)
    total = tl.zeros((), tl.float64)
    level = words * 0
    start = words * 0
    parent = words
    while level < halvings:
        width = words_at(words, level)
        following = start + (1 << level) * record(parent)
        level += 1
        count = 1 << level
        _copy(tables + following, tables + start, count, width, parent, lines, block)
        if along:
            _copy(rates + following, rates + start, count, width, parent, lines, block)
        k = width - 1
        while k >= words_at(words, level):
            product, bad = _divide(tables + following, rates + following, count, width, k, lines, block, logs, along)
            also_bad = _lead(tables + following, rates + following, count, width, k, lines, block, logs, along)
            lost = lost | bad | also_bad[:, None]
            total += product
            k -= 1
        start = following
        parent = width
    return total, lost, start


@triton.jit
def _ascend(tables, rates, words, halvings, start, lines: tl.constexpr, block: tl.constexpr, logs: tl.constexpr, along: tl.constexpr):
    """Bring the chances of escape back from the last level, which begins at ``start``, to the first halves."""
    zero: tl.constexpr = -float("inf") if logs else 0.0
    one: tl.constexpr = 0.0 if logs else 1.0
    level = halvings
    below = start
    while level > 0:
        count = 1 << level
        width = words_at(words, level - 1)
        kept = words_at(words, level)
        if kept == 1:
            _begin(tables + start, count, width, zero, one, lines)
            if along:
                _begin(rates + start, count, width, 0.0, 0.0, lines)
        else:
            fewer = words_at(words, level + 1)
            _combine(tables + start, tables + below, count, width, kept, fewer, zero, lines, block)
            if along:
                _combine(rates + start, rates + below, count, width, kept, fewer, 0.0, lines, block)
        k = kept
        while k < width:
            _return(tables + start, rates + start, count, width, kept, k, lines, block, logs, along)
            k += 1
        below = start
        level -= 1
        start -= (1 << level) * record(words_at(words, tl.maximum(level - 1, 0)))

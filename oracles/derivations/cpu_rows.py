"""Items and segments, as the compiled passes over derivations read and write them: see `cpu`."""

import math
from typing import NamedTuple

from numba import uint64

from ..kernels.compilation import inlined, uncounted
from ..kernels.parts import ascend, mark, number
from ..kernels.vectors import WIDTH, add, collect, load, multiply, multiply_add, spread, store
from .packing import ANYTHING, CHAIN, EACH, JOINS, PATH, TREE


class Segment(NamedTuple):
    """A segment, as passes read it; see `Packed`."""

    start: int
    height: int
    begin: int
    end: int
    joins: bool
    each: bool
    first_moves: bool
    second_moves: bool
    part_moves: bool
    lanes: int


@inlined
def size_of(numbers) -> int:
    """The number of rows."""
    return numbers.doubles.shape[0] + numbers.singles.shape[0]


@inlined
def vectors_of(packed, lanes) -> int:
    """The number of vectors of scores of the items side by side."""
    return len(packed.used) if lanes > 1 else len(packed.straight)


@inlined
def gather(packed, lanes, rows, start, count, begin, end, scores):
    """Some vectors of the scores of so many rows."""
    if lanes == 1:
        for vector in range(begin, end):
            store(scores, vector * WIDTH, _vector_of(packed, rows, start, vector, scores))
    elif rows.singles.shape[0] > 0:
        _lay(packed, rows.singles, start, count, begin, end, scores)
    else:
        _lay(packed, rows.doubles, start, count, begin, end, scores)


@inlined
def _vector_of(packed, rows, start, vector, scores):
    """The scores of some parts of one item. The last ones are completed by 0, in their place."""
    if rows.singles.shape[0] > 0:
        return _vector_in(packed, rows.singles, start, vector, scores)
    return _vector_in(packed, rows.doubles, start, vector, scores)


@inlined
def _vector_in(packed, rows, start, vector, scores):
    used, at, row = packed.used, vector * WIDTH, start * rows.shape[1]
    if packed.straight[vector]:
        return load(rows, row + used[at])
    if at + WIDTH <= len(used):
        return collect(rows, row, used, at)
    for place in range(at, at + WIDTH):
        scores[place] = rows[start, used[place]] if place < len(used) else 0.0
    return load(scores, at)


@uncounted
def _lay(packed, rows, start, count, begin, end, scores):
    """Items side by side, the last one again in place of missing ones."""
    used, last = packed.used, start + count - 1
    for part in range(begin, end):
        for lane in range(WIDTH):
            scores[part * WIDTH + lane] = rows[min(start + lane, last), used[part]]


@inlined
def scatter(packed, lanes, numbers, log_partition, start, count, rows):
    """Write all numbers of parts of feasible items."""
    if lanes == 1 and log_partition[start] > -math.inf:
        hand_out(packed, numbers, start, 0, len(packed.straight), rows)
    elif lanes > 1 and rows.singles.shape[0] > 0:
        _lay_back(packed, numbers, log_partition, start, count, rows.singles)
    elif lanes > 1:
        _lay_back(packed, numbers, log_partition, start, count, rows.doubles)


@inlined
def hand_out(packed, numbers, start, begin, end, rows):
    """Write some vectors of one item, and leave 0 behind."""
    if rows.singles.shape[0] > 0:
        _hand_to(packed, numbers, start, begin, end, rows.singles)
    else:
        _hand_to(packed, numbers, start, begin, end, rows.doubles)


@inlined
def _hand_to(packed, numbers, start, begin, end, rows):
    used = packed.used
    for vector in range(begin, end):
        at = vector * WIDTH
        if packed.straight[vector]:
            store(rows, start * rows.shape[1] + used[at], load(numbers, at))
        else:
            for place in range(uint64(at), uint64(min(at + WIDTH, len(used)))):
                rows[start, uint64(used[place])] = numbers[place]
        store(numbers, at, spread(0.0))


@uncounted
def _lay_back(packed, numbers, log_partition, start, count, rows):
    """Write the numbers of items side by side, and leave 0 behind."""
    used = packed.used
    for lane in range(count):
        if log_partition[start + lane] > -math.inf:
            for part in range(len(used)):
                rows[start + lane, used[part]] = numbers[part * WIDTH + lane]
    numbers[:] = 0.0


@inlined
def write(parts, found, structures, numbers, row, draw):
    """Write the structure of so many parts: dense, or where there is room for them as 1 + the numbers of its parts, ascending."""
    if numbers.shape[0] > 0:
        ascend(parts, found)
        number(parts, found, numbers[row, draw])
    elif structures.singles.shape[0] > 0:
        mark(parts, found, structures.singles[row, draw])
    else:
        mark(parts, found, structures.doubles[row, draw])


@inlined
def segment_of(packed, lanes, x):
    """The numbers of a segment, as loops over it use them."""
    segments = packed.segments
    # Unsigned, because a negative number would count from the end, which would be asked for at every edge.
    begin, flags = uint64(segments[x, 3]), segments[x, 4]
    moves = segments[x, 5] > 0, segments[x, 6] > 0, segments[x, 7] > 0
    start, height, joins, each = segments[x, 0] * lanes, segments[x, 1] * lanes, flags & JOINS > 0, flags & EACH > 0
    return Segment(start, height, begin, begin + uint64(segments[x, 2]), joins, each, *moves, lanes)


@inlined
def kind_of(packed, lanes, x):
    """The kind of a segment: passes have a branch for each. Those of chains take several vectors of one item at a time."""
    kind = packed.segments[x, 9]
    return ANYTHING if kind == CHAIN and lanes > 1 else kind


@inlined
def known(segment, kind):
    """A segment whose nodes move, of which the compiler is to know the kind."""
    joins, part_moves = kind != PATH, kind == TREE or segment.part_moves
    return Segment(segment.start, segment.height, segment.begin, segment.end, joins, kind == TREE, True, joins, part_moves, segment.lanes)


@inlined
def is_in_place(packed, lanes, x):
    """Whether the parts of a segment are read and written where they stand in the event."""
    return lanes == 1 and packed.segments[x, 10] > 0


@inlined
def operand(numbers, at, moves, lanes, i):
    """Numbers that nodes i and following of a segment lead to: of nodes or parts that follow each other, or of one."""
    if moves:
        return load(numbers, at + i)
    return load(numbers, at) if lanes > 1 else spread(numbers[uint64(at)])


@inlined
def add_product(nodes, parts, columns, k, segment, i, to):
    """The terms that the k-th edges add to their nodes, without the part that all edges of a node take, added to something."""
    value = operand(nodes, columns[k, 0] * segment.lanes, segment.first_moves, segment.lanes, i)
    if not segment.joins and not segment.each:
        return add(value, to)
    if segment.joins and segment.each:
        value = multiply(value, operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i))
    if segment.each:
        return multiply_add(value, operand(parts, columns[k, 2] * segment.lanes, segment.part_moves, segment.lanes, i), to)
    return multiply_add(value, operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i), to)


@inlined
def joint_sum(nodes, parts, columns, k, segment, i):
    """What `add_product` multiplies, of logarithms and exponents: a sum."""
    value = operand(nodes, columns[k, 0] * segment.lanes, segment.first_moves, segment.lanes, i)
    if segment.joins:
        value = add(value, operand(nodes, columns[k, 1] * segment.lanes, segment.second_moves, segment.lanes, i))
    if segment.each:
        value = add(value, operand(parts, columns[k, 2] * segment.lanes, segment.part_moves, segment.lanes, i))
    return value


@inlined
def own(parts, columns, segment, i):
    """Numbers of what all edges of a node take."""
    return operand(parts, columns[segment.begin, 2] * segment.lanes, segment.part_moves, segment.lanes, i)

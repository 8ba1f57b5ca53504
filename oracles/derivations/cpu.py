"""Every operation on derivations, in passes over segments (see `packing`): eight nodes of one item, or one node of eight, at a time.

Inside weights are sums of products of float64 numbers wherever they and the weights of parts keep within limits that no product of three
can leave; scores are shifted for that, by about the log-partition per part, where all structures have the same number of parts. An item
that does not keep within is not certified, and gets its weights as mantissas with exponents of their own (`split`), which scores up
to `LARGEST` cannot leave. What an edge adds to its node, by the weight of that, is the probability of the edge given the node, and
everything else follows from those by products and sums, of numbers up to 1.

Where nodes of one item lie side by side, the last vector of a segment goes beyond it: bottom up, that is written over by the next segment;
top down, it counts nothing. An item's numbers do not depend on its neighbours.
"""

import math
from typing import NamedTuple

import numpy as np

from ..kernels.compilation import compiled, inner
from ..kernels.vectors import WIDTH
from .cpu_inside import inside
from .cpu_outside import move_inside, outside_pass, outside_rates
from .cpu_rows import gather, is_in_place, scatter, size_of, vectors_of, write
from .cpu_walks import descend
from .packing import PLACES, STEPS, WAITING, Array, Numbers, Packed

# Python passes arrays one by one: numba takes longer to unpack a named tuple of two than eight arrays. `tables` are those of `Packed`, and
# "doubles" and "singles" those of `Numbers`.


class DerivationWorkspace(NamedTuple):
    """Numbers of nodes and parts of the items that are side by side."""

    weights: Array  # of parts
    part_exponents: Array
    nodes: Array  # weights
    exponents: Array  # of nodes
    outside: Array  # probabilities of nodes
    taken: Array  # of parts
    along: Array  # directions of parts
    rates: Array  # tangents of log-weights of nodes
    outside_rates: Array
    taken_rates: Array
    buffers: Array  # [5, tallest segment]
    limits: Array
    mask: Array  # 1 for so many numbers, 0 behind, for every number up to `WIDTH`


@compiled
def evaluate(lanes: int, wide: bool, doubles, singles, along_doubles, along_singles, out_doubles, out_singles, totals, certified, *tables):
    """Log-partitions [b] of rows [b, d]; where there is room, their marginals [b, d], or covariances times directions, if given."""
    packed, rows, directions = Packed(*tables), Numbers(doubles, singles), Numbers(along_doubles, along_singles)
    results, twice = Numbers(out_doubles, out_singles), size_of(directions) > 0
    deep = size_of(results) > 0 and not twice
    space = _workspace(packed, lanes, wide, deep, twice)
    vectors = vectors_of(packed, lanes)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        if not inside(packed, lanes, space, rows, wide, start, count, totals, certified):
            continue
        if twice:
            gather(packed, lanes, directions, start, count, 0, vectors, space.along)
            move_inside(packed, lanes, space, wide)
            outside_rates(packed, lanes, space, wide)
            scatter(packed, lanes, space.taken_rates, totals, start, count, results)
        elif deep and lanes > 1:
            outside_pass(packed, lanes, space, wide, start, results)
            scatter(packed, lanes, space.taken, totals, start, count, results)
        elif deep and totals[start] > -math.inf:
            outside_pass(packed, lanes, space, wide, start, results)


@compiled
def sample(lanes: int, wide: bool, doubles, singles, uniforms, out_doubles, out_singles, numbers, certified, *tables):
    """Structures [b, s, d] of rows [b, d] by uniforms [b, s, steps], one for each node of a derivation, in preorder.

    Where there is room for them, numbers of parts [b, s, p] take the place of structures: see `write`.
    """
    packed, rows, structures = Packed(*tables), Numbers(doubles, singles), Numbers(out_doubles, out_singles)
    parts = np.empty(packed.sizes[STEPS] + 1, np.int64)
    space = _workspace(packed, lanes, wide, False, False)
    log_partition, waiting = np.empty(size_of(rows)), np.empty(packed.sizes[WAITING] + 2, np.int64)
    for start in range(0, size_of(rows), lanes):
        count = min(lanes, size_of(rows) - start)
        inside(packed, lanes, space, rows, wide, start, count, log_partition, certified)
        for lane in range(count):
            if certified[start + lane] and log_partition[start + lane] > -math.inf:
                for draw in range(uniforms.shape[1]):
                    found = descend(packed, lanes, space, wide, lane, uniforms[start + lane, draw], waiting, parts)
                    write(parts, found, structures, numbers, start + lane, draw)


@inner
def _workspace(packed, lanes: int, wide: bool, deep: bool, twice: bool):
    tallest, none = 0, np.zeros(0)
    for x in range(len(packed.segments)):
        tallest = max(tallest, packed.segments[x, 1] * lanes)
    nodes, parts = len(packed.node_parts) * lanes + WIDTH, packed.sizes[PLACES] * lanes + WIDTH
    mask = np.zeros((WIDTH + 1) * WIDTH)
    for size in range(1, WIDTH + 1):
        mask[size * WIDTH : size * WIDTH + size] = 1.0
    # Pages that are never written to cost nothing, which is most of what there is in large chains.
    weights, taken, begin = np.empty(parts), np.empty(parts) if deep else none, 0
    weights[len(packed.straight) * WIDTH * lanes :] = 1.0
    for x in range(len(packed.segments) if deep else 0):
        end = packed.segments[x, 8] * WIDTH * lanes if x < len(packed.segments) - 1 else parts
        if wide or not is_in_place(packed, lanes, x):
            taken[begin:end] = 0.0
        begin = end
    return DerivationWorkspace(
        weights,
        np.zeros(parts) if wide else none,
        np.ones(nodes),
        np.zeros(nodes) if wide else none,
        np.zeros(nodes) if deep or twice else none,
        taken,
        np.zeros(parts) if twice else none,
        np.zeros(nodes) if twice else none,
        np.zeros(nodes) if twice else none,
        np.zeros(parts) if twice else none,
        np.zeros((5, tallest + WIDTH)),
        np.zeros(5 * WIDTH),
        mask,
    )

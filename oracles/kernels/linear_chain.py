"""Kernels of the linear chain: rows [b, n, t, t], of which ``[0, 1:]`` is never read.

The exponential domain: the weights of a step are scaled by their maximum, and so are prefixes and suffixes, so that a chain of any length
fits. A row is certified where every tag that can be reached keeps a weight above `LIMIT`: what underflows is then too small to matter,
and a 0 is a tag that cannot be reached. Weights are computed again on the way back: that costs less than keeping them.
"""

from __future__ import annotations

import numpy as np

from . import active_set
from .compilation import compiled, ordered, reordered
from .exponential import LANES, RANGE, extent, weigh

LIMIT = 1e-290


def operations(event: tuple[int, ...]) -> int:
    """Steps of the inner loops per row."""
    return 2 * event[0] * event[1] * event[2]


@compiled
def _workspace(rows):
    """One step's weights [t, t], float32 exponentials, lanes, and the extent of every step [n, 2]."""
    length, tags = rows.shape[1], rows.shape[2]
    return np.empty((tags, tags)), np.empty(tags * tags, np.float32), np.empty((2, LANES), rows.dtype), np.empty((length, 2))


@reordered
def _advance(before, weights, after):
    """``after[c] = Σ_p before[p] weights[p, c]``, scaled by its maximum; gives that, and whether no reachable tag was lost."""
    tags = before.size
    after[:] = 0.0
    for p in range(tags):
        prefix = before[p]
        if prefix > 0.0:
            for c in range(tags):
                after[c] += prefix * weights[p, c]
    greatest = after.max()
    kept = True
    for c in range(tags):
        after[c] *= 1.0 / greatest if greatest > 0.0 else 1.0
        if after[c] < LIMIT:
            for p in range(tags):
                kept = kept and not (before[p] > 0.0 and weights[p, c] > 0.0)
    return greatest, kept


@reordered
def _retreat(weights, after, before):
    """``before[p] = Σ_c weights[p, c] after[c]``, scaled as in `_advance`."""
    tags = after.size
    for p in range(tags):
        total = 0.0
        for c in range(tags):
            total += weights[p, c] * after[c]
        before[p] = total
    greatest = before.max()
    kept = True
    for p in range(tags):
        before[p] *= 1.0 / greatest if greatest > 0.0 else 1.0
        if before[p] < LIMIT:
            for c in range(tags):
                kept = kept and not (after[c] > 0.0 and weights[p, c] > 0.0)
    return greatest, kept


@compiled
def _forward(row, prefixes, workspace):
    """Scaled prefixes of a row; gives the log-partition and whether it is certified.

    Prefixes [m, t] are used in rotation: with m = n all are kept, with m = 2 the last two.
    """
    weights, buffer, lanes, extents = workspace
    length, tags = row.shape[0], row.shape[1]
    rotation = prefixes.shape[0]
    total, bottom = extent(row[0, 0], lanes)
    weigh(row[0, 0], total, bottom, buffer, prefixes[0])
    certified = total - bottom < RANGE
    for i in range(1, length):
        step = row[i].reshape(tags * tags)
        top, bottom = extent(step, lanes)
        extents[i, 0], extents[i, 1] = top, bottom
        weigh(step, top, bottom, buffer, weights.reshape(tags * tags))
        greatest, kept = _advance(prefixes[(i - 1) % rotation], weights, prefixes[i % rotation])
        certified = certified and top - bottom < RANGE and kept
        if top == -np.inf or greatest == 0.0:
            return -np.inf, certified
        total += top + np.log(greatest)
    return total + np.log(prefixes[(length - 1) % rotation].sum()), certified


@compiled
def _weigh_again(row, i, workspace):
    weights, buffer, _, extents = workspace
    weigh(row[i].reshape(weights.size), extents[i, 0], extents[i, 1], buffer, weights.reshape(weights.size))


@compiled
def log_partition(rows, log_partition, certified):
    """The log-partition [b] of rows."""
    prefixes, workspace = np.empty((2, rows.shape[2])), _workspace(rows)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b], prefixes, workspace)


@compiled
def marginals(rows, marginals, log_partition, certified):
    """Marginals [b, n, t, t] of rows, and their log-partition [b]."""
    length, tags = rows.shape[1], rows.shape[2]
    prefixes, suffixes, workspace = np.empty((length, tags)), np.empty((2, tags)), _workspace(rows)
    for b in range(rows.shape[0]):
        log_partition[b], certified[b] = _forward(rows[b], prefixes, workspace)
        if log_partition[b] > -np.inf and certified[b]:
            certified[b] = _backward(rows[b], prefixes, suffixes, workspace, marginals[b])


@reordered
def _backward(row, prefixes, suffixes, workspace, marginals):
    """Marginals of a row from its prefixes, with suffixes [2, t] as working memory; gives whether they are certified."""
    length, tags = prefixes.shape
    weights = workspace[0]
    suffixes[(length - 1) % 2] = 1.0
    certified = True
    for i in range(length - 1, 0, -1):
        _weigh_again(row, i, workspace)
        here, before = suffixes[i % 2], suffixes[(i - 1) % 2]
        greatest, kept = _retreat(weights, here, before)
        partition = greatest * (prefixes[i - 1] * before).sum()
        certified = certified and kept and partition > LIMIT
        for p in range(tags):
            prefix = prefixes[i - 1, p] / partition
            if prefix > 0.0:
                for c in range(tags):
                    marginals[i, p, c] = prefix * weights[p, c] * here[c]
    partition = (prefixes[0] * suffixes[0]).sum()
    for c in range(tags):
        marginals[0, 0, c] = prefixes[0, c] * suffixes[0, c] / partition
    return certified and partition > LIMIT


@compiled
def covariance_product(rows, direction, product, certified):
    """Cov(z) · direction [b, n, t, t]: the tangent of forward and backward along the direction."""
    length, tags = rows.shape[1], rows.shape[2]
    prefixes, prefix_tangents, workspace = np.empty((length, tags)), np.empty((length, tags)), _workspace(rows)
    suffixes, suffix_tangents = np.empty((2, tags)), np.empty((2, tags))
    for b in range(rows.shape[0]):
        total, certified[b] = _forward(rows[b], prefixes, workspace)
        if total > -np.inf and certified[b]:
            mean = _prefix_tangents(rows[b], prefixes, direction[b], workspace, prefix_tangents)
            tables = (prefixes, prefix_tangents, suffixes, suffix_tangents)
            certified[b] = _backward_tangents(rows[b], tables, direction[b], mean, workspace, product[b])


@reordered
def _prefix_tangents(row, prefixes, direction, workspace, tangents):
    """``tangents[i, c]``: derivative of the prefixes, with their scales held fixed; gives the expected direction of a whole chain."""
    length, tags = prefixes.shape
    weights = workspace[0]
    for c in range(tags):
        tangents[0, c] = prefixes[0, c] * direction[0, 0, c]
    for i in range(1, length):
        _weigh_again(row, i, workspace)
        here, unscaled = tangents[i], 0.0
        here[:] = 0.0
        reference = prefixes[i].argmax()
        for p in range(tags):
            prefix, tangent = prefixes[i - 1, p], tangents[i - 1, p]
            unscaled += prefix * weights[p, reference]
            if prefix > 0.0:
                for c in range(tags):
                    here[c] += weights[p, c] * (tangent + prefix * direction[i, p, c])
        for c in range(tags):
            here[c] /= unscaled
    return tangents[length - 1].sum() / prefixes[length - 1].sum()


@reordered
def _backward_tangents(row, tables, direction, mean, workspace, product):
    """The derivative of the marginals: by the product rule, minus marginals times the expected direction."""
    prefixes, prefix_tangents, suffixes, suffix_tangents = tables
    length, tags = prefixes.shape
    weights = workspace[0]
    suffixes[(length - 1) % 2] = 1.0
    suffix_tangents[(length - 1) % 2] = 0.0
    certified = True
    for i in range(length - 1, 0, -1):
        _weigh_again(row, i, workspace)
        here, before = suffixes[i % 2], suffixes[(i - 1) % 2]
        tangent_here, tangent_before = suffix_tangents[i % 2], suffix_tangents[(i - 1) % 2]
        greatest, kept = _retreat(weights, here, before)
        partition = greatest * (prefixes[i - 1] * before).sum()
        certified = certified and kept and partition > LIMIT
        for p in range(tags):
            prefix, tangent = prefixes[i - 1, p] / partition, prefix_tangents[i - 1, p] / partition
            total = 0.0
            for c in range(tags):
                rate = tangent_here[c] + here[c] * direction[i, p, c]
                total += weights[p, c] * rate
                product[i, p, c] = weights[p, c] * (prefix * (rate - here[c] * mean) + tangent * here[c])
            tangent_before[p] = total / greatest
    partition = (prefixes[0] * suffixes[0]).sum()
    for c in range(tags):
        rate = suffix_tangents[0, c] + suffixes[0, c] * (direction[0, 0, c] - mean)
        product[0, 0, c] = prefixes[0, c] / partition * rate
    return certified and partition > LIMIT


@compiled
def sample(rows, uniforms, structures, certified):
    """Structures [b, s, n, t, t] from uniforms [b, s, n]: forward filtering once, then backward sampling."""
    length, tags = rows.shape[1], rows.shape[2]
    prefixes, workspace = np.empty((length, tags)), _workspace(rows)
    tables, known = np.empty((length, tags, tags)), np.empty((length, tags), np.bool_)
    for b in range(rows.shape[0]):
        total, certified[b] = _forward(rows[b], prefixes, workspace)
        if total > -np.inf and certified[b]:
            known[:] = False
            last = prefixes[length - 1].cumsum()
            for s in range(uniforms.shape[1]):
                tag = _first_above(last, uniforms[b, s, length - 1])
                for i in range(length - 1, 0, -1):
                    if not known[i, tag]:
                        _cumulate(prefixes[i - 1], rows[b, i], tag, workspace[3][i, 0], tables[i, tag])
                        known[i, tag] = True
                    previous = _first_above(tables[i, tag], uniforms[b, s, i - 1])
                    structures[b, s, i, previous, tag] = 1
                    tag = previous
                structures[b, s, 0, 0, tag] = 1


@compiled
def _cumulate(prefixes, step, tag, top, table):
    """Running sums over the previous tag of what leads to a tag."""
    total = 0.0
    for p in range(table.size):
        total += prefixes[p] * np.exp(step[p, tag] - top)
        table[p] = total


@compiled
def _first_above(table, uniform):
    """The first index whose running sum exceeds this share of the last one: bisection."""
    threshold = uniform * table[-1]
    low, high = 0, table.size - 1
    while low < high:
        middle = (low + high) // 2
        if table[middle] > threshold:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def argmax(rows, structures):
    """MAP structures [b, n, t, t] of rows."""
    length, tags = rows.shape[1], rows.shape[2]
    best, parts = np.empty((length, tags)), np.empty(length, np.int32)
    for b in range(rows.shape[0]):
        count = best_parts(rows[b], best, parts)
        flat = structures[b].reshape(length * tags * tags)
        for k in range(count):
            flat[parts[k]] = 1


@ordered
def best_parts(row, best, parts):
    """Viterbi: the n part indices of the best structure of a row [n, t, t], with best [n, t] as working memory.

    Back-pointers are not stored: the way back looks for the lowest previous tag that gives the same sum.
    """
    length, tags = best.shape
    for c in range(tags):
        best[0, c] = row[0, 0, c]
    for i in range(1, length):
        here = best[i]
        here[:] = -np.inf
        for p in range(tags):
            prefix = best[i - 1, p]
            for c in range(tags):
                total = prefix + row[i, p, c]
                here[c] = total if total > here[c] else here[c]
    tag = 0
    for c in range(1, tags):
        if best[length - 1, c] > best[length - 1, tag]:
            tag = c
    for i in range(length - 1, 0, -1):
        previous = 0
        while previous < tags - 1 and best[i - 1, previous] + row[i, previous, tag] != best[i, tag]:
            previous += 1
        parts[i] = (i * tags + previous) * tags + tag
        tag = previous
    parts[0] = tag
    return length


@compiled
def project(rows, inside, mean, gap, support):
    """SparseMAP of rows: mean [b, d], gap and support [b]; gives the parts, sizes and weights of all atoms (see `active_set`)."""
    length, tags = rows.shape[1], rows.shape[2]
    space, found = active_set.workspace(length * tags * tags, length), active_set.nothing_found()
    residual, best = space.residual.reshape((length, tags, tags)), np.empty((length, tags))
    for b in range(rows.shape[0]):
        active_set.start(space, rows[b].reshape(-1))
        count = best_parts(residual, best, space.parts)
        while active_set.advance(space, inside[b], count):
            space = active_set.with_room(space)
            count = best_parts(residual, best, space.parts)
        found = active_set.record(space, found, mean[b], gap, support, b)
    return active_set.result(found)

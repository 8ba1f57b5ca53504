"""Moments of one block of estimates in compiled steps: what `Moments.add` computes, without a tensor for every intermediate."""

from __future__ import annotations

import math

import numpy as np

from ....oracles.kernels.compilation import compiled, fused, reordered
from . import symmetric


@compiled  # type: ignore[untyped-decorator]
def add_blocks(  # noqa: PLR0913, PLR0917 - arrays cannot be bundled without a cost
    estimates: np.ndarray,
    blocks: np.ndarray,
    done: int,
    before: int,
    gradient: np.ndarray,
    count: np.ndarray,
    means: np.ndarray,
    squares: np.ndarray,
    nonzero: np.ndarray,
    signs: np.ndarray,
    along: np.ndarray,
    zero: np.ndarray,
    descents: np.ndarray,
    cosines: np.ndarray,
    quartics: np.ndarray,
    total_mean: np.ndarray,
    information: np.ndarray,
    sums: np.ndarray,
    comoment: np.ndarray,
    moving: np.ndarray,
    mean: np.ndarray,
    centred: np.ndarray,
    products: np.ndarray,
) -> tuple[int, int]:
    """Add blocks one after the other, up to one whose products `symmetric.product` does not make: that one wants `add_block` yet.

    Args:
        estimates: [r, d].
        blocks: int64 [b, 3]: the first row of each, the end of its rows, its batch.
        done: how many of them were added before.
        before: replicates in ``comoment``.
        gradient: [2, d], as all that follow up to ``quartics`` see `add_rows`.
        count: [batches].
        means: [batches, d].
        squares: [batches, d].
        nonzero: [batches, d].
        signs: [batches, d].
        along: [batches].
        zero: [batches].
        descents: [batches].
        cosines: [batches].
        quartics: [batches].
        total_mean: [d], of all batches so far.
        information: F, [d, d], or [0, 0].
        sums: [batches], of ``ĝ'Fĝ``.
        comoment: [d, d], or [0, 0] where there is none.
        moving: int64 [d], of that block the parts that may change, in ascending order, at its beginning.
        mean: [d], the mean error of these, at its beginning.
        centred: its errors less that, [r, p] at its beginning.
        products: room for [d, d].

    Returns:
        The number of that block, or of all of them, and the number of its parts p.
    """
    parts = 0
    while done < len(blocks):
        first, end, batch = blocks[done]
        rows = end - first
        parts = moving_parts(estimates[first:end], gradient[0], nonzero[batch], total_mean, moving)
        add_rows(
            estimates[first:end], gradient, moving[:parts], batch, count, means, squares, nonzero, signs, along, zero, descents, cosines,
            quartics, mean[:parts], centred[: rows * parts].reshape(rows, parts),
        )  # fmt: skip
        if parts < symmetric.LEAST or len(comoment) == 0:
            return done, parts
        symmetric.product(centred, centred, rows, parts, products)
        add_block(products, gradient, moving[:parts], mean[:parts], rows, before, batch, information, sums, comoment, total_mean)
        done, before = done + 1, before + rows
    return done, parts


@compiled  # type: ignore[untyped-decorator]
def add_block(  # noqa: PLR0913, PLR0917 - likewise
    products: np.ndarray,
    gradient: np.ndarray,
    moving: np.ndarray,
    mean: np.ndarray,
    rows: int,
    before: int,
    batch: int,
    information: np.ndarray,
    sums: np.ndarray,
    comoment: np.ndarray,
    total_mean: np.ndarray,
) -> None:
    """`informed`, where there is an information, and `add_products` in one call.

    Args:
        products: [p, p] of the centred rows, at its beginning.
        gradient: [2, d], the first row of which is exact.
        moving: int64 [p], where the parts lie.
        mean: [p], the mean error of the block.
        rows: of the block.
        before: replicates in ``comoment``.
        batch: which one.
        information: F, [d, d], or [0, 0].
        sums: [batches], of ``ĝ'Fĝ``.
        comoment: [d, d].
        total_mean: [d].
    """
    parts = len(moving)
    square = products[: parts * parts].reshape(parts, parts)
    if len(information) > 0:
        centre = np.empty(parts)
        for place in range(parts):
            centre[place] = mean[place] + gradient[0, moving[place]]
        sums[batch] += informed(information, square, moving, centre, rows)
    add_products(square, moving, mean, rows, before, comoment, total_mean)


@compiled  # type: ignore[untyped-decorator]
def moving_parts(estimates: np.ndarray, gradient: np.ndarray, nonzero: np.ndarray, total_mean: np.ndarray, moving: np.ndarray) -> int:
    """Write the parts whose moments this block may change to ``moving``; return their number: of half a square, half.

    Args:
        estimates: [r, d].
        gradient: [d].
        nonzero: [d], of the batch so far.
        total_mean: [d], of all batches so far.
        moving: int64 [d], the result in ascending order, at its beginning.
    """
    seen = np.empty(len(gradient), np.bool_)
    for part in range(len(gradient)):
        seen[part] = gradient[part] != 0.0 or nonzero[part] != 0.0 or total_mean[part] != 0.0
    for row in range(len(estimates)):
        _see(estimates[row], seen)
    number = 0
    for part in range(len(gradient)):
        if seen[part]:
            moving[number] = part
            number += 1
    return number


@compiled  # type: ignore[untyped-decorator]
def add_rows(  # noqa: PLR0913, PLR0917 - arrays cannot be bundled without a cost
    estimates: np.ndarray,
    gradient: np.ndarray,
    moving: np.ndarray,
    batch: int,
    count: np.ndarray,
    means: np.ndarray,
    squares: np.ndarray,
    nonzero: np.ndarray,
    signs: np.ndarray,
    along: np.ndarray,
    zero: np.ndarray,
    descents: np.ndarray,
    cosines: np.ndarray,
    quartics: np.ndarray,
    mean: np.ndarray,
    centred: np.ndarray,
) -> None:
    """Add a block to its batch, but for what takes products of parts; and give what those are made of.

    Args:
        estimates: [r, d].
        gradient: [2, d], and in its second row scaled to length 1, or 0.
        moving: int64 [p], the parts that may change.
        batch: which one.
        count: [batches], as all that follow up to ``quartics`` an attribute of `structgrad.suites.statistics.moments.Moments`.
        means: [batches, d].
        squares: [batches, d].
        nonzero: [batches, d].
        signs: [batches, d].
        along: [batches].
        zero: [batches].
        descents: [batches].
        cosines: [batches].
        quartics: [batches].
        mean: the result [p], the mean error of the block.
        centred: the result [r, p], the errors less that.
    """
    rows, parts, before = len(estimates), len(moving), count[batch]
    exact, unit, square = np.empty(parts), np.empty(parts), np.zeros(parts)
    above, below = np.zeros(parts), np.zeros(parts)
    mean[:] = 0.0
    for place in range(parts):
        exact[place], unit[place] = gradient[0, moving[place]], gradient[1, moving[place]]
    for row in range(rows):
        for place in range(parts):
            centred[row, place] = estimates[row, moving[place]]
        forward, size, number = _look(centred[row], unit, above, below)
        zero[batch] += number == 0.0
        descents[batch] += forward > 0.0
        if size > 0.0:
            cosines[batch] += forward / math.sqrt(size)
        quartics[batch] += size * size
        _move(centred[row], exact, mean)
    for place in range(parts):
        mean[place] /= rows
    total = 0.0
    for row in range(rows):
        forward = _centre(centred[row], mean, unit, square)
        total += forward * forward
    share, weight, step_along = rows / (before + rows), before * rows / (before + rows), 0.0
    for place in range(parts):
        part = moving[place]
        step = mean[place] - means[batch, part]
        means[batch, part] += step * share
        squares[batch, part] += square[place] + step * step * weight
        nonzero[batch, part] += above[place] + below[place]
        signs[batch, part] += above[place] - below[place]
        step_along += step * unit[place]
    along[batch] += total + step_along * step_along * weight
    count[batch] += rows


@compiled  # type: ignore[untyped-decorator]
def add_products(  # noqa: PLR0913, PLR0917 - likewise
    products: np.ndarray,
    moving: np.ndarray,
    mean: np.ndarray,
    rows: int,
    before: int,
    comoment: np.ndarray,
    total_mean: np.ndarray,
) -> None:
    """Add the products of the centred errors of a block to those of all batches, and its mean to theirs.

    Args:
        products: [p, p].
        moving: int64 [p], where its parts lie.
        mean: [p], the mean error of the block.
        rows: of the block.
        before: replicates in ``comoment``.
        comoment: [d, d].
        total_mean: [d].
    """
    parts, weight = len(moving), before * rows / (before + rows)
    step = np.empty(parts)
    for place in range(parts):
        step[place] = mean[place] - total_mean[moving[place]]
    for place in range(parts):
        row, factor = comoment[moving[place]], weight * step[place]
        for other in range(parts):
            row[moving[other]] += products[place, other] + factor * step[other]
    add_mean(moving, mean, rows, before, total_mean)


@compiled  # type: ignore[untyped-decorator]
def add_mean(moving: np.ndarray, mean: np.ndarray, rows: int, before: int, total_mean: np.ndarray) -> None:
    """Add the mean error of a block to that of all batches; see `add_products`."""
    share = rows / (before + rows)
    for place in range(len(moving)):
        part = moving[place]
        total_mean[part] += (mean[place] - total_mean[part]) * share


@compiled  # type: ignore[untyped-decorator]
def informed(information: np.ndarray, products: np.ndarray, moving: np.ndarray, centre: np.ndarray, rows: int) -> float:
    """``Σ ĝ'Fĝ`` over the rows of a block.

    Args:
        information: F, [d, d].
        products: [p, p] of the centred rows.
        moving: int64 [p], where the parts lie.
        centre: [p], the mean estimate.
        rows: of the block.
    """
    total = 0.0
    for place in range(len(moving)):
        total += _crossed(information[moving[place]], products[place], moving, centre, rows * centre[place])
    return total


@reordered
def _crossed(information, products, moving, centre, factor):  # type: ignore[no-untyped-def]
    total = 0.0
    for place in range(len(moving)):
        total += information[moving[place]] * (products[place] + factor * centre[place])
    return total


@fused
def _see(estimate, seen):  # type: ignore[no-untyped-def]
    for part in range(len(seen)):
        seen[part] |= estimate[part] != 0.0


@reordered
def _look(estimate, unit, above, below):  # type: ignore[no-untyped-def]
    """Along the gradient, the square norm, and how many parts are not 0; count the signs of the parts."""
    forward, size, number = 0.0, 0.0, 0.0
    for place in range(len(unit)):
        value = estimate[place]
        forward += value * unit[place]
        size += value * value
        up, down = np.float64(value > 0.0), np.float64(value < 0.0)
        above[place] += up
        below[place] += down
        number += up + down
    return forward, size, number


@fused
def _move(estimate, exact, mean):  # type: ignore[no-untyped-def]
    """Turn estimates to errors, and sum them."""
    for place in range(len(exact)):
        error = estimate[place] - exact[place]
        estimate[place] = error
        mean[place] += error


@reordered
def _centre(errors, mean, unit, square):  # type: ignore[no-untyped-def]
    """Take the mean off; add the squares; along the gradient."""
    forward = 0.0
    for place in range(len(mean)):
        value = errors[place] - mean[place]
        errors[place] = value
        square[place] += value * value
        forward += value * unit[place]
    return forward

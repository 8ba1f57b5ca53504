"""The recursions of the linear chain in both directions, and their tangents; see `structgrad.oracles.linear_chain.gpu`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_step(row, i, tags, block: tl.constexpr, full: tl.constexpr):
    """The scores of step i: previous tags along axis 0, tags along axis 1; -inf in what fills the block up."""
    p = tl.arange(0, block)[:, None]
    c = tl.arange(0, block)[None, :]
    if full:
        scores = tl.load(row + i * (block * block) + p * block + c)
    else:
        scores = tl.load(row + i * (tags * tags) + p * tags + c, mask=(p < tags) & (c < tags), other=-float("inf"))
    return scores


@triton.jit
def store_step(row, i, values, tags, block: tl.constexpr, full: tl.constexpr):
    """Write what belongs to step i; the counterpart of `load_step`."""
    p = tl.arange(0, block)[:, None]
    c = tl.arange(0, block)[None, :]
    values = values.to(row.dtype.element_ty)
    if full:
        tl.store(row + i * (block * block) + p * block + c, values)
    else:
        tl.store(row + i * (tags * tags) + p * tags + c, values, mask=(p < tags) & (c < tags))


@triton.jit
def or_zero(values):
    """What may be subtracted: 0 in the place of -inf."""
    return tl.where(values > -float("inf"), values, 0.0)


@triton.jit
def _log(mass):
    """The logarithm of sums of weights, -inf for 0."""
    return tl.where(mass > 0.0, tl.log(tl.where(mass > 0.0, mass, 1.0)), -float("inf"))


@triton.jit
def _greatest(scores):
    return or_zero(tl.max(tl.max(scores, 0), 0))


@triton.jit
def _start(row, tags, kind: tl.constexpr, block: tl.constexpr):
    """The scores of the first tag, and their greatest, which is taken from them."""
    c = tl.arange(0, block)
    first = tl.load(row + c, mask=c < tags, other=-float("inf")).to(kind)
    shift = or_zero(tl.max(first, 0))
    return first - shift, shift


@triton.jit
def _log_sum(values):
    top = or_zero(tl.max(values, 0))
    return top + _log(tl.sum(tl.exp(values - top), 0))


@triton.jit
def _forward(row, prefixes, shifts, length, tags, block: tl.constexpr, full: tl.constexpr, keep: tl.constexpr):
    """The log-partition; keeps the prefixes [n, t], and what is taken from the scores [n], in the type of the prefixes."""
    kind: tl.constexpr = prefixes.dtype.element_ty
    c = tl.arange(0, block)
    prefix, shift = _start(row, tags, kind, block)
    logarithm = shift.to(tl.float64)
    if keep:
        tl.store(prefixes + c, prefix, mask=c < tags)
    scores = load_step(row, tl.minimum(1, length - 1), tags, block, full)
    following = load_step(row, tl.minimum(2, length - 1), tags, block, full)
    for i in range(1, length):
        ahead = load_step(row, tl.minimum(i + 2, length - 1), tags, block, full)
        step = scores.to(kind)
        shift = _greatest(step)
        joint = (step - shift) + prefix[:, None]
        top = or_zero(tl.max(joint, 0))
        mass = tl.sum(tl.exp(joint - top[None, :]), 0)
        # What the prefixes before had too much goes now, so that nothing waits for their greatest.
        excess = or_zero(tl.max(prefix, 0))
        prefix = (top - excess) + _log(mass)
        logarithm += shift.to(tl.float64) + excess.to(tl.float64)
        if keep:
            tl.store(prefixes + i * tags + c, prefix, mask=c < tags)
            tl.store(shifts + i, shift)
        scores = following
        following = ahead
    return logarithm + _log_sum(prefix).to(tl.float64)


@triton.jit
def forward_kernel(
    rows, log_partition, prefixes, shifts, length, tags, block: tl.constexpr, full: tl.constexpr, keep: tl.constexpr
):  # fmt: skip
    """The log-partition of one sequence, and its prefixes where they are kept."""
    item = tl.program_id(0).to(tl.int64)
    row = rows + item * length * tags * tags
    found = _forward(row, prefixes + item * length * tags, shifts + item * length, length, tags, block, full, keep)
    tl.store(log_partition + item, found)


@triton.jit
def marginals_kernel(
    rows, marginals, log_partition, prefixes, shifts, length, tags, block: tl.constexpr, full: tl.constexpr
):  # fmt: skip
    """Marginals and log-partition of one sequence."""
    item = tl.program_id(0).to(tl.int64)
    row = rows + item * length * tags * tags
    mean = marginals + item * length * tags * tags
    prefixes += item * length * tags
    shifts += item * length
    tl.store(log_partition + item, _forward(row, prefixes, shifts, length, tags, block, full, True))
    tl.debug_barrier()
    kind: tl.constexpr = prefixes.dtype.element_ty
    p = tl.arange(0, block)
    suffix = tl.where(p < tags, 0.0, -float("inf")).to(kind)
    scores = load_step(row, tl.maximum(length - 1, 0), tags, block, full)
    following = load_step(row, tl.maximum(length - 2, 0), tags, block, full)
    for done in range(1, length):
        i = length - done
        ahead = load_step(row, tl.maximum(i - 2, 0), tags, block, full)
        prefix = tl.load(prefixes + (i - 1) * tags + p, mask=p < tags, other=-float("inf"))
        joint = (scores - tl.load(shifts + i)) + suffix[None, :]
        top = or_zero(tl.max(joint, 1))
        weight = tl.exp(joint - top[:, None])
        from_here = top + _log(tl.sum(weight, 1))
        norm = or_zero(_log_sum(prefix + from_here))
        store_step(mean, i, weight * tl.exp((prefix + top) - norm)[:, None], tags, block, full)
        suffix = from_here - norm
        scores = following
        following = ahead
    first = tl.load(prefixes + p, mask=p < tags, other=-float("inf")) + suffix
    share = tl.exp(first - or_zero(_log_sum(first)))
    store_step(mean, 0, tl.where(p[:, None] == 0, share[None, :], 0.0), tags, block, full)


@triton.jit
def covariance_kernel(
    rows, direction, product, prefixes, tangents, shifts, length, tags, block: tl.constexpr, full: tl.constexpr
):  # fmt: skip
    """The covariance of one sequence times a direction."""
    item = tl.program_id(0).to(tl.int64)
    start = item * length * tags * tags
    row = rows + start
    along = direction + start
    prefixes += item * length * tags
    tangents += item * length * tags
    shifts += item * length
    _forward_tangents(row, along, prefixes, tangents, shifts, length, tags, block, full)
    tl.debug_barrier()
    _backward_tangents(row, along, product + start, prefixes, tangents, shifts, length, tags, block, full)


@triton.jit
def _forward_tangents(row, along, prefixes, tangents, shifts, length, tags, block: tl.constexpr, full: tl.constexpr):
    """Prefixes as in `_forward`, and their tangents [n, t], each the mean of what leads there, up to a number common to a step."""
    kind: tl.constexpr = prefixes.dtype.element_ty
    c = tl.arange(0, block)
    prefix, shift = _start(row, tags, kind, block)
    tangent = tl.load(along + c, mask=c < tags, other=0.0)
    tl.store(prefixes + c, prefix, mask=c < tags)
    tl.store(tangents + c, tangent, mask=c < tags)
    scores = load_step(row, tl.minimum(1, length - 1), tags, block, full)
    rates = load_step(along, tl.minimum(1, length - 1), tags, block, full)
    for i in range(1, length):
        ahead = tl.minimum(i + 1, length - 1)
        scores_ahead = load_step(row, ahead, tags, block, full)
        rates_ahead = load_step(along, ahead, tags, block, full)
        shift = _greatest(scores)
        joint = (scores - shift) + prefix[:, None]
        top = or_zero(tl.max(joint, 0))
        weight = tl.exp(joint - top[None, :])
        mass = tl.sum(weight, 0)
        change = tl.where(weight > 0.0, rates + tangent[:, None], 0.0)
        excess = or_zero(tl.max(prefix, 0))
        common = tl.sum(tangent, 0) / tags
        prefix = (top - excess) + _log(mass)
        tangent = tl.where(mass > 0.0, tl.sum(weight * change, 0) / tl.where(mass > 0.0, mass, 1.0) - common, 0.0)
        tl.store(prefixes + i * tags + c, prefix, mask=c < tags)
        tl.store(tangents + i * tags + c, tangent, mask=c < tags)
        tl.store(shifts + i, shift)
        scores = scores_ahead
        rates = rates_ahead


@triton.jit
def _backward_tangents(
    row, along, product, prefixes, tangents, shifts, length, tags, block: tl.constexpr, full: tl.constexpr
):  # fmt: skip
    """The tangents of the marginals: marginals times what the tangents of their factors exceed the expected one by."""
    kind: tl.constexpr = prefixes.dtype.element_ty
    p = tl.arange(0, block)
    suffix = tl.where(p < tags, 0.0, -float("inf")).to(kind)
    tangent = tl.zeros((block,), kind)
    scores = load_step(row, tl.maximum(length - 1, 0), tags, block, full)
    rates = load_step(along, tl.maximum(length - 1, 0), tags, block, full)
    for done in range(1, length):
        i = length - done
        ahead = tl.maximum(i - 1, 0)
        scores_ahead = load_step(row, ahead, tags, block, full)
        rates_ahead = load_step(along, ahead, tags, block, full)
        prefix = tl.load(prefixes + (i - 1) * tags + p, mask=p < tags, other=-float("inf"))
        rate = tl.load(tangents + (i - 1) * tags + p, mask=p < tags, other=0.0)
        joint = (scores - tl.load(shifts + i)) + suffix[None, :]
        top = or_zero(tl.max(joint, 1))
        weight = tl.exp(joint - top[:, None])
        mass = tl.sum(weight, 1)
        from_here = top + _log(mass)
        norm = or_zero(_log_sum(prefix + from_here))
        change = tl.where(weight > 0.0, rates + tangent[None, :], 0.0)
        mean = tl.where(mass > 0.0, tl.sum(weight * change, 1) / tl.where(mass > 0.0, mass, 1.0), 0.0)
        expected = tl.sum(tl.exp(prefix + from_here - norm) * (rate + mean), 0)
        marginal = weight * tl.exp((prefix + top) - norm)[:, None]
        store_step(product, i, marginal * (change + (rate - expected)[:, None]), tags, block, full)
        suffix = from_here - norm
        tangent = mean - expected
        scores = scores_ahead
        rates = rates_ahead
    first = tl.load(prefixes + p, mask=p < tags, other=-float("inf")) + suffix
    share = tl.exp(first - or_zero(_log_sum(first)))
    rate = tl.load(tangents + p, mask=p < tags, other=0.0) + tangent
    change = share * (rate - tl.sum(share * rate, 0))
    store_step(product, 0, tl.where(p[:, None] == 0, change[None, :], 0.0), tags, block, full)

"""Arithmetic that is safe at forbidden (``-inf``) and at ignored entries, products that are the same in every batch, and kept tables."""

import functools
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

P = ParamSpec("P")
R = TypeVar("R")


def log_sum_exp(values: Tensor, dim: int) -> Tensor:
    """``log Σ exp`` along a dimension that is -inf, with gradient 0, where every value is; exact to any order of derivative."""
    top = values.detach().amax(dim, keepdim=True)
    top = torch.where(top > -math.inf, top, 0)
    total = (values - top).exp().sum(dim)
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top.squeeze(dim), -math.inf)


def exact_sum(terms: Tensor) -> Tensor:
    """The sum over the last dimension, right to its own size however much cancels; -inf where a term is. No gradients.

    Every pass gives the rounded sum and all that was lost, whose sum is the same (Ogita, Rump & Oishi 2005, algorithm 4.8).
    """
    forbidden = (terms == -math.inf).any(-1)
    terms = terms.masked_fill(forbidden.unsqueeze(-1), 0)
    for _ in range(3):
        lost = []
        while (size := terms.shape[-1]) > 1:
            first, second = terms[..., : size // 2], terms[..., size // 2 : size // 2 * 2]
            total = first + second
            back = total - first
            lost.append((first - (total - back)) + (second - back))
            terms = torch.cat([total, terms[..., size // 2 * 2 :]], -1)
        terms = torch.cat([terms, *reversed(lost)], -1)
    return terms.sum(-1).masked_fill(forbidden, -math.inf)


def total(terms: Tensor, offsets: Tensor | None = None) -> Tensor:
    """The sum over the last dimension in float64, of which differences are taken; less an exact sum, that of offsets ``[*batch, c]``."""
    if offsets is None:
        return terms.sum(-1, dtype=torch.float64)
    return exact_sum(torch.cat([terms, -offsets.expand(*terms.shape[:-1], -1)], -1)).clamp(max=0)


def running_sums(logits: Tensor) -> Tensor:
    """Running sums of ``exp`` along the last dimension, scaled by its maximum; 0 where every logit is -inf."""
    top = logits.amax(-1, keepdim=True)
    return (logits - torch.where(top > -math.inf, top, 0)).exp_().cumsum(-1)


def sparse_max(values: Tensor, dim: int) -> Tensor:
    """``max_p ⟨p, x⟩ − ½‖p‖²`` over the simplex along a dimension: its gradient is sparsemax (Martins & Astudillo 2016).

    -inf, with gradient 0, where every value is; forbidden values have probability 0.
    """
    allowed = values > -math.inf
    some = allowed.any(dim, keepdim=True)
    # What lies 1 below the greatest value has probability 0, so that 2 below it stands for forbidden.
    floor = torch.where(some, values.detach().amax(dim, keepdim=True), 0) - 2
    finite = torch.where(allowed, values, floor)
    order = finite.detach().sort(dim, descending=True).values
    place = torch.arange(1, order.shape[dim] + 1, device=values.device, dtype=values.dtype)
    place = place.reshape(-1, *[1] * (values.ndim - 1 - dim % values.ndim))
    excess = (order.cumsum(dim) - 1) / place
    count = (order > excess).sum(dim, keepdim=True).clamp(min=1)
    threshold = excess.gather(dim, count - 1)
    # The threshold is differentiated as the mean over the support that it gives.
    support = finite.detach() > threshold
    inside = torch.where(support, finite, 0)
    threshold = (inside.sum(dim, keepdim=True) - 1) / support.sum(dim, keepdim=True)
    p = torch.where(support, inside - threshold, 0)
    value = (p * inside - p.square() / 2).sum(dim)
    return torch.where(some.squeeze(dim), value, -math.inf)


def zero_ignored(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores with 0 outside the mask ``[*event]``. Expanded rows stay expanded, and each has a gradient of its own."""
    return _mapped(scores, mask.ndim, lambda values: torch.where(mask, values, 0))


def scaled(scores: Tensor, factor: float, event_ndim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Scores times a number, in a dtype. Expanded rows stay expanded, and each has a gradient of its own."""
    return _mapped(scores, event_ndim, lambda values: values * factor, dtype or scores.dtype)


_PRODUCTS = 2**17
"""The number of products held at a time, as many as the cache of a core holds."""

HALF = (torch.float16, torch.bfloat16)
"""Dtypes that are computed in float32."""


def in_single(scores: Tensor, event_ndim: int) -> Tensor:
    """Scores of half precision in float32, others as they are; differentiable."""
    return scaled(scores, 1, event_ndim, torch.float32) if scores.dtype in HALF else scores


def in_double(values: Tensor) -> Tensor:
    """Values in float64, but as they are on Apple's GPUs, which have no float64; differentiable."""
    return values if values.device.type == "mps" else values.double()


def grown(structure: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """A structure with 0, or False, in the entries that completed padding has besides."""
    missing = [size - structure.shape[-1 - i] for i, size in enumerate(reversed(event_shape))]
    return pad(structure, [side for size in missing for side in (0, size)]) if any(missing) else structure


def share_rows(scores: Tensor, event_ndim: int) -> Tensor:
    """Cut every expanded (stride-0) batch dimension down to size 1."""
    for dim in range(scores.ndim - event_ndim):
        if scores.shape[dim] > 1 and scores.stride(dim) == 0:
            scores = scores.narrow(dim, 0, 1)
    return scores


def row_products(rows: Tensor, matrix: Tensor) -> Tensor:
    """``rows @ matrix.mT``, where no bit of a row's results depends on how many rows there are, or on the others.

    Libraries of linear algebra choose the order of their sums by the sizes of both matrices, and differently on every processor.

    Args:
        rows: [..., d].
        matrix: [r, d].

    Returns:
        [..., r].

    Example:
        >>> row_products(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[2.0, 3.0]]))
        tensor([[2.],
                [5.]])
    """
    # Side by side in memory: the sum over another layout is taken for several rows at once, and for the last ones in another order.
    pieces = rows.reshape(-1, rows.shape[-1]).contiguous().split(max(1, _PRODUCTS // matrix.numel()))
    products = [(piece.unsqueeze(-2) * matrix).sum(-1) for piece in pieces]
    return (products[0] if len(products) == 1 else torch.cat(products)).reshape(*rows.shape[:-1], len(matrix))


def made_once(make: Callable[P, R]) -> Callable[P, R]:
    """Keep the tables that a function made of sizes and, among its arguments, a device: the host waits for what it copies.

    Example:
        >>> @made_once
        ... def squares(size: int, device: torch.device) -> torch.Tensor:
        ...     return torch.tensor([i * i for i in range(size)], device=device)
        >>> squares(4, torch.device("cpu")) is squares(4, torch.device("cpu"))
        True
    """

    @functools.lru_cache(maxsize=64)
    @functools.wraps(make)
    def made(*args: P.args, **named: P.kwargs) -> R:
        # Made in inference mode, they could take part in no gradient later.
        with torch.inference_mode(False):
            return make(*args, **named)

    return made  # type: ignore[return-value]  # a cached function is one of hashable arguments


class _Mapped(torch.autograd.Function):
    """A linear function of every number by itself; torch's own would write expanded rows out."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, event_ndim: int, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None) -> Tensor:
        ctx.function = function
        return function(share_rows(scores, event_ndim).to(dtype)).expand_as(scores)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.function(grads[0]), None, None, None


def _mapped(scores: Tensor, event_ndim: int, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Tensor:
    result: Tensor = _Mapped.apply(scores, event_ndim, function, dtype or scores.dtype)  # type: ignore[no-untyped-call]
    return result

"""Euclidean projection on the Birkhoff polytope, the hull of the permutation matrices: the doubly stochastic matrices."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..active_set import solver
from ..active_set.solution import Projection

TOLERANCE = 1e-9
"""A gap above this much, relative to the greatest score, makes the active set do the row again."""


def project(rows: Tensor, argmax: Callable[[Tensor, Tensor], Tensor], inside: Tensor | None) -> Projection:
    """Project rows [b, n, n] with the compiled Newton method where it applies, else with the active set over argmax calls.

    The nearest point is known at once. Its atoms, found on first use, are those of Birkhoff's theorem, at most one more than the dimension
    of the face; its derivative keeps to that face.

    Args:
        rows: float64 on the CPU, -inf where a part is forbidden; all of it in padding.
        argmax: MAP of float64 directions [i, n, n] for the rows of these indices [i], 0 in padding.
        inside: [b, n, n] bool, False in padding; None where there is none.
    """
    nearest, decompose, tangents = (kernels.find("birkhoff", name, rows) for name in ("nearest", "decompose", "tangents"))
    if nearest is None or decompose is None or tangents is None:
        return solver.solve(argmax, rows)
    # Where the padding of a shorter item has its one free completion: on the diagonal.
    padding = torch.zeros((), dtype=torch.bool) if inside is None else torch.diag_embed(~inside.diagonal(dim1=-2, dim2=-1))
    means, gaps = torch.zeros_like(rows, memory_format=torch.contiguous_format), rows.new_empty(len(rows))
    nearest(torch.where(padding, 0, rows).contiguous(), means, gaps)
    scale = torch.where(rows > -math.inf, rows.abs(), 0).amax((1, 2))
    items = (~(gaps <= TOLERANCE * (1 + scale)) & (gaps != math.inf)).nonzero().squeeze(-1)
    if len(items):  # Newton's method could not
        again = solver.solve(lambda directions, some: argmax(directions, items[some]), rows[items])
        assert again.mean is not None
        means[items], gaps[items] = again.mean, again.gap
    means = torch.where(padding, 0, means)
    return Projection(
        gap=gaps,
        decompose=lambda: _decompose(decompose, means, padding),
        mean=means,
        tangent=lambda points, direction: _Tangent.apply(direction, points, tangents),  # type: ignore[no-untyped-call]
    )


def _decompose(kernel: kernels.Kernel, means: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms [b, m, n, n] and weights [b, m]."""
    points = torch.where(padding, 1, means)
    size = points.shape[1]
    # A face of the polytope has fewer dimensions than it has cells besides those of one permutation.
    most = max(1, int((points > 0).sum((1, 2)).amax()) - size + 1) if len(points) else 1
    columns = torch.zeros(len(points), most, size, dtype=torch.int32)
    weights = torch.zeros(len(points), most, dtype=torch.float64)
    kernel(points.contiguous(), columns, weights)
    used = max(1, int((weights > 0).sum(-1).amax())) if len(points) else 1
    atoms = torch.nn.functional.one_hot(columns[:, :used].long(), size).bool() & ~padding.unsqueeze(1 if padding.ndim else 0)
    return atoms, weights[:, :used]


class _Tangent(torch.autograd.Function):
    """The orthogonal projection of directions [*batch, n, n] on any device on the faces of points, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, direction: Tensor, points: Tensor, kernel: kernels.Kernel) -> Tensor:
        ctx.points, ctx.kernel = points, kernel
        along = direction.double().cpu().reshape(-1, *points.shape[-2:]).contiguous()
        moved = torch.zeros_like(along)
        kernel(points.expand(direction.shape).reshape(along.shape).contiguous(), along, moved)
        return moved.reshape(direction.shape).to(direction.device)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Tangent.apply(grads[0], ctx.points, ctx.kernel), None, None  # type: ignore[no-untyped-call]

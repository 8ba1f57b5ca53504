"""The log-partition, its gradient (the marginals) and its Hessian (their covariance) as differentiable functions of natural parameters.

``∇A(η) = μ`` and ``∇²A(η) = Cov(z)`` (Wainwright & Jordan 2008, section 3), so that three functions, each the derivative of the one before,
give every gradient exactly; derivatives beyond the second go through the torch reference. What are called scores here are η: see
`structgrad.oracles.capabilities.MarginalOracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ..kernels import Output
from ..transforms import applied

if TYPE_CHECKING:
    from .marginals import MarginalOracle

LOG_PARTITION: Output = (), torch.float64
"""Shape and dtype of a log-partition: one float64 number for a row, because differences are taken."""

LAW = None, LOG_PARTITION
"""Results of the operation ``marginals``, the first of which is like the rows."""


class Law(torch.autograd.Function):
    """A(η) and μ(η), or one of them: every output of a function for autograd takes time.

    A is in float64 where a kernel sums it, with a gradient for every row, those that share their scores included. Marginals come with A:
    where a gradient is wanted, both at once take two thirds of the time of one after the other. With a structure ``at``, that is the value
    in the place of μ, which is not computed.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, oracle: MarginalOracle, wanted: Literal["A", "μ", "both"], at: Tensor | None) -> Any:
        ctx.oracle, ctx.wanted = oracle, wanted
        ctx.set_materialize_grads(False)
        if at is not None:
            ctx.save_for_backward(scores, None)
            return at.view_as(at)
        marginals, log_partition = oracle._run("marginals", scores, LAW, oracle._exact_marginals)
        ctx.save_for_backward(scores, marginals if wanted == "A" else None)
        return log_partition if wanted == "A" else marginals if wanted == "μ" else (marginals, log_partition)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        along, weights = (None, *grads) if ctx.wanted == "A" else (*grads, None)[:2]
        (scores, marginals), oracle, gradient = ctx.saved_tensors, ctx.oracle, None
        # In a backward that is not differentiated in turn the numbers alone are wanted: a function takes as long as a small kernel.
        higher = torch.is_grad_enabled()
        if along is not None:
            gradient = _product(scores, along, oracle) if higher else oracle._compute_covariance_product(scores, along)
        if weights is not None:
            if higher:
                marginals = law(scores, oracle, "μ", None)
            elif marginals is None:
                marginals = oracle._run("marginals", scores, LAW, oracle._exact_marginals)[0]
            first = weights.to(marginals.dtype).reshape(*weights.shape, *[1] * oracle.event_ndim) * marginals
            gradient = first if gradient is None else gradient + first
        return gradient, None, None, None


class Exchanged(torch.autograd.Function):
    """A structure, with the derivative of marginals that are there already."""

    @staticmethod
    def forward(ctx: Any, structure: Tensor, marginals: Tensor) -> Tensor:
        return structure.view_as(structure)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, grads[0]


class Score(torch.autograd.Function):
    """⟨η, z⟩, summed in float64; its gradient is not: torch would make it of float64 numbers for every part."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, structure: Tensor, event_ndim: int, finite: bool) -> Tensor:
        ctx.save_for_backward(scores, structure)
        ctx.event_ndim = event_ndim
        product = structure * (scores if finite else torch.where(structure != 0, scores, 0))
        return product.flatten(product.ndim - event_ndim).sum(-1, dtype=torch.float64)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scores, structure = ctx.saved_tensors
        grad = grads[0].to(scores.dtype).reshape(*grads[0].shape, *[1] * ctx.event_ndim)
        of_structure = None
        if ctx.needs_input_grad[1]:
            of_structure = (grad * torch.where(structure != 0, scores, 0)).sum_to_size(structure.shape)
        return (grad * structure).sum_to_size(scores.shape), of_structure, None, None


class CovarianceProduct(torch.autograd.Function):
    """Cov(z)·v, the product of the Jacobian of the marginals with a direction."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, direction: Tensor, oracle: MarginalOracle) -> Tensor:
        ctx.oracle = oracle
        ctx.save_for_backward(scores, direction)
        return oracle._compute_covariance_product(scores, direction)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        inputs = ctx.saved_tensors
        higher = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views of their own: the direction may depend on the scores, and only the partial derivatives are wanted.
            views = (value.view_as(value) if higher else value.detach() for value in inputs)
            theta, direction = (value if value.requires_grad else value.requires_grad_() for value in views)
            product = reference_covariance_product(ctx.oracle._reference_log_partition, theta, direction, differentiable=True)
            first, second = torch.autograd.grad(product, (theta, direction), grads[0], create_graph=higher, materialize_grads=True)
        return first, second, None


law, _product, score, exchanged_for = map(applied, (Law, CovarianceProduct, Score, Exchanged))


def differentiated(scores: Tensor) -> bool:
    """Whether a gradient may be asked for."""
    return scores.requires_grad and torch.is_grad_enabled()


def reference_covariance_product(
    log_partition: Callable[[Tensor], Tensor], theta: Tensor, direction: Tensor, *, differentiable: bool
) -> Tensor:
    """The derivative of the marginals at ``theta`` (which requires a gradient) along a direction, by differentiating twice."""
    with torch.enable_grad():
        (marginals,) = torch.autograd.grad(log_partition(theta).sum(), theta, create_graph=True)
        (product,) = torch.autograd.grad(marginals, theta, direction, create_graph=differentiable, materialize_grads=True)
    return product


def unsqueeze_event(values: Tensor, event_ndim: int) -> Tensor:
    """[*batch] -> [*batch, 1, ...], to weigh whole structures."""
    return values.reshape(*values.shape, *([1] * event_ndim))

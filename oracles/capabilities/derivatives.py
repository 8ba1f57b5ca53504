"""The log-partition, its gradient (the marginals) and its Hessian (their covariance) as differentiable functions of natural parameters.

``∇A(η) = μ`` and ``∇²A(η) = Cov(z)`` (Wainwright & Jordan 2008, section 3), so that three functions, each the derivative of the one before,
give every gradient exactly; derivatives beyond the second go through the torch reference. What are called scores here are η: see
`structgrad.oracles.capabilities.MarginalOracle`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch._C._functorch import unwrap_if_dead

from ..kernels.switch import SERVING, serving_as
from ..numerics import Total
from ..transforms import applied

if TYPE_CHECKING:
    from .marginals import MarginalOracle


class Law(torch.autograd.Function):
    """A(η) and μ(η), or one of them: every output of a function for autograd takes time.

    A is in float64 where a kernel sums it, with a gradient for every row, those that share their scores included. Marginals come with A:
    where a gradient is wanted, both at once take two thirds of the time of one after the other. With a structure ``at``, that is the value
    in the place of μ, which is not computed.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, oracle: MarginalOracle, wanted: Literal["A", "μ", "both"], at: Tensor | None) -> Any:
        ctx.oracle, ctx.serving, ctx.wanted = oracle, SERVING.get(), wanted
        ctx.set_materialize_grads(False)
        if at is not None:
            ctx.save_for_backward(scores, None)
            return at.view_as(at)
        marginals, log_partition = oracle._compute_marginals(scores)
        ctx.save_for_backward(scores, marginals if wanted == "A" else None)
        return log_partition if wanted == "A" else marginals if wanted == "μ" else (marginals, log_partition)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        along, weights = (None, *grads) if ctx.wanted == "A" else (*grads, None)[:2]
        scores, marginals = ctx.saved_tensors
        if SERVING.get() == ctx.serving:  # as it is on the CPU
            return _pulled_back(scores, marginals, ctx.oracle, along, weights), None, None, None
        with serving_as(ctx.serving):
            return _pulled_back(scores, marginals, ctx.oracle, along, weights), None, None, None


def _pulled_back(
    scores: Tensor, marginals: Tensor | None, oracle: MarginalOracle, along: Tensor | None, weights: Tensor | None
) -> Tensor | None:
    """The gradient of `Law` from those of μ and of A; None where neither has one. Marginals are given where they are known."""
    # In a backward that is not differentiated in turn the numbers alone are wanted: a function takes as long as a small kernel.
    higher, gradient = torch.is_grad_enabled(), None
    if along is not None:
        gradient = _product(scores, along, oracle) if higher else oracle._compute_covariance_product(scores, along)
    if weights is None:
        return gradient
    if higher:
        marginals = marginals_of(scores, oracle)
    elif marginals is None:
        marginals = oracle._compute_marginals(scores)[0]
    first = unsqueeze_event(weights.to(marginals.dtype), oracle.event_ndim) * marginals
    return first if gradient is None else gradient + first


class Exchanged(torch.autograd.Function):
    """A structure, with the derivative of marginals that are there already."""

    @staticmethod
    def forward(ctx: Any, marginals: Tensor, structure: Tensor) -> Tensor:
        return structure.view_as(structure)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Score(torch.autograd.Function):
    """⟨η, z⟩, less A if it is given, summed in float64; its gradient is not: torch would make it of float64 numbers for every part."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, structure: Tensor, event_ndim: int, log_partition: Tensor | None) -> Tensor:
        ctx.save_for_backward(structure, log_partition)
        ctx.shape, ctx.event_ndim = scores.shape, event_ndim
        return Total(log_partition=log_partition)((structure * scores).flatten(-event_ndim)).to(scores.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (structure, log_partition), (grad,) = ctx.saved_tensors, grads
        if log_partition is not None:
            grad = grad.masked_fill(log_partition == -math.inf, 0)
        product = unsqueeze_event(grad, ctx.event_ndim) * structure
        return product.sum_to_size(ctx.shape), None, None, None if log_partition is None else -grad.sum_to_size(log_partition.shape)


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


_law, _product, _score, _exchanged = map(applied, (Law, CovarianceProduct, Score, Exchanged))


def differentiated(scores: Tensor) -> bool:
    """Whether a gradient may be asked for."""
    return scores.requires_grad and torch.is_grad_enabled()


def score_of(scores: Tensor, structure: Tensor, event_ndim: int, log_partition: Tensor | None) -> Tensor:
    """`Score`, differentiable in the scores and the log-partition."""
    result: Tensor = _score(unwrap_if_dead(scores), structure, event_ndim, log_partition)
    return result


def log_partition_of(scores: Tensor, oracle: MarginalOracle) -> Tensor:
    """The log-partition, differentiable."""
    result: Tensor = _law(unwrap_if_dead(scores), oracle, "A", None)
    return result


def marginals_of(scores: Tensor, oracle: MarginalOracle, at: Tensor | None = None) -> Tensor:
    """Marginals, or a structure in their place, with the derivative of marginals."""
    result: Tensor = _law(unwrap_if_dead(scores), oracle, "μ", at)
    return result


def both_of(scores: Tensor, oracle: MarginalOracle) -> tuple[Tensor, Tensor]:
    """Marginals and the log-partition, differentiable."""
    result: tuple[Tensor, Tensor] = _law(unwrap_if_dead(scores), oracle, "both", None)
    return result


def exchanged_for(structure: Tensor, marginals: Tensor) -> Tensor:
    """The structure, with the derivative of marginals."""
    result: Tensor = _exchanged(marginals, structure)
    return result


def reference_marginals(log_partition: Callable[[Tensor], Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Marginals and log-partition of rows by automatic differentiation."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = rows.detach().clone().requires_grad_()
        value = log_partition(leaf)
        (marginals,) = torch.autograd.grad(value.sum(), leaf)
    return marginals, value.detach()


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

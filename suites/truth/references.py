"""Gradients of the objective that an estimator really has, if that is not the expected loss.

- ``perturbed``: ``E_ε L(argmax(θ + ε))``, by ``E (L − b) ν(ε)`` over independent blocks of noise, with an error of its own.
- ``relaxed``: ``L(μ(θ))``, or the loss at another point inside the hull, by derivatives.

The gradient of ``L(argmax θ)`` is 0 almost everywhere, and no reference.
"""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...estimators import Estimator, Loss
from ...estimators.noise import Gumbel, SmoothNoise
from ...estimators.surrogates import evaluate
from ...oracles.capabilities import EnumerableOracle, FactorisedOracle, MarginalOracle
from ..device_memory import launched
from ..statistics.metrics import NoisyGradient
from ..statistics.seeds import BLOCK, seed_blocks, seed_sequence
from .enumeration import CAP, exact_truth

Kind = Literal["expected", "perturbed", "relaxed", "argmax"]

BLOCKS_PER_LAUNCH = 32  # blocks at a time; no number depends on it
MIN_BLOCKS = 8  # the fewest blocks whose spread gives an error
STEP = 1e-4  # step of differences: a fourth of the digits for the derivative's curvature, the others against rounding


def own_reference(estimator: Estimator[Any]) -> Kind | None:
    """The objective whose gradient an estimator estimates, with or without bias; None if it is none of the four.

    Random relaxations and sums over a sparse support have no objective apart from the computed value.
    """
    if estimator.objective in ("sparse", "supervised") or (estimator.objective == "relaxed" and not estimator.deterministic):
        return None
    return cast("Kind", estimator.objective)


def central_difference(value: Callable[[float], Tensor]) -> tuple[Tensor, Tensor]:
    """The derivative of a function of a step at 0, by differences of two sizes, extrapolated; and by how much these disagree."""
    near, far = ((value(size) - value(-size)) / (2 * size) for size in (STEP, 2 * STEP))
    return (4 * near - far) / 3, near - far


def relaxed_gradient(oracle: Any, loss: Loss, scores: Tensor, point: Callable[[Tensor], Tensor] | None = None) -> NoisyGradient:
    """The gradient of the loss at the marginals, or at another ``point`` of the scores, [*event], in float64.

    The derivative of another point is taken by central differences with two steps, extrapolated, so that an estimator's own backward pass
    can be compared with it. The difference of the two is the error, which is large near a kink.
    """
    theta = scores.detach().double()
    if point is not None:
        directions = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device).reshape(-1, *theta.shape)
        with torch.no_grad():
            gradient, doubt = central_difference(lambda size: evaluate(loss, point(theta + size * directions), theta.ndim).double())
        return NoisyGradient(gradient.reshape(theta.shape), float(doubt.square().sum()))
    if not isinstance(oracle, MarginalOracle):
        raise ValueError(f"`relaxed_gradient` got the oracle {oracle.name} without marginals; expected another, or point=")
    with torch.enable_grad():
        leaf = theta.clone().requires_grad_()
        value = evaluate(loss, oracle.marginals(leaf), oracle.event_ndim)
        if not value.requires_grad:
            raise ValueError("`relaxed_gradient` got a loss without a gradient in the structure; expected a differentiable one")
        (gradient,) = torch.autograd.grad(value, leaf)
    return NoisyGradient(gradient, 0.0)


def perturbed_gradient(  # noqa: PLR0913 - an instance, a law, and two numbers of its sampling
    oracle: Any, loss: Loss, scores: Tensor, law: SmoothNoise, *, key: tuple[str, ...], replicates: int
) -> NoisyGradient:
    """The gradient of the loss at the best structure under noise: ``E (L − b) ν(ε)`` with ``ν = −(log f)'`` of the density of the noise.

    It is exact for Gumbel noise on small categories. Else a block of n draws gives ``Σ (L_i − L̄) ν(ε_i) / (n − 1)``: the score function
    with the mean of the other losses as the baseline of each draw. It has no bias. Blocks are independent, so their spread gives the
    error; there are at least `MIN_BLOCKS`.
    """
    theta, listed = scores.detach().double(), isinstance(oracle, FactorisedOracle) and isinstance(oracle, EnumerableOracle)
    if isinstance(law, Gumbel) and listed and oracle.count(tuple(theta.shape)) <= CAP:
        # The best parts of ``θ + sG`` are an exact sample of the law at ``θ/s``, whose truth is the reference.
        return NoisyGradient(exact_truth(loss, oracle, theta / law.scale).gradient / law.scale, 0.0)
    blocks = max(-(-replicates // BLOCK), MIN_BLOCKS)
    seeds = seed_sequence(0, *key, "perturbed", repr(law))

    def launch(first: int, count: int) -> Tensor:
        """Estimates ``[count, *event]`` of blocks."""
        streams = seed_blocks(seeds, first * BLOCK, count * BLOCK, theta.device)
        with torch.no_grad():
            noise = law.draw(oracle, theta.expand(count * BLOCK, *theta.shape), generator=streams)
            losses = evaluate(loss, oracle.argmax(theta + noise), oracle.event_ndim).double().reshape(count, BLOCK)
        centred = losses - losses.mean(-1, keepdim=True)
        slopes = law.score(noise).reshape(count, BLOCK, *theta.shape)
        return torch.einsum("cb,cb...->c...", centred, slopes) / (BLOCK - 1)

    name = f"`perturbed_gradient` with {BLOCK} draws a row and scores of shape {tuple(theta.shape)}"
    estimates = torch.cat([part for _, part in launched(name, BLOCKS_PER_LAUNCH, theta.device, (0, blocks), launch)])
    moving, gradient = oracle.free_parts(theta), estimates.mean(0)
    noise = float((estimates - gradient).square().sum(0)[moving].sum()) / (blocks - 1) / blocks
    return NoisyGradient(torch.where(moving, gradient, 0), noise)

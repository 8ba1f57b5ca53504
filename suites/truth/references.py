"""Reference gradients: of the expected loss, or of the objective that an estimator really has.

- ``expected``: ``E_{z∼p_θ} L(z)``, whose gradient is the `Truth`.
- ``perturbed``: ``E_ε L(argmax(θ + ε))``, by ``E (L − b) ν(ε)`` over independent blocks of noise, with an error of its own.
- ``relaxed``: ``L(μ(θ))``, or the loss at another point inside the hull, by derivatives.
- ``argmax``: ``L(argmax θ)``, whose gradient is 0 almost everywhere, so it has no reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from ...estimators.base import Estimator, Loss, PathwiseEstimator, evaluate
from ...estimators.noise import Gumbel, Noise, SmoothNoise
from ...oracles.capabilities import EnumerableOracle, FactorisedOracle, MarginalOracle, Oracle
from ..device_memory import Launches
from ..statistics.seeds import BLOCK, seed_blocks, seed_sequence
from .enumeration import CAP, Truth, exact_truth

Kind = Literal["expected", "perturbed", "relaxed", "argmax"]

BLOCKS_PER_LAUNCH = 32  # blocks at a time; no number depends on it
MIN_BLOCKS = 8  # the fewest blocks whose spread gives an error
STEP = 1e-4  # step of differences: a fourth of the digits for the derivative's curvature, the others against rounding


@dataclass(frozen=True, eq=False)
class Reference:
    """A gradient that estimates are compared with, float64 ``[*event]``."""

    gradient: Tensor
    value: float
    noise: float  # tr S/N, the expected squared error of the gradient; 0 if it is exact
    replicates: int | None  # draws of noise behind it; None without noise
    method: str  # of the truth, or ``gumbel-max``, ``score-function``, ``derivative`` or ``differences``


def reference_gradient(  # noqa: PLR0913 - an instance, and the options of each reference
    kind: Kind,
    oracle: Any,
    loss: Loss,
    scores: Tensor,
    *,
    truth: Truth | None = None,
    noise: Noise | None = None,
    point: Callable[[Tensor], Tensor] | None = None,
    replicates: int = 65_536,
    key: tuple[str, ...] = (),
) -> Reference:
    """The gradient of one of the four objectives at one instance's scores, [*event], in float64.

    Noise is that of ``perturbed``: Gumbel by default, in ``replicates`` draws, rounded up to whole blocks. The same ``key`` gives the same
    reference. The ``point`` of ``relaxed`` is the marginals by default; the derivative of another one is taken by differences, so that an
    estimator's own backward pass can be compared with it.

    Example:
        >>> from structgrad.oracles import Categorical
        >>> scores, losses = torch.zeros(2, dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
        >>> reference_gradient("perturbed", Categorical(), lambda z: z @ losses, scores).gradient
        tensor([ 0.2500, -0.2500], dtype=torch.float64)
    """
    theta = scores.detach().double()
    if theta.ndim != oracle.event_ndim:
        raise ValueError(f"`reference_gradient` got scores of shape {tuple(scores.shape)}; expected one instance, [*event]")
    if kind == "expected":
        return _expected(oracle, loss, theta, truth)
    if kind == "relaxed" and point is not None:
        return _by_differences(loss, theta, point)
    if kind == "relaxed":
        return _at_marginals(oracle, loss, theta)
    if kind != "perturbed":
        raise ValueError(
            f"`reference_gradient` got the reference {kind!r}; expected 'expected', 'perturbed' or 'relaxed': the gradient of the loss at "
            "the argmax is 0 almost everywhere"
        )
    law = Gumbel() if noise is None else noise
    if isinstance(law, Gumbel) and isinstance(oracle, FactorisedOracle):
        known = truth if law.scale == 1 else None
        if known is not None or (isinstance(oracle, EnumerableOracle) and oracle.count(tuple(theta.shape)) <= CAP):
            # The best parts of ``θ + sG`` are an exact sample of the law at ``θ/s``, whose truth is the reference.
            there = _expected(oracle, loss, theta / law.scale, known)
            return replace(there, gradient=there.gradient / law.scale, method="gumbel-max")
    if not isinstance(law, SmoothNoise):
        raise ValueError(f"`reference_gradient` got the noise {law}, whose density has no score here; expected Gumbel or Normal noise")
    return perturbed_gradient(oracle, loss, theta, law, key=key, replicates=replicates)


def own_reference(estimator: Estimator[Any]) -> Kind | None:
    """The objective whose gradient an estimator estimates, with or without bias; None if it is none of the four.

    Random relaxations and sums over a sparse support have no objective apart from the computed value.
    """
    if estimator.objective in ("sparse", "supervised") or (estimator.objective == "relaxed" and not estimator.deterministic):
        return None
    return cast("Kind", estimator.objective)


def reference_of(estimator: Estimator[Any], oracle: Any, loss: Loss, scores: Tensor, **options: Any) -> Reference | None:
    """The `reference_gradient` of an estimator's own objective, with its own noise or its own point; None if it has no such gradient."""
    kind, noise = own_reference(estimator), getattr(estimator, "noise", None)
    if kind is None or kind == "argmax" or not isinstance(noise, SmoothNoise | None):
        return None
    if kind == "relaxed" and isinstance(estimator, PathwiseEstimator):
        options["point"] = lambda theta: estimator.structure(oracle, theta, generator=torch.Generator(theta.device))
    return reference_gradient(kind, oracle, loss, scores, noise=noise, **options)


def _expected(oracle: Any, loss: Loss, theta: Tensor, truth: Truth | None) -> Reference:
    if truth is None and not isinstance(oracle, EnumerableOracle):
        raise ValueError(
            f"`reference_gradient` got the oracle {oracle.name}, which cannot be enumerated; pass the exact gradient as truth="
        )
    exact = exact_truth(loss, oracle, theta) if truth is None else truth
    return Reference(exact.gradient.double(), exact.value, 0.0, None, exact.method)


def _at_marginals(oracle: Any, loss: Loss, theta: Tensor) -> Reference:
    if not isinstance(oracle, MarginalOracle):
        raise ValueError(f"`reference_gradient` got the oracle {oracle.name} without marginals; expected another, or point=")
    with torch.enable_grad():
        leaf = theta.clone().requires_grad_()
        value = evaluate(loss, oracle.marginals(leaf), oracle.event_ndim)
        if not value.requires_grad:
            raise ValueError(
                "`reference_gradient` got a loss without a gradient in the structure; expected a differentiable one for 'relaxed'"
            )
        (gradient,) = torch.autograd.grad(value, leaf)
    return Reference(gradient, float(value.detach()), 0.0, None, "derivative")


def _by_differences(loss: Loss, theta: Tensor, point: Callable[[Tensor], Tensor]) -> Reference:
    """Central differences with two steps, extrapolated; their difference is the error, which is large near a kink."""
    directions = STEP * torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device).reshape(-1, *theta.shape)
    with torch.no_grad():
        places = torch.cat([theta + length * directions for length in (1, -1, 2, -2)] + [theta.unsqueeze(0)])
        values = evaluate(loss, point(places), theta.ndim).double()
    ahead, behind, far_ahead, far_behind = values[:-1].chunk(4)
    near, far = (ahead - behind) / (2 * STEP), (far_ahead - far_behind) / (4 * STEP)
    noise = float((near - far).square().sum())
    return Reference(((4 * near - far) / 3).reshape(theta.shape), float(values[-1]), noise, None, "differences")


def perturbed_gradient(  # noqa: PLR0913 - an instance, a law, and two numbers of its sampling
    oracle: Oracle, loss: Loss, theta: Tensor, law: SmoothNoise, *, key: tuple[str, ...], replicates: int
) -> Reference:
    """``E (L − b) ν(ε)`` with ``ν = −(log f)'`` of the density of the noise, for every loss and every oracle with an argmax.

    A block of n draws gives ``Σ (L_i − L̄) ν(ε_i) / (n − 1)``: the score function with the mean of the other losses as the baseline of each
    draw. It has no bias. Blocks are independent, so their spread gives the error.
    """
    blocks = -(-replicates // BLOCK)
    if blocks < MIN_BLOCKS:
        raise ValueError(f"`perturbed_gradient` got replicates={replicates}; expected at least {MIN_BLOCKS * BLOCK}, {MIN_BLOCKS} blocks")
    seeds = seed_sequence(0, *key, "perturbed", repr(law))

    def launch(first: int, count: int) -> tuple[Tensor, Tensor]:
        """Estimates ``[count, *event]`` and mean losses ``[count]`` of blocks."""
        streams = seed_blocks(seeds, first * BLOCK, count * BLOCK, theta.device)
        with torch.no_grad():
            noise = law.draw(oracle, theta.expand(count * BLOCK, *theta.shape), generator=streams)
            losses = evaluate(loss, oracle.argmax(theta + noise), oracle.event_ndim).double().reshape(count, BLOCK)
        centred = losses - losses.mean(-1, keepdim=True)
        scores = law.score(noise).reshape(count, BLOCK, *theta.shape)
        return torch.einsum("cb,cb...->c...", centred, scores) / (BLOCK - 1), losses.mean(-1)

    name = f"`perturbed_gradient` with {BLOCK} draws a row and scores of shape {tuple(theta.shape)}"
    parts = [part for _, part in Launches(name, BLOCKS_PER_LAUNCH, theta.device).over(0, blocks, launch)]
    estimates, values = (torch.cat(column) for column in zip(*parts, strict=True))
    moving, gradient = oracle.free_parts(theta), estimates.mean(0)
    noise = float((estimates - gradient).square().sum(0)[moving].sum()) / (blocks - 1) / blocks
    return Reference(torch.where(moving, gradient, 0), float(values.mean()), noise, blocks * BLOCK, "score-function")

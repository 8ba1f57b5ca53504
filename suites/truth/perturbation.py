"""The gradient of ``E_ε L(argmax(θ + ε))`` by the score function of the noise, in independent blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...estimators.base import Loss, evaluate
from ...estimators.noise import SmoothNoise
from ...oracles.capabilities import Oracle
from ..device_memory import Launches
from ..statistics.seeds import BLOCK, seed_blocks, seed_sequence

LAUNCH = 32
"""Blocks at a time; no number depends on it."""

FEWEST = 8
"""Blocks below which their spread says little."""


def perturbed_gradient(  # noqa: PLR0913 - an instance, a law, and two numbers of its sampling
    oracle: Oracle, loss: Loss, theta: Tensor, law: SmoothNoise, *, key: tuple[str, ...], replicates: int
) -> tuple[Tensor, float, float, int]:
    """``E (L − b) ν(ε)`` with ``ν = −(log f)'`` of the density of the noise: right for every loss, and for every oracle with an argmax.

    A block of n draws gives ``Σ (L_i − L̄) ν(ε_i) / (n − 1)``: the score function with the mean of the other losses as the baseline of each
    draw, without bias. Blocks are independent, so that their spread gives the error.

    Args:
        oracle: whose best structures are taken.
        loss: ``[..., *event] -> [...]``.
        theta: float64 ``[*event]``.
        law: of the noise.
        key: stable names of the stream.
        replicates: draws, rounded up to whole blocks.

    Returns:
        The gradient, the mean loss, ``tr S/N`` of the gradient and the number of draws.
    """
    blocks = -(-replicates // BLOCK)
    if blocks < FEWEST:
        raise ValueError(f"`perturbed_gradient` got replicates={replicates}; expected at least {FEWEST * BLOCK}, {FEWEST} blocks")
    moving = oracle.free_parts(theta)
    parts = list(_blocks(oracle, loss, theta, law, (key, blocks)))
    estimates, values = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    gradient = estimates.mean(0)
    noise = float((estimates - gradient).square().sum(0)[moving].sum()) / (blocks - 1) / blocks
    return torch.where(moving, gradient, 0), float(values.mean()), noise, blocks * BLOCK


def _blocks(
    oracle: Oracle, loss: Loss, theta: Tensor, law: SmoothNoise, effort: tuple[tuple[str, ...], int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Estimates ``[blocks, *event]`` and mean losses ``[blocks]``, launch by launch."""
    names, blocks = effort
    key = seed_sequence(0, *names, "perturbed", repr(law))

    def launch(first: int, count: int) -> tuple[Tensor, Tensor]:
        streams = seed_blocks(key, first * BLOCK, count * BLOCK, theta.device)
        with torch.no_grad():
            noise = law.draw(oracle, theta.expand(count * BLOCK, *theta.shape), generator=streams)
            losses = evaluate(loss, oracle.argmax(theta + noise), oracle.event_ndim).double().reshape(count, BLOCK)
        centred = losses - losses.mean(-1, keepdim=True)
        scores = law.score(noise).reshape(count, BLOCK, *theta.shape)
        return torch.einsum("cb,cb...->c...", centred, scores) / (BLOCK - 1), losses.mean(-1)

    launches = Launches(f"`perturbed_gradient` with {BLOCK} draws a row and scores of shape {tuple(theta.shape)}", LAUNCH, theta.device)
    return (found for _, found in launches.over(0, blocks, launch))

"""REINFORCE minus a network's prediction of the loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from ..oracles.capabilities import Oracle, SamplingOracle
from ..oracles.numerics import row_products
from ..oracles.options import Count, NonNegative
from ..oracles.random_streams import random_uniform
from .score_function import ScoreFunction
from .surrogates import Loss, carry, draw

HIDDEN = 16

FIT_SAMPLES, FIT_STEPS, FIT_RATE = 64, 100, 0.05

FIT_GAIN = 1e-9  # share of the error by which a step must be better than all before it: less is rounding


@dataclass(frozen=True)
class LearnedBaseline(ScoreFunction, name="reinforce_learned", references=("mnih2014neural",)):
    """REINFORCE minus a learned baseline: ``ĝ = (1/N) Σ (L(z_i) − b_ψ(θ)) ∇ log p(z_i)``. Unbiased, whatever ψ is.

    The surrogate carries the gradient of ``λ (1/N) Σ (L(z_i) − b_ψ(θ))²`` in ψ besides, so that one `backward` trains scores, decoder and
    baseline: hand the parameters of the module to the optimiser with the others. Its value and its gradient in the scores are those of
    REINFORCE with the baseline.

    The state is in the module, which is yours, and which two estimators may share; estimators are equal where they hold the same module.
    Without a module the baseline is 0, until a `StructuredLayer` makes a small network, which is trained jointly, or `warmed_up` fits one
    to samples at the given scores, as for a measurement. That network reads the scores inside each item, so that batches may be padded to
    different lengths. For a baseline of your own features, give a module and pass ``features=`` to the layer.

    Cost: that of REINFORCE, and the module.

    Args:
        module: maps scores ``[*batch, *event]``, detached, to ``[*batch]``, or the ``features`` that the layer was called with; any
            `torch.nn.Module`, or a function.
        regression_weight: λ.

    References:
        Mnih & Gregor 2014, "Neural variational inference and learning in belief networks", section 2.3 (NVIL).

    Example:
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores, module = torch.zeros(20, 3), torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
        >>> layer = StructuredLayer("categorical", LearnedBaseline(module))
        >>> optimiser = torch.optim.Adam(layer.parameters(), lr=0.5)
        >>> for _ in range(200):
        ...     values = train_step(layer, optimiser, lambda: scores, lambda z: z[..., 0] + 9)
        >>> 9 < float(module(scores).mean().detach()) < 10  # the expected loss is 9 1/3
        True
    """

    module: Callable[[Tensor], Tensor] | None = None
    num_samples: Count = 1
    regression_weight: NonNegative = 1.0

    version = 3

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        theta, batch = scores.detach(), scores.shape[: scores.ndim - oracle.event_ndim]
        baseline = theta.new_zeros(batch)
        if self.module is not None:
            baseline = self.module(readable(oracle, theta) if isinstance(self.module, PooledNetwork) else theta).to(scores.dtype)
        if baseline.shape != batch:
            raise ValueError(
                f"`{self.name}` got a prediction of shape {tuple(baseline.shape)} for scores of shape {tuple(scores.shape)}; "
                f"expected one number per item, {tuple(batch)}"
            )
        samples, losses = draw(loss, oracle, scores, self.num_samples, generator=generator)
        excess = losses.detach() - baseline
        log_probs = oracle.log_prob(samples, scores, as_indices=not samples.is_floating_point())
        return carry(losses.mean(0), (excess.detach() * log_probs + self.regression_weight * excess.square()).mean(0))

    def prepared(self, oracle: SamplingOracle, event_shape: tuple[int, ...] | None, generator: torch.Generator) -> Self:
        """The estimator with a fresh network; itself where it has a module."""
        if self.module is not None:
            return self
        return replace(self, module=PooledNetwork(oracle.event_ndim, generator))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator with a network fitted to losses of samples at these scores; itself where it has a module or the batch is empty."""
        if self.module is not None or not scores.numel():
            return self
        with torch.no_grad():
            losses = draw(loss, oracle, scores, FIT_SAMPLES, generator=generator)[1].double()
        network = PooledNetwork(oracle.event_ndim, generator)
        network.fit(readable(oracle, scores.detach()), losses)
        return replace(self, module=network)


def readable(oracle: Oracle, scores: Tensor) -> Tensor:
    """Scores ``[*batch, *event]``, -inf for what a network must not read: forbidden and ignored parts, and padding."""
    return torch.where(oracle.parts_within(oracle.free_parts(scores), scores), scores, -math.inf)


class PooledNetwork(nn.Module):
    """A regression with one hidden layer, in float64, on sums over the parts of an item: ``[*batch, *event]`` to ``[*batch]``.

    Entries of -inf are left out, and the others are numbered in the order of memory. So padding changes nothing, and items of any size fit.
    The inputs are ``Σ_r s_r φ_k(r) / √n`` of the n scores s, where φ are `waves`.

    Args:
        event_ndim: of the scores.
        generator: of the first weights, on whose device they are.
        each_state: whether each state, which is an index of all event dimensions but the last, gets a value from its own scores besides.
    """

    location: Tensor
    spread: Tensor

    def __init__(self, event_ndim: int, generator: torch.Generator, *, each_state: bool = False) -> None:
        super().__init__()
        self.event_ndim, self.each_state = event_ndim, each_state
        size = len(waves(1, generator.device).T) * (3 if each_state else 1)
        drawn = random_uniform((), (HIDDEN, size + 1), generator=generator, device=generator.device)
        self.hidden = nn.Parameter((2 * drawn - 1) / math.sqrt(size))
        self.out = nn.Parameter(torch.zeros(1, HIDDEN + 1, dtype=torch.float64, device=generator.device))
        self.register_buffer("location", self.out.new_zeros(()))
        self.register_buffer("spread", self.out.new_ones(()))

    def forward(self, scores: Tensor) -> Tensor:
        """The predicted loss, ``[*batch]``, or that of each state, ``[*batch, *event]`` without the last dimension."""
        inputs = pooled(scores.flatten(-self.event_ndim))
        if self.each_state:
            states = scores.flatten(-self.event_ndim, -2)
            place = (states.isfinite().any(-1).cumsum(-1) - 1).clamp(min=0)
            own = pooled(states)
            inputs = torch.cat([inputs.unsqueeze(-2).expand_as(own), own, waves(states.shape[-2], scores.device)[place]], -1)
        hidden = (row_products(inputs, self.hidden[:, 1:]) + self.hidden[:, 0]).tanh()
        values = self.location + self.spread * (row_products(hidden, self.out[:, 1:]) + self.out[:, 0]).squeeze(-1)
        return values.reshape(scores.shape[:-1]) if self.each_state else values

    def fit(self, scores: Tensor, losses: Tensor) -> None:
        """Least squares on losses ``[N, *batch]``, by a few steps of Adam that start from their mean; the best step is kept.

        At a minimum, such as the mean is at scores that are all alike, Adam blows rounding up into steps.
        """
        self.location.copy_(losses.mean())
        self.spread.copy_(losses.std(correction=0).clamp(min=1e-12))
        optimiser = torch.optim.Adam(self.parameters(), lr=FIT_RATE)
        least, best = math.inf, list[Tensor](self.parameters())
        with torch.enable_grad():
            for _ in range(FIT_STEPS):
                optimiser.zero_grad()
                error = ((self(scores) - losses) / self.spread).square().mean()
                if float(error.detach()) < (1 - FIT_GAIN) * least:
                    least, best = float(error.detach()), [parameter.detach().clone() for parameter in self.parameters()]
                error.backward()
                optimiser.step()
        with torch.no_grad():
            for parameter, kept in zip(self.parameters(), best, strict=True):
                parameter.copy_(kept)


def pooled(scores: Tensor) -> Tensor:
    """``Σ_r s_r φ_k(r) / √n`` over the n finite scores of each row ``[..., m]``: ``[..., k]``."""
    there = scores.isfinite()
    known = torch.where(there, scores.double(), 0)
    if not (there.is_cpu and bool(there.all())):
        known = known.gather(-1, (~there).byte().argsort(dim=-1, stable=True))
    return row_products(known, waves(scores.shape[-1], scores.device).T) / there.sum(-1, keepdim=True).clamp(min=1).sqrt()


def waves(size: int, device: torch.device) -> Tensor:
    """φ: 1, and cosines and sines of multiples of the golden angle, at 0 to ``size − 1``: ``[size, k]``, with rows that all differ."""
    places = torch.arange(size, dtype=torch.float64, device=device).unsqueeze(-1)
    phase = places * (math.pi * (3 - math.sqrt(5)) * torch.arange(1, 13, dtype=torch.float64, device=device))
    return torch.cat([torch.ones_like(phase[:, :1]), phase.cos(), phase.sin()], -1)

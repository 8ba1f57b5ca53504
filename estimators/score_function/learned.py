"""REINFORCE minus a network's prediction of the loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from ...oracles.capabilities import Oracle, SamplingOracle
from ...oracles.options import Count, NonNegative
from ...oracles.random_streams import random_uniform
from ...oracles.row_products import row_products
from ..base import Estimator, Evaluations, Loss, Objective, carry, evaluate_samples
from ..indices import draw

HIDDEN = 16
FIT_SAMPLES, FIT_STEPS, FIT_RATE = 64, 100, 0.05
FIT_GAIN = 1e-9
"""By which share of the error a step must be better than all before it: less is rounding."""


@dataclass(frozen=True)
class LearnedBaseline(Estimator[SamplingOracle]):
    """REINFORCE minus a learned baseline: ``ĝ = (1/N) Σ (L(z_i) − b_ψ(θ)) ∇ log p(z_i)``. Unbiased, whatever ψ is.

    The surrogate carries the gradient of ``λ (1/N) Σ (L(z_i) − b_ψ(θ))²`` in ψ besides, so that one `backward` trains scores, decoder and
    baseline: hand the parameters of the module to the optimiser with the others. Its value and its gradient in the scores are those of
    REINFORCE with the baseline.

    The state is in the module, which is yours, and which two estimators may share; estimators are equal where they hold the same module.
    Without a module the baseline is 0, until `prepared` makes a small network to be trained along, as a `StructuredLayer` asks for, or
    `warmed_up` fits one to samples at the given scores, which is how the estimator is measured. Either returns an estimator that holds it;
    its weights come from the generator.

    Cost: that of REINFORCE, and the module.

    Args:
        module: maps scores ``[*batch, *event]``, detached, to ``[*batch]``; any `torch.nn.Module`, or a function. It may look at data of
            the batch rows instead.
        num_samples: N.
        regression_weight: λ.

    References:
        Mnih & Gregor 2014, "Neural variational inference and learning in belief networks", section 2.3 (NVIL).

    Example:
        >>> from structgrad.oracles import Categorical
        >>> from structgrad.estimators import StructuredLayer, train_step
        >>> scores, module = torch.zeros(20, 3), torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
        >>> layer = StructuredLayer(Categorical(), LearnedBaseline(module))
        >>> optimiser = torch.optim.Adam(layer.parameters(), lr=0.5)
        >>> for _ in range(200):
        ...     values = train_step(layer, optimiser, lambda: scores, lambda z: z[..., 0] + 9)
        >>> 9 < float(module(scores).mean().detach()) < 10  # the expected loss is 9 1/3
        True
    """

    module: Callable[[Tensor], Tensor] | None = None
    num_samples: Count = 1
    regression_weight: NonNegative = 1.0

    name: ClassVar[str] = "reinforce_learned"
    references: ClassVar[tuple[str, ...]] = ("mnih2014neural",)
    needs: ClassVar[tuple[type[Oracle], ...]] = (SamplingOracle,)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True
    version: ClassVar[int] = 2

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, marginals=1, samples=self.num_samples)

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        baseline = self._prediction(oracle, scores.detach())
        samples = draw(loss, oracle, scores, self.num_samples, generator=generator)
        losses = evaluate_samples(loss, samples)
        excess = losses.detach() - baseline
        score_function = (excess.detach() * samples.log_probs(scores)).mean(0)
        return carry(losses.mean(0), score_function + self.regression_weight * excess.square().mean(0))

    def _prediction(self, oracle: SamplingOracle, scores: Tensor) -> Tensor:
        batch = scores.shape[: scores.ndim - oracle.event_ndim]
        if self.module is None:
            return scores.new_zeros(batch)
        prediction = self.module(scores)
        if prediction.shape != batch:
            raise ValueError(
                f"`{self.name}` got a prediction of shape {tuple(prediction.shape)} for scores of shape {tuple(scores.shape)}; "
                f"expected one number per item, {tuple(batch)}"
            )
        return prediction.to(scores.dtype)

    def prepared(self, oracle: SamplingOracle, event_shape: tuple[int, ...] | None, generator: torch.Generator) -> Self:
        """The estimator with a fresh network for scores of this shape; itself where it has a module."""
        if self.module is not None:
            return self
        return replace(self, module=SmallNetwork(parts_of(self.name, oracle, event_shape, generator.device), generator))

    def warmed_up(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Self:
        """The estimator with a network fitted to losses of samples at these scores; itself where it has a module or the batch is empty."""
        if self.module is not None or not scores.numel():
            return self
        event = tuple(scores.shape[scores.ndim - oracle.event_ndim :])
        samples = draw(loss, oracle, scores.detach(), FIT_SAMPLES, generator=generator)
        with torch.no_grad():
            losses = evaluate_samples(loss, samples).double()
        network = SmallNetwork(oracle.read_mask(event, scores.device), generator)
        network.fit(scores.detach(), losses)
        return replace(self, module=network)


def parts_of(name: str, oracle: Oracle, event_shape: tuple[int, ...] | None, device: torch.device) -> Tensor:
    """Which entries of scores a network on a device reads, for the estimator of this name; ValueError where no shape is given."""
    if event_shape is None:
        raise ValueError(f"`{name}` got no event_shape; expected that of the scores, such as (10,), which its network is made for")
    return oracle.read_mask(event_shape, device)


class SmallNetwork(nn.Module):
    """A regression with one hidden layer, in float64: ``[*batch, *event]`` to ``[*batch, *outputs]``.

    Forbidden and ignored parts count as 0, and what padding adds to an event is not read.
    """

    location: Tensor
    spread: Tensor
    parts: Tensor

    def __init__(self, parts: Tensor, generator: torch.Generator, outputs: tuple[int, ...] = ()) -> None:
        super().__init__()
        size, self.outputs = parts.numel(), outputs
        drawn = random_uniform((), (HIDDEN, size + 1), generator=generator, device=parts.device)
        self.hidden = nn.Parameter((2 * drawn - 1) / math.sqrt(size))
        self.out = nn.Parameter(torch.zeros(math.prod(outputs), HIDDEN + 1, dtype=torch.float64, device=parts.device))
        self.register_buffer("parts", parts)
        self.register_buffer("location", self.out.new_zeros(()))
        self.register_buffer("spread", self.out.new_ones(()))

    def forward(self, scores: Tensor) -> Tensor:
        """The predicted loss."""
        event_ndim = self.parts.ndim
        for dim, size in enumerate(self.parts.shape, -event_ndim):
            scores = scores.narrow(dim, 0, size)
        known = torch.where(self.parts & scores.isfinite(), scores.double(), 0).flatten(scores.ndim - event_ndim)
        hidden = (row_products(known, self.hidden[:, 1:]) + self.hidden[:, 0]).tanh()
        values = self.location + self.spread * (row_products(hidden, self.out[:, 1:]) + self.out[:, 0])
        return values.unflatten(-1, self.outputs) if self.outputs else values.squeeze(-1)

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

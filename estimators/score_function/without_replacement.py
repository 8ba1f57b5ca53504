"""Sets of structures that are drawn one after the other without replacement, by a race of Gumbel variables.

Up to a number of structures all of them race. Beyond it an oracle draws the winners alone, where it can (`DistinctSamplingOracle`).
"""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...oracles.capabilities import DistinctSamplingOracle, DrawnSet, EnumerableOracle, MarginalOracle, Oracle
from ...oracles.numerics import log_sum_exp, share_rows
from ...oracles.random_streams import standard_gumbel
from ..base import Estimator, Evaluations, Loss, Objective
from ..enumeration import ListedOracle, too_many

CHUNK = 4096
"""Structures that race at a time. A constant: the random numbers follow it."""

MOST_STRUCTURES = 2**16
"""Structures that race, unless the option ``limit`` says otherwise: memory holds all of them. Of more, oracles draw the winners alone."""


class SetEstimator(Estimator[ListedOracle]):
    """A score function of k structures that are drawn without replacement; a subclass says how they are weighed."""

    num_samples: int
    baseline: bool
    limit: int

    needs: ClassVar[tuple[type[Oracle], ...]] = (MarginalOracle, EnumerableOracle)
    objective: ClassVar[Objective] = "expected"
    unbiased: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline and self.num_samples < 2:
            raise ValueError(f"`{self.name}` got num_samples={self.num_samples}; expected an integer >= 2, the others are the baseline")

    def evaluations(self) -> Evaluations:
        return Evaluations(losses=self.num_samples, listings=1)

    def lists(self, oracle: Any, event_shape: tuple[int, ...]) -> bool:
        return not isinstance(oracle, DistinctSamplingOracle) or bool(oracle.count(event_shape) <= self.limit)

    def _limitation(self, oracle: Any, event_shape: tuple[int, ...]) -> str | None:
        return too_many(self.name, oracle, event_shape, self.limit) if self.lists(oracle, event_shape) else None

    def surrogate(self, loss: Loss, oracle: ListedOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        return self.from_set(loss, oracle, scores, self._drawn(oracle, scores, generator))

    def _drawn(self, oracle: ListedOracle, scores: Tensor, generator: torch.Generator) -> DrawnSet:
        if not self.lists(oracle, tuple(scores.shape[scores.ndim - oracle.event_ndim :])) and isinstance(oracle, DistinctSamplingOracle):
            return oracle.sample_distinct(scores, self.num_samples, generator=generator)
        return draw_set(oracle, scores, self.num_samples, generator=generator)

    @abc.abstractmethod
    def from_set(self, loss: Loss, oracle: ListedOracle, scores: Tensor, drawn: DrawnSet) -> Tensor:
        """The surrogate of a set that was drawn already."""


def draw_set(oracle: ListedOracle, scores: Tensor, k: int, *, generator: torch.Generator) -> DrawnSet:
    """k structures (all, where there are fewer), as those of the k largest ``log p(z) + Gumbel`` (Kool et al. 2019, section 2)."""
    batch_dims = scores.ndim - oracle.event_ndim
    batch, event = tuple(scores.shape[:batch_dims]), tuple(scores.shape[batch_dims:])
    space = oracle.enumerate(event, dtype=scores.dtype, device=scores.device)
    theta = share_rows(scores.detach(), oracle.event_ndim).double()
    structures = space.double().reshape(len(space), *[1] * batch_dims, *event)
    totals = oracle.log_prob(structures, theta).movedim(0, -1)
    log_probs = torch.where(totals > -math.inf, totals - log_sum_exp(totals, -1).unsqueeze(-1), -math.inf)
    perturbed, ranks = race(log_probs, batch, k + 1, generator)
    threshold = perturbed[..., k] if len(space) > k else torch.full(batch, -math.inf, dtype=torch.float64, device=scores.device)
    ranks = ranks[..., :k]
    chosen = log_probs.expand(*batch, -1).gather(-1, ranks)
    ranks = torch.where(chosen > -math.inf, ranks, ranks[..., :1])
    return DrawnSet(space[ranks.movedim(-1, 0)], chosen, log_mass_of_others(log_probs, ranks), threshold)


def race(log_probs: Tensor, batch: tuple[int, ...], places: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The largest ``log p + Gumbel``, best first, and their ranks: ``[*batch, places]``, or as many as there are structures."""
    leaders, ranks = log_probs.new_zeros((*batch, 0)), torch.zeros((*batch, 0), dtype=torch.int64, device=log_probs.device)
    for start in range(0, log_probs.shape[-1], CHUNK):
        running = log_probs[..., start : start + CHUNK]
        noise = standard_gumbel(batch, (running.shape[-1],), generator=generator, device=log_probs.device)
        best = noise.add_(running).topk(min(places, running.shape[-1]), -1)
        every, names = torch.cat([leaders, best.values], -1), torch.cat([ranks, best.indices + start], -1)
        best = every.topk(min(places, every.shape[-1]), -1)
        leaders, ranks = best.values, names.gather(-1, best.indices)
    return leaders, ranks


def log_mass_of_others(log_probs: Tensor, ranks: Tensor) -> Tensor:
    """Log-probability ``[*batch]`` of all structures but those of some ranks ``[*batch, k]``, which may repeat.

    In descending order the others are the gaps between the chosen, and a gap is a difference of two tails of the distribution. It holds
    structures that are at least as probable as any that follows, so that a difference loses no more digits than there are structures.
    """
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    tails = log_probs.gather(-1, order).flip(-1).logcumsumexp(-1).flip(-1)
    tails = torch.nn.functional.pad(tails, (0, 1), value=-math.inf).expand(*ranks.shape[:-1], -1)
    places = order.argsort(-1).expand(*ranks.shape[:-1], -1).gather(-1, ranks).sort(-1).values
    # From behind the one before, to the one chosen; after the last, to the end.
    first = torch.nn.functional.pad(places + 1, (1, 0), value=0)
    last = torch.nn.functional.pad(places, (0, 1), value=log_probs.shape[-1])
    whole, beyond = tails.gather(-1, first), tails.gather(-1, torch.maximum(first, last))
    shrink = torch.where(whole > -math.inf, beyond - whole, 0)
    return log_sum_exp(whole + torch.where(shrink < 0, shrink, 0).expm1().neg().log(), -1)


def log_chance_above(gap: Tensor) -> Tensor:
    """``log(1 − exp(−e^gap))``: of a Gumbel variable to exceed a value that lies ``gap`` below its location; exact at both ends."""
    small = gap < -36
    return torch.where(small, gap, torch.where(small, 0.0, gap).exp().neg().expm1().neg().log())


def shares(logits: Tensor) -> Tensor:
    """``exp``, normalised along the last dimension; 0 where every logit is -inf."""
    total = log_sum_exp(logits, -1).unsqueeze(-1)
    return (logits - torch.where(total > -math.inf, total, 0)).exp()

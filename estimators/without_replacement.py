"""Sets of structures that are drawn one after the other without replacement, by a race of Gumbel variables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..oracles.masking import log_sum_exp, share_rows
from ..oracles.random_streams import draw_rows, standard_gumbel
from .enumeration import ListedOracle

CHUNK = 4096
"""Structures that race at a time. A constant: the random numbers follow it."""

MOST_STRUCTURES = 2**16


@dataclass(frozen=True, eq=False)
class DrawnSet:
    """k structures without replacement: each the next draw of the Gibbs law of those that are left.

    Where fewer are feasible, the first structure fills the other slots, with log-probability ``-inf``.

    Attributes:
        structures: ``[k, *batch, *event]``, in the order in which they were drawn.
        log_probs: float64 ``[*batch, k]``.
        log_rest: float64 ``[*batch]``: the log-probability of all other structures together.
        threshold: float64 ``[*batch]``: the greatest perturbed log-probability among the others; ``-inf`` where there are none.
    """

    structures: Tensor
    log_probs: Tensor
    log_rest: Tensor
    threshold: Tensor


def limitation(name: str, oracle: ListedOracle, event_shape: tuple[int, ...]) -> str | None:
    """Why structures of this shape cannot race, if they are too many."""
    if oracle.count(event_shape) <= MOST_STRUCTURES:
        return None
    return f"{name} lists all structures, and the oracle {oracle.name} has more than {MOST_STRUCTURES} of the shape {event_shape}"


def draw_set(oracle: ListedOracle, scores: Tensor, k: int, *, generator: torch.Generator) -> DrawnSet:
    """k structures (all, where there are fewer), as those of the k largest ``log p(z) + Gumbel`` (Kool et al. 2019, section 2)."""
    batch_dims = scores.ndim - oracle.event_ndim
    batch, event = tuple(scores.shape[:batch_dims]), tuple(scores.shape[batch_dims:])
    space = oracle.enumerate(event, dtype=scores.dtype, device=scores.device)
    theta = share_rows(scores.detach(), oracle.event_ndim).double()
    race = _Race.start(batch, scores.device)
    for start in range(0, len(space), CHUNK):
        listed = space[start : start + CHUNK].double()
        log_probs = oracle.log_prob(listed.reshape(len(listed), *[1] * batch_dims, *event), theta).movedim(0, -1)
        drawn = draw_rows(batch, (len(listed),), lambda size, stream: standard_gumbel(size, stream, scores.device), generator)
        race = race.joined(log_probs.expand(*batch, -1), drawn, start, k + 1)
    return race.ended(space, min(k, len(space)))


@dataclass(frozen=True, eq=False)
class _Race:
    """Who leads so far, best first: perturbed log-probabilities, log-probabilities and ranks [*batch, n]; the mass of who fell behind."""

    perturbed: Tensor
    log_probs: Tensor
    ranks: Tensor
    log_rest: Tensor

    @classmethod
    def start(cls, batch: tuple[int, ...], device: torch.device) -> _Race:
        none = torch.zeros((*batch, 0), dtype=torch.float64, device=device)
        return cls(none, none, none.long(), torch.full(batch, -math.inf, dtype=torch.float64, device=device))

    def joined(self, log_probs: Tensor, noise: Tensor, start: int, places: int) -> _Race:
        ranks = torch.arange(start, start + log_probs.shape[-1], device=log_probs.device).expand(log_probs.shape)
        every = torch.cat([self.log_probs, log_probs], -1)
        best = torch.cat([self.perturbed, log_probs + noise], -1).topk(min(places, every.shape[-1]), -1)
        behind = log_sum_exp(every.scatter(-1, best.indices, -math.inf), -1)
        return _Race(
            best.values,
            every.gather(-1, best.indices),
            torch.cat([self.ranks, ranks], -1).gather(-1, best.indices),
            torch.logaddexp(self.log_rest, behind),
        )

    def ended(self, space: Tensor, k: int) -> DrawnSet:
        last = self.perturbed[..., k:]
        log_rest = torch.logaddexp(self.log_rest, log_sum_exp(self.log_probs[..., k:], -1)) if last.shape[-1] else self.log_rest
        log_probs = self.log_probs[..., :k]
        total = torch.logaddexp(log_rest, log_sum_exp(log_probs, -1))
        total = torch.where(total > -math.inf, total, 0)
        ranks = torch.where(log_probs > -math.inf, self.ranks[..., :k], self.ranks[..., :1])
        threshold = last.squeeze(-1) if last.shape[-1] else torch.full_like(log_rest, -math.inf)
        return DrawnSet(space[ranks.movedim(-1, 0)], log_probs - total.unsqueeze(-1), log_rest - total, threshold - total)


def log_chance_above(gap: Tensor) -> Tensor:
    """``log(1 − exp(−e^gap))``: of a Gumbel variable to exceed a value that lies ``gap`` below its location; exact at both ends."""
    small = gap < -36
    return torch.where(small, gap, torch.where(small, 0.0, gap).exp().neg().expm1().neg().log())


def shares(logits: Tensor) -> Tensor:
    """``exp``, normalised along the last dimension; 0 where every logit is -inf."""
    total = log_sum_exp(logits, -1).unsqueeze(-1)
    return (logits - torch.where(total > -math.inf, total, 0)).exp()

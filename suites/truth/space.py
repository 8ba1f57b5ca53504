"""The structures of one instance with their losses and scores, in chunks, and the sums over any range of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ...estimators.base import Loss
from ...oracles import kernels
from ...oracles.capabilities import EnumerableOracle
from ..device_memory import Launches, available
from .comoments import FORBIDDEN, CoMoments, Pile
from .loss_checks import examine_loss, values

MOST = 8192
"""The most structures of a chunk on the CPU; more do not fit the cache of one core."""

NUMBERS = 2**18
"""Parts of a chunk's structures together, for the same reason."""

BYTES = 80
"""That a part of a structure takes on a device: itself, its deviation, what a loss makes of it, and estimates with their powers."""

T = TypeVar("T")


class Space:
    """What is enumerated: structures as deviations from the best one, the pivot; parts that are counted as they are.

    Args:
        loss: ``[..., *event] -> [...]``; evaluated in float64 on structures only.
        oracle: lists the structures.
        scores: ``[*event]``.
        chunk: structures at a time; None for what fits the cache.

    Raises:
        ValueError: scores of another shape, or without a feasible structure.
    """

    def __init__(self, loss: Loss, oracle: EnumerableOracle, scores: Tensor, chunk: int | None = None) -> None:
        self.loss, self.oracle, self.scores = loss, oracle, scores.detach().double()
        self.event = tuple(scores.shape)
        if scores.ndim != oracle.event_ndim:
            raise ValueError(f"`exact_truth` got scores of shape {self.event}; expected one instance, [*event]")
        self.count = oracle.count(self.event)
        self.chunk = chunk or fitting_chunk(scores)
        potentials = oracle.natural_parameters(self.scores)
        best = oracle.argmax(potentials if potentials is self.scores else self.scores).flatten()
        forbidden = (potentials == -math.inf).flatten()
        # The structure without parts, which some oracles have, is the best one where every part costs something.
        nothing = not bool(best.any()) and bool(oracle.argmax(torch.full_like(self.scores, -1)).any())
        if nothing or not bool(oracle.free_parts(self.scores).any()):
            raise ValueError("`exact_truth` got scores that forbid every structure; expected at least one feasible structure")
        examine_loss(loss, oracle, self.scores)
        finite = torch.where(forbidden, 0, potentials.flatten())
        # Parts that are counted are taken from 0, as all others are from what the best structure has.
        best = best * oracle.binary_mask(self.event, scores.device).flatten()
        self.pivot_score = finite @ best
        self._binary = bool(oracle.binary_mask(self.event).all())
        # Only parts that are read are summed: half of the square of a constituency tree.
        self._places = oracle.read_mask(self.event, scores.device).flatten().nonzero().squeeze(-1)
        best, forbidden, finite = best[self._places], forbidden[self._places], finite[self._places]
        self._pivot, self._signs = best.to(torch.uint8), 1 - 2 * best
        # What a deviation adds to the score, and to the size of its terms.
        sizes = torch.where(forbidden, FORBIDDEN, finite.abs())
        self._columns = torch.stack([finite * self._signs, sizes])

    def _taken(self, start: int, stop: int, compute: Callable[[Tensor, Tensor], T]) -> Iterator[T]:
        """What is computed of every chunk of a range: of structures, uint8 ``[c, *event]``, and their losses ``[c]``."""
        launches = Launches(f"`exact_truth` of structures of shape {self.event}", self.chunk, self.scores.device)
        # The loss reads the same memory every time: pages that were never touched before cost more than the loss of a chunk.
        room = [self.scores.new_empty(0, *self.event)]

        def launch(first: int, count: int) -> T:
            if not count <= len(room[0]) < 2 * count:
                room[0] = self.scores.new_empty(0)
                room[0] = self.scores.new_empty(count, *self.event)
            structures = self.oracle.enumerate(self.event, first, first + count, dtype=torch.uint8, device=self.scores.device)
            found = compute(structures, self._losses(room[0][:count].copy_(structures)))
            if first + count < stop:
                self.chunk = count  # fewer than before, where memory ran out
            return found

        return (found for _, found in launches.over(start, stop, launch))

    def _chunk(self, structures: Tensor, losses: Tensor) -> Chunk:
        flips = (structures.flatten(1)[:, self._places] ^ self._pivot).double()
        scores, sizes = (flips @ self._columns.T).unbind(-1)
        return Chunk(flips, losses, torch.where(sizes >= FORBIDDEN, -math.inf, scores), (flips.sum(-1) + 5) * (sizes + 4))

    def _losses(self, structures: Tensor) -> Tensor:
        return values(self.loss, structures, self.oracle.event_ndim)

    def sums(self, start: int, stop: int) -> CoMoments:
        """The sums over ranks ``start`` to ``stop`` (exclusive), at least one."""
        pile = Pile()
        for found in self._taken(start, stop, self._sums):
            pile.add(found)
        return pile.total()

    def _sums(self, structures: Tensor, losses: Tensor) -> CoMoments:
        # Compiled sums look up what four structures have of a part: it is there or not, and cannot be counted.
        if kernels.enabled(losses) and self._binary:
            return CoMoments.compiled(structures.flatten(1), losses, self._pivot, self._places, self._columns)
        chunk = self._chunk(structures, losses)
        return CoMoments.of(chunk.flips, chunk.losses, chunk.scores, chunk.slack)

    def covariance(self, sums: CoMoments) -> Tensor:
        """Of the loss with the parts: ``[*event]``."""
        return self.spread(self._signs * sums.covariance(), 0)

    def marginals(self, sums: CoMoments) -> Tensor:
        """The mean structure: ``[*event]``."""
        return self.spread(self._pivot + self._signs * sums.flips, 0)

    def spread(self, values: Tensor, missing: float) -> Tensor:
        """Values of the p parts that are read as ``[*event]``."""
        return torch.full_like(self.scores, missing).flatten().index_copy(0, self._places, values).reshape(self.event)

    def powers(self, start: int, stop: int, sums: CoMoments) -> Tensor:
        """Second and fourth central moments of ``(L − E L) ∇ log p(z)`` over a range: ``[2, p + 1]``, by part and along the gradient.

        The score of a structure is ``z − μ``, pulled back where scores are not the natural parameters. That of a policy is 0 but for few
        samples at a state where one action is all but sure, while the parts themselves are often there.

        Args:
            start: the first rank.
            stop: the end of the range.
            sums: those over all structures.
        """
        covariance, total = sums.covariance(), self.scores.new_zeros(2, len(self._places) + 1)
        jacobian = self._jacobian()
        gradient = covariance if jacobian is None else covariance @ jacobian

        def powers(structures: Tensor, losses: Tensor) -> Tensor:
            chunk = self._chunk(structures, losses)
            errors = (chunk.losses - sums.loss) - sums.rest
            estimates = errors.unsqueeze(-1) * (chunk.flips - sums.flips) - covariance
            estimates = estimates if jacobian is None else estimates @ jacobian
            square = torch.cat([estimates, (estimates @ gradient).unsqueeze(-1)], -1).square_()
            probabilities = (chunk.scores - sums.top).exp() / sums.weight
            return torch.stack([probabilities @ square, probabilities @ square.square()])

        for found in self._taken(start, stop, powers):
            total += found
        return total

    def squared_scores(self, metric: Tensor | None) -> Tensor:
        """``E[(L − E L)ᵏ s's]`` of the scores ``s = ∇ log p(z)`` for k = 0, 1, 2, ``[1 or 2, 3]``; the second row is that of ``s'Ms``.

        Args:
            metric: M, ``[d, d]``; None leaves out the second row.
        """
        sums, jacobian = self.sums(0, self.count), self._jacobian()
        kept = None if metric is None else metric[self._places][:, self._places]
        total = self.scores.new_zeros(1 if kept is None else 2, 3)

        def squares(structures: Tensor, losses: Tensor) -> Tensor:
            chunk = self._chunk(structures, losses)
            errors, centred = (chunk.losses - sums.loss) - sums.rest, chunk.flips - sums.flips
            scores = centred * self._signs if jacobian is None else centred @ jacobian
            forms = [scores, *([] if kept is None else [scores @ kept])]
            weights = (chunk.scores - sums.top).exp() / sums.weight
            powers = torch.stack([weights, weights * errors, weights * errors.square()], -1)
            return torch.stack([torch.linalg.vecdot(form, scores) for form in forms]) @ powers

        for found in self._taken(0, self.count, squares):
            total += found
        return total

    def extremes(self) -> Tensor:
        """Feasible structures of least and of greatest loss, uint8 ``[2, *event]``."""

        def ends(structures: Tensor, losses: Tensor) -> tuple[Tensor, Tensor]:
            possible = self._chunk(structures, losses).scores > -math.inf
            signed = torch.where(possible, torch.stack([-losses, losses]), -math.inf)
            return signed.amax(-1), structures[signed.argmax(-1)]

        heights, found = (torch.stack(parts) for parts in zip(*self._taken(0, self.count, ends), strict=True))
        best = heights.argmax(0)
        return torch.stack([found[best[0], 0], found[best[1], 1]])

    def _jacobian(self) -> Tensor | None:
        """Of the natural parameters, turned as flips are, in the scores: ``[p, p]`` of the parts that are read; None where they are one."""
        with torch.enable_grad():
            leaf = self.scores.clone().requires_grad_()
            potentials = self.oracle.natural_parameters(leaf)
            if potentials is leaf:
                return None
            unit = torch.zeros(len(self._places), leaf.numel(), dtype=leaf.dtype, device=leaf.device)
            unit.scatter_(1, self._places.unsqueeze(-1), self._signs.to(leaf).unsqueeze(-1))
            (rows,) = torch.autograd.grad(potentials, leaf, unit.reshape(-1, *self.event), is_grads_batched=True)
        return rows.flatten(1)[:, self._places]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some structures as deviations from the pivot.

    Attributes:
        flips: ``[c, parts]``. ``losses``: ``[c]``. ``scores``: ``[c]``, relative to the pivot, -inf where a structure is not feasible.
        slack: ``[c]``, bounds on the relative errors of ``exp(score)``, in units of roundoff: of m terms, the sum errs by at most m times
            their size; the rest covers the exponential, the distance of the greatest score, and natural parameters that were computed.
    """

    flips: Tensor
    losses: Tensor
    scores: Tensor
    slack: Tensor


def fitting_chunk(scores: Tensor) -> int:
    """How many structures of this shape are taken at a time: what the cache of a core holds; on other devices, what makes launches pay."""
    if scores.device.type != "cpu":
        chunk = max(1, min(2**20, 2**28 // scores.numel()))
        # Halved, for the last digits of a truth depend on it: they seldom depend on what else takes memory.
        while chunk > 1 and BYTES * scores.numel() * chunk > available(scores.device):
            chunk //= 2
        return chunk
    return int(min(MOST, max(64, NUMBERS // scores.numel())))

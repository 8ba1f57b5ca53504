"""Exactly k of n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from ..active_set.solution import Projection
from ..active_set.start import Start
from ..capabilities import KBestOracle, MarginalOracle, Oracle, SubsetOracle
from ..capabilities.projection import RowArgmax
from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle
from ..options import Count
from ..simplex import projection

ONE_EACH = 256
"""Parts up to which a sample takes a uniform for each. To draw more takes longer than all else, and one for each that is taken will do."""


@dataclass(frozen=True)
class Subset(SubsetOracle, DerivedOracle):
    """Exactly ``k`` of ``n``: event ``[n]``, structures hold k ones; indices ``[k]`` are the parts that are taken, in ascending order.

    The Gibbs law is the conditional Poisson law (not Plackett-Luce, which Gumbel top-k draws): of n independent parts, given that k are
    taken. The log-partition is a coefficient of ``∏ (1 − p_i + p_i x)``, O(nk), multiplied out pair by pair, so in log n steps; a sample
    walks along the parts, with one uniform for each, or of more than 256 with one for each that is taken; the projection is that on the
    capped simplex, and its atoms come from systematic sampling.

    Args:
        k: size of the subset, at least 1.

    References:
        Chen & Liu 1997, "Statistical applications of the Poisson-binomial and conditional Bernoulli distributions", section 2;
        Darroch 1964, "On the distribution of the number of successes in independent trials" (its mode); Ahmed et al. 2023, "SIMPLE",
        section 3; Madow 1949 (systematic sampling).

    Example:
        >>> oracle = Subset(2)
        >>> oracle.marginals(torch.zeros(4))
        tensor([0.5000, 0.5000, 0.5000, 0.5000])
        >>> oracle.count((30,))
        435
    """

    k: Count

    name: ClassVar[str] = "subset"
    axes: ClassVar[tuple[str, ...]] = ("length",)
    references: ClassVar[tuple[str, ...]] = ("chen1997statistical", "ahmed2023simple")
    kernel: ClassVar[str | None] = "subset"
    _ignores_entries: ClassVar[bool] = False

    def count(self, event_shape: tuple[int, ...]) -> int:
        return math.comb(event_shape[0], self.k)

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        return self.k

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.ones(event_shape, dtype=torch.bool, device=device)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per part and number of parts that are still to be taken, from that part on. To take it comes first."""
        (size,) = event_shape
        builder = Builder(size)
        nodes = torch.full((self.k + 1,), DEAD)
        nodes[0] = UNIT
        for part in reversed(range(size)):
            wanted = torch.arange(max(1, self.k - part), min(self.k, size - part) + 1)
            first = torch.stack([nodes[wanted - 1], nodes[wanted]], 1)
            nodes[wanted] = builder.add(first, torch.tensor([[part, size]]).expand(len(wanted), 2))
        return builder.finish(nodes[-1])

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Nothing beyond an item is taken."""
        return torch.zeros(event_shape, dtype=torch.bool, device=lengths.device)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        super()._check_event(call, event_shape)
        if event_shape[0] < self.k:
            raise ValueError(f"`{call}` got n={event_shape[0]} parts for k={self.k}; expected n >= k, choose a smaller k")

    def kernel_options(self) -> tuple[int]:
        return (self.k,)

    def _argmax(self, rows: Tensor) -> Tensor:
        # The order of ties in `topk` is not defined, so only its last value is used: ties with it are taken from the left.
        last = rows.topk(self.k, dim=-1).values[..., -1:]
        above, equal = rows > last, rows == last
        return above | (equal & (equal.cumsum(-1) <= self.k - above.sum(-1, keepdim=True)))

    def _chances(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Float64 probabilities [b, n] of parts to be taken and not, and [b] what they leave out of the log-partition.

        With probabilities ``σ(θ − s)`` whose sum is k, no number of independent parts is likelier to be taken than k (Darroch 1964): that
        probability is at least 1/(n + 1), and no sum of such products leaves the range of a float64.
        """
        scores = rows.double()
        origin = self._origin(scores.detach())
        odds = scores - origin
        rest = softplus(odds, threshold=40).sum(-1) + self.k * origin.squeeze(-1)
        return odds.sigmoid(), (-odds).sigmoid(), rest

    def _origin(self, scores: Tensor) -> Tensor:
        """The s [b, 1] with ``Σ σ(θ − s) = k``, as nearly as is needed, by bisection between the k-th and the next largest score."""
        largest = scores.topk(min(self.k + 1, scores.shape[-1]), dim=-1).values
        ends = pad(largest, (0, 1), value=-math.inf)[..., self.k - 1 : self.k + 1]
        last = torch.where(ends[..., :1] > -math.inf, ends[..., :1], 0)
        high = last + math.log(scores.shape[-1] + 1)
        low = torch.maximum(ends[..., 1:], last - 80) - math.log(self.k + 1)
        for _ in range(16):
            middle = (low + high) / 2
            more = (scores - middle).sigmoid().sum(-1, keepdim=True) > self.k
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return low

    def _log_partition(self, rows: Tensor) -> Tensor:
        taken, skipped, rest = self._chances(rows)
        polynomials = torch.stack([skipped, taken], -1)
        one = torch.eye(1, self.k + 1, dtype=taken.dtype, device=taken.device)
        while polynomials.shape[1] > 1:
            if polynomials.shape[1] % 2:
                polynomials = torch.cat([polynomials, one[:, : polynomials.shape[-1]].expand(len(rows), 1, -1)], 1)
            polynomials = truncated_product(polynomials[:, ::2], polynomials[:, 1::2], self.k)
        probability = polynomials[:, 0, self.k]
        positive = probability > 0
        return torch.where(positive, torch.where(positive, probability, 1).log() + rest, -math.inf)

    # Derivatives of polynomials of log n factors, where derivations have a level for every part; where there is no kernel, too.
    _kernel = Oracle._kernel
    _reference_marginals = MarginalOracle._reference_marginals
    _reference_covariance_product = MarginalOracle._reference_covariance_product

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] if event_shape[0] <= ONE_EACH else self.k

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        # Of probabilities of numbers of parts, where derivations have log-weights, and a walk over tables of edges: four times as fast.
        taken, skipped, _ = self._chances(rows)
        # [n + 1][b, k + 1]: the probability that j of the parts i, ..., n − 1 are taken.
        suffixes = [torch.eye(1, self.k + 1, dtype=taken.dtype, device=rows.device).expand(len(rows), -1)]
        for i in reversed(range(rows.shape[-1])):
            suffixes.append(skipped[:, i : i + 1] * suffixes[-1] + taken[:, i : i + 1] * pad(suffixes[-1][:, :-1], (1, 0)))
        suffixes.reverse()
        remaining = torch.full(uniforms.shape[:-1], self.k, dtype=torch.int64, device=rows.device)

        def chances(i: int, remaining: Tensor) -> Tensor:
            return suffixes[i].expand(*remaining.shape, -1).gather(-1, remaining.clamp(min=0).unsqueeze(-1)).squeeze(-1)

        leaps = uniforms.shape[-1] < rows.shape[-1]  # one uniform for each part that is taken, see `_noise_size`
        uniform = uniforms[..., 0]
        chosen = []
        for i in range(rows.shape[-1]):
            uniform = uniform if leaps else uniforms[..., i]
            left, without = uniform * chances(i, remaining), skipped[:, i] * chances(i + 1, remaining)
            with_part = torch.where(remaining > 0, taken[:, i] * chances(i + 1, remaining - 1), 0)
            # Where nothing can be without this part, rounding must not pass over it.
            chosen.append((left < with_part) | (leaps & (without == 0) & (with_part > 0)))
            if leaps:
                following = uniforms.gather(-1, (self.k - remaining + 1).clamp(max=self.k - 1).unsqueeze(-1)).squeeze(-1)
                uniform = torch.where(chosen[-1], following, (left - with_part) / torch.where(without > 0, without, 1))
            remaining = remaining - chosen[-1].long()
        return torch.stack(chosen, -1)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return projection.closed(rows, self.k, lambda mean: systematic_atoms(mean, self.k))

    _listed_indices = KBestOracle._listed_indices

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        # Only the first k + size − 1 parts by score can be in them: k better subsets hold one of these where another holds a later part.
        size = min(rows.shape[1], k + self.k - 1)
        parts = rows.sort(dim=-1, descending=True, stable=True).indices[:, :size].sort(-1).values
        chosen = super()._kbest(rows.gather(1, parts), k)
        return torch.zeros((k, *rows.shape), dtype=chosen.dtype, device=rows.device).scatter_(-1, parts.expand(k, -1, -1), chosen)


def truncated_product(left: Tensor, right: Tensor, degree: int) -> Tensor:
    """Products of polynomials [..., d + 1], lowest coefficient first, up to x^degree (at least d)."""
    terms = left.shape[-1]
    size = min(2 * terms - 1, degree + 1)
    windows = pad(left, (terms - 1, size - terms)).unfold(-1, terms, 1)
    return (windows @ right.flip(-1).unsqueeze(-1)).squeeze(-1)


def systematic_atoms(mean: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Write points of the capped simplex as at most n weighted k-subsets, by systematic sampling.

    Lay the parts end to end as intervals of lengths ``x_i`` on ``[0, k]``; for u in [0, 1) choose the parts that hold a point ``u + j``.
    Part i is chosen for a set of u of measure ``x_i``, and the choice changes only at the fractional parts of the running sums.
    Neighbouring choices differ by exchanges ``e_{i+1} − e_i`` of their own, so that the atoms are affinely independent.

    Args:
        mean: [b, n].
        k: their sum.

    Returns:
        Atoms [b, n, n] and weights [b, n].
    """
    ends = mean.cumsum(-1)
    ends = ends * torch.where(ends[..., -1:] > 0, k / ends[..., -1:], 0)
    nearest = ends.round()
    ends = torch.where((ends - nearest).abs() < 1e-12, nearest, ends)
    starts = pad(ends[..., :-1], (1, 0))
    cuts = (ends - ends.floor()).sort(-1).values
    lengths = pad(cuts[..., 1:], (0, 1), value=1.0) - cuts
    offsets = (cuts + lengths / 2).unsqueeze(-1)
    atoms = (ends.unsqueeze(-2) - offsets).floor() - (starts.unsqueeze(-2) - offsets).floor()
    weights = torch.where((lengths > 1e-12) & (mean.sum(-1, keepdim=True) > 0), lengths, 0)
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)
    return atoms, weights

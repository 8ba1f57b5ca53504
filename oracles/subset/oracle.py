"""Exactly k of n."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import kernels
from ..active_set.solution import Projection, Start
from ..capabilities import SubsetOracle
from ..capabilities.projection import RowArgmax
from ..derivations import DEAD, UNIT, Builder, Derivations, DerivedOracle
from ..options import Count
from ..simplex import projection

OWN = ("kbest", "kbest_parts", "project")
"""Operations without kernels: by derivations of few parts, and a closed form."""

REPRESENTABLE = 900
"""Bits that the number of subsets may have where kernels draw samples: a float64 has 1,023."""


@dataclass(frozen=True)
class Subset(SubsetOracle, DerivedOracle):
    """Exactly ``k`` of ``n``: event ``[n]``, structures hold k ones; indices ``[k]`` are the parts that are taken, in ascending order.

    The Gibbs law is the conditional Poisson law (not Plackett-Luce, which Gumbel top-k draws): of n independent parts, given that k are
    taken. Sums go part by part, by how many are still to be taken: O(nk). A sample takes one uniform for each part. The projection is that
    on the capped simplex, and its atoms come from systematic sampling. For one k per item, or 0, see `CardinalitySubset`.

    Args:
        k: size of the subset, at least 1.

    References:
        Chen & Liu 1997, "Statistical applications of the Poisson-binomial and conditional Bernoulli distributions", section 2;
        Ahmed et al. 2023, "SIMPLE", section 3; Madow 1949 (systematic sampling).

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
    _projects_in_closed_form: ClassVar[bool] = True
    _ignores_entries: ClassVar[bool] = False

    def count(self, event_shape: tuple[int, ...]) -> int:
        return math.comb(event_shape[0], self.k)

    def _most_parts(self, event_shape: tuple[int, ...]) -> int:
        return self.k

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        builder = Builder(event_shape[0])
        return builder.finish(selections(builder, torch.arange(event_shape[0]), self.k, self.k)[-1])

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Nothing beyond an item is taken."""
        return torch.zeros(event_shape, dtype=torch.bool, device=lengths.device)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        super()._check_event(call, event_shape)
        if event_shape[0] < self.k:
            raise ValueError(f"`{call}` got n={event_shape[0]} parts for k={self.k}; expected n >= k, choose a smaller k")

    def kernel_options(self) -> tuple[int]:
        return (self.k,)

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        size = rows.shape[1]
        uncountable = operation.startswith("sample") and math.comb(size, min(self.k + 8, size // 2)).bit_length() > REPRESENTABLE
        return None if uncountable or operation in OWN else super()._select(operation, rows)

    def _argmax(self, rows: Tensor) -> Tensor:
        # The order of ties in `topk` is not defined, so only its last value is used: ties with it are taken from the left.
        last = rows.topk(self.k, dim=-1).values[..., -1:]
        above, equal = rows > last, rows == last
        return above | (equal & (equal.cumsum(-1) <= self.k - above.sum(-1, keepdim=True)))

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return projection.closed(rows, self.k, lambda mean: systematic_atoms(mean, self.k))

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        # Only the first k + size − 1 parts by score can be in them: k better subsets hold one of these where another holds a later part.
        size = min(rows.shape[1], k + self.k - 1)
        parts = rows.sort(dim=-1, descending=True, stable=True).indices[:, :size].sort(-1).values
        chosen = super()._kbest(rows.gather(1, parts), k)
        return torch.zeros((k, *rows.shape), dtype=chosen.dtype, device=rows.device).scatter_(-1, parts.expand(k, -1, -1), chosen)


def selections(builder: Builder, parts: Tensor, least: int, most: int) -> Tensor:
    """Nodes [most + 1] of the selections of so many of the parts, where from ``least`` on are asked for; `DEAD` for more than there are.

    A node per part and number of parts that are still to be taken, from that part on. To take it comes first.
    """
    size, nodes = len(parts), torch.full((most + 1,), DEAD)
    nodes[0] = UNIT
    for part in reversed(range(size)):
        wanted = torch.arange(max(1, least - part), min(most, size - part) + 1)
        first = torch.stack([nodes[wanted - 1], nodes[wanted]], 1)
        nodes[wanted] = builder.add(first, torch.stack([parts[part], torch.tensor(builder.parts)]).expand(len(wanted), 2))
    return nodes


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

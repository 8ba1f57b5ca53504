"""Independent categories."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from . import kernels
from .active_set.solution import Projection, Start
from .capabilities import DistinctSamplingOracle, DrawnSet, EnumerableOracle, KBestOracle, ProjectionOracle
from .capabilities.indices import PartOfEachRow
from .capabilities.projection import RowArgmax
from .categorical import IN_TURN, SoftmaxOracle, where_feasible
from .simplex import projection


@dataclass(frozen=True)
class IndependentCategoricals(PartOfEachRow, SoftmaxOracle, DistinctSamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Several independent categories: event ``[n, t]``, one of t parts in each of n rows; with t = 2, n bits.

    ``scores[..., i, j]`` scores part j of category i. A bit of logit φ has scores ``(0, φ)``. Indices ``[n]`` are the parts that the
    categories have.

    Cost: O(nt) each; k best n sorts of k t numbers, on the CPU compiled, at most O(k nt); the projection is a sparsemax per category, its
    atoms those of the inverse distribution functions at common levels, at most n (t − 1) + 1.

    References:
        Martins & Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> oracle, scores = IndependentCategoricals(), torch.tensor([[0.0, 1.0], [0.0, -2.0]])
        >>> oracle.argmax(scores)
        tensor([[0., 1.],
                [1., 0.]])
        >>> oracle.marginals(scores)[:, 1], scores[:, 1].sigmoid()
        (tensor([0.7311, 0.1192]), tensor([0.7311, 0.1192]))
    """

    name: ClassVar[str] = "categories"
    axes: ClassVar[tuple[str, ...]] = ("length", "tags")
    _projects_in_closed_form: ClassVar[bool] = True
    references: ClassVar[tuple[str, ...]] = ("martins2016softmax",)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """The first part of every category beyond the length."""
        return torch.arange(event_shape[1], device=lengths.device) == 0

    def _distinct_noise_size(self, event_shape: tuple[int, ...], k: int) -> int:
        return IN_TURN._distinct_noise_size(event_shape, k)

    def _sample_distinct(self, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
        return IN_TURN._sample_distinct(rows, items, k, uniforms)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        items, categories, parts = rows.shape
        # A category in the padding has no part at all, and forbids nothing.
        known = rows if inside is None else torch.where(inside, rows, 0)
        mean, gap = projection.project(known.reshape(-1, parts), 1)
        mean, gap = mean.reshape(items, categories, parts), gap.reshape(items, categories)
        mean, gap = where_feasible(known, mean), gap.sum(-1)
        mean = mean if inside is None else torch.where(inside, mean, 0)
        return Projection(gap=gap, decompose=lambda: _common_levels(mean), mean=mean, tangent=projection.along_face)

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        return IN_TURN._select(operation, rows) if operation in ("kbest", "kbest_parts") else super()._select(operation, rows)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return IN_TURN._kbest(rows, k)

    def _rank(self, structures: Tensor) -> Tensor:
        return IN_TURN._rank(structures)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return IN_TURN._unrank(ranks, event_shape)


def _common_levels(mean: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms [b, s, n, t] and weights [b, s]: between neighbouring levels, the part in which each distribution function passes them.

    From level to level some categories go on to their next part, each of which is entered once: the atoms are affinely independent.
    """
    items, categories, parts = mean.shape
    ends = mean.cumsum(-1)
    ends = ends / ends[..., -1:].clamp(min=1e-300)
    levels = torch.cat([ends.new_zeros(items, 1), ends[..., :-1].flatten(1)], 1).sort(-1).values
    lengths = torch.cat([levels[:, 1:], ends.new_ones(items, 1)], 1) - levels
    middles = (levels + lengths / 2).unsqueeze(1).expand(items, categories, -1).contiguous()
    index = torch.searchsorted(ends.contiguous(), middles, right=True).clamp(max=parts - 1)
    atoms = torch.nn.functional.one_hot(index, parts).movedim(1, 2).to(mean.dtype) * (mean.sum(-1) > 0).reshape(items, 1, categories, 1)
    weights = torch.where((lengths > 1e-12) & (mean.sum((-2, -1)) > 0).unsqueeze(-1), lengths, 0)
    return atoms, weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)

"""One-to-one matchings of rows and columns."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..active_set.solution import Projection, Start
from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, SamplingOracle
from ..capabilities.base import FORBIDDEN
from ..capabilities.indices import PartOfEachRow
from ..capabilities.marginals import ExactLaw
from ..capabilities.projection import RowArgmax
from ..derivations import UNIT, Builder, Derivations, DerivedOracle
from . import birkhoff

LARGEST_SUM = 16
"""The largest n whose n! permutations are summed over."""

SUMMED = ("log_partition", "marginals", "covariance_product", "sample", "sample_parts")
"""Operations that sum over permutations; the others search, whatever n."""


@dataclass(frozen=True)
class _Permutations(DerivedOracle):
    """Permutations by derivations, for sums over them."""

    name: ClassVar[str] = "permutations"
    axes: ClassVar[tuple[str, ...]] = ("length", "length")

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node for each set of columns that the first rows take, by size and bits; an edge for the column of the last of these rows."""
        size = event_shape[0]
        holds = (torch.arange(2**size).unsqueeze(1) >> torch.arange(size) & 1).bool()
        builder, nodes = Builder(size * size), torch.full((2**size,), UNIT)
        for row in range(size):
            sets = (holds.sum(1) == row + 1).nonzero()
            columns = holds[sets[:, 0]].nonzero()[:, 1].reshape(-1, row + 1)
            nodes[sets[:, 0]] = builder.add(nodes[sets - (1 << columns)], row * size + columns)
        return builder.finish(nodes[-1])


SUMS = _Permutations()


@dataclass(frozen=True)
class Assignment(PartOfEachRow, SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Permutations: event ``[n, n]``, ``scores[..., i, j]`` scores the match of row i to column j.

    The best permutation is found by shortest augmenting paths, O(n³). The log-partition is the logarithm of a permanent, which is #P-hard
    (Valiant 1979): the dynamic programme over sets of columns takes O(2ⁿ n) and no subtraction, and is offered to n = 16; argmax, k best
    and the projection on the Birkhoff polytope have no such limit. The k best permutations come from Murty's partitions.

    With ``lengths``, an item of length l uses rows and columns below l. Of permutations with equal scores the one that the search meets
    first is returned, the same for every batch.

    Indices ``[n]`` are the columns of the rows.

    References:
        Kuhn 1955, "The Hungarian method"; Jonker & Volgenant 1987, "A shortest augmenting path algorithm"; Murty 1968, "An algorithm for
        ranking all the assignments in order of increasing cost"; Valiant 1979, "The complexity of computing the permanent".

    Example:
        >>> oracle, scores = Assignment(), torch.tensor([[2.0, 1.0], [1.0, 1.0]])
        >>> oracle.argmax(scores)
        tensor([[1., 0.],
                [0., 1.]])
        >>> oracle.marginals(scores)
        tensor([[0.7311, 0.2689],
                [0.2689, 0.7311]])
        >>> oracle.count((5, 5))
        120
    """

    name: ClassVar[str] = "assignment"
    axes: ClassVar[tuple[str, ...]] = ("length", "length")
    _draws_from_the_last: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "assignment"
    references: ClassVar[tuple[str, ...]] = ("kuhn1955hungarian", "jonker1987shortest", "murty1968algorithm", "valiant1979complexity")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return math.factorial(event_shape[0])

    def check_marginals(self, call: str, event_shape: tuple[int, ...]) -> None:
        if event_shape[0] > LARGEST_SUM:
            raise ValueError(
                f"`{call}` got permutations of n={event_shape[0]}; expected n <= {LARGEST_SUM}, because a sum over permutations takes 2**n "
                "steps; use argmax, kbest or project, and estimators that need no more than these"
            )

    def _argmax(self, rows: Tensor) -> Tensor:
        return kernels.search("assignment", "argmax", rows, (rows.shape[1:], None), ())

    def _select(self, operation: str, rows: Tensor) -> kernels.Kernel | None:
        return SUMS._select(operation, rows) if operation in SUMMED else super()._select(operation, rows)

    def _law(self, rows: Tensor) -> ExactLaw | None:
        return SUMS._law(rows)

    def _log_partition(self, rows: Tensor) -> Tensor:
        self.check_marginals("log_partition", tuple(rows.shape[1:]))
        return SUMS._log_partition(rows)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        return SUMS._sample(rows, uniforms).to(rows.dtype)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        used = torch.arange(event_shape[0], device=lengths.device) < lengths.unsqueeze(-1)
        return used.unsqueeze(-1) & used.unsqueeze(-2)

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """A padding row is matched to the column of its own index."""
        return torch.diag_embed(torch.arange(event_shape[0], device=lengths.device) >= lengths.unsqueeze(-1))

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return birkhoff.project(rows, argmax, inside)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return self._list_best(rows.masked_fill(rows <= FORBIDDEN, -math.inf), k).movedim(0, 1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return kernels.search("assignment", "unrank", ranks, (event_shape, torch.uint8), (), event_shape)

    def _rank(self, structures: Tensor) -> Tensor:
        """Lexicographic in the columns of the rows, by the digits of the factorial number system (Lehmer code)."""
        columns = structures.argmax(-1) if structures.dtype != torch.bool else structures.to(torch.int8).argmax(-1)
        size = columns.shape[-1]
        smaller = columns.unsqueeze(-1) > columns.unsqueeze(-2)
        digits = smaller.triu(1).sum(-1)
        factorials = torch.arange(size, device=columns.device).clamp(min=1).cumprod(0)
        return (digits * factorials.flip(0)).sum(-1)

"""One-to-one matchings of rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..active_set.solution import Projection
from ..active_set.start import Start
from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, SamplingOracle
from ..capabilities.base import FORBIDDEN
from ..capabilities.indices import NONE, chosen, last_axis
from ..capabilities.marginals import ExactLaw
from ..capabilities.projection import RowArgmax
from ..derivations import UNIT, Builder
from ..derivations.law import EdgeLaw
from ..derivations.tables import Tables, tables_of
from ..device_tables import made_once
from ..numerics import log_sum_exp, running_sums
from . import birkhoff
from .matching import best_columns, one_hot_rows, ranked_columns

LARGEST_SUM = 16
"""The largest n whose n! permutations are summed over."""


@dataclass(frozen=True)
class Assignment(SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
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
    event_ndim: ClassVar[int] = 2
    _indices_are_parts: ClassVar[bool] = False
    kernel: ClassVar[str | None] = "assignment"
    references: ClassVar[tuple[str, ...]] = ("kuhn1955hungarian", "jonker1987shortest", "murty1968algorithm", "valiant1979complexity")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        (length,) = cls._sizes(sizes, "length")
        return (length, length)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return math.factorial(event_shape[0])

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] != event_shape[1]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, n)")

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return event_shape[:1]

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[1]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        size = event_shape[0]
        return torch.where(indices < 0, NONE, torch.arange(size, device=indices.device) * size + indices)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return last_axis(parts, event_shape[1])

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures, -1)

    def check_marginals(self, call: str, event_shape: tuple[int, ...]) -> None:
        if event_shape[0] > LARGEST_SUM:
            raise ValueError(
                f"`{call}` got permutations of n={event_shape[0]}; expected n <= {LARGEST_SUM}, because a sum over permutations takes 2**n "
                "steps; use argmax, kbest or project, and estimators that need no more than these"
            )

    def _argmax(self, rows: Tensor) -> Tensor:
        return one_hot_rows(best_columns(rows.double()), rows.dtype)

    def _law(self, rows: Tensor) -> ExactLaw | None:
        return EdgeLaw(_tables(rows.shape[1], rows.device), rows.flatten(1).unsqueeze(0), lambda parts: parts.reshape(rows.shape))

    def _log_partition(self, rows: Tensor) -> Tensor:
        return self._prefixes(rows)[-1].squeeze(-1)

    def _prefixes(self, rows: Tensor) -> list[Tensor]:
        """n + 1 tensors [b, C(n, i)]: log-weight of matching rows 0, …, i − 1 to each set of i columns, sets in ascending order of bits."""
        self.check_marginals("log_partition", tuple(rows.shape[1:]))
        layers = [rows.new_zeros(rows.shape[0], 1)]
        for i, (places, columns) in enumerate(_layers(rows.shape[1], rows.device)):
            layers.append(log_sum_exp(layers[-1][:, places] + rows[:, i][:, columns], -1))
        return layers

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """From the last row to the first, each with its own uniform: the column leaves the set of those that the rows above may use."""
        scores = rows.double()
        prefixes, size = self._prefixes(scores), rows.shape[1]
        layers = _layers(size, rows.device)
        items = torch.arange(rows.shape[0], device=rows.device)
        place = torch.zeros(uniforms.shape[:-1], dtype=torch.int64, device=rows.device)
        chosen = []
        for i in reversed(range(size)):
            places, columns = layers[i][0][place], layers[i][1][place]
            table = running_sums(prefixes[i][items.unsqueeze(-1), places] + scores[:, i][items.unsqueeze(-1), columns])
            pick = (table <= uniforms[..., i : i + 1] * table[..., -1:]).sum(-1, keepdim=True).clamp(max=i)
            place = places.gather(-1, pick).squeeze(-1)
            chosen.append(columns.gather(-1, pick).squeeze(-1))
        feasible = prefixes[-1].squeeze(-1) > -math.inf
        return one_hot_rows(torch.stack(chosen[::-1], -1), rows.dtype) * feasible.reshape(-1, 1, 1)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        used = torch.arange(event_shape[0], device=lengths.device) < lengths.unsqueeze(-1)
        return used.unsqueeze(-1) & used.unsqueeze(-2)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """A padding row is matched to the column of its own index."""
        beyond = torch.arange(scores.shape[-1], device=scores.device) >= lengths.unsqueeze(-1)
        completed = torch.where(self._inside(self._event(scores), lengths), scores, -math.inf)
        return torch.where(torch.diag_embed(beyond), 0, completed)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return birkhoff.project(rows, argmax, inside)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        columns, totals = ranked_columns(self._best, rows.masked_fill(rows <= FORBIDDEN, -math.inf), k)
        listed = one_hot_rows(columns, rows.dtype) * (totals > -math.inf).unsqueeze(-1).unsqueeze(-1)
        return listed.movedim(1, 0)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """Lexicographic in the columns of the rows, by the digits of the factorial number system (Lehmer code)."""
        size = event_shape[0]
        rows = torch.arange(size, device=ranks.device)
        free = torch.ones(*ranks.shape, size, dtype=torch.bool, device=ranks.device)
        columns = []
        for i in range(size):
            weight = math.factorial(size - 1 - i)
            digit = ranks // weight
            ranks = ranks - digit * weight
            column = ((free.cumsum(-1) == digit.unsqueeze(-1) + 1) & free).to(torch.int8).argmax(-1)
            free = free & (rows != column.unsqueeze(-1))
            columns.append(column)
        return one_hot_rows(torch.stack(columns, -1), torch.bool)

    def _rank(self, structures: Tensor) -> Tensor:
        columns = structures.argmax(-1) if structures.dtype != torch.bool else structures.to(torch.int8).argmax(-1)
        size = columns.shape[-1]
        smaller = columns.unsqueeze(-1) > columns.unsqueeze(-2)
        digits = smaller.triu(1).sum(-1)
        factorials = torch.arange(size, device=columns.device).clamp(min=1).cumprod(0)
        return (digits * factorials.flip(0)).sum(-1)


@made_once
def _tables(size: int, device: torch.device) -> Tables:
    """Matchings as derivations: a node for each set of columns that the first rows take."""
    builder, nodes = Builder(size * size), torch.tensor([UNIT])
    for i, (places, columns) in enumerate(_layers(size, torch.device("cpu"))):
        nodes = builder.add(nodes[places], i * size + columns)
    return tables_of(builder.finish(nodes), device)


@made_once
def _layers(size: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """For i = 1, …, n: of each set of i columns, the place of the set without one of them [C(n, i), i], and that column."""
    sets = torch.arange(2**size, device=device)
    holds = (sets.unsqueeze(-1) >> torch.arange(size, device=device) & 1).bool()
    # By size, in their own order: indices are sorted rather than asked for, which would wait for a device.
    by_size = holds.sum(-1).argsort(stable=True).split([math.comb(size, i) for i in range(size + 1)])
    places = torch.zeros_like(sets)
    layers = []
    for i, inside in enumerate(by_size[1:], 1):
        columns = (~holds[inside]).to(torch.int8).argsort(stable=True)[:, :i]
        layers.append((places[inside.unsqueeze(-1) - (1 << columns)], columns))
        places[inside] = torch.arange(len(columns), device=device)
    return layers

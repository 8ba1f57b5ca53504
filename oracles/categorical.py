"""One of n categories."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from . import kernels
from .active_set.solution import Projection, Start
from .capabilities import EnumerableOracle, FactorisedOracle, KBestOracle, ProjectionOracle
from .capabilities.base import at_least_single
from .capabilities.derivatives import differentiated, exchanged_for, unsqueeze_event
from .capabilities.indices import NONE, chosen
from .capabilities.marginals import ExactLaw
from .capabilities.projection import RowArgmax
from .derivations import UNIT, Builder, Derivations, DerivedOracle
from .derivations.law import EdgeLaw
from .numerics import log_sum_exp, running_sums, share_rows
from .simplex import projection


@dataclass(frozen=True)
class _InTurn(DerivedOracle):
    """Independent categories by derivations, the first at the root, for what goes from the root down."""

    name: ClassVar[str] = "categories_in_turn"
    axes: ClassVar[tuple[str, ...]] = ("length", "tags")

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        categories, parts = event_shape
        builder, node = Builder(categories * parts), torch.tensor([UNIT])
        for place in reversed(range(categories)):
            node = builder.add(node.expand(1, parts).contiguous(), (place * parts + torch.arange(parts)).unsqueeze(0))
        return builder.finish(node)


IN_TURN = _InTurn()


class SoftmaxOracle(FactorisedOracle):
    """Categories whose marginals are a softmax along the last dimension: closed forms of what other oracles compute or differentiate."""

    kernel: ClassVar[str | None] = "softmax"

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures, -1)

    def _best(self, parameters: Tensor, as_indices: bool = False) -> Tensor:
        if not as_indices:
            return super()._best(parameters)
        greatest, places = share_rows(parameters, self.event_ndim).max(-1)
        feasible = greatest > -math.inf
        feasible = feasible.all(-1, keepdim=True) if self.event_ndim > 1 else feasible
        return torch.where(feasible, places, NONE).expand(parameters.shape[:-1])

    def _argmax(self, rows: Tensor) -> Tensor:
        places = self._best(rows, as_indices=True).unsqueeze(-1)
        return torch.zeros_like(rows).scatter_(-1, places.clamp(min=0), (places >= 0).to(rows.dtype))

    def _reference_argmax(self, rows: Tensor) -> Tensor:
        return self._argmax(rows)

    def _law(self, rows: Tensor) -> ExactLaw | None:
        tables = IN_TURN._tables_for(rows.reshape(len(rows), -1, rows.shape[-1]))
        return EdgeLaw(tables, rows)

    def _law_of(self, parameters: Tensor, wanted: Literal["A", "μ", "both"], at: Tensor | None = None) -> Any:
        found = feasible_softmax(parameters) if wanted == "μ" and differentiated(parameters) else None
        if found is None:
            return super()._law_of(parameters, wanted, at)
        return found if at is None else exchanged_for(at, found)

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return softmax(rows, self.event_ndim), self._log_partition(rows)

    def _compute_covariance_product(self, scores: Tensor, direction: Tensor) -> Tensor:
        marginals = softmax(at_least_single(scores), self.event_ndim)
        return softmax_product(marginals, at_least_single(direction)).to(scores.dtype)


@dataclass(frozen=True)
class Categorical(SoftmaxOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """One of n: event ``[n]``, structures are one-hot, their index ``[]`` the category.

    Cost: O(n) each; the projection (sparsemax) sorts, but for the CPU, where it is compiled and O(n).

    References:
        Martins & Astudillo 2016, "From Softmax to Sparsemax", algorithm 1.

    Example:
        >>> oracle = Categorical()
        >>> scores = torch.tensor([1.0, 0.8, -1.0])
        >>> oracle.argmax(scores)
        tensor([1., 0., 0.])
        >>> oracle.project(scores).mean
        tensor([0.6000, 0.4000, 0.0000])
    """

    name: ClassVar[str] = "categorical"
    event_ndim: ClassVar[int] = 1
    index_ndim: ClassVar[int] = 0
    _indices_are_parts: ClassVar[bool] = False
    _projects_in_closed_form: ClassVar[bool] = True
    references: ClassVar[tuple[str, ...]] = ("martins2016softmax",)

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        return cls._sizes(sizes, "length")

    def count(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 1:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n,)")

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return indices.unsqueeze(-1)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return parts.squeeze(-1)

    def _log_partition(self, rows: Tensor) -> Tensor:
        return log_sum_exp(rows, -1)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        index = inverse_cdf(running_sums(rows.double()), uniforms.squeeze(-1))
        feasible = (rows.amax(-1, keepdim=True) > -math.inf).to(rows.dtype).expand(*index.shape, 1)
        return rows.new_zeros(*index.shape, rows.shape[-1]).scatter_(-1, index.unsqueeze(-1), feasible)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        return projection.closed(rows, 1, _parts_alone)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.zeros((k, *rows.shape), dtype=torch.bool, device=rows.device).scatter_(-1, order.T.unsqueeze(-1), True)

    def _rank(self, structures: Tensor) -> Tensor:
        return structures.to(torch.uint8).argmax(-1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.one_hot(ranks, event_shape[0])


def _parts_alone(mean: Tensor) -> tuple[Tensor, Tensor]:
    """Means [b, n] as atoms and weights."""
    atoms = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    return atoms.expand(*mean.shape, mean.shape[-1]), mean


def softmax(rows: Tensor, event_ndim: int = 1) -> Tensor:
    """Probabilities [*batch, ..., n] proportional to ``exp θ`` along the last dimension; 0 for an item with a row of -inf alone.

    Args:
        rows: scores; torch's own function gives NaN for a row of -inf alone.
        event_ndim: how many of the last dimensions are one item.
    """
    probabilities = rows.softmax(-1)
    if probabilities.is_cpu and kernels.reach(probabilities.detach(), 2) == 0:
        return probabilities
    feasible = (rows > -math.inf).any(-1).flatten(rows.ndim - event_ndim).all(-1) if event_ndim > 1 else (rows > -math.inf).any(-1)
    return torch.where(unsqueeze_event(feasible, event_ndim), probabilities, 0)


def feasible_softmax(scores: Tensor) -> Tensor | None:
    """Torch's own, with its own derivatives, of dense scores [*batch, ..., n] on the CPU that kernels serve; else None.

    None too where a row of it is NaN, as it is by -inf alone, by +inf and by NaN. A function of Python takes twice as long for autograd.
    """
    if not (scores.is_cpu and kernels.running.get() and scores.dtype in kernels.FLOATING and scores.is_contiguous()):
        return None
    probabilities = scores.softmax(-1)
    return probabilities if kernels.reach(probabilities.detach(), 2) == 0 else None


def softmax_product(probabilities: Tensor, direction: Tensor) -> Tensor:
    """The derivative of `softmax` along a direction: ``p (v - ⟨p, v⟩)``."""
    return probabilities * (direction - (probabilities * direction).sum(-1, keepdim=True))


def inverse_cdf(cumulative: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the category that a uniform falls in; never one of weight 0.

    Args:
        cumulative: [..., n], running sums of non-negative weights with a positive total.
        uniforms: [s, ...] in [0, 1).
    """
    thresholds = uniforms * cumulative[..., -1]
    moved = thresholds.movedim(0, -1).contiguous()
    index = torch.searchsorted(cumulative.contiguous(), moved, right=True)
    return index.clamp(max=cumulative.shape[-1] - 1).movedim(-1, 0)

"""One of n categories."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from . import kernels
from .active_set.solution import Projection, Start
from .capabilities import EnumerableOracle, FactorisedOracle, KBestOracle, ProjectionOracle
from .capabilities.derivatives import differentiated, exchanged_for, unsqueeze_event
from .capabilities.indices import NONE, chosen
from .capabilities.marginals import ExactLaw
from .capabilities.projection import RowArgmax
from .derivations import UNIT, Builder, Derivations, DerivedOracle
from .derivations.law import EdgeLaw
from .numerics import in_single, log_sum_exp, running_sums, share_rows
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

    def count(self, event_shape: tuple[int, ...]) -> int:
        return int(event_shape[-1] ** math.prod(event_shape[:-1]))

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return math.prod(event_shape[:-1])

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

    def _log_partition(self, rows: Tensor) -> Tensor:
        each = log_sum_exp(_in_lines(rows), -1)
        feasible = (each > -math.inf).all(-1, keepdim=True)
        return torch.where(feasible.squeeze(-1), torch.where(feasible, each, 0).sum(-1), -math.inf)

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        lines = _in_lines(rows)
        sums = running_sums(lines.double())
        # The first sum above the threshold: never a category of weight 0.
        thresholds = (uniforms * sums[..., -1]).movedim(0, -1).contiguous()
        index = torch.searchsorted(sums.contiguous(), thresholds, right=True).clamp(max=sums.shape[-1] - 1).movedim(-1, 0).unsqueeze(-1)
        drawn = lines.new_zeros(*index.shape[:-1], lines.shape[-1]).scatter_(-1, index, 1)
        return where_feasible(lines, drawn).reshape(*drawn.shape[:2], *rows.shape[1:])

    def _law(self, rows: Tensor) -> ExactLaw | None:
        return EdgeLaw(IN_TURN._tables_for(_in_lines(rows)), rows)

    def _law_of(self, parameters: Tensor, wanted: Literal["A", "μ", "both"], at: Tensor | None = None) -> Any:
        """Torch's own softmax, with its own derivatives, for marginals of dense scores that kernels serve: ours takes twice as long.

        Not where a row of it is NaN, as it is by -inf alone, by +inf and by NaN.
        """
        served = parameters.is_cpu and kernels.running.get() and parameters.dtype in kernels.FLOATING and parameters.is_contiguous()
        if wanted == "μ" and served and differentiated(parameters):
            found = parameters.softmax(-1)
            if kernels.reach(found.detach(), 2) == 0:
                return found if at is None else exchanged_for(at, found)
        return super()._law_of(parameters, wanted, at)

    def _reference_marginals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return softmax(rows, self.event_ndim), self._log_partition(rows)

    def _compute_covariance_product(self, scores: Tensor, direction: Tensor) -> Tensor:
        marginals = softmax(in_single(scores, self.event_ndim), self.event_ndim)
        return softmax_product(marginals, in_single(direction, self.event_ndim)).to(scores.dtype)


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
    axes: ClassVar[tuple[str, ...]] = ("length",)
    index_ndim: ClassVar[int] = 0
    _indices_are_parts: ClassVar[bool] = False
    _projects_in_closed_form: ClassVar[bool] = True
    references: ClassVar[tuple[str, ...]] = ("martins2016softmax",)

    def index_shape(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return ()

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return indices.unsqueeze(-1)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return parts.squeeze(-1)

    def _project(self, rows: Tensor, argmax: RowArgmax, inside: Tensor | None, start: Start | None) -> Projection:
        # Every part is an atom, of its own weight.
        return projection.closed(rows, 1, lambda mean: (torch.eye(mean.shape[-1]).to(mean).expand(*mean.shape, -1), mean))

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        order = rows.sort(dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.zeros((k, *rows.shape), dtype=torch.bool, device=rows.device).scatter_(-1, order.T.unsqueeze(-1), True)

    def _rank(self, structures: Tensor) -> Tensor:
        return structures.to(torch.uint8).argmax(-1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return torch.nn.functional.one_hot(ranks, event_shape[0])


def _in_lines(rows: Tensor) -> Tensor:
    """Rows [b, n] or [b, lines, n] as [b, lines, n]."""
    return rows if rows.ndim > 2 else rows.unsqueeze(1)


def where_feasible(rows: Tensor, values: Tensor) -> Tensor:
    """Values [..., n, t] where every category of scores [..., n, t] has a part that is allowed; 0 elsewhere."""
    feasible = (rows > -math.inf).any(-1).all(-1)
    return values * feasible.reshape(*feasible.shape, 1, 1).to(values.dtype)


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


def softmax_product(probabilities: Tensor, direction: Tensor) -> Tensor:
    """The derivative of `softmax` along a direction: ``p (v - ⟨p, v⟩)``."""
    return probabilities * (direction - (probabilities * direction).sum(-1, keepdim=True))

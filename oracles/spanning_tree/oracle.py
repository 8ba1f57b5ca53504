"""Dependency trees whose arcs may cross."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import kernels
from ..capabilities import DistinctSamplingOracle, DrawnSet, EnumerableOracle, KBestOracle, ProjectionOracle
from ..capabilities.base import FORBIDDEN
from ..capabilities.marginals import ExactLaw
from ..dependency_tree import DependencyTree
from . import elimination, marginals, without_replacement
from .law import TreeLaw
from .ranks import rank


@dataclass(frozen=True)
class SpanningTree(DependencyTree, DistinctSamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Dependency trees, crossing or not: event ``[n + 1, n + 1]``, ``scores[..., h, m]`` scores the arc from head h to modifier m.

    Index 0 is the root, words are 1..n; every word has one head. Column 0 and the diagonal are no arcs, and are ignored. ``lengths``
    counts words.

    Log-partition by elimination without subtractions, O(n³), exact at any scale of the scores; a sample goes back through the elimination
    with n uniforms, whatever the scores; MAP by contracting cycles, where a word takes its best head, the lowest of equal ones; the k best
    by partition of the space, n MAP calls each, on the CPU two; of equally good ones the MAP comes first, the others as the search meets
    them; k trees without replacement by stochastic beam search over heads, O(k n²) log-partitions; the projection is the active set over
    MAP calls. `enumerate` orders trees by the head of word 1, then of word 2, and so on.

    Args:
        single_root: exactly one word is headed by the root; with False, any number of words.

    References:
        Koo et al. 2007, "Structured prediction models via the matrix-tree theorem", section 3; Grassmann, Taksar & Heyman 1985,
        "Regenerative analysis and steady state distributions for Markov chains"; Edmonds 1967, "Optimum branchings", section 2;
        Lawler 1972, "A procedure for computing the k best solutions to discrete optimization problems"; Camerini, Fratta & Maffioli 1980,
        "The k best spanning arborescences of a network"; Kool, van Hoof & Welling 2019, "Stochastic beams and where to find them",
        section 3; Niculae et al. 2018, "SparseMAP".

    Example:
        >>> oracle = SpanningTree()
        >>> scores = torch.zeros(4, 4)
        >>> scores[0, 2] = scores[2, 1] = scores[1, 3] = 1.0
        >>> SpanningTree.heads(oracle.argmax(scores))
        tensor([2, 0, 1])
        >>> oracle.count((4, 4)), SpanningTree(single_root=False).count((4, 4))
        (9, 16)
    """

    name: ClassVar[str] = "spanning_tree"
    event_ndim: ClassVar[int] = 2
    references: ClassVar[tuple[str, ...]] = (
        "koo2007structured",
        "grassmann1985regenerative",
        "edmonds1967optimum",
        "lawler1972procedure",
        "camerini1980best",
        "kool2019stochastic",
        "niculae2018sparsemap",
    )
    kernel: ClassVar[str] = "spanning_tree"
    _ignores_entries: ClassVar[bool] = True

    def count(self, event_shape: tuple[int, ...]) -> int:
        words = event_shape[0] - 1
        return int((words if self.single_root else words + 1) ** (words - 1))

    def _argmax(self, rows: Tensor) -> Tensor:
        return kernels.search(self.kernel, "argmax", rows, (rows.shape[1:], None), self.kernel_options())

    def _log_partition(self, rows: Tensor) -> Tensor:
        result: Tensor = _LogPartition.apply(rows, self.single_root)  # type: ignore[no-untyped-call]
        return result

    def _law(self, rows: Tensor) -> ExactLaw | None:
        return TreeLaw(rows, self.single_root)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] - 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        scores = rows.double()
        last = elimination.last_word(scores) if self.single_root else torch.ones(len(rows), dtype=torch.int64, device=rows.device)
        order = elimination.exchange(rows.shape[-1], last)
        heads, feasible = elimination.draw_heads(elimination.permuted(scores, order), uniforms, single_root=self.single_root)
        # Word m of the tree is word order[m] of the sample, and so are the heads.
        back = order.expand(*heads.shape[:-1], -1)
        heads = back.gather(-1, heads).gather(-1, back[..., 1:] - 1)
        return self.structure(heads, rows.dtype) * feasible.reshape(-1, 1, 1)

    def _distinct_noise_size(self, event_shape: tuple[int, ...], k: int) -> int:
        return 1 + (event_shape[0] - 1) * (k + 1) * event_shape[0]

    def _sample_distinct(self, rows: Tensor, items: Tensor, k: int, uniforms: Tensor) -> DrawnSet:
        with torch.no_grad():
            scores = torch.where(rows > FORBIDDEN / 2, rows, -math.inf)
            drawn = without_replacement.sample_heads(self.log_partition, scores, items, k, uniforms)
        feasible = (drawn.log_probs[:, 0] > -math.inf).reshape(-1, 1, 1)
        return replace(drawn, structures=self.structure(drawn.structures, rows.dtype) * feasible)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        return self._list_best(rows.masked_fill(rows <= FORBIDDEN / 2, -math.inf), k).movedim(0, 1)

    def _rank(self, structures: Tensor) -> Tensor:
        return rank(self.heads(structures), single_root=self.single_root)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return kernels.search(self.kernel, "unrank", ranks, (event_shape, torch.uint8), self.kernel_options(), event_shape)


class _LogPartition(torch.autograd.Function):
    """The logarithm of the weight of all trees. Its gradient by automatic differentiation would be a difference of large numbers."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, single_root: bool) -> Tensor:
        ctx.single_root = single_root
        ctx.save_for_backward(rows)
        if single_root:
            rows = elimination.permuted(rows, elimination.exchange(rows.shape[-1], elimination.last_word(rows)))
        return elimination.eliminate(rows, single_root=single_root).total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return grads[0].reshape(-1, 1, 1) * marginals.marginals(rows, single_root=ctx.single_root), None

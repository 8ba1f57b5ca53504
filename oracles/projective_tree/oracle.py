"""Projective dependency trees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, SamplingOracle
from ..dependency_tree import DependencyTree
from ..numerics import running_sums
from .eisner import EisnerTables, KBest, LogSum, Maximum, Semiring, fill
from .eisner_walks import Chart, Ranks, choose, follow, walk


@dataclass(frozen=True)
class ProjectiveTree(DependencyTree, SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Dependency trees without crossing arcs: event ``[n + 1, n + 1]``, ``scores[..., h, m]`` scores the arc from head h to modifier m.

    Index 0 is the root, words are 1..n; every word has one head. Column 0 and the diagonal are no arcs, and are ignored. An arc crosses
    no other one, those from the root included, so that every subtree is a stretch of words.

    Eisner's recursion, O(n³): log-partition, MAP and k best by increasing width; a sample walks back through it with 2n uniforms; the
    projection is the active set over MAP calls. ``lengths`` counts words. Of equal trees the MAP is the one that takes the leftmost
    farthest child, then the leftmost seam, from the top down; `enumerate` lists trees in the order of these decisions.

    Args:
        single_root: exactly one word is headed by the root; with False, any number of words.

    References:
        Eisner 1996, "Three new probabilistic models for dependency parsing", section 3; Niculae et al. 2018, "SparseMAP", section 3.2.

    Example:
        >>> oracle = ProjectiveTree()
        >>> scores = torch.zeros(4, 4)
        >>> scores[0, 2] = scores[2, 1] = 1.0
        >>> ProjectiveTree.heads(oracle.argmax(scores))
        tensor([2, 0, 2])
        >>> oracle.count((4, 4)), ProjectiveTree(single_root=False).count((4, 4))
        (7, 12)
    """

    name: ClassVar[str] = "projective_tree"
    event_ndim: ClassVar[int] = 2
    references: ClassVar[tuple[str, ...]] = ("eisner1996three", "niculae2018sparsemap")
    kernel: ClassVar[str | None] = "projective_tree"
    _ignores_entries: ClassVar[bool] = True

    def count(self, event_shape: tuple[int, ...]) -> int:
        words = event_shape[0] - 1
        return math.comb(3 * words - 2, words - 1) // words if self.single_root else math.comb(3 * words, words) // (2 * words + 1)

    def _fill(self, rows: Tensor, semiring: Semiring) -> EisnerTables:
        return fill(rows, semiring, single_root=self.single_root)

    def _argmax(self, rows: Tensor) -> Tensor:
        best = Maximum()
        chart = Chart.of(self._fill(rows, best), best)
        items = torch.arange(len(rows), device=rows.device)
        heads = walk(rows.shape[-1] - 1, torch.zeros_like(items), choose(chart, items, lambda values, decision: values.argmax(-1)))
        return self.structure(heads[:, 1:], rows.dtype)

    def _log_partition(self, rows: Tensor) -> Tensor:
        return self._fill(rows, LogSum()).total

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return 2 * (event_shape[0] - 1)

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """One inside pass; then step t of every walk takes uniform 2t for the child and 2t + 1 for the seam."""
        total = LogSum()
        tables = self._fill(rows.double(), total)
        items = torch.arange(len(rows), device=rows.device).repeat(len(uniforms))
        noise = uniforms.flatten(0, 1)
        draw = choose(Chart.of(tables, total), items, lambda values, decision: _inverse_cdf(values, noise[:, decision]))
        heads = walk(rows.shape[-1] - 1, torch.zeros_like(items), draw)
        structures = self.structure(heads[:, 1:], rows.dtype).reshape(len(uniforms), *rows.shape)
        return structures * (tables.total > -math.inf).reshape(-1, 1, 1)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        best = KBest(k)
        self._fill(rows, best)
        items = torch.arange(len(rows), device=rows.device).repeat(k)
        places = torch.arange(k, device=rows.device).repeat_interleave(len(rows))
        heads = walk(rows.shape[-1] - 1, places, follow(best, items))
        return self.structure(heads[:, 1:], rows.dtype).reshape(k, *rows.shape)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        heads = Ranks(event_shape[0], ranks.device, single_root=self.single_root).unrank(ranks)
        return self.structure(heads[:, 1:], torch.bool)

    def _rank(self, structures: Tensor) -> Tensor:
        return Ranks(structures.shape[-1], structures.device, single_root=self.single_root).rank(structures)


def _inverse_cdf(logits: Tensor, uniform: Tensor) -> Tensor:
    """The first place where the running sum of ``exp`` exceeds its share ``uniform`` of the whole."""
    sums = running_sums(logits)
    return (sums <= uniform.unsqueeze(-1) * sums[..., -1:]).sum(-1)

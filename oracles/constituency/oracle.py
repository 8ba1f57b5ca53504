"""Binary trees over the spans of a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, SamplingOracle
from ..capabilities.base import MAX_RANK
from ..derivations import DEAD, UNIT, Builder, Derivations, StatedOracle
from ..device_tables import made_once, pairs_of_best
from ..numerics import log_sum_exp, running_sums


@dataclass(frozen=True)
class Constituency(StatedOracle, SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Binary trees over n leaves: event ``[n, n]``, ``scores[..., i, j]`` scores the span of tokens i to j, both inclusive.

    A tree holds 2n − 1 spans: the n of width 1 and the whole sentence, which are in every tree and whose scores count, and n − 2 others.
    Entries below the diagonal are ignored. Ties go to the lowest split: of two ways to cut a span, the one with the shorter left part.

    CKY (inside, outside and max-plus) and top-down sampling, O(n³); the projection is the active set over CKY calls. Structures are
    enumerated by the split of the widest span, then by its left part, then by its right part.

    References:
        Kasami 1965; Baker 1979, "Trainable grammars for speech recognition" (inside–outside); Huang & Chiang 2005, "Better k-best
        parsing", section 3.

    Example:
        >>> oracle, scores = Constituency(), torch.zeros(4, 4)
        >>> scores[1, 2] = scores[1, 3] = 1.0
        >>> oracle.argmax(scores)
        tensor([[1., 0., 0., 1.],
                [0., 1., 1., 1.],
                [0., 0., 1., 0.],
                [0., 0., 0., 1.]])
        >>> oracle.count((4, 4))
        5
    """

    name: ClassVar[str] = "constituency"
    kernel: ClassVar[str] = "constituency"
    event_ndim: ClassVar[int] = 2
    references: ClassVar[tuple[str, ...]] = ("kasami1965efficient", "baker1979trainable", "huang2005better")
    _ignores_entries: ClassVar[bool] = True

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        (length,) = cls._sizes(sizes, "length")
        return (length, length)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return catalan(event_shape[0])

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        return torch.ones(event_shape, dtype=torch.bool, device=device).triu()

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per span, an edge per cut."""
        size = event_shape[0]
        parts = torch.arange(size * size).reshape(event_shape)
        builder = Builder(parts.numel())
        nodes = torch.full(event_shape, DEAD)
        start = torch.arange(size)
        nodes[start, start] = builder.add(torch.full((size, 1), UNIT), parts.diagonal().unsqueeze(1))
        for width in range(1, size):
            i = torch.arange(size - width)
            cuts = i.unsqueeze(1) + torch.arange(width)
            j = (i + width).unsqueeze(1)
            nodes[i, i + width] = builder.add(nodes[i.unsqueeze(1), cuts], parts[i, i + width].unsqueeze(1), nodes[cuts + 1, j])
        return builder.finish(nodes[0, -1])

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] != event_shape[1]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, n), the first and last token of each span")

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        within = torch.arange(event_shape[0], device=lengths.device) < lengths.unsqueeze(-1)
        return within.unsqueeze(-1) & within.unsqueeze(-2)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """The tree of the item is the left part of every wider span: its right part is one token of the padding."""
        start = torch.arange(scores.shape[-1], device=scores.device).unsqueeze(-1)
        grows = (start == 0) | (start == start.mT)
        completion = torch.zeros_like(scores).masked_fill(~grows, -math.inf)
        return torch.where(self._inside(self._event(scores), lengths), scores, completion)

    def _argmax(self, rows: Tensor) -> Tensor:
        items = torch.arange(len(rows), device=rows.device)
        splits = torch.zeros(rows.shape, dtype=torch.int64, device=rows.device)

        def best(left: Tensor, right: Tensor) -> Tensor:
            values, places = (left + right).max(0)
            _set_width(splits, len(left), places.squeeze(-1))
            return values

        _inside_values(rows, best)
        return _grown(torch.zeros_like(items), rows.shape[-1], lambda i, j, label: (i + splits[items, i, j], label, label))

    def _log_partition(self, rows: Tensor) -> Tensor:
        # The sum over the one whole span gives an infeasible row gradient 0, and a single leaf a second derivative.
        return log_sum_exp(_inside_values(rows, _log_sum)[-1].squeeze(-1), 0)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] - 1

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """One uniform for each span to cut, in preorder: a span, the spans of its left part, those of its right part."""
        chart = torch.full_like(rows, -math.inf, dtype=torch.float64)
        for offset, values in enumerate(_inside_values(rows.double(), _log_sum)):
            _set_width(chart, offset, values.squeeze(-1))
        # [b, j, k]: the tokens k + 1 to j, so that a cut at k has the same place in both charts.
        endings = torch.nn.functional.pad(chart.mT[..., 1:], (0, 1), value=-math.inf)
        items, draws = torch.arange(len(rows), device=rows.device), iter(uniforms.unbind(-1))

        def drawn(i: Tensor, j: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            table = running_sums(chart[items, i] + endings[items, j])
            split = (table <= (next(draws) * table[..., -1]).unsqueeze(-1)).sum(-1)
            return torch.minimum(split, j - 1), label, label

        structures = _grown(torch.zeros(uniforms.shape[:-1], dtype=torch.int64, device=rows.device), rows.shape[-1], drawn)
        return structures & (chart[:, 0, -1] > -math.inf).reshape(-1, 1, 1)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        """CKY with the k best trees of every span, and for each the cut and the places of its parts among theirs."""
        firsts, seconds = pairs_of_best(k, rows.device)
        pointers = torch.zeros(*rows.shape, k, dtype=torch.int64, device=rows.device)

        def best(left: Tensor, right: Tensor) -> Tensor:
            # [n − w, b, cut and pair]
            joint = (left[..., firsts] + right[..., seconds]).movedim(0, 2).flatten(2)
            joint = torch.nn.functional.pad(joint, (0, max(k - joint.shape[-1], 0)), value=-math.inf)
            order = joint.sort(dim=-1, descending=True, stable=True)
            _set_width(pointers, len(left), order.indices[..., :k])
            return order.values[..., :k]

        def chosen(i: Tensor, j: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            pointer = pointers[items, i, j, place]
            pair = pointer % len(firsts)
            return i + pointer // len(firsts), firsts[pair], seconds[pair]

        _inside_values(rows, best, places=k)
        items = torch.arange(len(rows), device=rows.device)
        roots = torch.arange(k, device=rows.device).unsqueeze(-1).expand(k, len(rows))
        return _grown(roots, rows.shape[-1], chosen)

    def _rank(self, structures: Tensor) -> Tensor:
        """From the leaves up; spans that are not in the tree have rank −1."""
        length, device = structures.shape[-1], structures.device
        starts, sizes = _rank_tables(length, device)
        missing = torch.where(structures == 0, torch.iinfo(torch.int64).min, 0)

        def ranked(left: Tensor, right: Tensor) -> Tensor:
            offset = len(left)
            place = starts[offset, :offset].reshape(-1, 1, 1, 1)
            behind = sizes[:offset].flip(0).reshape(-1, 1, 1, 1)
            return torch.where((left >= 0) & (right >= 0), place + left * behind + right, 0).amax(0)

        return _inside_values(missing, ranked)[-1].flatten()

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        starts, sizes = _rank_tables(event_shape[0], ranks.device)

        def placed(i: Tensor, j: Tensor, rank: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            split = (starts[j - i] <= rank.unsqueeze(-1)).sum(-1) - 1
            behind = sizes[j - i - split - 1]
            within = rank - starts[j - i, split]
            return i + split, within // behind, within % behind

        return _grown(ranks, event_shape[0], placed)


def catalan(leaves: int) -> int:
    """The number of binary trees over so many leaves."""
    return math.comb(2 * leaves - 2, leaves - 1) // leaves


@made_once
def _rank_tables(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of a span of w + 1 tokens: [w, d], how many trees cut it before its token d, and [w], how many trees it has."""
    sizes = [catalan(width + 1) for width in range(length)]
    starts = [[0, *accumulate(sizes[d] * sizes[width - d - 1] for d in range(width))] for width in range(length)]
    padded = [row + [MAX_RANK + 1] * (length + 1 - len(row)) for row in starts]
    return torch.tensor(padded, device=device), torch.tensor(sizes, device=device)


def _inside_values(rows: Tensor, combine: Callable[[Tensor, Tensor], Tensor], places: int = 1) -> list[Tensor]:
    """Values of all spans from the leaves up: for every w, those of w + 1 tokens, ``[n − w, b, places]``, by first token.

    Args:
        rows: [b, n, n].
        combine: from the values of left and right parts by their cut, each [w, n − w, b, places], to those of the spans without their own
            scores.
        places: how many values a span has; leaves have one, and -inf in the others.
    """
    length = rows.shape[-1]
    leaves = rows.diagonal(dim1=1, dim2=2).T.unsqueeze(-1)
    values = [torch.nn.functional.pad(leaves, (0, places - 1), value=-math.inf) if places > 1 else leaves]
    # By width, and by first and by last token: so the parts of all spans of a width are slices.
    by_first, by_last = values[0].unsqueeze(0), values[0].unsqueeze(0)
    for w in range(1, length):
        own = rows.diagonal(w, dim1=1, dim2=2).T.unsqueeze(-1)
        values.append(own + combine(by_first[:, : length - w], by_last[:, w:].flip(0)))
        by_first = torch.cat([by_first, torch.nn.functional.pad(values[w], (0, 0, 0, 0, 0, w)).unsqueeze(0)])
        by_last = torch.cat([by_last, torch.nn.functional.pad(values[w], (0, 0, 0, 0, w, 0)).unsqueeze(0)])
    return values


def _log_sum(left: Tensor, right: Tensor) -> Tensor:
    return log_sum_exp(left + right, 0)


def _set_width(chart: Tensor, w: int, values: Tensor) -> None:
    """Write values [n − w, b, ...] of the spans of w + 1 tokens into a chart [b, n, n, ...]."""
    first = torch.arange(len(values), device=chart.device)
    chart[:, first, first + w] = values.transpose(0, 1)


def _grown(labels: Tensor, length: int, cut: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Trees from the root down, all at once: boolean [*shape, n, n] from the labels [*shape] of their roots.

    ``cut`` is called n − 1 times, with the spans to cut in preorder: it takes their first token, last token and label, and gives the last
    token of the left part and the labels of both parts. A span of w + 1 tokens holds w cuts, which fixes where its parts come in the order.
    """
    whole = torch.full_like(labels, length - 1)
    # The last place takes what is not to be cut.
    spans = torch.stack([torch.zeros_like(labels), whole, labels]).unsqueeze(-1).repeat_interleave(length, -1)
    for t in range(length - 1):
        i, j, label = spans[..., t].unbind(0)
        split, left, right = cut(i, j, label)
        place = torch.where(split > i, t + 1, length - 1)
        spans.scatter_(-1, place.expand(3, *place.shape).unsqueeze(-1), torch.stack([i, split, left]).unsqueeze(-1))
        place = torch.where(split + 1 < j, t + 1 + split - i, length - 1)
        spans.scatter_(-1, place.expand(3, *place.shape).unsqueeze(-1), torch.stack([split + 1, j, right]).unsqueeze(-1))
    flat = torch.zeros(*labels.shape, length * length, dtype=torch.bool, device=labels.device)
    flat[..., :: length + 1] = True
    flat.scatter_(-1, (spans[0] * length + spans[1])[..., : length - 1], True)
    return flat.reshape(*labels.shape, length, length)

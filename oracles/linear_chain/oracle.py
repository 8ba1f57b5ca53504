"""Tag sequences of a first-order chain."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..capabilities import EnumerableOracle, KBestOracle, ProjectionOracle, RelaxedOracle, SamplingOracle
from ..capabilities.base import Maximum
from ..categorical import inverse_cdf
from ..numerics import log_sum_exp, running_sums


@dataclass(frozen=True)
class LinearChain(RelaxedOracle, SamplingOracle, ProjectionOracle, EnumerableOracle, KBestOracle):
    """Tag sequences: event ``[n, t, t]``, ``scores[..., i, p, c]`` scores tag p at i − 1 followed by tag c at i.

    At i = 0 only row p = 0 is read: ``scores[..., 0, 0, c]`` is the score of starting with tag c; the other rows are ignored.

    Viterbi, forward recursion and forward-filtering backward-sampling, O(n t²); the projection is the active set over Viterbi calls.

    References:
        Rabiner 1989, "A tutorial on hidden Markov models", section III; Lafferty, McCallum & Pereira 2001, section 3.

    Example:
        >>> oracle = LinearChain()
        >>> scores = LinearChain.from_potentials(torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.5]]), torch.zeros(2, 2))
        >>> LinearChain.tags(oracle.argmax(scores))
        tensor([1, 0, 1])
        >>> oracle.count(tuple(scores.shape))
        8
    """

    name: ClassVar[str] = "linear_chain"
    event_ndim: ClassVar[int] = 3
    references: ClassVar[tuple[str, ...]] = ("rabiner1989tutorial", "lafferty2001conditional")
    kernel: ClassVar[str | None] = "linear_chain"
    _ignores_entries: ClassVar[bool] = True

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        length, tags = cls._sizes(sizes, "length", "tags")
        return (length, tags, tags)

    @classmethod
    def from_potentials(
        cls, unary: Tensor, transition: Tensor | None = None, start: Tensor | None = None, end: Tensor | None = None
    ) -> Tensor:
        """Chain scores ``[*batch, n, t, t]`` from the potentials of a tagger.

        ``score(y) = start[y₀] + Σ unary[i, y_i] + Σ transition[y_{i−1}, y_i] + end[y_{n−1}]``; differentiable in all of them.

        Args:
            unary: [*batch, n, t].
            transition: [*batch?, t, t], axis 0 the previous tag, axis 1 the next one; 0 when None.
            start: [*batch?, t].
            end: [*batch?, t].
        """
        if unary.ndim < 2:
            raise ValueError(f"`from_potentials` got unary of shape {tuple(unary.shape)}; expected [*batch, n, t]")
        length, tags = unary.shape[-2:]
        if transition is not None and tuple(transition.shape[-2:]) != (tags, tags):
            raise ValueError(f"`from_potentials` got a transition of shape {tuple(transition.shape)}; expected (..., {tags}, {tags})")
        for name, potential in (("start", start), ("end", end)):
            if potential is not None and tuple(potential.shape[-1:]) != (tags,):
                raise ValueError(f"`from_potentials` got {name} of shape {tuple(potential.shape)}; expected (..., {tags})")
        scores = unary.unsqueeze(-2).expand(*unary.shape[:-1], tags, tags)
        first = torch.arange(length, device=unary.device).reshape(length, 1, 1) == 0
        last = torch.arange(length, device=unary.device).reshape(length, 1, 1) == length - 1
        if transition is not None:
            scores = scores + torch.where(first, 0, transition.unsqueeze(-3))
        if start is not None:
            scores = scores + torch.where(first, start.unsqueeze(-2).unsqueeze(-2), 0)
        if end is not None:
            scores = scores + torch.where(last, end.unsqueeze(-2).unsqueeze(-2), 0)
        unread = first & (torch.arange(tags, device=unary.device).reshape(1, tags, 1) > 0)
        return torch.where(unread, 0, scores)

    @classmethod
    def structure(cls, tags: Tensor, num_tags: int, dtype: torch.dtype | None = None) -> Tensor:
        """Tag indices ``[*batch, n]`` to structures ``[*batch, n, t, t]``; the inverse of `tags`."""
        previous = torch.nn.functional.pad(tags[..., :-1], (1, 0))
        flat = torch.nn.functional.one_hot(previous * num_tags + tags, num_tags * num_tags)
        return flat.reshape(*tags.shape, num_tags, num_tags).to(dtype or torch.get_default_dtype())

    @classmethod
    def tags(cls, structure: Tensor) -> Tensor:
        """Tag indices ``[*batch, n]`` of structures ``[*batch, n, t, t]``."""
        return structure.sum(-2).argmax(-1)

    def count(self, event_shape: tuple[int, ...]) -> int:
        return int(event_shape[1] ** event_shape[0])

    def read_mask(self, event_shape: tuple[int, ...], device: torch.device | None = None) -> Tensor:
        mask = torch.ones(event_shape, dtype=torch.bool, device=device)
        mask[0, 1:] = False
        return mask

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[1] != event_shape[2]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, t, t), build it with LinearChain.from_potentials")

    def _argmax(self, rows: Tensor) -> Tensor:
        length, num_tags = rows.shape[1], rows.shape[2]
        best = rows[:, 0, 0]
        pointers = []
        for i in range(1, length):
            best, pointer = (best.unsqueeze(-1) + rows[:, i]).max(dim=1)
            pointers.append(pointer)
        tags = [best.argmax(-1)]
        for pointer in reversed(pointers):
            tags.append(pointer.gather(-1, tags[-1].unsqueeze(-1)).squeeze(-1))
        return self.structure(torch.stack(tags[::-1], -1), num_tags, rows.dtype)

    def _prefixes(self, rows: Tensor, maximum: Maximum) -> list[Tensor]:
        """n tensors [b, t]: the best tag sequence up to i that ends in tag c, by a smoothed maximum (`log_sum_exp`: their log-weight)."""
        prefixes = [rows[:, 0, 0]]
        for i in range(1, rows.shape[1]):
            prefixes.append(maximum(prefixes[-1].unsqueeze(-1) + rows[:, i], 1))
        return prefixes

    def _value(self, rows: Tensor, maximum: Maximum) -> Tensor:
        return maximum(self._prefixes(rows, maximum)[-1], -1)

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0]

    def _sample(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        scores = rows.double()
        prefixes = self._prefixes(scores, log_sum_exp)
        length, num_tags = rows.shape[1], rows.shape[2]
        items = torch.arange(rows.shape[0], device=rows.device)
        tag = inverse_cdf(running_sums(prefixes[-1]), uniforms[..., -1])
        tags = [tag]
        for i in range(length - 1, 0, -1):
            joint = (prefixes[i - 1].unsqueeze(-1) + scores[:, i]).mT
            table = running_sums(joint)[items, tag]
            threshold = uniforms[..., i - 1] * table[..., -1]
            tag = (table <= threshold.unsqueeze(-1)).sum(-1).clamp(max=num_tags - 1)
            tags.append(tag)
        feasible = prefixes[-1].amax(-1) > -math.inf
        structures = self.structure(torch.stack(tags[::-1], -1), num_tags, rows.dtype)
        return structures * feasible.reshape(-1, 1, 1, 1)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        """From the last tag to tag 0, and on with tag 0 to the end."""
        num_tags, device = scores.shape[-1], scores.device
        tag = torch.arange(num_tags, device=device)
        beyond = torch.arange(scores.shape[-3], device=device) > lengths.unsqueeze(-1)
        stays = (tag == 0) & ((tag == 0).unsqueeze(-1) | ~beyond.unsqueeze(-1).unsqueeze(-1))
        completion = torch.zeros_like(scores).masked_fill(~stays, -math.inf)
        return torch.where(self._inside(self._event(scores), lengths), scores, completion)

    def _kbest(self, rows: Tensor, k: int) -> Tensor:
        """Viterbi with the k best prefixes per tag: [b, t, k], and for each the tag and the place that it goes on from."""
        batch, length, num_tags = rows.shape[:3]
        best = rows.new_full((batch, num_tags, k), -math.inf)
        best[..., 0] = rows[:, 0, 0]
        pointers = []
        for i in range(1, length):
            # [b, previous tag and its place, next tag]
            joint = (best.unsqueeze(-1) + rows[:, i].unsqueeze(2)).flatten(1, 2)
            order = joint.mT.sort(dim=-1, descending=True, stable=True)
            best = order.values[..., :k]
            pointers.append(order.indices[..., :k])
        last = best.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, :k]
        tags = [last // k]
        for pointer in reversed(pointers):
            last = pointer.flatten(1).gather(-1, last)
            tags.append(last // k)
        return self.structure(torch.stack(tags[::-1], -1), num_tags, rows.dtype).movedim(1, 0)

    def _rank(self, structures: Tensor) -> Tensor:
        length, num_tags = structures.shape[1], structures.shape[2]
        powers = num_tags ** torch.arange(length - 1, -1, -1, device=structures.device)
        return (self.tags(structures) * powers).sum(-1)

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        length, num_tags = event_shape[0], event_shape[1]
        powers = num_tags ** torch.arange(length - 1, -1, -1, device=ranks.device)
        digits = ranks.unsqueeze(-1) // powers % num_tags
        return self.structure(digits, num_tags, torch.bool)

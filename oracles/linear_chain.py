"""Tag sequences of a first-order chain."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .capabilities.indices import NONE, PartOfEachRow, chosen
from .derivations import UNIT, Builder, Derivations, DerivedOracle
from .tensor_kinds import inside_lengths, labels_below


class TagSequences(PartOfEachRow, DerivedOracle):
    """Sequences of tags, whose derivations go through the tags from the last one.

    The first tag takes the first uniform, and is the most significant digit of a rank.
    """

    _draws_from_the_last: ClassVar[bool] = True

    def _noise_size(self, event_shape: tuple[int, ...]) -> int:
        return self.index_shape(event_shape)[0]

    def _rank(self, structures: Tensor) -> Tensor:
        return self._turned(super()._rank(structures), tuple(structures.shape[1:]))

    def _unrank(self, ranks: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return super()._unrank(self._turned(ranks, event_shape), event_shape)

    def _turned(self, numbers: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """Numbers of as many digits as there are tags, the last digit first."""
        turned, tags = torch.zeros_like(numbers), event_shape[-1]
        for _ in range(self.index_shape(event_shape)[0]):
            turned, numbers = turned * tags + numbers % tags, numbers // tags
        return turned


@dataclass(frozen=True)
class LinearChain(TagSequences):
    """Tag sequences: event ``[n, t, t]``, ``scores[..., i, p, c]`` scores tag p at i − 1 followed by tag c at i.

    At i = 0 only row p = 0 is read: ``scores[..., 0, 0, c]`` is the score of starting with tag c; the other rows are ignored. Indices
    ``[n]`` are the tags.

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
    axes: ClassVar[tuple[str, ...]] = ("length", "tags", "tags")
    references: ClassVar[tuple[str, ...]] = ("rabiner1989tutorial", "lafferty2001conditional")

    @classmethod
    def from_potentials(
        cls,
        unary: Tensor,
        transition: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Chain scores ``[*batch, n, t, t]`` from the potentials of a tagger.

        ``score(y) = start[y₀] + Σ unary[i, y_i] + Σ transition[y_{i−1}, y_i] + end[y_{n−1}]``; differentiable in all of them.

        Args:
            unary: [*batch, n, t].
            transition: [*batch?, t, t], axis 0 the previous tag, axis 1 the next one; 0 when None.
            start: [*batch?, t].
            end: [*batch?, t].
            lengths: int [*batch], where ``end`` is added at the last place of shorter items.
        """
        check_potentials(unary, transition, start, end)
        length, tags = unary.shape[-2:]
        scores = unary.unsqueeze(-2).expand(*unary.shape[:-1], tags, tags)
        place = torch.arange(length, device=unary.device).reshape(length, 1, 1)
        first = place == 0
        last = place == (length if lengths is None else lengths.reshape(*lengths.shape, 1, 1, 1)) - 1
        if transition is not None:
            scores = scores + torch.where(first, 0, transition.unsqueeze(-3))
        if start is not None:
            scores = scores + torch.where(first, start.unsqueeze(-2).unsqueeze(-2), 0)
        if end is not None:
            scores = scores + torch.where(last, end.unsqueeze(-2).unsqueeze(-2), 0)
        unread = first & (torch.arange(tags, device=unary.device).reshape(1, tags, 1) > 0)
        return torch.where(unread, 0, scores)

    @classmethod
    def structure(cls, tags: Tensor, num_tags: int, dtype: torch.dtype | None = None, lengths: Tensor | None = None) -> Tensor:
        """Tag indices ``[*batch, n]`` to structures ``[*batch, n, t, t]``; the inverse of `tags`.

        What lies beyond ``lengths`` is 0, whatever padding the tags have there, such as -100.

        Example:
            >>> LinearChain.structure(torch.tensor([[1, -100]]), 2, lengths=torch.tensor([1])).flatten(2).tolist()
            [[[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]
        """
        inside = inside_lengths("structure", lengths, tags.shape[-1])
        tags = labels_below("structure", "tags", tags, num_tags, inside)
        previous = torch.nn.functional.pad(tags[..., :-1], (1, 0))
        flat = torch.nn.functional.one_hot(previous * num_tags + tags, num_tags * num_tags)
        flat = flat if inside is None else flat * inside.unsqueeze(-1)
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

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        length, tags, _ = event_shape
        previous = torch.nn.functional.pad(indices[..., :-1], (1, 0))
        parts = (torch.arange(length, device=indices.device) * tags + previous) * tags + indices
        return torch.where((indices < 0) | (previous < 0), NONE, parts)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures.any(-2), -1)

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[1] != event_shape[2]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n, t, t), build it with LinearChain.from_potentials")

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """A node per token and tag: the tags up to there. A level per token, and one for the last tag."""
        length, tags, _ = event_shape
        parts = torch.arange(length * tags * tags).reshape(event_shape)
        builder = Builder(parts.numel())
        nodes = builder.add(torch.full((tags, 1), UNIT), parts[0, 0].unsqueeze(1))
        for i in range(1, length):
            nodes = builder.add(nodes.expand(tags, tags), parts[i].mT)
        return builder.finish(builder.add(nodes.unsqueeze(0)))

    def _completion(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """From the last tag to tag 0, and on with tag 0 to the end."""
        tag = torch.arange(event_shape[1], device=lengths.device)
        beyond = torch.arange(event_shape[0], device=lengths.device) > lengths.unsqueeze(-1)
        return (tag == 0) & ((tag == 0).unsqueeze(-1) | ~beyond.unsqueeze(-1).unsqueeze(-1))


def check_potentials(
    unary: Tensor, transition: Tensor | None, start: Tensor | None, end: Tensor | None, call: str = "from_potentials"
) -> None:
    """Refuse potentials of a tagger whose shapes do not fit."""
    if unary.ndim < 2:
        raise ValueError(f"`{call}` got unary of shape {tuple(unary.shape)}; expected [*batch, n, t]")
    tags = unary.shape[-1]
    if transition is not None and tuple(transition.shape[-2:]) != (tags, tags):
        raise ValueError(f"`{call}` got a transition of shape {tuple(transition.shape)}; expected (..., {tags}, {tags})")
    for name, potential in (("start", start), ("end", end)):
        if potential is not None and tuple(potential.shape[-1:]) != (tags,):
            raise ValueError(f"`{call}` got {name} of shape {tuple(potential.shape)}; expected (..., {tags})")

"""Tag sequences of a first-order chain, by its factors."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from .capabilities.indices import NONE
from .derivations import UNIT, Builder, Derivations, Examples, TiedOracle
from .linear_chain import TagSequences, check_potentials
from .tensor_kinds import inside_lengths, labels_below


@dataclass(frozen=True)
class TiedChain(TiedOracle, TagSequences):
    """Tag sequences by their factors: event ``[n + t, t]``, a line of tags for each of n places, then one transition matrix ``[t, t]``.

    ``scores[..., i, c]`` scores tag c at place i, ``scores[..., n + p, c]`` tag c after tag p, wherever that happens. A structure holds the
    tag of every place as 0/1, and *how often* every transition is used (see `binary_mask`). It is the law of `LinearChain` with
    ``from_potentials(unary, transition)``, whose samples, ties and order it shares, at an n-th of the memory: no score of an edge is made.
    Gradients come as those of the factors, so that a matrix that all items share gets the sum over items from `Tensor.expand`. ``lengths``
    counts places. Indices ``[n]`` are the tags.

    Viterbi, forward recursion and forward-filtering backward-sampling, O(n t²) additions for O((n + t) t) scores; the projection, on the
    polytope of tags and counts, is the active set over Viterbi calls.

    References:
        Rabiner 1989, "A tutorial on hidden Markov models", section III; Lafferty, McCallum & Pereira 2001, section 3.

    Example:
        >>> oracle = TiedChain()
        >>> scores = TiedChain.from_potentials(torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.5]]), torch.eye(2))
        >>> TiedChain.tags(oracle.argmax(scores))
        tensor([0, 0, 0])
        >>> oracle.marginals(scores)[3:]  # expected transitions
        tensor([[0.8893, 0.3239],
                [0.4340, 0.3527]])
        >>> oracle.count(tuple(scores.shape))
        8
    """

    name: ClassVar[str] = "tied_chain"
    event_ndim: ClassVar[int] = 2
    layout: ClassVar[str] = "Scores of n places have t rows of transitions behind them: [*batch, n + t, t]"
    references: ClassVar[tuple[str, ...]] = ("rabiner1989tutorial", "lafferty2001conditional")
    examples: ClassVar[Examples] = Examples(like="linear_chain", counted="positions")
    _nodes_of_a_uniform: ClassVar[int] = 2

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        length, tags = cls._sizes(sizes, "length", "tags")
        return (length + tags, tags)

    @classmethod
    def from_potentials(
        cls,
        unary: Tensor,
        transition: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[*batch, n + t, t]`` from the potentials of a tagger, as those of `LinearChain.from_potentials`.

        The matrix of transitions may be shared by all items.
        """
        check_potentials(unary, transition, start, end)
        length, tags = unary.shape[-2:]
        place = torch.arange(length, device=unary.device).unsqueeze(-1)
        last = length - 1 if lengths is None else lengths.unsqueeze(-1).unsqueeze(-1) - 1
        if start is not None:
            unary = unary + torch.where(place == 0, start.unsqueeze(-2), 0)
        if end is not None:
            unary = unary + torch.where(place == last, end.unsqueeze(-2), 0)
        matrix = unary.new_zeros(tags, tags) if transition is None else transition
        return torch.cat([unary, matrix.expand(*unary.shape[:-2], tags, tags)], -2)

    @classmethod
    def structure(cls, tags: Tensor, num_tags: int, dtype: torch.dtype | None = None, lengths: Tensor | None = None) -> Tensor:
        """Tag indices ``[*batch, n]`` to structures ``[*batch, n + t, t]``; the inverse of `tags`. What lies beyond ``lengths`` is 0."""
        within = inside_lengths("structure", lengths, tags.shape[-1])
        tags = labels_below("structure", "tags", tags, num_tags, within)
        inside = torch.ones_like(tags) if within is None else within.long().expand_as(tags)
        pairs = tags[..., :-1] * num_tags + tags[..., 1:]
        used = torch.zeros(*tags.shape[:-1], num_tags**2, dtype=torch.int64, device=tags.device).scatter_add_(-1, pairs, inside[..., 1:])
        counts = used.reshape(*tags.shape[:-1], num_tags, num_tags)
        places = one_hot(tags, num_tags) * inside.unsqueeze(-1)
        return torch.cat([places, counts], -2).to(dtype or torch.get_default_dtype())

    @classmethod
    def tags(cls, structure: Tensor) -> Tensor:
        """Tag indices ``[*batch, n]`` of structures ``[*batch, n + t, t]``."""
        places = _places(structure)
        return (places.byte() if places.dtype == torch.bool else places).argmax(-1)

    def _place_lines(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] - event_shape[1]

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 2 or event_shape[0] <= event_shape[1]:
            raise ValueError(f"`{call}` got event shape {event_shape}; expected (n + t, t), build it with TiedChain.from_potentials")

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The tags of the places, then the transitions between them, which may come several times."""
        lines, tags = event_shape
        before, after = indices[..., :-1], indices[..., 1:]
        transitions = torch.where((before < 0) | (after < 0), NONE, (lines - tags + before) * tags + after)
        return torch.cat([super()._parts(indices, (lines - tags, tags)), transitions], -1)

    def _written_parts(self, event_shape: tuple[int, ...]) -> int:
        """Places, and the transitions between them, which come behind."""
        return 2 * self.index_shape(event_shape)[0] - 1

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        return super()._from_parts(parts[..., : self.index_shape(event_shape)[0]], event_shape)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return super()._indices_of(_places(structures))

    # Lengths: one tag more, which ends an item, and stays. It comes last, so that results are cut back to what they were.

    def _inside_padded(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        lines, tags = event_shape
        line, tag = torch.arange(lines, device=lengths.device).unsqueeze(-1), torch.arange(tags, device=lengths.device)
        return self._inside(event_shape, lengths) & (line < lines - 1) & (tag < tags - 1)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        unary, transition = pad(_places(scores), (0, 1)), pad(_transitions(scores), (0, 1, 0, 1))
        tags = scores.shape[-1]
        ends = torch.arange(tags + 1, device=scores.device) == tags
        beyond = (torch.arange(unary.shape[-2], device=scores.device) >= lengths.unsqueeze(-1)).unsqueeze(-1)
        unary = torch.where(ends | beyond, torch.where(ends & beyond, 0, -math.inf), unary)
        # From the end to a tag there is no way; what comes from a tag to the end is free.
        transition = torch.where(ends.unsqueeze(-1) & ~ends, -math.inf, transition)
        return torch.cat([unary, transition], -2)

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """Two nodes per place and tag, without and with the score of the tag there: so many scores of transitions serve all places."""
        lines, tags = event_shape
        parts = torch.arange(lines * tags).reshape(event_shape)
        builder = Builder(parts.numel())
        nodes = builder.add(torch.full((tags, 1), UNIT), parts[0].unsqueeze(1))
        for place in range(1, lines - tags):
            reached = builder.add(nodes.expand(tags, tags), _transitions(parts).mT)
            nodes = builder.add(reached.unsqueeze(1), parts[place].unsqueeze(1))
        return builder.finish(builder.add(nodes.unsqueeze(0)))


def _places(values: Tensor) -> Tensor:
    """The lines of tags, ``[..., n, t]``."""
    return values[..., : values.shape[-2] - values.shape[-1], :]


def _transitions(values: Tensor) -> Tensor:
    """The lines of transitions, ``[..., t, t]``."""
    return values[..., values.shape[-2] - values.shape[-1] :, :]

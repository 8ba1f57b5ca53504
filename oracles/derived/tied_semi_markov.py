"""Segmentations with labels, by their factors."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..capabilities.indices import NONE, chosen, placed
from ..derivations import UNIT, Builder, Derivations, Examples, TiedOracle
from ..linear_chain import check_potentials


@dataclass(frozen=True)
class TiedSemiMarkov(TiedOracle):
    """Labelled segmentations of n tokens by their factors: event ``[n + ⌈t / w⌉, w, t]``, of segments of at most w tokens.

    ``scores[..., j, l, c]`` scores a segment of l + 1 tokens, the last of which is j, with label c. After the n lines of segments comes one
    transition matrix ``[t, t]``, the previous label first, in lines of w rows each; `transitions` reads it. Segments that begin before
    token 0, and what fills the last line, are ignored. A structure holds its segments as 0/1, and *how often* every label follows every
    other (see `binary_mask`). It is the law of `SemiMarkov` with the score of the segment plus that of the transition for each pair, with
    the same order and ties, at a t-th of its memory and in O(n t (t + w)) instead of O(n w t²). Gradients are those of the factors, so
    that a matrix that all items share gets the sum over items from `Tensor.expand`. ``lengths`` counts tokens, and costs a label more.
    Indices ``[n]`` hold ``c w + l`` at the last token of every segment, and -1 elsewhere.

    References:
        Sarawagi & Cohen 2004, "Semi-Markov conditional random fields for information extraction", section 2; Rabiner 1989, "A tutorial on
        hidden Markov models", section IV.D (explicit durations).

    Example:
        >>> oracle, unary = TiedSemiMarkov(), torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
        >>> scores = TiedSemiMarkov.from_potentials(unary, torch.tensor([[0.0, 0.0], [0.0, 0.5]]), torch.tensor([[0.0, 0.5], [0.0, 0.0]]))
        >>> TiedSemiMarkov.segments(oracle.argmax(scores))
        [(0, 0, 0), (1, 2, 1)]
        >>> TiedSemiMarkov.transitions(oracle.marginals(scores))  # expected numbers
        tensor([[0.0578, 0.7213],
                [0.1421, 0.4894]])
        >>> oracle.count(tuple(scores.shape))
        16
    """

    name: ClassVar[str] = "tied_semi_markov"
    event_ndim: ClassVar[int] = 3
    layout: ClassVar[str] = "Scores of n tokens have rows of transitions behind them: build them with TiedSemiMarkov.from_potentials"
    _indices_are_parts: ClassVar[bool] = False
    size_names: ClassVar[tuple[str, ...]] = ("length", "width", "tags")
    references: ClassVar[tuple[str, ...]] = ("sarawagi2004semi", "rabiner1989tutorial")
    examples: ClassVar[Examples] = Examples(
        small=((5, 3, 2), (6, 3, 2), (7, 3, 2)), usual=(32, 4, 8), like="linear_chain", counted="tokens"
    )

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        length, width, tags = cls._sizes(sizes, *cls.size_names)
        return (length + _lines(width, tags), width, tags)

    @classmethod
    def from_potentials(  # noqa: PLR0913 - as many factors as a model of segments has
        cls,
        unary: Tensor,
        length: Tensor | int,
        transition: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[*batch, n + ⌈t / w⌉, w, t]`` from scores of tokens, lengths and transitions; differentiable in all of them.

        The score of a segment is the sum of ``unary[i, c]`` over its tokens, plus ``length[l, c]`` for l + 1 tokens. See `from_segments`
        for the rest.

        Args:
            unary: [*batch, n, t].
            length: [*batch?, w, t], line l of segments of l + 1 tokens; or w alone, where all lengths score 0.
            transition: [*batch?, t, t], axis 0 the previous label, axis 1 the next one; 0 when None.
            start: [*batch?, t], of the first label.
            end: [*batch?, t], of the last label.
            lengths: int [*batch], where ``end`` belongs to the last segment of shorter items.

        Example:
            >>> TiedSemiMarkov.from_potentials(torch.ones(3, 1), 2)[..., 0]  # the segment that begins before token 0 is ignored
            tensor([[1., 1.],
                    [1., 2.],
                    [1., 2.],
                    [0., 0.]])
        """
        check_potentials(unary, transition, start, end)
        tags = unary.shape[-1]
        if isinstance(length, Tensor) and (length.ndim < 2 or length.shape[-1] != tags):
            raise ValueError(f"`from_potentials` got length of shape {tuple(length.shape)}; expected (..., w, {tags})")
        width = length.shape[-2] if isinstance(length, Tensor) else length
        if not isinstance(width, int) or width < 1:
            raise ValueError(f"`from_potentials` got length={length!r}; expected scores [*batch?, w, {tags}], or an integer w >= 1")
        # A token more to the left each time: sums, and not differences of sums, so that what is -inf stays where it is.
        windows = [unary]
        for longer in range(1, width):
            windows.append(windows[-1] + pad(unary, (0, 0, longer, 0))[..., : unary.shape[-2], :])
        segments = torch.stack(windows, -2)
        segments = segments + length.unsqueeze(-3) if isinstance(length, Tensor) else segments
        return cls.from_segments(segments, transition, start, end, lengths)

    @classmethod
    def from_segments(
        cls,
        segments: Tensor,
        transition: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Scores ``[*batch, n + ⌈t / w⌉, w, t]`` from scores of segments and transitions; differentiable in all of them.

        ``score(y) = start[c₁] + Σ_k segments[j_k, l_k, c_k] + Σ_k transition[c_{k−1}, c_k] + end[c_K]`` for K segments.

        Args:
            segments: [*batch, n, w, t], as ``scores[..., j, l, c]``.
            transition: [*batch?, t, t], axis 0 the previous label, axis 1 the next one; 0 when None.
            start: [*batch?, t], of the first label.
            end: [*batch?, t], of the last label.
            lengths: int [*batch], where ``end`` belongs to the last segment of shorter items.
        """
        if segments.ndim < 3:
            raise ValueError(f"`from_segments` got segments of shape {tuple(segments.shape)}; expected [*batch, n, w, t]")
        size, width, tags = segments.shape[-3:]
        check_potentials(segments, transition, start, end, "from_segments")
        token = torch.arange(size, device=segments.device).reshape(-1, 1, 1)
        longer = torch.arange(width, device=segments.device).unsqueeze(-1)
        if start is not None:
            segments = segments + torch.where(token == longer, start.unsqueeze(-2).unsqueeze(-2), 0)
        if end is not None:
            last = size - 1 if lengths is None else lengths.reshape(*lengths.shape, 1, 1, 1) - 1
            segments = segments + torch.where(token == last, end.unsqueeze(-2).unsqueeze(-2), 0)
        matrix = segments.new_zeros(tags, tags) if transition is None else transition
        return _packed(segments, matrix.expand(*segments.shape[:-3], tags, tags))

    @classmethod
    def structure(cls, segments: list[tuple[int, int, int]], event_shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        """One structure of an event shape, from first and last token and label of its segments in order; the inverse of `segments`.

        Example:
            >>> TiedSemiMarkov.segments(TiedSemiMarkov.structure([(0, 1, 1), (2, 2, 0)], (4, 2, 2)))
            [(0, 1, 1), (2, 2, 0)]
        """
        lines, width, tags = event_shape
        size, follows = lines - _lines(width, tags), [0, *(last + 1 for _, last, _ in segments)]
        fits = all(0 <= last - first < width and 0 <= tag < tags for first, last, tag in segments)
        if not fits or [first for first, _, _ in segments] != follows[:-1] or follows[-1] > size or not segments:
            raise ValueError(
                f"`structure` got segments {segments}; expected (first, last, label) of neighbours from token 0 on, within {size} tokens, "
                f"of at most {width} tokens each, with labels from 0 to {tags - 1}"
            )
        found = torch.zeros(event_shape, dtype=dtype or torch.get_default_dtype())
        for first, last, tag in segments:
            found[last, last - first, tag] = 1
        for (_, _, before), (_, _, tag) in pairwise(segments):
            found[size + before // width, before % width, tag] += 1
        return found

    @classmethod
    def segments(cls, structure: Tensor) -> list[tuple[int, int, int]]:
        """First and last token and label of every segment of one structure ``[n + ⌈t / w⌉, w, t]``, in order."""
        return [(last - longer, last, tag) for last, longer, tag in _segments(structure).nonzero().tolist()]

    @classmethod
    def transitions(cls, values: Tensor) -> Tensor:
        """The transitions, ``[*batch, t, t]``, of scores, structures or marginals ``[*batch, n + ⌈t / w⌉, w, t]``."""
        tags = values.shape[-1]
        return values[..., values.shape[-3] - _lines(values.shape[-2], tags) :, :, :].flatten(-3, -2)[..., :tags, :]

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """Two nodes per token and label: a segment of that label begins there, and the last segment that ends there has it."""
        lines, width, tags = event_shape
        size, parts = lines - _lines(width, tags), torch.arange(math.prod(event_shape)).reshape(event_shape)
        tokens = torch.where(self.binary_mask(event_shape), torch.arange(1, width + 1).unsqueeze(-1), 0)
        builder, before = Builder(parts.numel(), tokens.flatten()), self.transitions(parts).mT
        begins, ends = list[Tensor](), torch.empty(0)
        for last in range(size):
            begins.append(builder.add(ends.expand(tags, -1), before) if last else torch.full((tags,), UNIT))
            sizes = min(width, last + 1)
            ends = builder.add(torch.stack(begins[: last - sizes : -1] if last >= sizes else begins[::-1], 1), parts[last, :sizes].mT)
        return builder.finish(builder.add(ends.unsqueeze(0)))

    def _place_lines(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] - _lines(*event_shape[1:])

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        if len(event_shape) != 3 or event_shape[0] <= _lines(*event_shape[1:]):
            raise ValueError(
                f"`{call}` got event shape {event_shape}; expected (n + ⌈t / w⌉, w, t), build it with TiedSemiMarkov.from_potentials"
            )

    # Indices: at the last token of every segment its label and length, -1 elsewhere. A label more, as lengths add one, changes none.

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[1] * event_shape[2]

    def _written_parts(self, event_shape: tuple[int, ...]) -> int:
        """Segments and the transitions between them."""
        return 2 * self.length_limits(event_shape)[0]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The segments by their last tokens, then the transitions to them, which may come several times."""
        (size,), (_, width, tags) = self.length_limits(event_shape), event_shape
        token = torch.arange(size, device=indices.device)
        longer, tag = indices % width, indices // width
        segments = torch.where(indices < 0, NONE, (token * width + longer) * tags + tag)
        previous = token - longer - 1
        before = tag.gather(-1, previous.clamp(min=0))
        follows = (indices >= 0) & (previous >= 0) & (before >= 0)
        return torch.cat([segments, torch.where(follows, (size * width + before) * tags + tag, NONE)], -1)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        (size,), (_, width, tags) = self.length_limits(event_shape), event_shape
        token = torch.where(parts < 0, size, parts // (width * tags))  # of transitions, which come last, beyond all tokens
        return placed(parts % tags * width + parts // tags % width, token, size)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(_segments(structures).mT.flatten(-2), -1)

    # Lengths: one label more, which ends an item and stays, since whatever else could go on would pay for a transition that items share. It
    # comes last, and so does its line of transitions, so that results are cut back to what they were.

    def _inside_padded(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Without the last label, and what leads from it."""
        lines, width, tags = event_shape
        line = (torch.arange(lines, device=lengths.device) - (lines - _lines(width, tags))).unsqueeze(-1)
        ends = line * width + torch.arange(width, device=lengths.device) == tags - 1
        return self._inside(event_shape, lengths) & ~ends.unsqueeze(-1) & (torch.arange(tags, device=lengths.device) < tags - 1)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        segments, transition = pad(_segments(scores), (0, 1)), pad(self.transitions(scores), (0, 1, 0, 1))
        size, width, labels = segments.shape[-3:]
        token, longer, label = (torch.arange(number, device=scores.device) for number in (size, width, labels))
        beyond = token.reshape(-1, 1, 1) >= lengths.reshape(*lengths.shape, 1, 1, 1)
        ends = label == labels - 1
        completion = torch.zeros_like(segments).masked_fill(~(beyond & ends & (longer.unsqueeze(-1) == 0)), -math.inf)
        # What comes from a label to the end is free; from there, no segment leads on but those of the end.
        return _packed(torch.where(beyond | ends, completion, segments), transition)


def _lines(width: int, tags: int) -> int:
    """Of w rows, those that a transition matrix takes."""
    return -(-tags // width)


def _segments(values: Tensor) -> Tensor:
    """The lines of segments, ``[..., n, w, t]``."""
    return values[..., : values.shape[-3] - _lines(*values.shape[-2:]), :, :]


def _packed(segments: Tensor, transition: Tensor) -> Tensor:
    """Both in one event."""
    width, tags = segments.shape[-2:]
    lines = _lines(width, tags)
    rows = pad(transition, (0, 0, 0, lines * width - tags))
    return torch.cat([segments, rows.reshape(*rows.shape[:-2], lines, width, tags)], -3)

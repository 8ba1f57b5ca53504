"""Binary trees of a grammar whose rules share their scores."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..capabilities.indices import NONE, chosen, placed
from ..derivations import DEAD, UNIT, Builder, Derivations, Examples, TiedOracle


@dataclass(frozen=True)
class Grammar(TiedOracle):
    """Derivation trees of a context-free grammar in Chomsky normal form, with t symbols over n tokens: event ``[n (n + 1) / 2 + t², t]``.

    ``scores[..., j (j + 1) / 2 + i, a]`` scores symbol a over the tokens i to j, both inclusive. Behind these lines come the scores of the
    rules a → b c, which all places share, a pair (b, c) in each line; `from_potentials` writes them, `rules` reads them. A structure holds
    its 2n − 1 spans as 0/1, and *how often* it uses every rule (see `binary_mask`). With log-probabilities as scores this is a
    probabilistic grammar: `log_partition` is the log-probability of the sentence, and marginals are expected counts. ``lengths`` counts
    tokens, and costs a symbol more. Indices ``[n (n + 1) / 2]`` are the symbols of the spans, -1 for a span that is not in the tree.
    O(n³ t² + n² t³).

    References:
        Baker 1979, "Trainable grammars for speech recognition"; Kim, Dyer & Rush 2019, "Compound probabilistic context-free grammars for
        grammar induction".

    Example:
        >>> lexical, rules = torch.zeros(3, 2), torch.zeros(2, 2, 2)
        >>> rules[0, 1, 0] = 1.0  # 0 → 1 0
        >>> oracle, scores = Grammar(), Grammar.from_potentials(lexical, rules, root=torch.tensor([0.0, -math.inf]))
        >>> best = oracle.argmax(scores)
        >>> Grammar.spans(best)
        [(0, 0, 1), (1, 1, 1), (0, 2, 0), (1, 2, 0), (2, 2, 0)]
        >>> Grammar.rules(best)[0]
        tensor([[0., 0.],
                [2., 0.]])
        >>> oracle.count(tuple(scores.shape))
        64
    """

    name: ClassVar[str] = "grammar"
    event_ndim: ClassVar[int] = 2
    layout: ClassVar[str] = (
        "Scores of n tokens have a line for every span and every pair of symbols: build them with Grammar.from_potentials"
    )
    _indices_are_parts: ClassVar[bool] = False
    size_names: ClassVar[tuple[str, ...]] = ("length", "tags")
    references: ClassVar[tuple[str, ...]] = ("baker1979trainable", "kim2019compound")
    examples: ClassVar[Examples] = Examples(small=((3, 2), (4, 2), (4, 3)), usual=(10, 8), like="constituency", counted="tokens")

    @classmethod
    def event_shape(cls, **sizes: int) -> tuple[int, ...]:
        length, symbols = cls._sizes(sizes, *cls.size_names)
        return (length * (length + 1) // 2 + symbols**2, symbols)

    @classmethod
    def from_potentials(
        cls, lexical: Tensor, rules: Tensor, root: Tensor | None = None, *, spans: Tensor | None = None, lengths: Tensor | None = None
    ) -> Tensor:
        """Scores ``[*batch, n (n + 1) / 2 + t², t]`` from those of tokens, rules and the root; differentiable in all of them.

        Args:
            lexical: [*batch, n, t], of symbol a over token i.
            rules: [*batch?, t, t, t], of the rule a → b c.
            root: [*batch?, t], of the symbol of the whole sentence, -inf for what is no start symbol; 0 when None.
            spans: [*batch?, n, n, t], of symbol a over tokens i to j; 0 when None.
            lengths: int [*batch], where ``root`` belongs to the sentence of shorter items.

        Example:
            >>> Grammar.from_potentials(torch.zeros(5, 4), torch.zeros(4, 4, 4)).shape
            torch.Size([31, 4])
        """
        if lexical.ndim < 2:
            raise ValueError(f"`from_potentials` got lexical of shape {tuple(lexical.shape)}; expected [*batch, n, t]")
        length, symbols = lexical.shape[-2:]
        for name, given, shape in (
            ("rules", rules, (symbols,) * 3),
            ("root", root, (symbols,)),
            ("spans", spans, (length, length, symbols)),
        ):
            if given is not None and tuple(given.shape[max(given.ndim - len(shape), 0) :]) != shape:
                raise ValueError(
                    f"`from_potentials` got {name} of shape {tuple(given.shape)}; expected (..., {', '.join(map(str, shape))})"
                )
        first, last = _ends(length, lexical.device)
        scores = torch.where((first == last).unsqueeze(-1), lexical[..., last, :], 0)
        scores = scores if spans is None else scores + spans[..., first, last, :]
        if root is not None:
            final = length - 1 if lengths is None else lengths.unsqueeze(-1) - 1
            scores = scores + torch.where(((first == 0) & (last == final)).unsqueeze(-1), root.unsqueeze(-2), 0)
        return _packed(scores, rules)

    @classmethod
    def rules(cls, values: Tensor) -> Tensor:
        """The rules a → b c, ``[*batch, t, t, t]``, of scores, structures or marginals ``[*batch, n (n + 1) / 2 + t², t]``."""
        symbols = values.shape[-1]
        pairs = values[..., values.shape[-2] - symbols**2 :, :][..., _pairs(symbols, values.device).argsort(), :]
        return pairs.reshape(*pairs.shape[:-2], symbols, symbols, symbols).movedim(-1, -3)

    @classmethod
    def spans(cls, structure: Tensor) -> list[tuple[int, int, int]]:
        """First and last token and symbol of every span of one structure, by its last token."""
        of_spans = structure[: len(structure) - structure.shape[-1] ** 2]
        first, last = _ends(_length(len(of_spans)), structure.device)
        return [(int(first[line]), int(last[line]), symbol) for line, symbol in of_spans.nonzero().tolist()]

    def derivations(self, event_shape: tuple[int, ...]) -> Derivations:
        """Nodes of a span: two symbols cut anywhere, a symbol by any rule, and the same with the score of the span."""
        lines, symbols = event_shape
        parts = torch.arange(lines * symbols).reshape(event_shape)
        length, rules = _length(lines - symbols**2), self.rules(parts).flatten(1)  # [a, b c]
        builder, spans = Builder(parts.numel()), torch.full((length, length, symbols), DEAD)
        for width in range(length):
            i = torch.arange(length - width)
            below = torch.full((len(i) * symbols, 1), UNIT)
            if width:
                last = i.unsqueeze(1) + torch.arange(width)
                left, right = spans[i.unsqueeze(1), last], spans[last + 1, (i + width).unsqueeze(1)]  # [i, cut, b] and [i, cut, c]
                both = torch.broadcast_tensors(left.unsqueeze(-1), right.unsqueeze(-2))
                first, second = (nodes.movedim(1, -1).reshape(-1, width) for nodes in both)
                pairs = builder.add(first, None, second).reshape(len(i), 1, -1).expand(-1, symbols, -1)
                below = builder.add(pairs.flatten(0, 1), rules.repeat(len(i), 1)).unsqueeze(1)
            line = _line(i, i + width)
            spans[i, i + width] = builder.add(below, parts[line].reshape(-1, 1)).reshape(len(i), symbols)
        return builder.finish(builder.add(spans[0, -1].unsqueeze(0)))

    def _check_event(self, call: str, event_shape: tuple[int, ...]) -> None:
        spans = event_shape[0] - event_shape[-1] ** 2
        if len(event_shape) != 2 or spans < 1 or _line(0, _length(spans)) != spans:
            raise ValueError(
                f"`{call}` got event shape {event_shape}; expected (n (n + 1) / 2 + t², t), build it with Grammar.from_potentials"
            )

    # Indices: the symbol of every span. Rules follow from the spans.

    def _place_lines(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[0] - event_shape[1] ** 2

    def _index_limit(self, event_shape: tuple[int, ...]) -> int:
        return event_shape[1]

    def _written_parts(self, event_shape: tuple[int, ...]) -> int:
        """Spans, and a rule for each."""
        return 2 * self.index_shape(event_shape)[0]

    def _parts(self, indices: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """The spans, then the rules of those that are cut."""
        (lines,), symbols = self.index_shape(event_shape), event_shape[1]
        first, last = _ends(_length(lines), indices.device)
        # Of the spans that begin where this one does, its left part is the widest that ends before.
        narrower = (first == first.unsqueeze(-1)) & (last < last.unsqueeze(-1)) & (indices >= 0).unsqueeze(-2)  # [..., span, left part]
        middle = torch.where(narrower, last, NONE).amax(-1)
        cut = (indices >= 0) & (middle >= 0)
        left, right = (
            torch.where(cut, indices.gather(-1, torch.where(cut, line, 0)), 0) for line in (_line(first, middle), _line(middle + 1, last))
        )
        pair = _pairs(symbols, indices.device).argsort()[left * symbols + right]
        spans = torch.where(indices < 0, NONE, torch.arange(lines, device=indices.device) * symbols + indices)
        return torch.cat([spans, torch.where(cut, (lines + pair) * symbols + indices, NONE)], -1)

    def _from_parts(self, parts: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        (lines,), symbols = self.index_shape(event_shape), event_shape[1]
        return placed(parts % symbols, torch.where(parts < 0, lines, parts // symbols), lines)

    def _indices_of(self, structures: Tensor) -> Tensor:
        return chosen(structures[..., : structures.shape[-2] - structures.shape[-1] ** 2, :], -1)

    # Lengths: one symbol more, over each token beyond an item and over all up to there. It comes last, and so do its pairs, so that results
    # are cut back to what they were.

    def length_limits(self, event_shape: tuple[int, ...]) -> tuple[int, ...]:
        return (_length(self._place_lines(event_shape)),)

    def _inside(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        return super()._inside(event_shape, _line(0, lengths))

    def _inside_padded(self, event_shape: tuple[int, ...], lengths: Tensor) -> Tensor:
        """Without the last symbol, and the pairs that it is in."""
        lines, symbols = event_shape
        line, symbol = torch.arange(lines, device=lengths.device).unsqueeze(-1), torch.arange(symbols, device=lengths.device)
        return self._inside(event_shape, lengths) & (line < lines - 2 * symbols + 1) & (symbol < symbols - 1)

    def _complete(self, scores: Tensor, lengths: Tensor) -> Tensor:
        symbols = scores.shape[-1]
        spans, rules = pad(scores[..., : scores.shape[-2] - symbols**2, :], (0, 1)), pad(self.rules(scores), (0, 1, 0, 1, 0, 1))
        first, last = (ends.unsqueeze(-1) for ends in _ends(_length(spans.shape[-2]), scores.device))
        own = torch.arange(symbols + 1, device=scores.device) == symbols
        beyond = last >= lengths.unsqueeze(-1).unsqueeze(-1)
        completion = torch.zeros_like(spans).masked_fill(~(beyond & own & ((first == 0) | (first == last))), -math.inf)
        # The last symbol is what it begins with, whatever that is, and itself; no other rule has it.
        above, left = own.reshape(-1, 1, 1), own.unsqueeze(-1)
        free = torch.where(above & own, 0.0, -math.inf).to(rules)
        return _packed(torch.where(beyond | own, completion, spans), torch.where(above | left | own, free, rules))


def _line(first: Any, last: Any) -> Any:
    """The line of a span. Spans that end earlier come first, so the spans of a shorter item are a prefix."""
    return last * (last + 1) // 2 + first


def _length(spans: int) -> int:
    """The number of tokens that have so many spans."""
    return (math.isqrt(8 * spans + 1) - 1) // 2


def _ends(length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """First and last token of every span."""
    last, first = torch.tril_indices(length, length, device=device)
    return first, last


def _pairs(symbols: int, device: torch.device) -> Tensor:
    """Pairs b t + c by their greater symbol, so that those of fewer symbols come first."""
    symbol = torch.arange(symbols, device=device)
    return torch.maximum(symbol.unsqueeze(1), symbol).flatten().argsort(stable=True)


def _packed(spans: Tensor, rules: Tensor) -> Tensor:
    """Both in one event."""
    pairs = rules.movedim(-3, -1).flatten(-3, -2)
    pairs = pairs[..., _pairs(spans.shape[-1], rules.device), :]
    batch = torch.broadcast_shapes(spans.shape[:-2], pairs.shape[:-2])
    return torch.cat([spans.expand(*batch, *spans.shape[-2:]), pairs.expand(*batch, *pairs.shape[-2:])], -2)

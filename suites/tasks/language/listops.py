"""ListOps: the value of nested list operations, by composition along a latent binary tree, scored by spans or by a parser."""

import abc
import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ....oracles import Constituency, Oracle, ShiftReduce
from ....oracles.options import Count
from ...trust import text_of
from ..generated.base import DecodedTask, variant
from ..task import Batch, LatentModel, Split, Steps

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM", "[FIRST", "[LAST")
TOKENS = (*OPERATORS, *map(str, range(10)), "]")
PADDING = len(TOKENS)  # the number of the token beyond the end of a line
VALUES = 10

SHORTEST = 7  # tokens of ``[MAX [MIN 1 2 ] 3 ]``, the shortest line with two operators
VALIDATION = 150  # number of validation lines, the last ones of the training file

NESTED, MOST_ARGUMENTS, WEIGHTS = 0.25, 5, (10, 10, 1, 1, 9, 9)
"""Chance of an argument to be a list, largest number of arguments, and frequencies of operators of generated lines, as of real ones."""

PATIENCE = 100_000  # lines that are drawn in a row without a new one
FAINT = 1e-12  # if the weights of the cuts of a span have a smaller sum, all cuts get the same weight


@dataclass(frozen=True)
class ListOps(DecodedTask):
    """Lines of ListOps (Nangia & Bowman 2018) with two operators or more; labels are their values, structures binary trees of the tokens.

    Trees are scored span by span and composed along a chart. True trees are left-branching within each list. An encoder and a decoder
    that are trained jointly, from the values alone, agree early on other trees than the true ones. So predictions are better than trees.

    Args:
        decoding: ``frozen`` trains the decoder before, on the true trees, for ``pretraining`` steps, the same one for all seeds.
        shortest, longest: tokens of a line.
        train, heldout: largest number of training lines, and of validation and test lines each.
        generated: whether lines are drawn by the authors' grammar; else they are read.
        dimension, hidden: size of the representations of subtrees, and units of their composition.
    """

    shortest: Count = 7
    longest: Count = 8
    train: Count = 2000
    heldout: Count = 500
    generated: bool = False
    dimension: Count = 32
    hidden: Count = 64
    pretraining: Steps = 600
    steps: Count = 400
    batch_size: Count = 32

    name: ClassVar[str] = "listops"
    summary: ClassVar[str] = "values of nested lists, with trees and composition trained jointly"
    decoder_rate: ClassVar[float] = 0.003

    files: ClassVar[tuple[str, ...]] = ("listops/train_4000.tsv", "listops/heldout_short.tsv")
    references: ClassVar[tuple[str, ...]] = ("nangia2018listops",)
    structured: ClassVar[str] = "bracket recall"
    family = "listops"
    oracle: ClassVar[Oracle] = Constituency()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shortest <= self.longest >= SHORTEST:
            raise ValueError(
                f"`{self.name}` got shortest={self.shortest}, longest={self.longest}; expected shortest <= longest, and longest >= "
                f"{SHORTEST}, the tokens of the shortest line with two operators"
            )

    def data(self, split: Split) -> Batch:
        """All lines of a split, with trees as spans."""
        if self.generated:
            return generate(split, self.shortest, self.longest, self.train, self.heldout)
        return read(self.paths()[split == "test"], split, self.shortest, self.longest, self.train if split == "train" else self.heldout)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return SpanScorer(PADDING + 1, 16, 32), ChartDecoder(PADDING + 1, self.dimension, self.hidden, VALUES)

    def spans(self, structures: Tensor) -> Tensor:
        """Spans ``[b, n, n]`` of structures."""
        return structures

    def predict(self, model: LatentModel, batch: Batch, structure: Tensor) -> Tensor:
        return model.decoder(*batch.inputs, batch.lengths, self.unpadded(batch, structure))  # type: ignore[no-any-return]

    def quality(self, batch: Batch, structure: Tensor) -> Tensor:
        """The share of the true spans that are found, without tokens and whole lines; 1 if none is left."""
        assert batch.lengths is not None
        found, true = self.spans(self.unpadded(batch, structure)), self.spans(batch.true())
        place, end = torch.arange(self.longest), batch.lengths.reshape(-1, 1, 1)
        first = place.unsqueeze(-1)
        counted = true * ((first < place) & (place < end) & ((first > 0) | (place < end - 1)))
        total = counted.sum((-2, -1))
        return torch.where(total > 0, (counted * found).sum((-2, -1)) / total.clamp(min=1), 1)

    def parameter_groups(self, model: LatentModel, rate: float) -> list[dict[str, object]]:
        """A smaller rate for the decoder."""
        parts = ((model.encoder, rate), (model.decoder, 0.3 * rate))
        return [{"params": [part for part in module.parameters() if part.requires_grad], "lr": lr} for module, lr in parts]


_FROZEN = "values of {}nested lists, for a decoder that was trained on the true trees"
ListopsFrozen = variant(ListOps, "listops_frozen", _FROZEN.format(""), steps=250, decoding="frozen")
ListopsGenerated = variant(ListopsFrozen, "listops_generated", _FROZEN.format("generated "), generated=True)


@dataclass(frozen=True)
class ListOpsParser(ListOps):
    """A shift-reduce parser and the composition along its actions, trained jointly from the values of lines.

    Every state has its own policy. The scores of its actions depend on the tokens before and behind the last shift, the sum of those
    before, and the depth of the stack. After Havrylov, Kruszewski & Joulin 2019.
    """

    name: ClassVar[str] = "listops_parser"
    summary: ClassVar[str] = "values of nested lists, by a shift-reduce parser and composition trained jointly"
    references: ClassVar[tuple[str, ...]] = ("nangia2018listops", "havrylov2019cooperative", "joulin2015inferring")

    oracle: ClassVar[Oracle] = ShiftReduce("local")

    def batch(self, split: Split, items: Tensor) -> Batch:
        lines = super().batch(split, items)
        return lines._replace(gold=derivations_of(lines.true()))

    def spans(self, structures: Tensor) -> Tensor:
        return spans_of(structures).to(structures.dtype)

    def modules(self) -> tuple[nn.Module, nn.Module]:
        return StateScorer(PADDING + 1, self.longest, 16, 32), StackDecoder(PADDING + 1, self.dimension, self.hidden, VALUES)


@functools.lru_cache(maxsize=12)
def read(path: Path, split: Split, shortest: int, longest: int, most: int) -> Batch:
    """The first real lines of a split, with two operators or more and ``shortest`` to ``longest`` tokens."""
    lines = [[token for token in line.partition("\t")[2].split() if token not in "()"] for line in text_of(path).splitlines()]
    fitting = [line for line in lines if _fits(line, shortest, longest)]
    kept = {"train": fitting[:-VALIDATION], "validation": fitting[-VALIDATION:], "test": fitting}[split]
    return encoded(kept[:most], longest)


@functools.lru_cache(maxsize=12)
def generate(split: Split, shortest: int, longest: int, train: int, heldout: int) -> Batch:
    """Lines by the authors' grammar, with two operators or more and ``shortest`` to ``longest`` tokens, all distinct over all splits."""
    source, lines, wanted, in_vain = random.Random(0), dict[tuple[str, ...], None](), 2 * heldout + train, 0
    while len(lines) < wanted:
        line, known = _drawn(source, longest), len(lines)
        if _fits(line, shortest, longest):
            lines[tuple(line)] = None
        in_vain = in_vain + 1 if len(lines) == known else 0
        if in_vain == PATIENCE:
            found = f"{known} lines of {shortest} to {longest} tokens"
            raise ValueError(f"`generate` found {found}; expected {wanted}: ask for fewer, or longer ones")
    first = {"validation": 0, "test": heldout, "train": 2 * heldout}[split]
    return encoded(list(lines)[first : first + (train if split == "train" else heldout)], longest)


def _drawn(source: random.Random, longest: int) -> list[str]:
    """A list; it ends early if it becomes too long."""
    room = longest

    def drawn(nested: bool) -> list[str]:
        nonlocal room
        room -= 2 if nested else 1
        if not nested:
            return [str(source.randrange(10))]
        tokens = source.choices(OPERATORS, WEIGHTS)
        for _ in range(source.randint(2, MOST_ARGUMENTS)):
            if room < 0:
                break
            tokens += drawn(source.random() < NESTED)
        return [*tokens, "]"]

    return drawn(True)


def _fits(line: Sequence[str], shortest: int, longest: int) -> bool:
    return shortest <= len(line) <= longest and sum(token in OPERATORS for token in line) >= 2


def encoded(lines: Sequence[Sequence[str]], longest: int) -> Batch:
    """Lines as tokens ``[m, n]``, values ``[m]``, and trees as spans ``[m, n, n]``, whose padding is left parts, as the oracle pads."""
    tokens, values = torch.full((len(lines), longest), PADDING), torch.zeros(len(lines), dtype=torch.long)
    gold = torch.eye(longest).repeat(len(lines), 1, 1)
    for item, line in enumerate(lines):
        tokens[item, : len(line)] = torch.tensor([TOKENS.index(name) for name in line])
        gold[item, 0, len(line) :] = 1
        values[item], spans = parsed(line)
        for first, last in spans:
            gold[item, first, last] = 1
    return Batch((tokens,), values, (tokens != PADDING).sum(-1), gold)


def parsed(line: Sequence[str]) -> tuple[int, list[tuple[int, int]]]:
    """The value of a line, and the spans of several tokens of its tree, which is left-branching within each list."""
    open_: list[tuple[int, str, list[int]]] = []
    spans = []
    value = -1
    for place, token in enumerate(line):
        if token in OPERATORS:
            open_.append((place, token, []))
            continue
        if token == "]":
            first, operator, values = open_.pop()
            ordered, middle = sorted(values), len(values) // 2
            value = {
                "[MIN": ordered[0],
                "[MAX": ordered[-1],
                "[MED": ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2,
                "[SM": sum(values) % 10,
                "[FIRST": values[0],
                "[LAST": values[-1],
            }[operator]
            spans.append((first, place))
        else:
            value = int(token)
        if open_:
            open_[-1][2].append(value)
            spans.append((open_[-1][0], place))
    return value, spans


class SpanScorer(nn.Module):
    """Scores of spans by their first and last tokens, the one behind, and their sum; the last kind of token is the end of a line."""

    def __init__(self, tokens: int, dimension: int, hidden: int) -> None:
        super().__init__()
        self.end, self.tokens = tokens - 1, nn.Embedding(tokens, dimension)
        self.first, self.last, self.next, self.bag = (nn.Linear(dimension, hidden, bias=place == 0) for place in range(4))
        self.score = nn.Linear(hidden, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[b, n] -> [b, n, n]``."""
        known = self.tokens(pad(tokens, (0, 1), value=self.end))
        before = pad(known.cumsum(-2), (0, 0, 1, 0))
        here, behind = known[..., :-1, :], known[..., 1:, :]
        starting = self.first(here) - self.bag(before[..., :-2, :])
        ending = self.last(here) + self.next(behind) + self.bag(before[..., 1:-1, :])
        return self.score((starting.unsqueeze(-2) + ending.unsqueeze(-3)).relu()).squeeze(-1)  # type: ignore[no-any-return]


class StateScorer(nn.Module):
    """Scores of both actions after i shifts at depth d, by token i, the next one, the sum of the first i, and d."""

    def __init__(self, tokens: int, length: int, dimension: int, hidden: int) -> None:
        super().__init__()
        self.end, self.tokens, self.depths = tokens - 1, nn.Embedding(tokens, dimension), nn.Embedding(length + 1, hidden)
        self.state, self.score = nn.Linear(3 * dimension, hidden), nn.Linear(hidden, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """``[b, n] -> [b, n + 1, n + 1, 2]``."""
        known = self.tokens(pad(tokens, (1, 1), value=self.end))
        sums = pad(known[..., 1:-1, :].cumsum(-2), (0, 0, 1, 0))
        states = self.state(torch.cat([known[..., :-1, :], known[..., 1:, :], sums], -1))
        return self.score((states.unsqueeze(-2) + self.depths.weight).relu())  # type: ignore[no-any-return]


# Compositions along trees: representations from the leaves up, at structures and between them.


class Composition(nn.Module):
    """``(l, r) -> norm(l + r + W relu(U l + V r))``: one representation from two."""

    least: Tensor

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.size = size
        self.inner, self.outer, self.norm = nn.Linear(size, 2 * hidden), nn.Linear(hidden, size), nn.LayerNorm(size)
        self.register_buffer("least", torch.cat([torch.full((size,), -math.inf), torch.zeros(hidden)]), persistent=False)

    def sides(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Contributions of nodes ``[..., size]`` as left and as right children: ``[..., size + hidden]`` each."""
        left, right = self.inner(nodes).chunk(2, -1)
        return torch.cat([nodes, left], -1), torch.cat([nodes, right], -1)

    def pairs(self, left: Tensor, right: Tensor) -> Tensor:
        """Sums ``[..., size + hidden]`` of pairs, which may be mixed before `finished`."""
        return torch.maximum(left + right, self.least)

    def finished(self, pairs: Tensor) -> Tensor:
        """``[..., size]``."""
        residual, hidden = pairs[..., : self.size], pairs[..., self.size :]
        return self.norm(residual + self.outer(hidden))  # type: ignore[no-any-return]


class TreeDecoder(nn.Module):
    """Tokens of some kinds and a binary tree over them to logits; a subclass defines trees, and the composition between structures."""

    def __init__(self, tokens: int, size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaves, self.composition, self.top = nn.Embedding(tokens, size), Composition(size, hidden), nn.Linear(size, classes)

    def forward(self, tokens: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[b, n], [b], [..., b, *event] -> [..., b, classes]``: logits of the first l tokens."""
        return self.top(self._roots(self.leaves(tokens), lengths, z))  # type: ignore[no-any-return]

    @abc.abstractmethod
    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        """``[..., b, size]``, at structures and between them."""


class ChartDecoder(TreeDecoder):
    """Trees as spans ``[n, n]``, composed span by span.

    Between structures a span is a mixture over its cuts. The weight of a cut is the product of the values of its two parts in z, divided by
    the sum over the cuts. At a tree one cut has all the weight, and the gradient is the change by each rotation of the tree. At marginals
    the weights are those of independent parts.
    """

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        length, compose = z.shape[-1], self.composition
        # First token, last token before the cut, and last token of every cut of a span in two, by width, first token and cut.
        places = [(i, i + k, i + w) for w in range(1, length) for i in range(length - w) for k in range(w)]
        first, cut, last = torch.tensor(places, device=z.device).reshape(-1, 3).unbind(-1)
        products = (z[..., first, cut] * z[..., cut + 1, last]).clamp(min=0)
        begins = [leaves[..., 0, :].expand(*z.shape[:-2], -1)]
        lefts, rights = ([side] for side in compose.sides(leaves))
        for w, weights in enumerate(products.split([w * (length - w) for w in range(1, length)], -1), 1):
            weights = weights.unflatten(-1, (length - w, w))
            total = weights.sum(-1, keepdim=True)
            known = total > FAINT
            shares = torch.where(known, weights / torch.where(known, total, 1), 1 / w).unsqueeze(-1)
            # Left parts by their first token, right parts by their last.
            mixed = shares[..., 0, :] * compose.pairs(lefts[0][..., : length - w, :], rights[w - 1][..., 1:, :])
            for k in range(1, w):
                mixed = mixed + shares[..., k, :] * compose.pairs(lefts[k][..., : length - w, :], rights[w - 1 - k][..., k + 1 :, :])
            nodes = compose.finished(mixed)
            begins.append(nodes[..., 0, :])
            for sides, side in zip((lefts, rights), compose.sides(nodes), strict=True):
                sides.append(side)
        place = (lengths - 1).reshape(-1, 1, 1).expand(*z.shape[:-2], 1, begins[0].shape[-1])
        return torch.stack(begins, -2).gather(-2, place).squeeze(-2)


class StackDecoder(TreeDecoder):
    """Trees as shift-reduce derivations ``[n + 1, n + 1, 2]``, composed action by action on a stack.

    Between structures every step does both actions and mixes the two stacks, position by position from the top. The weight of an action is
    the sum of its entries of z at that step. So the gradient of an action is its effect if the later actions stay the same.

    References:
        Joulin & Mikolov 2015, "Inferring algorithmic patterns with stack-augmented recurrent nets", section 3.2 (the mixture of stacks).
    """

    def _roots(self, leaves: Tensor, lengths: Tensor, z: Tensor) -> Tensor:
        compose, size = self.composition, z.shape[-2]
        # [..., b, 2n − 1, 2, n + 1]: actions by step and by the number of shifts before.
        step, action, shifts = torch.meshgrid(*(torch.arange(end, device=z.device) for end in (2 * size - 3, 2, size)), indexing="ij")
        depth = 2 * shifts - step
        within = (depth >= 0) & (depth <= shifts)
        places = torch.where(within, (shifts * size + depth) * 2 + action, 0)
        known = within & ShiftReduce().read_mask((size, size, 2), z.device).flatten()[places]
        actions = torch.where(known, z.flatten(-3)[..., places], 0)
        pushed = actions[..., 0, :-1] @ leaves
        shifted, reduced = actions.sum(-1, keepdim=True).unbind(-2)
        stack, tops = z.new_zeros(*z.shape[:-3], size - 1, leaves.shape[-1]), []
        for now in range(2 * size - 3):
            shift, reduce = shifted[..., now, :], reduced[..., now, :]
            (left, _), (_, right) = compose.sides(stack[..., 1, :]), compose.sides(stack[..., 0, :])
            top = pushed[..., now, :] + reduce * compose.finished(compose.pairs(left, right))
            below = shift.unsqueeze(-1) * stack[..., :-1, :] + reduce.unsqueeze(-1) * pad(stack[..., 2:, :], (0, 0, 0, 1))
            stack = torch.cat([top.unsqueeze(-2), below], -2)
            tops.append(top)
        place = (2 * lengths - 2).reshape(-1, 1, 1).expand(*z.shape[:-3], 1, leaves.shape[-1])
        return torch.stack(tops, -2).gather(-2, place).squeeze(-2)


def spans_of(derivations: Tensor) -> Tensor:
    """Boolean spans ``[..., n, n]`` of the trees of shift-reduce derivations ``[..., n + 1, n + 1, 2]``."""
    chosen, size = derivations > 0, derivations.shape[-2]
    place = torch.arange(size, device=derivations.device)
    # A reduction from depth d begins with the last shift from depth d − 2.
    began = torch.where(chosen[..., 0], place.unsqueeze(-1), -1).cummax(-2).values
    first = began[..., :-1, :-2].clamp(min=0)
    reduced = chosen[..., 1:, 2:, 1]
    spans = torch.zeros(*chosen.shape[:-3], size - 1, size - 1, dtype=torch.long, device=derivations.device)
    # By last token, then by first.
    spans.scatter_add_(-1, first, reduced.long())
    return (spans.mT > 0) | torch.eye(size - 1, dtype=torch.bool, device=derivations.device)


def derivations_of(spans: Tensor) -> Tensor:
    """Derivations ``[..., n + 1, n + 1, 2]`` of the trees of spans ``[..., n, n]``, in the dtype of these; the inverse of `spans_of`."""
    reductions = spans.sum(-2).long() - 1  # after each token: the spans of several tokens that end there
    shifts = torch.arange(spans.shape[-1], device=spans.device) + reductions.cumsum(-1) - reductions
    actions = torch.ones(*shifts.shape[:-1], 2 * spans.shape[-1] - 1, dtype=torch.long, device=spans.device)
    return ShiftReduce.structure(actions.scatter(-1, shifts, 0), spans.dtype)

"""Lines of ListOps with their trees, read or generated."""

from __future__ import annotations

import functools
import random
from pathlib import Path

import torch

from ...trust import text_of
from ..task import Batch, Split

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM", "[FIRST", "[LAST")
TOKENS = (*OPERATORS, *map(str, range(10)), "]")
PADDING = len(TOKENS)
"""The number of the token beyond the end of a line."""

TRAINING_FILE, TEST_FILE = "listops/train_4000.tsv", "listops/heldout_short.tsv"
VALIDATION = 150
"""Number of validation lines, the last ones of the training file."""

NESTED, MOST_ARGUMENTS = 0.25, 5
"""Chance of an argument to be a list, and largest number of arguments, of generated lines as of the real ones."""

WEIGHTS = (10, 10, 1, 1, 9, 9)
"""Frequencies of operators in generated lines, as in the real ones: medians and sums are rare."""

Tree = str | tuple["Tree", "Tree"]
"""A token, or two subtrees."""


@functools.lru_cache(maxsize=12)
def read(path: Path, split: Split, shortest: int, longest: int, most: int) -> Batch:
    """The first real lines of a split, with two operators or more and ``shortest`` to ``longest`` tokens."""
    trees = [parsed(line.partition("\t")[2]) for line in text_of(path).splitlines()]
    fitting = [tree for tree in trees if _fits(tree, shortest, longest)]
    kept = {"train": fitting[:-VALIDATION], "validation": fitting[-VALIDATION:], "test": fitting}[split]
    return encoded(kept[:most], longest)


SHORTEST = 7
"""Tokens of ``[MAX [MIN 1 2 ] 3 ]``, the shortest line with two operators."""

PATIENCE = 100_000
"""Lines that are drawn in a row without a new one."""


@functools.lru_cache(maxsize=12)
def generate(split: Split, shortest: int, longest: int, train: int, heldout: int) -> Batch:
    """Lines by the authors' grammar, with two operators or more and ``shortest`` to ``longest`` tokens, all distinct over all splits."""
    source, trees, wanted, in_vain = random.Random(0), dict[Tree, None](), 2 * heldout + train, 0
    while len(trees) < wanted:
        tree, known = _grown(source, longest), len(trees)
        if tree is not None and _fits(tree, shortest, longest):
            trees[tree] = None
        in_vain = in_vain + 1 if len(trees) == known else 0
        if in_vain == PATIENCE:
            found = f"{known} lines of {shortest} to {longest} tokens"
            raise ValueError(f"`generate` found {found}; expected {wanted}: ask for fewer, or longer ones")
    first = {"validation": 0, "test": heldout, "train": 2 * heldout}[split]
    return encoded(list(trees)[first : first + (train if split == "train" else heldout)], longest)


def _grown(source: random.Random, longest: int) -> Tree | None:
    """A list; None where it becomes too long."""
    room = longest

    def grow(nested: bool) -> Tree:
        nonlocal room
        room -= 2 if nested else 1
        if not nested:
            return str(source.randrange(10))
        tree: Tree = source.choices(OPERATORS, WEIGHTS)[0]
        for _ in range(source.randint(2, MOST_ARGUMENTS)):
            if room < 0:
                break
            tree = (tree, grow(source.random() < NESTED))
        return (tree, "]")

    tree = grow(True)
    return tree if room >= 0 else None


def _fits(tree: Tree, shortest: int, longest: int) -> bool:
    tokens = leaves(tree)
    return shortest <= len(tokens) <= longest and sum(token in OPERATORS for token in tokens) >= 2


def parsed(bracketing: str) -> Tree:
    """The tree of ``( ( ( [MAX 2 ) 9 ) ] )``."""
    open_: list[list[Tree]] = [[]]
    for token in bracketing.split():
        if token == "(":
            open_.append([])
        elif token == ")":
            left, right = open_.pop()
            open_[-1].append((left, right))
        else:
            open_[-1].append(token)
    ((tree,),) = open_
    return tree


def leaves(tree: Tree) -> list[str]:
    """Tokens from left to right."""
    return [tree] if isinstance(tree, str) else [*leaves(tree[0]), *leaves(tree[1])]


def value_of(tokens: list[str]) -> int:
    """The value of a line.

    Example:
        >>> value_of("[MAX 2 [MED 3 8 7 ] 4 ]".split())
        7
    """
    open_: list[list[str]] = [[]]
    for token in tokens:
        if token in OPERATORS:
            open_.append([token])
        elif token == "]":
            operator, *arguments = open_.pop()
            open_[-1].append(str(_applied(operator, [int(argument) for argument in arguments])))
        else:
            open_[-1].append(token)
    ((value,),) = open_
    return int(value)


def _applied(operator: str, values: list[int]) -> int:
    ordered, middle = sorted(values), len(values) // 2
    return {
        "[MIN": ordered[0],
        "[MAX": ordered[-1],
        "[MED": ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) // 2,
        "[SM": sum(values) % 10,
        "[FIRST": values[0],
        "[LAST": values[-1],
    }[operator]


def encoded(trees: list[Tree], longest: int) -> Batch:
    """Lines as tokens ``[m, n]`` with values ``[m]`` and trees as spans ``[m, n, n]``.

    Beyond the length of a line its tree is the left part of every wider span, as the oracle pads.
    """
    tokens = torch.full((len(trees), longest), PADDING)
    gold = torch.eye(longest).repeat(len(trees), 1, 1)
    for place, tree in enumerate(trees):
        names = leaves(tree)
        tokens[place, : len(names)] = torch.tensor([TOKENS.index(name) for name in names])
        gold[place, 0, len(names) :] = 1
        for first, last in spans(tree):
            gold[place, first, last] = 1
    lengths = (tokens != PADDING).sum(-1)
    return Batch((tokens,), torch.tensor([value_of(leaves(tree)) for tree in trees]), lengths, gold)


def spans(tree: Tree, start: int = 0) -> list[tuple[int, int]]:
    """First and last tokens of all subtrees.

    Example:
        >>> spans((("a", "b"), "c"))
        [(0, 0), (1, 1), (0, 1), (2, 2), (0, 2)]
    """
    if isinstance(tree, str):
        return [(start, start)]
    left = spans(tree[0], start)
    right = spans(tree[1], left[-1][1] + 1)
    return [*left, *right, (start, right[-1][1])]

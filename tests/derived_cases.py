"""The table of test cases for the oracles of `oracles/derived/`, one row each, which all other tables use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from structgrad.oracles import (
    CTC,
    CardinalitySubset,
    DerivedOracle,
    EditAlignment,
    Grammar,
    LabelledConstituency,
    LabelledProjectiveTree,
    SecondOrderChain,
    SemiMarkov,
    TiedSemiMarkov,
)


@dataclass(frozen=True)
class DerivedCase:
    """An oracle defined by its derivations, with the cases of its laws.

    Attributes:
        oracle: the oracle with its default options.
        listed: its structures as arrays of 0/1 and counts, by independent code, in the order of `DerivedOracle.enumerate`.
        events: shapes for all laws of oracles. Expensive laws use the last one, of 4 to 50 structures.
        paired: a shape for laws about pairs with estimators, of 4 to 50 structures.
        ragged: a shape with room for items of ``lengths``.
        lengths: lengths of six items.
        item: the first sizes of the event of an item of a length.
        tail: number of lines of the first axis behind the padding, by event shape; they belong to every item.
    """

    oracle: DerivedOracle
    listed: Callable[[Any, tuple[int, ...]], Iterator[np.ndarray]]
    events: tuple[tuple[int, ...], ...]
    paired: tuple[int, ...]
    ragged: tuple[int, ...]
    lengths: tuple[Any, ...] = (4, 2, 3, 2, 4, 3)
    item: Callable[[Any], tuple[int, ...]] = lambda length: (length,)
    tail: Callable[[tuple[int, ...]], int] = lambda event: 0


def labelled_segments(length: int, width: int, tags: int) -> list[tuple[list[int], list[int], tuple[int, ...]]]:
    """Last tokens, sizes and labels, in the order of the last label, then of size and label before from the last segment on."""
    found = []
    for cuts in itertools.product((False, True), repeat=length - 1):
        ends = [*(i for i, cut in enumerate(cuts) if cut), length - 1]
        sizes = np.diff([-1, *ends]).tolist()
        for labels in itertools.product(range(tags), repeat=len(ends) if max(sizes) <= width else 0):
            found += [(ends, sizes, labels)] if labels else []
    return sorted(found, key=lambda each: (each[2][-1], *zip(each[1][::-1], (*each[2][-2::-1], 0), strict=True)))


def segmentations(oracle: SemiMarkov, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for ends, sizes, labels in labelled_segments(*event[:3]):
        structure = np.zeros(event)
        structure[ends, np.array(sizes) - 1, (0, *labels[:-1]), labels] = 1
        yield structure


def tied_segmentations(oracle: TiedSemiMarkov, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    lines, width, tags = event
    length = next(length for length in range(1, lines) if (lines - length) * width >= tags > (lines - length - 1) * width)
    for ends, sizes, labels in labelled_segments(length, width, tags):
        structure = np.zeros(event)
        structure[ends, np.array(sizes) - 1, labels] = 1
        for before, after in itertools.pairwise(labels):
            structure[length:].reshape(-1, tags)[before, after] += 1
        yield structure


def labelled_trees(oracle: LabelledConstituency, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the label of the widest span, then by its cut, its left part and its right part."""

    def spans(first: int, last: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
        for label in range(event[2]):
            if first == last:
                yield ((first, last, label),)
            for middle in range(first, last):
                for left, right in itertools.product(list(spans(first, middle)), list(spans(middle + 1, last))):
                    yield ((first, last, label), *left, *right)

    for chosen in spans(0, event[0] - 1):
        structure = np.zeros(event)
        structure[tuple(zip(*chosen, strict=True))] = 1
        yield structure


def grammatical_trees(oracle: Grammar, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the symbol of the widest span, then by its rule, its cut, its left part and its right part."""
    lines, symbols = event
    length = next(n for n in range(1, lines) if n * (n + 1) // 2 + symbols**2 == lines)
    pairs = sorted(itertools.product(range(symbols), repeat=2), key=lambda pair: (max(pair), pair))

    def trees(first: int, last: int, symbol: int) -> Iterator[list[tuple[int, int]]]:
        span = last * (last + 1) // 2 + first, symbol
        if first == last:
            yield [span]
        for left, right in itertools.product(range(symbols), repeat=2):
            rule = lines - symbols**2 + pairs.index((left, right)), symbol
            for middle in range(first, last):
                for one, other in itertools.product(list(trees(first, middle, left)), list(trees(middle + 1, last, right))):
                    yield [span, rule, *one, *other]

    for symbol in range(symbols):
        for used in trees(0, length - 1, symbol):
            structure = np.zeros(event)
            np.add.at(structure, tuple(zip(*used, strict=True)), 1)
            yield structure


def labelled_dependencies(oracle: LabelledProjectiveTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the farthest child of the root, its label, what is under its arc, and what is beyond."""
    size, _, labels = event

    def headed(head: int, last: int) -> Iterator[list[tuple[int, int, int]]]:
        """Arcs below a head up to the last word, on one side. The root has one child, and is no child."""
        if head == last:
            yield []
        children = range(head + 1, last + 1) if head < last else range(last, head)
        for child in children if (last > 0 if head else last == size - 1) else ():
            first, end = sorted((head, child))
            for label, seam in itertools.product(range(labels), range(first, end)):
                for parts in itertools.product(list(headed(first, seam)), list(headed(end, seam + 1)), list(headed(child, last))):
                    yield [(head, child, label), *itertools.chain(*parts)]

    for arcs in headed(0, size - 1):
        structure = np.zeros(event)
        structure[tuple(zip(*arcs, strict=True))] = 1
        yield structure


def second_order_sequences(oracle: SecondOrderChain, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the last tag, then by the one before."""
    for backward in itertools.product(range(event[1]), repeat=event[0]):
        tags = backward[::-1]
        structure = np.zeros(event)
        structure[range(event[0]), (0, 0, *tags)[: event[0]], (0, *tags)[: event[0]], tags] = 1
        yield structure


def blank_paths(oracle: CTC, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the last state, then by the moves from the last on."""
    found = []
    for states in itertools.product(range(event[1]), repeat=event[0]):
        moves = [0, *np.diff(states).tolist()]
        skips = all(state % 2 == 1 for state, move in zip(states, moves, strict=True) if move == 2)
        if states[0] < 2 and states[-1] >= event[1] - 2 and set(moves) <= {0, 1, 2} and skips:
            found.append((states, moves))
    for states, moves in sorted(found, key=lambda each: (each[0][-1], each[1][::-1])):
        structure = np.zeros(event)
        structure[range(event[0]), states, moves] = 1
        yield structure


def gapped_alignments(oracle: EditAlignment, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the actions from the last on: match, deletion, insertion."""

    def backward(i: int, j: int) -> Iterator[tuple[tuple[int, int, int], ...]]:
        if (i, j) == (0, 0):
            yield ()
        for kind, before in enumerate(((i - 1, j - 1), (i - 1, j), (i, j - 1))):
            if min(before) >= 0:
                for earlier in backward(*before):
                    yield (*earlier, (i, j, kind))

    for path in sorted(backward(event[0] - 1, event[1] - 1), key=lambda path: [kind for _, _, kind in reversed(path)]):
        structure = np.zeros(event)
        for (i, j, kind), earlier in zip(path, (None, *path), strict=False):
            goes_on = kind > 0 and earlier is not None and earlier[2] == kind
            structure[i, j, (0, 1, 3)[kind] + goes_on] = 1
        yield structure


def subsets(oracle: CardinalitySubset, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by their size, then by their parts."""
    for size in range(event[0]):
        for taken in itertools.combinations(range(event[0] - 1), size):
            structure = np.zeros(event)
            structure[list(taken), 0] = structure[size, 1] = 1
            yield structure


DERIVED_CASES = (
    DerivedCase(CardinalitySubset(), subsets, ((2, 2), (6, 2), (4, 2)), (4, 2), (6, 2), item=lambda length: (length + 1,)),
    DerivedCase(SemiMarkov(), segmentations, ((1, 1, 1, 1), (2, 3, 2, 2), (4, 2, 2, 2)), (3, 2, 2, 2), (4, 3, 2, 2)),
    DerivedCase(
        LabelledConstituency(),
        labelled_trees,
        ((1, 1, 2), (4, 4, 1), (3, 3, 2)),
        (3, 3, 2),
        (4, 4, 2),
        item=lambda length: (length, length),
    ),
    DerivedCase(
        CTC(),
        blank_paths,
        ((1, 3, 3), (5, 5, 3), (3, 3, 3)),
        (4, 5, 3),
        (5, 5, 3),
        lengths=((4, 2), (2, 2), (3, 1), (2, 2), (4, 1), (3, 2)),  # no more labels than frames
        item=lambda length: (length[0], 2 * length[1] + 1),
    ),
    DerivedCase(
        EditAlignment(),
        gapped_alignments,
        ((2, 2, 5), (2, 4, 5), (4, 4, 5)),
        (3, 3, 5),
        (5, 4, 5),
        lengths=((4, 2), (2, 3), (3, 1), (2, 2), (4, 1), (3, 3)),
        item=lambda length: (length[0] + 1, length[1] + 1),
    ),
    DerivedCase(
        TiedSemiMarkov(),
        tied_segmentations,
        ((2, 1, 1), (3, 3, 2), (4, 2, 3), (4, 2, 2)),
        (4, 2, 2),
        (5, 2, 2),
        item=lambda length: (length + 1,),
        tail=lambda event: -(-event[2] // event[1]),
    ),
    DerivedCase(
        Grammar(),
        grammatical_trees,
        ((2, 1), (7, 1), (7, 2)),
        (7, 2),
        (14, 2),
        item=lambda length: (length * (length + 1) // 2 + 4,),
        tail=lambda event: event[1] ** 2,
    ),
    DerivedCase(
        LabelledProjectiveTree(),
        labelled_dependencies,
        ((2, 2, 2), (4, 4, 1), (3, 3, 2)),
        (3, 3, 2),
        (5, 5, 2),
        item=lambda length: (length + 1, length + 1),
    ),
    DerivedCase(SecondOrderChain(), second_order_sequences, ((1, 2, 2, 2), (2, 2, 2, 2), (5, 2, 2, 2)), (3, 2, 2, 2), (5, 2, 2, 2)),
)

BY_NAME = {row.oracle.name: row for row in DERIVED_CASES}

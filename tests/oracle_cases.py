"""The table of oracles that all laws share: small events of each, and all structures there, listed with itertools and numpy alone."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from structgrad.oracles import (
    CTC,
    DERIVED,
    Alignment,
    Assignment,
    CardinalitySubset,
    Categorical,
    Constituency,
    EditAlignment,
    Grammar,
    IndependentCategoricals,
    LabelledConstituency,
    LabelledProjectiveTree,
    LinearChain,
    ProjectiveTree,
    SecondOrderChain,
    SemiMarkov,
    ShiftReduce,
    SpanningTree,
    Subset,
    TiedChain,
    TiedSemiMarkov,
)

Event = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """An oracle, with the cases of its laws.

    Attributes:
        oracle: with its default options, or others.
        listed: its structures as arrays of 0/1 and counts, by independent code, in the order of `enumerate`.
        events: shapes for all laws of oracles. Expensive laws use the last one, of 4 to 50 structures.
        paired: a shape for laws about pairs with estimators, of 4 to 50 structures; None if other options of the oracle have one.
        ragged: a shape with room for items of ``lengths``; None for no such test.
        item: the first sizes of the event of an item of a length.
        tail: number of lines of the first axis behind the padding, by event shape; they belong to every item.
        lengths: lengths of six items.
    """

    oracle: Any
    listed: Callable[[Any, Event], Iterator[np.ndarray]]
    events: tuple[Event, ...]
    paired: Event | None = None
    ragged: Event | None = None
    item: Callable[[Any], Event] = lambda length: (length,)
    tail: Callable[[Event], int] = lambda event: 0
    lengths: tuple[Any, ...] = (4, 2, 3, 2, 4, 3)

    @property
    def derived(self) -> bool:
        """Whether it is one of `oracles/derived/`, which run the same algorithms."""
        return self.oracle.name in DERIVED


def products(oracle: IndependentCategoricals, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for chosen in itertools.product(range(event[1]), repeat=event[0]):
        yield np.eye(event[1])[list(chosen)]


def subsets(oracle: Subset, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for chosen in itertools.combinations(range(event[0]), oracle.k):
        structure = np.zeros(event)
        structure[list(chosen)] = 1
        yield structure


def tag_sequences(oracle: LinearChain, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for tags in itertools.product(range(event[1]), repeat=event[0]):
        structure = np.zeros(event)
        structure[0, 0, tags[0]] = 1
        for i in range(1, event[0]):
            structure[i, tags[i - 1], tags[i]] = 1
        yield structure


def tied_tag_sequences(oracle: TiedChain, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for edges in tag_sequences(LinearChain(), (event[0] - event[1], event[1], event[1])):
        yield np.concatenate([edges.sum(1), edges[1:].sum(0)])


def permutations(oracle: Assignment, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for columns in itertools.permutations(range(event[0])):
        yield np.eye(event[0])[list(columns)]


def derivations(oracle: ShiftReduce, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for actions in itertools.product((0, 1), repeat=2 * event[0] - 3):
        structure, shifts, depth = np.zeros(event), 0, 0
        for action in actions:
            if (depth < 2) if action else (shifts == event[0] - 1):
                break
            structure[shifts, depth, action] = 1
            shifts, depth = (shifts, depth - 1) if action else (shifts + 1, depth + 1)
        else:
            if depth == 1:
                yield structure


def binary_trees(oracle: Constituency, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for tree in labelled_trees(LabelledConstituency(), (*event, 1)):
        yield tree[..., 0]


def monotone_paths(oracle: Alignment, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    def walks(i: int, j: int) -> Iterator[tuple[tuple[int, int], ...]]:
        if (i, j) == (event[0] - 1, event[1] - 1):
            yield ((i, j),)
        for following in ((i, j + 1), (i + 1, j), (i + 1, j + 1)):
            if following[0] < event[0] and following[1] < event[1]:
                for rest in walks(*following):
                    yield ((i, j), *rest)

    for cells in walks(0, 0):
        structure = np.zeros(event)
        structure[tuple(zip(*cells, strict=True))] = 1
        yield structure


def projective_trees(oracle: ProjectiveTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    for tree in labelled_dependencies(oracle, (*event, 1)):
        yield tree[..., 0]


def spanning_trees(oracle: SpanningTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    words = range(1, event[0])
    for heads in itertools.product(range(event[0]), repeat=len(words)):
        reached = {0}
        for _ in words:
            reached |= {word for word in words if heads[word - 1] in reached}
        if len(reached) == event[0] and (heads.count(0) == 1 or not oracle.single_root):
            structure = np.zeros(event)
            structure[heads, words] = 1
            yield structure


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


def labelled_dependencies(oracle: LabelledProjectiveTree | ProjectiveTree, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by the farthest child of the root, its label, what is under its arc, and what is beyond."""
    size, _, labels = event

    def headed(head: int, last: int) -> Iterator[list[tuple[int, int, int]]]:
        """Arcs below a head up to the last word, on one side. The root is no child, and may have one child alone."""
        if head == last:
            yield []
        children = range(head + 1, last + 1) if head < last else range(last, head)
        for child in children if (last > 0 if head else last == size - 1 or not oracle.single_root) else ():
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


def subsets_of_any_size(oracle: CardinalitySubset, event: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Structures by their size, then by their parts."""
    for size in range(event[0]):
        for taken in itertools.combinations(range(event[0] - 1), size):
            structure = np.zeros(event)
            structure[list(taken), 0] = structure[size, 1] = 1
            yield structure


def square(length: int) -> Event:
    return length, length


def rooted(length: int) -> Event:
    return length + 1, length + 1


PAIRS = tuple(zip((4, 2, 3, 2, 4, 3), (3, 4, 2, 3, 2, 4), strict=True))

TABLE = (
    Row(Categorical(), lambda oracle, event: iter(np.eye(event[0])), ((1,), (2,), (6,)), (5,), (5,)),
    Row(IndependentCategoricals(), products, ((1, 1), (1, 4), (3, 1), (4, 2), (2, 3)), (2, 3), (4, 3)),
    Row(Subset(1), subsets, ((1,), (4,))),
    Row(Subset(4), subsets, ((4,), (7,))),
    Row(Subset(2), subsets, ((5,),), (5,), (6,)),
    Row(LinearChain(), tag_sequences, ((1, 1, 1), (1, 3, 3), (4, 1, 1), (2, 2, 2), (5, 2, 2), (3, 3, 3)), (3, 2, 2), (4, 3, 3)),
    Row(
        *(TiedChain(), tied_tag_sequences, ((2, 1), (4, 3), (5, 1), (4, 2), (7, 2), (6, 3)), (5, 2), (7, 3)),
        item=lambda length: (length + 3,),
        tail=lambda event: event[1],
    ),
    Row(Alignment(), monotone_paths, ((1, 1), (1, 4), (3, 2), (4, 4), (3, 4)), (3, 2), (4, 4), tuple, lengths=PAIRS),
    Row(Constituency(), binary_trees, ((1, 1), (2, 2), (3, 3), (6, 6), (4, 4)), (4, 4), (5, 5), square),
    Row(ShiftReduce(), derivations, ((2, 2, 2), (7, 7, 2), (4, 4, 2)), (5, 5, 2), (5, 5, 2), rooted),
    Row(ShiftReduce("local"), derivations, ((2, 2, 2), (4, 4, 2), (5, 5, 2)), (5, 5, 2), (5, 5, 2), rooted),
    Row(Assignment(), permutations, ((1, 1), (2, 2), (5, 5), (4, 4)), (3, 3), (4, 4), square),
    Row(ProjectiveTree(), projective_trees, ((2, 2), (3, 3), (5, 5)), (4, 4), (5, 5), rooted),
    Row(ProjectiveTree(single_root=False), projective_trees, ((2, 2), (5, 5), (4, 4)), None, (5, 5), rooted),
    Row(SpanningTree(single_root=False), spanning_trees, ((3, 3), (5, 5)), None, (5, 5), rooted),
    Row(SpanningTree(), spanning_trees, ((2, 2), (5, 5), (4, 4)), (4, 4), (5, 5), rooted),
    Row(CardinalitySubset(), subsets_of_any_size, ((2, 2), (6, 2), (4, 2)), (4, 2), (6, 2), lambda length: (length + 1,)),
    Row(SemiMarkov(), segmentations, ((1, 1, 1, 1), (2, 3, 2, 2), (4, 2, 2, 2)), (3, 2, 2, 2), (4, 3, 2, 2)),
    Row(LabelledConstituency(), labelled_trees, ((1, 1, 2), (4, 4, 1), (3, 3, 2)), (3, 3, 2), (4, 4, 2), square),
    Row(
        *(CTC(), blank_paths, ((1, 3, 3), (5, 5, 3), (3, 3, 3)), (4, 5, 3), (5, 5, 3)),
        item=lambda length: (length[0], 2 * length[1] + 1),
        lengths=((4, 2), (2, 2), (3, 1), (2, 2), (4, 1), (3, 2)),  # no more labels than frames
    ),
    Row(
        *(EditAlignment(), gapped_alignments, ((2, 2, 5), (2, 4, 5), (4, 4, 5)), (3, 3, 5), (5, 4, 5)),
        item=lambda length: (length[0] + 1, length[1] + 1),
        lengths=((4, 2), (2, 3), (3, 1), (2, 2), (4, 1), (3, 3)),
    ),
    Row(
        *(TiedSemiMarkov(), tied_segmentations, ((2, 1, 1), (3, 3, 2), (4, 2, 3), (4, 2, 2)), (4, 2, 2), (5, 2, 2)),
        item=lambda length: (length + 1,),
        tail=lambda event: -(-event[2] // event[1]),
    ),
    Row(
        *(Grammar(), grammatical_trees, ((2, 1), (7, 1), (7, 2)), (7, 2), (14, 2)),
        item=lambda length: (length * (length + 1) // 2 + 4,),
        tail=lambda event: event[1] ** 2,
    ),
    Row(LabelledProjectiveTree(), labelled_dependencies, ((2, 2, 2), (4, 4, 1), (3, 3, 2)), (3, 3, 2), (5, 5, 2), rooted),
    Row(SecondOrderChain(), second_order_sequences, ((1, 2, 2, 2), (2, 2, 2, 2), (5, 2, 2, 2)), (3, 2, 2, 2), (5, 2, 2, 2)),
)

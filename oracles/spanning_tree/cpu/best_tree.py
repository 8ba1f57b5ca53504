"""MAP of spanning trees: a path of best heads that contracts its cycles, in O(n²) for dense scores.

Source: Tarjan 1977, "Finding optimum branchings"; Gabow, Galil, Spencer & Tarjan 1986, "Efficient algorithms for finding minimum spanning
trees in undirected and directed graphs", section 3 (path growing). A component's arcs are kept by the position that they come from, so that
joining components is a maximum of arrays; where an arc enters a component is found when it is opened.

With a single root, a component goes to the root only where no word may head it: so as few words as possible hang on the root, and no large
penalty costs precision.
"""

from typing import NamedTuple

import numpy as np

from ...kernels.compilation import Array, inner, uncounted

UNSEEN, ON_PATH, DONE = 0, 1, 2


class ArborescenceWorkspace(NamedTuple):
    """What one item of n words needs: components 1..n are words, n + 1..2n − 1 are contracted, 0 is the root."""

    arcs: Array  # [2n, n + 1] by component and the position of the head: what the arc gains over the component's own arc inside others
    head: Array  # [2n] the position that heads the component
    value: Array  # [2n] the gain of that arc
    state: Array  # [2n]
    component: Array  # [n + 1] of a position
    path: Array  # [n] components, each headed by the next
    child: Array  # [2n] a first member of a contracted component
    sibling: Array  # [2n] the next member; 0 after the last
    entered: Array  # [2n] the member that takes the arc of a contracted component


@inner
def workspace(size: int) -> ArborescenceWorkspace:
    """Arrays for one item of event [size, size]."""
    most = 2 * (size - 1)
    integers = np.zeros((6, most), np.int64)
    return ArborescenceWorkspace(
        np.empty((most, size)), integers[0], np.empty(most), integers[1], np.empty(size, np.int64), integers[2], integers[3], integers[4],
        integers[5],
    )  # fmt: skip


@uncounted
def _choose(space: ArborescenceWorkspace, component: int, single_root: bool) -> bool:
    """The component's best head; False where it has none."""
    arcs = space.arcs[component]
    best, head = -np.inf, 0
    for h in range(1, arcs.size):
        if arcs[h] > best:
            best, head = arcs[h], h
    # Of equal heads the lowest, the root.
    if head == 0 or (not single_root and arcs[0] >= best):
        best, head = arcs[0], 0
    space.head[component], space.value[component] = head, best
    return best > -np.inf


@uncounted
def _contract(space: ArborescenceWorkspace, first: int, last: int, into: int) -> None:
    """Join the components of a stretch of the path."""
    arcs, value, size = space.arcs, space.value, space.arcs.shape[1]
    member, following = space.path[first], 0
    for h in range(size):
        arcs[into, h] = arcs[member, h] - value[member]
    for i in range(first + 1, last + 1):
        other = space.path[i]
        own = value[other]
        for h in range(size):
            gain = arcs[other, h] - own
            arcs[into, h] = max(gain, arcs[into, h])
    for i in range(last, first - 1, -1):
        space.sibling[space.path[i]] = following
        following = space.path[i]
        space.state[following] = -into
    space.child[into] = following
    for h in range(1, size):
        if space.state[space.component[h]] == -into:
            space.component[h] = into
            arcs[into, h] = -np.inf


@inner
def _grow(space: ArborescenceWorkspace, start: int, used: int, single_root: bool) -> tuple[int, int]:
    """Follow best heads from a component until they lead to what is done, contracting cycles.

    Gives the next free component, and how many arcs leave the root: 0 or 1, or -1 where a component has no head.
    """
    path, state, component, length = space.path, space.state, space.component, 1
    path[0] = start
    state[start] = ON_PATH
    while True:
        top = path[length - 1]
        if not _choose(space, top, single_root):
            return used, -1
        head = space.head[top]
        above = component[head]
        if state[above] == DONE:
            for i in range(length):
                state[path[i]] = DONE
            return used, 1 if head == 0 else 0
        if state[above] == UNSEEN:
            path[length] = above
            state[above] = ON_PATH
            length += 1
        else:
            first = length - 1
            while path[first] != above:
                first -= 1
            _contract(space, first, length - 1, used)
            path[first] = used
            state[used] = ON_PATH
            length = first + 1
            used += 1


@uncounted
def _open(space: ArborescenceWorkspace, component: int) -> None:
    """Give the arc of a contracted component to the member that gains most from it; the others keep theirs."""
    arcs, value, head = space.arcs, space.value, space.head[component]
    member = space.child[component]
    best = arcs[member, head] - value[member]
    other = space.sibling[member]
    while other > 0:
        gain = arcs[other, head] - value[other]
        if gain > best:
            best, member = gain, other
        other = space.sibling[other]
    space.head[member], space.entered[component] = head, member


@inner
def find(row: Array, single_root: bool, space: ArborescenceWorkspace) -> int:
    """Leave the heads of the best tree of a row [n + 1, n + 1] in ``space.head``; gives where components end, 0 where none is feasible."""
    size, arcs = row.shape[0], space.arcs
    used, roots, space.state[0] = size, 0, DONE
    for h in range(size):  # one component per word, none seen
        space.component[h] = h
        for m in range(1, size):
            arcs[m, h] = row[h, m]
    for m in range(1, size):
        arcs[m, m], space.state[m] = -np.inf, UNSEEN
    for word in range(1, size):
        if space.state[space.component[word]] == UNSEEN:
            used, root = _grow(space, space.component[word], used, single_root)
            roots += root
            if root < 0 or (single_root and roots > 1):
                return 0
    for component in range(used - 1, size - 1, -1):
        _open(space, component)
    return int(used)


@inner
def best_parts(row: Array, single_root: bool, space: ArborescenceWorkspace, parts: Array) -> int:
    """Write the parts of the best tree of a row [n + 1, n + 1], numbered in the flat event, into int32 ``parts``; gives n.

    Where no tree is feasible, each word hangs on the one before it.
    """
    size = row.shape[0]
    feasible = find(row, single_root, space) > 0
    for m in range(1, size):
        parts[m - 1] = (space.head[m] if feasible else m - 1) * size + m
    return int(size - 1)

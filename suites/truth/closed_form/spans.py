"""Derivations that join two neighbouring items: projective dependency trees."""

from __future__ import annotations

import torch

from ....oracles.derivations import DEAD, UNIT, Builder, Derivations


def projective(event: tuple[int, ...], *, single_root: bool) -> Derivations:
    """Eisner's items (see `structgrad.oracles.projective_tree.eisner`): seams, arcs over them, and what a word heads on one side."""
    size = event[0]
    builder = Builder(size * size)
    parts = torch.arange(size * size).reshape(event)
    tables = [torch.full(event, DEAD) for _ in range(4)]
    right, left, right_arc, left_arc = tables
    right.fill_diagonal_(UNIT)
    left.fill_diagonal_(UNIT)
    for width in range(1, size):
        first = torch.arange(size - width)
        last = first + width
        i, j = first.unsqueeze(1), last.unsqueeze(1)
        inner, outer = i + torch.arange(width), i + torch.arange(1, width + 1)
        seams = builder.add(right[i, inner], None, left[inner + 1, j])
        # No arc leads into the root.
        under = torch.where(first > 0, seams, DEAD)
        arcs = builder.add(torch.cat([seams, under]).unsqueeze(1), torch.cat([parts[first, last], parts[last, first]]).unsqueeze(1))
        right_arc[first, last], left_arc[first, last] = arcs.chunk(2)
        both = builder.add(torch.cat([right_arc[i, outer], left[i, inner]]), None, torch.cat([right[outer, j], left_arc[inner, j]]))
        right[first, last], left[first, last] = both.chunk(2)
        if single_root and width < size - 1:
            right[0, last[0]] = DEAD
    return builder.finish(right[0, -1])

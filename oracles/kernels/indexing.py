"""Indices from numbered parts, in one pass: torch takes four, and the division of 64-bit integers is slow."""

from __future__ import annotations

import numpy as np

from .compilation import compiled


@compiled
def last_axis(parts, size, entries):
    """Entries along a last axis of this size, of parts by their flat place [p]; -1 stays."""
    width = np.uint32(size)
    for i in range(len(parts)):
        entries[i] = np.uint32(parts[i]) % width if parts[i] >= 0 else -1


@compiled
def place(values, places, room):
    """Write values [b, p] to their places in the rows of a room [b, n], which is -1 before; those from n on are left out."""
    for b in range(len(values)):
        for i in range(values.shape[1]):
            if places[b, i] < room.shape[1]:
                room[b, places[b, i]] = values[b, i]


@compiled
def heads(parts, size, heads):
    """Heads [b, n] of arcs [b, p] by their flat place among (n + 1)², of which n + 1 is the size; -1 stays where a word has none."""
    width = np.uint32(size)
    for b in range(len(parts)):
        for i in range(parts.shape[1]):
            if parts[b, i] >= 0:
                head = np.uint32(parts[b, i]) // width
                heads[b, np.uint32(parts[b, i]) - head * width - 1] = head

"""Items of several sizes in one array: what a length counts, what an item of that length takes, and what looks like padding."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import torch
from torch import Tensor

from ...oracles.capabilities import Oracle
from ...oracles.derivations import DerivedOracle, Examples

COUNTED = {
    "linear_chain": "positions",
    "spanning_tree": "words (the root is none)",
    "projective_tree": "words (the root is none)",
    "constituency": "tokens",
    "shift_reduce": "tokens",
    "alignment": "rows and columns",
    "assignment": "rows",
    "categories": "categories",
}
"""What the lengths of items are numbers of, where the oracle does not say so itself."""

NAMES = ("length", "lengths", "len", "lens", "size", "sizes", "n", "num_words", "seq_len", "seq_lens", "sequence_lengths", "mask", "masks")
"""What people call an array that says how much of an item is padding."""


class PaddingWarning(UserWarning):
    """A file whose items seem to be padded, and that is read without their lengths."""


@functools.cache
def warn_once(text: str) -> None:
    """The same sentence is said once by a process."""
    warnings.warn(text, PaddingWarning, stacklevel=2)


def counted_by(oracle: Oracle) -> str:
    """What a length of an item of this oracle counts."""
    examples = oracle.examples if isinstance(oracle, DerivedOracle) else Examples()
    return COUNTED.get(oracle.name, examples.counted)


def item_event(oracle: Oracle, event: tuple[int, ...], length: np.ndarray) -> tuple[int, ...]:
    """The event shape of an item of a length, or of several lengths, within a larger one.

    Example:
        >>> from structgrad.oracles import Alignment, ShiftReduce, SpanningTree
        >>> item_event(SpanningTree(), (9, 9), np.array(3)), item_event(ShiftReduce(), (9, 9, 2), np.array(3))
        ((4, 4), (4, 4, 2))
        >>> item_event(Alignment(), (9, 7), np.array([3, 4]))
        (3, 4)
    """
    inside = oracle.length_mask(event, torch.as_tensor(length, dtype=torch.int64)).expand(event)
    return tuple(int(places.max()) + 1 for places in inside.nonzero().unbind(1))


def padded_items(oracle: Oracle, scores: Tensor) -> list[int]:
    """The items of ``[items, *event]`` whose last parts along an axis of lengths are all the same number, and not all the others.

    One last part alone says nothing, so that of a single axis the last two are looked at.
    """
    event = tuple(scores.shape[1:])
    limits = oracle.length_limits(event)
    read = oracle.read_mask(event)
    found = torch.zeros(len(scores), dtype=torch.bool)
    for axis, limit in enumerate(limits):
        shorter = torch.tensor(limits)
        shorter[axis] = limit - (2 if len(event) == 1 else 1)
        if int(shorter[axis]) < 1:
            continue
        outside = ~oracle.length_mask(event, shorter if len(limits) > 1 else shorter[0]).expand(event) & read
        if int(outside.sum()) > 1:
            last, others = scores[:, outside], scores[:, read & ~outside]
            # NaN stands for padding too.
            same = ((last == last[:, :1]) | (last.isnan() & last[:, :1].isnan())).all(-1)
            found |= same & (others != last[:, :1]).any(-1)
    return [int(item) for item in found.nonzero().flatten()]


def is_called_lengths(name: str, array: np.ndarray, shape: tuple[int, ...], limits: tuple[int, ...]) -> bool:
    """Whether an array is called and shaped like lengths, and some item is shorter than the limits."""
    return name.lower() in NAMES and array.dtype.kind in "iu" and array.shape == shape and bool(((array >= 1) & (array < limits)).any())


def is_called_mask(name: str, array: np.ndarray, items: int) -> bool:
    """Whether an array is called a mask, and is one: of rows of ones with zeros behind them, of which there are some."""
    if name.lower() not in NAMES or array.dtype.kind not in "iub" or array.ndim < 2 or len(array) != items:
        return False
    mask = array.astype(np.int64)
    return bool(((mask == 0) | (mask == 1)).all() and (np.diff(mask, axis=-1) <= 0).all() and (mask == 0).any())

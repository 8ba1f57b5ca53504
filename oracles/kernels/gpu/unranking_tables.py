"""The CPU's tables of counts, on a device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import tree_unranking, unranking


def table(name: str, ranks: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    """The int64 tables of a structure where the ranks are; made and copied once."""
    return _table(name, str(ranks.device), sizes)


@lru_cache(maxsize=64)
def _table(name: str, device: str, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    # Counts beyond int64 wrap, and are never met.
    with np.errstate(over="ignore"):
        made = _MAKERS[name].py_func(*sizes)
    return tuple(torch.from_numpy(counts).to(device) for counts in (made if isinstance(made, tuple) else (made,)))


_MAKERS: dict[str, Any] = {
    "subset": unranking._binomials,
    "alignment": unranking._paths,
    "shift_reduce": unranking._completions,
    "constituency": tree_unranking._binary_trees,
    "projective_tree": tree_unranking._items,
    "spanning_tree": tree_unranking._powers,
}

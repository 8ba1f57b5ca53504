"""Many tests at once: p-values that are adjusted for their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

K = TypeVar("K")


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Adjusted p-values: rejecting those below α keeps the chance of *any* false rejection below α, under any dependence.

    They are ``max over the smaller ones of (m − i) p_(i)``, at most 1. Cells without a test are left out, not counted as 1.

    Reference: Holm 1979, "A simple sequentially rejective multiple test procedure", section 3.

    Example:
        >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
        {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    for key, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"`holm` got the p-value {p} for {key!r}; expected numbers from 0 to 1, leave cells without a test out")
    return dict(zip(p_values, holm_values(np.array(list(p_values.values()), dtype=float)).tolist(), strict=True))


def holm_values(p_values: np.ndarray) -> np.ndarray:
    """`holm` of an array ``[tests]``."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(order), 0, -1) * p_values[order]))
    return adjusted

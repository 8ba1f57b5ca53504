"""Adjusted p-values."""

from __future__ import annotations

import numpy as np
import pytest

from structgrad.suites.statistics.selection import holm


def p_values(size=20, seed=0):
    drawn = np.random.default_rng(seed).random(size) ** 3
    return {f"cell {number}": float(p) for number, p in enumerate(drawn)}


def test_holm_is_closed_testing_with_bonferroni():
    """A hypothesis is rejected if every set that holds it is: with Bonferroni, the worst set holds it and all that are no smaller."""
    given = p_values(6)
    for key, adjusted in holm(given).items():
        sets = [[other for bit, other in enumerate(given) if mask >> bit & 1] for mask in range(1, 2**6)]
        closed = max(min(1.0, len(chosen) * min(given[other] for other in chosen)) for chosen in sets if key in chosen)
        assert adjusted == pytest.approx(closed)


def test_the_order_of_cells_is_kept_and_changes_nothing():
    given = p_values()
    assert list(holm(given)) == list(given)
    assert holm(dict(reversed(given.items()))) == holm(given)
    assert holm({}) == {}


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_no_p_value_is_refused(p):
    with pytest.raises(ValueError, match=r"for 'a'; expected numbers from 0 to 1"):
        holm({"a": p})

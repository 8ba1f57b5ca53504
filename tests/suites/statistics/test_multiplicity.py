"""Adjusted p-values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from structgrad.suites.statistics.testing.multiplicity import benjamini_hochberg, bonferroni, holm

ADJUSTMENTS = [holm, bonferroni, benjamini_hochberg]


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


def test_benjamini_hochberg_is_that_of_scipy():
    given = p_values()
    expected = stats.false_discovery_control(list(given.values()))
    np.testing.assert_allclose(list(benjamini_hochberg(given).values()), expected)


@pytest.mark.parametrize("adjust", ADJUSTMENTS)
def test_the_order_of_cells_is_kept_and_changes_nothing(adjust):
    given = p_values()
    backwards = dict(reversed(given.items()))
    assert list(adjust(given)) == list(given)
    assert adjust(backwards) == adjust(given)
    assert adjust({}) == {}


def test_holm_lies_between_the_p_values_and_bonferroni():
    given = p_values()
    assert all(given[key] <= holm(given)[key] <= bonferroni(given)[key] for key in given)
    assert any(holm(given)[key] < bonferroni(given)[key] for key in given)


@pytest.mark.parametrize("adjust", ADJUSTMENTS)
@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_refuses_what_is_no_p_value(adjust, wrong):
    with pytest.raises(ValueError, match=f"`{adjust.__name__}` got the p-value {wrong} for 'b'; expected numbers from 0 to 1"):
        adjust({"a": 0.5, "b": wrong})

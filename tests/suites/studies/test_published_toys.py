"""The toys of the papers on bits and categories, compared with their exact values."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from tests.suites.studies import published_toys


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return published_toys.reproduce()


def value(table: pd.DataFrame, setting: str, estimator: str, column: str = "measured") -> float:
    (found,) = table.loc[table["setting"].str.startswith(setting) & (table["estimator"] == estimator), column]
    return float(found)


@pytest.mark.parametrize("setting", ["(b − 0.45)²", "(b − 0.499)²"])
@pytest.mark.parametrize("name", ["reinforce", "arm", "disarm"])
def test_log_variances_agree_with_their_closed_form(table: pd.DataFrame, setting: str, name: str) -> None:
    assert value(table, setting, name) == pytest.approx(value(table, setting, name, "exact"), abs=0.05)


def test_log_variances_in_figures() -> None:
    """Values at t = .45 and φ = 1: ``.0103``, ``3.6e-4`` and ``3.3e-4``."""
    found = published_toys.log_variances_of_a_bit(0.45, 1.0)
    assert {name: math.exp(value) for name, value in found.items()} == pytest.approx(
        {"reinforce": 0.010345, "arm": 3.6452e-4, "disarm": 3.3214e-4}, rel=1e-3
    )


def test_training_lowers_the_variance(table: pd.DataFrame) -> None:
    """RELAX lowers the variance, REBAR cannot: the relaxed loss is no help if both bits cost the same."""
    for setting in ("(b − 0.45)²", "(b − 0.499)²"):
        reinforce, rebar, tuned, relax = (value(table, setting, name) for name in ("reinforce", "rebar", "rebar, tuned", "relax, tuned"))
        assert relax < reinforce - 2
        assert tuned < rebar
        assert tuned == pytest.approx(reinforce, abs=0.1)


def test_gumbel_rao_keeps_the_mean_and_loses_variance(table: pd.DataFrame) -> None:
    for name in ("st_gumbel", "gumbel_rao, K = 10"):
        assert value(table, "L = z_0", name) == pytest.approx(1 / 6, abs=0.005)
    one, ten, hundred = (value(table, "‖Q", f"gumbel_rao, K = {count}") for count in (1, 10, 100))
    assert one == pytest.approx(1.0, abs=0.1)
    # v(K) = a + b/K with a + b = 1.
    assert (one - hundred) * 0.9 / 0.99 == pytest.approx(one - ten, abs=0.05)
    assert hundred < 0.3


def test_reinmax_is_exact_for_the_quadratic_alone(table: pd.DataFrame) -> None:
    assert value(table, "|b − .45|^2,", "reinmax", "exact") < 1e-12
    for power in ("1.5", "3"):
        reinmax, simple = (value(table, f"|b − .45|^{power},", name, "exact") for name in ("reinmax", "simple"))
        assert 0.1 < reinmax < simple

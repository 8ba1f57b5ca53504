"""The published k-subset toy, to the digits given."""

from __future__ import annotations

import pytest

from tests.suites.studies import subset_toy

EXACT = {
    "reinforce": {"bias": 0.0, "variance": 0.1312, "error": 0.9988},
    "ste_sample": {"bias": 0.1897, "bias_sd": 0.0588, "variance": 0.0076, "error": 0.3357},
    "simple": {"bias": 0.0368, "bias_sd": 0.0205, "variance": 0.0123, "variance_sd": 0.0129, "error": 0.2468},
}


@pytest.fixture(scope="module")
def table():
    return subset_toy.reproduce()


@pytest.mark.parametrize("name", list(EXACT))
def test_exact_rows(table, name):
    for metric, value in EXACT[name].items():
        assert table.loc[name, metric] == pytest.approx(value, abs=5.1e-5), metric


def test_sampled_row(table):
    row = table.loc["imle"]
    assert row["bias"] == pytest.approx(0.4593, abs=3e-3)
    assert row["bias_sd"] == pytest.approx(0.1388, abs=2e-3)
    assert row["variance"] == pytest.approx(0.0308, abs=1e-3)
    assert row["error"] == pytest.approx(0.5784, abs=2e-3)


def test_first_seed():
    expected = {
        "gradient_norm": 0.919681,
        "expected_loss": 8.685266,
        "simple_trace": 0.4325,
        "reinforce_trace": 147.7269,
        "rloo_trace": 6.7914,
    }
    assert subset_toy.first_seed() == pytest.approx(expected, abs=5.1e-5)

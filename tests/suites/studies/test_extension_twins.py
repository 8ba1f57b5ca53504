"""Extension twins: what the loss between the structures does to estimators, on small instances and as a command."""

from __future__ import annotations

import pytest

from structgrad.suites.studies import extension_twins
from structgrad.suites.studies.extension_twins import BUILT_IN, main, reproduce, rows_of, toy


@pytest.fixture(scope="module")
def rows():
    return {row["estimator"]: row for row in rows_of(toy())}


def test_the_toy_has_the_published_instances(rows) -> None:
    assert {row["items"] for row in rows.values()} == {10}
    assert {(row["as written"], row["twin"]) for row in rows.values()} == {("quadratic", "linear")}


def test_a_linear_extension_takes_all_bias_and_variance_from_gradients_through_marginals(rows) -> None:
    """Medians over the seeds; 0.807 is the bias of a deterministic estimator, 0.294 and 0.550 those of one with samples."""
    assert rows["simple"]["as written: bias"] == pytest.approx(0.2943, abs=5e-5)
    assert rows["simple"]["as written: variance"] == pytest.approx(0.5504, abs=5e-5)
    assert rows["ste_marginals"]["as written: bias"] == pytest.approx(0.8067, abs=5e-5)
    for name in ("simple", "ste_marginals"):
        assert rows[name]["twin: bias"] < 1e-13
        assert rows[name]["twin: variance"] < 1e-26


def test_reinforce_does_not_see_the_extension(rows) -> None:
    row = rows["reinforce, baseline E L"]
    assert row["as written: variance"] == pytest.approx(8.1078, abs=5e-5)
    assert row["twin: variance"] == pytest.approx(row["as written: variance"], rel=1e-12)
    assert max(row["as written: bias"], row["twin: bias"]) < 1e-12


def test_quartiles_are_over_items(rows) -> None:
    assert rows["simple"]["as written: quartiles"] == "0.222–0.356"
    assert rows["simple"]["twin: quartiles"] == "0.000–0.000"


def test_built_in_scores_stand_in_for_real_ones() -> None:
    rows = reproduce(None, 2)
    assert [row["scores"] for row in rows[::9]] == ["toy of SIMPLE", "subset_regimes", "alignment_regimes"][: len(rows[::9])]
    assert {(row["scores"], row["loss"]) for row in rows[3:]} == set(BUILT_IN)
    assert [row["stage"] for row in rows[3:12:3]] == ["init", "early", "final"]
    for row in rows:
        exact = row["estimator"].startswith("reinforce") or row["twin"] == "linear"
        assert (row["twin: bias"] < 1e-9) == exact, row


def test_the_command_prints_a_table(monkeypatch, capsys) -> None:
    monkeypatch.setattr(extension_twins, "reproduce", lambda data, instances: [{"data": str(data), "items": instances}])
    main(["--data", "somewhere", "--instances", "3"])
    assert capsys.readouterr().out == "| data | items |\n|---|---|\n| somewhere | 3 |\n"

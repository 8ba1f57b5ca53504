from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import tables
from structgrad.suites.base import Row
from tests.reports import examples


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


def only(table: pd.DataFrame, **wanted: object) -> pd.Series:
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def test_aggregate_is_median_and_quartiles_never_the_mean(frame: pd.DataFrame) -> None:
    row = only(tables.aggregate(frame), stage="init", estimator="imle[lambda=2.5]", metric="relative_bias")
    assert (row["median"], row["lower"], row["upper"], row["instances"]) == (0.7, 0.6, 50.35, 3)


def test_interval_of_the_median_is_a_bootstrap_over_instances() -> None:
    values = np.random.default_rng(0).standard_normal(50)
    shared = examples.shared("reinforce", "init")
    rows = [Row(cell="a", suite="bias", **shared, instance=str(i), metric="rho", value=float(value)) for i, value in enumerate(values)]
    row = tables.aggregate(results.to_frame(rows)).iloc[0]
    resamples = np.random.default_rng(1).choice(values, (4000, 50))
    low, high = np.quantile(np.median(resamples, axis=1), (0.025, 0.975))
    assert row["low"] == pytest.approx(low, abs=0.06)
    assert row["high"] == pytest.approx(high, abs=0.06)


@pytest.mark.parametrize("size", [3, 4, 10, 33])
def test_the_bootstrap_takes_the_median_of_each_resample(size: int) -> None:
    values = np.random.default_rng(7).standard_normal((1001, size))
    some = slice(None, None, 40)
    drawn = np.sort(values)[some][:, np.random.default_rng(size).integers(size, size=(1000, size))]
    assert tables.median_interval(values)[:, some] == pytest.approx(np.quantile(np.median(drawn, axis=-1), (0.025, 0.975), axis=-1))


def test_one_instance_keeps_its_own_interval_and_two_have_none() -> None:
    shared = examples.shared("reinforce", "init")
    one = Row(cell="a", suite="bias", **shared, instance="0", metric="rho", value=2.0, low=1.0, high=5.0)
    found = tables.aggregate(results.to_frame([one])).iloc[0]
    assert (found["low"], found["high"]) == (1.0, 5.0)
    found = tables.aggregate(results.to_frame([one, replace(one, instance="1", value=4.0)])).iloc[0]
    assert found["median"] == 3.0
    assert math.isnan(found["low"])
    assert math.isnan(found["high"])


def test_only_an_unbiased_claim_on_the_expected_loss_can_be_contradicted(frame: pd.DataFrame) -> None:
    claims = tables.claims(frame)
    assert set(claims.loc[claims["contradicted"], "estimator"]) == {"rloo[num_samples=2]"}
    relaxed = frame.assign(objective=frame["objective"].astype(object).replace("expected", "relaxed"))
    assert not tables.claims(relaxed)["contradicted"].any()


def test_times_of_that_very_stage_serve_other_losses_of_the_scores() -> None:
    times = {("a@f1", "init"): 1.0, ("a@f1", "final"): 2.0}
    common = {key: value for key, value in examples.shared("reinforce", "init").items() if key not in ("problem", "stage")}
    timed = [Row(cell="t", suite="wall_clock", problem=p, stage=s, **common, metric="time_ratio", value=v) for (p, s), v in times.items()]
    asked = [
        Row(cell="b", suite="bias", problem="a@mlp", stage=s, **common, instance="0", metric="rho", value=0.5)
        for s in ("init", "early", "final")
    ]
    found = tables.measured(results.to_frame([*timed, *asked]))
    found = found[(found["problem"] == "a@mlp") & (found["metric"] == "time_ratio")]
    assert dict(zip(found["stage"], found["value"], strict=True)) == {"init": 1.0, "early": 1.0, "final": 2.0}


def test_a_metric_that_several_suites_or_references_give_counts_once() -> None:
    shared = examples.shared("reinforce", "init")
    row = Row(cell="a", suite="bias", **shared, instance="0", metric="rho", value=1.0, reference="expected")
    others = [
        replace(row, suite="sparsity", value=2.0),
        replace(row, reference="relaxed", value=3.0),
        row,
        replace(row, metric="total_time", setting="length=4", value=4.0),
        replace(row, suite="sparsity", metric="gain", value=5.0),
    ]
    found = tables.measured(results.to_frame(others))
    assert list(zip(found["metric"], found["value"], strict=True)) == [("rho", 1.0), ("gain", 5.0)]


def test_numbers_that_are_not_finite_are_told_without_failing_their_cell() -> None:
    odd = Row(cell="a", suite="bias", **examples.shared("reinforce", "init"), status="nonfinite", reason="the value is nan")
    frame = results.to_frame([odd])
    assert tables.errors(frame)["reason"].tolist() == ["the value is nan"]
    assert tables.counts(frame) == {"ok": 1, "failed": 0, "skipped": 0}


def test_what_is_remembered_of_one_table_is_not_told_of_another(frame: pd.DataFrame) -> None:
    first = tables.aggregate(frame)
    assert tables.aggregate(frame) is first
    part = frame[frame["stage"] == "init"]
    assert len(tables.aggregate(part)) < len(first)
    assert tables.aggregate(frame).equals(first)


def test_a_verdict_without_a_number_counts() -> None:
    shared = examples.shared("reinforce", "init")
    row = Row(cell="a", suite="bias", **shared, instance="0", metric="relative_bias", value=0.0, verdict="equivalent")
    rare = replace(row, instance="1", value=None, verdict="unresolved: rare events", reason="rare events")
    found = tables.verdicts(results.to_frame([row, rare])).iloc[0]
    assert (found["verdict"], found["sharing"], found["instances"]) == ("unresolved: rare events", 1, 2)
    assert tables.aggregate(results.to_frame([row, rare])).iloc[0]["instances"] == 1


def test_an_empty_table_gives_empty_tables() -> None:
    empty = results.to_frame([])
    for make in (tables.aggregate, tables.verdicts, tables.claims, tables.sparsity, tables.skipped, tables.errors, tables.swept):
        assert make(empty).empty
    assert tables.bias_bounds(empty) == {}
    assert tables.counts(empty) == {"ok": 0, "failed": 0, "skipped": 0}

from __future__ import annotations

from dataclasses import replace

import pytest

from structgrad.suites.comparison.matching import match
from tests.suites.comparison.rows import BASE, batch_means, exact, sampled

MACHINE = {"cpu": "x", "cores": 2, "python": "3.11", "packages": {"torch": "2.8"}}


def test_rows_of_the_same_number_are_paired_whatever_their_order() -> None:
    base = [exact(1.0, metric="gain"), exact(2.0)]
    pairs = match(base, base[::-1])
    assert [(pair.base, pair.head) for pair in pairs] == [(row, row) for row in base[::-1]]
    assert not any(pair.obstacle for pair in pairs)


@pytest.mark.parametrize("column", ["suite", "problem", "stage", "instance", "loss", "estimator", "metric", "setting", "reference"])
def test_what_differs_in_its_key_is_another_number(column: str) -> None:
    other = "gain" if column == "metric" else "other"
    pairs = match([exact()], [exact(**{column: other})])
    assert [(pair.base is None, pair.head is None) for pair in pairs] == [(True, False), (False, True)]


@pytest.mark.parametrize("column", ["estimator_version", "oracle_version", "suite_version", "schema_version"])
def test_a_declared_version_that_was_raised_is_an_obstacle(column: str) -> None:
    (pair,) = match([exact()], [exact(**{column: 9})])
    assert pair.obstacle.startswith(f"{column} is ")
    assert pair.obstacle.endswith("in the head")


@pytest.mark.parametrize("change", [{"dtype": "float32"}, {"device": "cuda"}, {"device": "cuda:1"}])
def test_another_dtype_or_device_is_paired_and_incomparable(change: dict[str, str]) -> None:
    (pair,) = match([exact()], [exact(**change)])
    assert pair.base is not None
    assert next(iter(change)) in pair.obstacle


def test_other_scores_of_another_seed_are_incomparable_and_of_the_same_seed_are_no_excuse() -> None:
    (pair,) = match([exact(entropy=1.0)], [exact(entropy=1.1, seed=5)])
    assert pair.obstacle == "other scores: the seed is 0 in the base and 5 in the head"
    (pair,) = match([exact(entropy=1.0)], [exact(entropy=1.1)])
    assert pair.obstacle == ""
    (pair,) = match([exact(entropy=1.0)], [exact(entropy=1.0, seed=5)])
    assert pair.obstacle == ""


def test_a_time_ratio_is_compared_on_the_same_machine_only() -> None:
    row = replace(sampled(batch_means(0), metric="time_ratio"), batches=())
    assert match([row], [row], (MACHINE, MACHINE))[0].obstacle == ""
    for change in ({"cpu": "y"}, {"cores": 4}, {"python": "3.12"}, {"packages": {"torch": "2.9"}}):
        (pair,) = match([row], [row], (MACHINE, {**MACHINE, **change}))
        assert pair.obstacle.startswith("another machine: "), change
    assert match([row], [row])[0].obstacle.startswith("another machine: ")


def test_bytes_need_the_same_torch_and_not_the_same_machine() -> None:
    row = exact(1e6, metric="peak_memory", tier="")
    assert match([row], [row], (MACHINE, {**MACHINE, "cpu": "y"}))[0].obstacle == ""
    assert match([row], [row], (MACHINE, {**MACHINE, "packages": {"torch": "2.9"}}))[0].obstacle.startswith("another machine: torch")


def test_absolute_times_parts_of_the_replicates_and_skipped_pairs_are_not_compared() -> None:
    rows = [
        exact(metric="forward_time"),
        exact(metric="seconds_per_estimate"),
        exact(setting="replicates=1024"),
        exact(None, status="skipped", reason="no"),
        exact(None, metric="", status="skipped"),
    ]
    assert match(rows, rows) == []


def test_a_failed_cell_is_the_reason_why_its_numbers_are_missing() -> None:
    failure = exact(None, metric="", instance="", status="timeout", reason="took too long")
    (pair,) = match([exact()], [failure])
    assert pair.head is None
    assert pair.failure is failure


def test_failures_beside_which_there_is_no_number_are_pairs_of_their_own() -> None:
    failure = exact(None, metric="", instance="", status="crash", reason="died")
    assert [(pair.base, pair.head) for pair in match([], [failure])] == [(None, failure)]
    assert [(pair.base, pair.head) for pair in match([failure], [failure])] == [(failure, failure)]
    mended = exact()
    assert (failure, mended) in [(pair.base, pair.head) for pair in match([failure], [mended])]
    assert BASE["metric"] == mended.metric

"""Tables over instances, and answers to questions."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import answers, tables
from structgrad.reports.analysis.answers import Answer
from structgrad.reports.page import sections
from structgrad.suites.base import Row
from tests.reports import examples
from tests.reports.recommendation_cases import REINFORCE, Made, rows


@pytest.fixture(scope="module")
def whole_frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.mark.parametrize("size", [3, 4, 10, 33])
def test_the_bootstrap_takes_the_median_of_each_resample(size: int) -> None:
    values = np.random.default_rng(7).standard_normal((1001, size))
    some = slice(None, None, 40)
    drawn = np.sort(values)[some][:, np.random.default_rng(size).integers(size, size=(1000, size))]
    assert tables.median_interval(values)[:, some] == pytest.approx(np.quantile(np.median(drawn, axis=-1), (0.025, 0.975), axis=-1))


def test_only_an_unbiased_claim_on_the_expected_loss_can_be_contradicted(whole_frame: pd.DataFrame) -> None:
    claims = tables.claims(whole_frame)
    assert set(claims.loc[claims["contradicted"], "estimator"]) == {"rloo[num_samples=2]"}
    relaxed = whole_frame.assign(objective=whole_frame["objective"].astype(object).replace("expected", "relaxed"))
    assert not tables.claims(relaxed)["contradicted"].any()


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
    whole_frame = results.to_frame([odd])
    assert tables.errors(whole_frame)["reason"].tolist() == ["the value is nan"]
    assert tables.counts(whole_frame) == {"ok": 1, "failed": 0, "skipped": 0}


def test_what_is_remembered_of_one_table_is_not_told_of_another(whole_frame: pd.DataFrame) -> None:
    first = tables.aggregate(whole_frame)
    assert tables.aggregate(whole_frame) is first
    part = whole_frame[whole_frame["stage"] == "init"]
    assert len(tables.aggregate(part)) < len(first)
    assert tables.aggregate(whole_frame).equals(first)


def test_an_empty_table_gives_empty_tables() -> None:
    empty = results.to_frame([])
    for make in (tables.aggregate, tables.verdicts, tables.claims, tables.sparsity, tables.skipped, tables.errors, tables.swept):
        assert make(empty).empty
    assert tables.bias_bounds(empty) == {}
    assert tables.counts(empty) == {"ok": 0, "failed": 0, "skipped": 0}


RLOO = "rloo[num_samples=2]"


def longer(rows: list[Row]) -> pd.DataFrame:
    """A table with every instance twice, and nothing that is found biased against its declaration."""
    twice = [replace(row, instance=f"{row.instance}, again") for row in rows if row.instance]
    mild = [replace(row, verdict="unresolved") if row.verdict == "biased" and row.unbiased else row for row in (*rows, *twice)]
    return results.to_frame(mild)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return longer(examples.rows())


def one(found: list[Answer], question: str, budget: int = 16) -> Answer:
    (answer,) = (item for item in found if (item.question.name, item.budget, item.stage) == (question, budget, "init"))
    return answer


def test_the_paired_ratio_is_the_cost(frame: pd.DataFrame) -> None:
    """One slow moment in which REINFORCE was timed alone changes nothing."""
    slow = (frame["metric"] == "seconds_per_estimate") & (frame["estimator"] == "reinforce")
    moody = frame.assign(value=frame["value"].where(~slow, 7 * frame["value"]))
    assert one(answers.answers(moody), "error").score == one(answers.answers(frame), "error").score


@pytest.mark.parametrize(("error", "timed", "tied"), [(0.01, True, False), (0.19, True, True), (0.25, False, True)])
def test_the_interval_of_a_ratio_goes_into_that_of_rho_and_into_the_ties(tmp_path: Path, error: float, timed: bool, tied: bool) -> None:
    """The faster of two estimators of one variance wins; if times are uncertain, work is counted, and they tie."""
    known = {name: Made(variance=100.0, unbiased=True, verdict="unbiased-exact") for name in ("reinforce", "reinforce_constant")}
    known["reinforce_constant"] = replace(known["reinforce"], cost=0.95, cost_error=error)
    known |= dict.fromkeys(("ste", "imle", "spigot"), Made(bias=9.0))
    answer = next(one for one in answers.answers(results.to_frame(rows(known))) if one.question.name == "gradients" and one.budget == 16)
    named = (answer.estimator, *answer.tied)
    assert (answer.timed, len(named) == 2) == (timed, tied)
    width = answer.score.half_width or 0.0
    # dρ / d log cost = ρ V / 2M / (1 + V / M), here with V / M = 6.
    assert width == pytest.approx(error * answer.score.value * 3 / 7 if timed else 0, rel=0.1)
    said = "The time of reinforce_constant is not known to ± 20%, so all get the same number of oracle calls and loss evaluations."
    assert (said in sections.answer_cell(answer).notes) == (not timed)


@pytest.mark.parametrize(
    ("bias", "twins", "instances", "outcome", "text"),
    [
        (0.1, 0, 4, "clear", "ste"),
        (0.1, 1, 4, "tied", "ste"),
        (0.1, 3, 4, "unclear", "none clearly best"),
        (0.1, 0, 3, "unclear", "none clearly best"),
        (None, 0, 4, "useless", "none useful"),
    ],
)
def test_no_winner_is_named_where_there_is_none(bias: float | None, twins: int, instances: int, outcome: str, text: str) -> None:
    names = ("ste", "imle", "spigot", "identity", "perturb_and_map", "st_gumbel")
    known = {name: Made(bias=bias or 0.1 if position <= twins else 2.0) for position, name in enumerate(names)}
    table = [row for row in rows({"reinforce": REINFORCE, **known}) if row.instance < f"item{instances}"]
    if bias is None:
        table = [replace(row, value=-row.value) if row.metric == "gain" else row for row in table]
    frame = results.to_frame(table)
    answer = next(one for one in answers.answers(frame) if one.question.name == "gradients" and one.budget == 16)
    assert (answer.outcome, sections.answer_cell(answer).text) == (outcome, text)
    assert (answer.score.low is None) == (instances < answers.FEWEST_INSTANCES)
    if outcome == "unclear":
        assert f"no estimator is clearly best here ({instances} instances): ste (ρ " in sections.answer_cell(answer).notes[0]


def test_an_equal_estimator_of_ones_own_does_not_win_by_the_noise_of_its_time(frame: pd.DataFrame) -> None:
    """Both are timed at the same ratio with ± 10 %, and the own one by chance 3 % faster."""
    more = frame[frame["instance"] == "item2"].assign(instance="item3")
    both = pd.concat([frame.astype({"instance": object}), more.astype({"instance": object})])
    mine = both[both["estimator"] == RLOO].assign(estimator="./mine.py:Mine")
    timed = mine["metric"] == "time_ratio"
    assert timed.any()
    mine.loc[timed, ["value", "low", "high"]] *= 0.97
    base, found = answers.against_rival(pd.concat([both.astype({"estimator": object}), mine], ignore_index=True))
    assert base == RLOO
    assert [(name, answers.sign_of(change)) for _, name, change in found] == [("./mine.py:Mine", 0)] * 2
    assert all(change.value > 0 > change.low for _, _, change in found)


def test_who_mostly_estimates_0_is_no_answer(frame: pd.DataFrame) -> None:
    winner = one(answers.answers(frame), "error")
    template = frame[(frame["estimator"] == winner.estimator) & (frame["metric"] == "relative_variance")]

    def with_zeros(share: float) -> Answer:
        zeros = template.assign(metric="zero_gradient_rate", value=share, low=share, high=share)
        return one(answers.answers(pd.concat([frame, zeros], ignore_index=True)), "error")

    assert with_zeros(0.95).estimator != winner.estimator
    assert with_zeros(0.95).mostly_zero == (winner.estimator,)
    alone = with_zeros(0.95)
    alone = replace(alone, tied=(), scores={alone.estimator: alone.score})
    assert sections.answer_cell(alone).notes[-1] == f"the only eligible one: averages of {winner.estimator} are mostly 0"
    assert winner.estimator not in with_zeros(0.95).tied
    assert with_zeros(0.25).estimator == winner.estimator
    assert "0 in 25% of estimates" in with_zeros(0.25).why
    assert "of estimates" not in with_zeros(0.0).why

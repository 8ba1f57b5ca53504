from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.answers import Answer
from structgrad.reports.page import sections
from structgrad.suites.base import Row
from tests.reports import examples
from tests.reports.recommendation_cases import REINFORCE, Made, rows

RLOO = "rloo[num_samples=2]"


def longer(rows: list[Row]) -> pd.DataFrame:
    """A table with every instance twice, and nothing that is found biased against its declaration."""
    twice = [replace(row, instance=f"{row.instance}, again") for row in rows if row.instance]
    mild = [replace(row, verdict="unresolved") if row.verdict == "biased" and row.unbiased else row for row in (*rows, *twice)]
    return results.to_frame(mild)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return longer(examples.rows())


@pytest.fixture(scope="module")
def found(frame: pd.DataFrame) -> list[Answer]:
    return answers.answers(frame)


def one(found: list[Answer], question: str, budget: int = 16) -> Answer:
    (answer,) = (item for item in found if (item.question.name, item.budget, item.stage) == (question, budget, "init"))
    return answer


def test_an_estimator_whose_declaration_the_run_contradicts_is_no_answer_to_any_question(found: list[Answer]) -> None:
    contradicted = answers.answers(results.to_frame(examples.rows()))
    assert RLOO in {answer.estimator for answer in found}
    assert RLOO not in {name for answer in contradicted for name in (answer.estimator, *answer.tied)}
    answer = one(contradicted, "unbiased")
    assert (answer.estimator, answer.tied, answer.rivals) == ("reinforce", (), 0)


def test_all_candidates_get_the_same_time(found: list[Answer]) -> None:
    """The error of n estimates of reinforce is that of n / 2 of one that takes twice as long."""
    expected = {
        "reinforce": [bias**2 + 8 / 16 for bias in (0.0, 0.01, 0.0)],
        RLOO: [bias**2 + 3 / 8 for bias in (0.02, 0.3, 0.1)],
    }
    best = min(expected, key=lambda name: sum(map(math.log, expected[name])))
    answer = one(found, "error")
    assert answer.estimator == best == RLOO
    assert answer.score.value == pytest.approx(math.prod(expected[best]) ** (1 / 3))


def test_the_paired_ratio_is_the_cost(frame: pd.DataFrame) -> None:
    """One slow moment in which REINFORCE was timed alone changes nothing."""
    slow = (frame["metric"] == "seconds_per_estimate") & (frame["estimator"] == "reinforce")
    moody = frame.assign(value=frame["value"].where(~slow, 7 * frame["value"]))
    assert one(answers.answers(moody), "error").score == one(answers.answers(frame), "error").score


def test_seconds_without_ratios_give_no_times_and_that_is_said(frame: pd.DataFrame) -> None:
    found = answers.answers(frame[frame["metric"] != "time_ratio"])
    assert not any(answer.timed for answer in found)
    assert one(found, "error").score.value == pytest.approx(math.prod(bias**2 + 3 / 16 for bias in (0.02, 0.3, 0.1)) ** (1 / 3))
    assert sections.price(found) == "with 16 estimates each (no times relative to REINFORCE were taken)"
    assert "Without times relative to REINFORCE, every candidate averages the same number" in sections.answer_table(found).note


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


def test_an_estimator_that_was_timed_once_does_not_compete_at_equal_time() -> None:
    """Its ratio has no interval; the others are still compared by time."""
    known = {"reinforce": REINFORCE, "ste": Made(bias=2.0), "imle": Made(bias=0.1)}
    table = [replace(row, low=None, high=None) if (row.estimator, row.metric) == ("imle", "time_ratio") else row for row in rows(known)]
    place = answers.places(results.to_frame(table))[0]
    reasons = dict(zip(place.names, place.refusals(answers.QUESTIONS[0], 16, None), strict=True))
    assert place.timed
    assert reasons == {"reinforce": "", "ste": "", "imle": "it was timed once, and the error of its time was not measured"}
    named = {name for one in answers.answers(results.to_frame(table)) for name in (one.estimator, *one.tied)}
    assert named == {"reinforce", "ste"}


def test_an_instance_on_which_nobody_has_a_number_is_none_to_compare_on(frame: pd.DataFrame) -> None:
    hidden = (frame["metric"] == "relative_variance") & (frame["instance"] == frame.loc[frame["instance"] != "", "instance"].iloc[0])
    assert hidden.any()
    found = answers.answers(frame[~hidden])
    assert found
    assert {answer.instances for answer in found} == {answer.instances - 1 for answer in answers.answers(frame)}
    nothing = frame[(frame["metric"] != "relative_variance") | (frame["instance"] == "")]
    assert answers.answers(nothing) == []


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

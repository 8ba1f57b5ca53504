from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from structgrad.reports import results
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.answers import Answer
from structgrad.reports.page import answering
from tests.reports import examples

RLOO, IMLE = "rloo[num_samples=2]", "imle[lambda=2.5]"


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return results.to_frame(examples.rows())


@pytest.fixture(scope="module")
def found(frame: pd.DataFrame) -> list[Answer]:
    return answers.answers(frame)


def one(found: list[Answer], question: str, budget: int = 16) -> Answer:
    (answer,) = (item for item in found if (item.question.name, item.budget, item.stage) == (question, budget, "init"))
    return answer


def test_every_question_is_asked_at_every_place_with_every_budget(found: list[Answer]) -> None:
    assert len(found) == 2 * len(answers.QUESTIONS) * len(answers.BUDGETS)


def test_the_exact_gradient_never_wins(found: list[Answer]) -> None:
    assert "exact" not in {name for answer in found for name in (answer.estimator, *answer.tied)}


def test_a_loss_that_gives_values_only_leaves_out_who_needs_its_gradient(found: list[Answer]) -> None:
    named = {name for answer in found if answer.question.values_only for name in (answer.estimator, *answer.tied)}
    assert named == {"reinforce", RLOO}


def test_an_estimator_that_is_found_biased_is_no_answer_where_no_bias_is_allowed(found: list[Answer]) -> None:
    answer = one(found, "unbiased")
    assert (answer.estimator, answer.tied, answer.rivals) == ("reinforce", (), 0)


def test_one_that_is_not_proven_biased_competes_and_its_verdict_is_told(frame: pd.DataFrame) -> None:
    mild = frame.assign(verdict=frame["verdict"].astype(object).where(frame["estimator"] != RLOO, "unresolved"))
    mild.loc[mild["metric"] != "relative_bias", "verdict"] = ""
    answer = one(answers.answers(mild), "unbiased")
    assert answer.estimator == RLOO
    assert "unresolved" in " ".join(answering.answer_cell(answer).notes)


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


def test_an_answer_says_why(found: list[Answer]) -> None:
    assert one(found, "error").why == "bias 0.100, variance 3, time\u00a0×\u00a02"


def test_more_time_favours_the_unbiased(found: list[Answer]) -> None:
    assert one(found, "gradients", 256).estimator == "reinforce"
    assert one(found, "gradients", 1).score.value < one(found, "gradients", 256).score.value


def test_without_times_every_candidate_averages_the_same_number(frame: pd.DataFrame) -> None:
    answer = one(answers.answers(frame[frame["metric"] != "seconds_per_estimate"]), "error")
    assert not answer.timed
    assert answer.score.value == pytest.approx(math.prod(bias**2 + 3 / 16 for bias in (0.02, 0.3, 0.1)) ** (1 / 3))
    assert "time" not in answer.why


def test_who_is_not_known_on_every_instance_does_not_compete(frame: pd.DataFrame) -> None:
    gap = (frame["estimator"] == RLOO) & (frame["instance"] == "item1") & (frame["metric"] == "gain")
    named = {name for answer in answers.answers(frame[~gap]) for name in (answer.estimator, *answer.tied)}
    assert RLOO not in named


def test_an_instance_on_which_nobody_has_a_number_is_none_to_compare_on(frame: pd.DataFrame) -> None:
    hidden = (frame["metric"] == "relative_variance") & (frame["instance"] == frame.loc[frame["instance"] != "", "instance"].iloc[0])
    assert hidden.any()
    found = answers.answers(frame[~hidden])
    assert found
    assert {answer.instances for answer in found} == {answer.instances - 1 for answer in answers.answers(frame)}
    nothing = frame[(frame["metric"] != "relative_variance") | (frame["instance"] == "")]
    assert answers.answers(nothing) == []


def test_rivals_that_cannot_be_told_apart_are_named(frame: pd.DataFrame) -> None:
    twin = frame[frame["estimator"] == "reinforce"]
    both = answers.answers(pd.concat([frame, twin.assign(estimator="reinforce_constant")], ignore_index=True))
    answer = one(both, "unbiased")
    assert {answer.estimator, *answer.tied} == {"reinforce", "reinforce_constant"}


def test_winners_count_cases(found: list[Answer]) -> None:
    assert answers.winners(found, "unbiased", 16) == [("reinforce", 2, 2, 2)]
    (sentence,) = (text for asks, text in answering.minute(found) if asks == "Must be unbiased")
    assert sentence == "reinforce: best in 2 of 2 cases, and in none significantly worse than the best."


def test_two_runs_of_nothing_have_no_answers() -> None:
    assert answers.answers(results.to_frame([])) == []
    assert answering.minute([]) == []


def test_a_single_instance_has_the_interval_of_its_own_measurement() -> None:
    rows = [
        replace(row, low=(row.value or 0) - 0.1, high=(row.value or 0) + 0.1) for row in examples.rows() if row.instance in ("", "item0")
    ]
    answer = one(answers.answers(results.to_frame(rows)), "error")
    assert answer.instances == 1
    assert answer.score.low is not None
    assert answer.score.low < answer.score.value < answer.score.high


def test_who_mostly_estimates_0_is_no_answer(frame: pd.DataFrame) -> None:
    winner = one(answers.answers(frame), "error")
    template = frame[(frame["estimator"] == winner.estimator) & (frame["metric"] == "relative_variance")]

    def with_zeros(share: float) -> Answer:
        zeros = template.assign(metric="zero_gradient_rate", value=share, low=share, high=share)
        return one(answers.answers(pd.concat([frame, zeros], ignore_index=True)), "error")

    assert with_zeros(0.6).estimator != winner.estimator
    assert winner.estimator not in with_zeros(0.6).tied
    assert with_zeros(0.25).estimator == winner.estimator
    assert "0 in 25% of estimates" in with_zeros(0.25).why
    assert "of estimates" not in with_zeros(0.0).why

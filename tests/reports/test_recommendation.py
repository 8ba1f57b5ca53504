"""Recommendations, on tables with a known best estimator and on the published one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from structgrad.reports import published, recommend
from structgrad.reports.analysis import answers
from structgrad.reports.analysis.recommendation import Recommendation, Recommended, newest_run
from structgrad.reports.verbs import recommend as wording
from structgrad.suites.problems import STAGES
from structgrad.suites.problems.regimes import REGIMES
from tests.reports.recommendation_cases import REINFORCE, Made, rows, written

PAGE = Path(__file__).parents[2] / "docs/results/learning.md"

KNOWN = {
    "reinforce": REINFORCE,
    "rloo": Made(variance=40.0, unbiased=True, verdict="equivalent", cost=2.0, evaluations=2.0),
    "ste": Made(bias=0.5, variance=1.0, evaluations=3.0),
    "sparsemap": Made(bias=0.2, variance=0.0, zero=0.9, evaluations=3.0),
}


def only(found: Recommendation) -> Recommended:
    (answer,) = found.answers
    return answer


def named(found: Recommendation) -> set[str]:
    return {one.estimator for answer in found.answers for one in (answer.best, *answer.tied)}


@pytest.mark.parametrize("batch", [1, 32, 1000])
def test_the_best_is_the_one_with_the_largest_rho_for_the_same_time(tmp_path: Path, batch: int) -> None:
    expected = {name: made.rho(batch / made.cost) for name, made in KNOWN.items() if made.zero <= answers.MOSTLY}
    best = max(expected, key=lambda name: expected[name])
    answer = only(recommend("subset", batch=batch, stage="h=0.9", run=written(tmp_path, rows(KNOWN))))
    assert (answer.best.estimator, answer.tied, answer.rivals) == (best, (), 2)
    assert answer.best.rho.value == pytest.approx(expected[best], rel=1e-12)
    assert answer.best.averaged == batch / KNOWN[best].cost


def test_the_price_of_a_loss_is_paid_per_evaluation(tmp_path: Path) -> None:
    """The ratio of (seconds + evaluations × X) to that of reinforce."""
    own = Made(variance=1.0, unbiased=True, verdict="equivalent", cost=1.5, evaluations=4.0, cost_error=0.1)
    known = {"reinforce": REINFORCE, "rloo": own}
    best = only(recommend("subset", stage="h=0.9", loss_cost=3.0, run=written(tmp_path, rows(known)))).best
    assert best.cost == pytest.approx((1.5 + 4 * 3) / (1 + 3))
    assert best.averaged == pytest.approx(32 / best.cost)
    assert best.rho.value == pytest.approx(own.rho(best.averaged))
    # dρ / d log cost = ρ V / 2M / (1 + V / M); only the time of 1.5 is uncertain.
    slope = best.rho.value / 2 / (best.averaged + 1)
    assert best.rho.half_width == pytest.approx(0.1 * 1.5 / (1.5 + 4 * 3) * slope, rel=0.1)


def test_of_whom_evaluations_are_not_known_none_competes_for_a_loss_with_a_price(tmp_path: Path) -> None:
    table = [row for row in rows(KNOWN) if not (row.estimator == "ste" and row.metric == "loss_evaluations")]
    run = written(tmp_path, table)
    assert only(recommend("subset", batch=1, stage="h=0.9", run=run)).best.estimator == "ste"
    answer = only(recommend("subset", batch=1, stage="h=0.9", loss_cost=0.5, run=run))
    assert answer.best.estimator != "ste"
    assert answer.left_out["ste"] == "its number of oracle calls or loss evaluations was not measured"


def test_one_that_mostly_estimates_0_is_never_named_and_the_reason_is_told(tmp_path: Path) -> None:
    found = recommend("subset", stage="h=0.9", run=written(tmp_path / "most", rows(KNOWN)))
    assert KNOWN["sparsemap"].rho(32) > max(made.rho(32 / made.cost) for name, made in KNOWN.items() if name != "sparsemap")
    assert "sparsemap" not in named(found)
    assert "sparsemap (90% of its averages over the budget are 0)" in " ".join(wording.lines(found))
    half = KNOWN | {"sparsemap": replace(KNOWN["sparsemap"], zero=answers.MOSTLY)}
    assert only(recommend("subset", stage="h=0.9", run=written(tmp_path / "half", rows(half)))).best.estimator == "sparsemap"


def test_without_gradients_of_the_loss_nobody_is_named_who_needs_them(tmp_path: Path) -> None:
    """Not even where the table has, by mistake, such an estimator on a loss that gives values only."""
    found = recommend("subset", loss_gradients=False, batch=1, stage="h=0.9", run=written(tmp_path, rows(KNOWN, losses=("black_box",))))
    assert KNOWN["ste"].rho(1) > KNOWN["rloo"].rho(1 / 2) > KNOWN["reinforce"].rho(1)
    assert named(found) == {"rloo"}
    assert only(found).left_out["ste"].startswith("it needs gradients or relaxed inputs")


def test_the_measured_loss_gives_what_the_users_loss_gives(tmp_path: Path) -> None:
    run = written(tmp_path, rows(KNOWN, losses=("squared_distance_linear", "squared_distance", "black_box")))
    with_, without = (recommend("subset", loss_gradients=gives, stage="h=0.9", run=run) for gives in (True, False))
    # What is linear between the structures flatters relaxations, and comes last.
    assert [answer.loss for answer in with_.answers] == ["squared_distance", "squared_distance_linear"]
    assert [(answer.loss, answer.values_only) for answer in without.answers] == [("black_box", True)]
    assert with_.notes == without.notes == ()


def test_unbiased_ones_alone(tmp_path: Path) -> None:
    """Candidates declare themselves unbiased, and are not found biased."""
    liar = KNOWN | {"simple": Made(bias=0.1, unbiased=True, verdict="biased")}
    found = recommend("subset", unbiased=True, batch=1, stage="h=0.9", run=written(tmp_path, rows(liar)))
    assert KNOWN["ste"].rho(1) > KNOWN["rloo"].rho(1 / 2)
    assert named(found) == {"rloo"}
    assert only(found).left_out == {
        "ste": "it does not declare itself unbiased for the expected loss",
        "sparsemap": "it does not declare itself unbiased for the expected loss",
        "simple": "it declares itself unbiased and is found biased",
    }


@pytest.mark.parametrize(("twins", "said"), [(3, "No estimator is clearly best here (4 instances): ste"), (0, "Take ste, ρ 0.958")])
def test_the_headline_names_no_winner_where_there_is_none(tmp_path: Path, twins: int, said: str) -> None:
    names = ("ste", "imle", "spigot", "identity", "st_gumbel")
    known = {name: Made(bias=0.3 if position <= twins else 3.0) for position, name in enumerate(names)}
    found = recommend("subset", stage="h=0.9", run=written(tmp_path, rows(known)))
    assert said in " ".join(wording.lines(found))
    assert [one.estimator for one in only(found).order] == list(names)
    listed = wording.lines(found, whole=True)
    assert [line.split()[0] for line in listed if re.match(r"  \w+ +ρ [\d.]+ +time × 1", line)] == list(names)


def test_the_newest_finished_run_on_a_file_with_the_structure_is_found(tmp_path: Path) -> None:
    plans = {
        "old": ("subset[k=3]", "2001-01-01", "finished"),
        "new": ("subset[k=3]", "2001-01-02", "finished"),
        "open": ("subset[k=3]", "2001-01-03", "running"),
        "other": ("subset[k=2]", "2001-01-01", "finished"),
        "chain": ("linear_chain", "2001-01-04", "finished"),
        "built-in": (None, "2001-01-05", "finished"),
    }
    for name, (oracle, day, status) in plans.items():
        plan = {"suites": ["bias"], "file": oracle and {"oracle": oracle}}
        written(tmp_path / name, rows(KNOWN), plan=plan, finished=day, status=status)
    asked = {"subset": "new", "subset[k=3]": "new", "subset[k=2]": "other", "subset[n=20,k=5]": None, "linear_chain": "chain", "ctc": None}
    assert {oracle: newest_run(oracle, tmp_path) for oracle in asked} == {
        oracle: tmp_path / name if name else None for oracle, name in asked.items()
    }


STATES = {"h=0.95": 0.95, "h=0.5": 0.5, "h=0.1": 0.1}


@pytest.mark.parametrize(
    ("asked", "nearest", "noted"),
    [
        ("h=0.5", "h=0.5", False),
        ("h=0.31", "h=0.5", True),
        ("h=0.29", "h=0.1", True),
        ("early", "h=0.95", True),
        ("final", "h=0.5", True),
    ],
)
def test_the_nearest_state_is_taken_and_said(tmp_path: Path, asked: str, nearest: str, noted: bool) -> None:
    found = recommend("subset", stage=asked, run=written(tmp_path, rows(KNOWN, stages=STATES)))
    assert only(found).stage == nearest
    assert bool(found.notes) == noted
    assert all(f"the nearest is {nearest}; `structgrad run" in note for note in found.notes)
    if asked in STAGES:
        wanted = REGIMES["subset_regimes"].entropies[STAGES.index(asked)]
        assert nearest == min(STATES, key=lambda stage: abs(STATES[stage] - wanted))
        assert f"{asked}, which is h={wanted:.2g} of subset, was not measured" in found.notes[0]


def test_a_stored_stage_of_that_name_comes_first(tmp_path: Path) -> None:
    found = recommend("subset", stage="early", run=written(tmp_path, rows(KNOWN, stages=STATES | {"early": 0.2})))
    assert (only(found).stage, only(found).entropy, found.notes) == ("early", 0.2, ())
    nearest = recommend("subset", stage="h=0.2", run=written(tmp_path, rows(KNOWN, stages={"init": 0.9, "early": 0.22})))
    assert only(nearest).stage == "early"


def test_of_several_sizes_the_nearest_number_of_structures_is_taken(tmp_path: Path) -> None:
    table = rows(KNOWN, problem="subset[n=6,k=3]", count=20.0) + rows(KNOWN, problem="subset[n=20,k=3]", count=1140.0)
    run = written(tmp_path, table, catalogue={"sizes": {"subset[n=6,k=3]@squared_distance": "n = 6"}})
    near, exact = (recommend(f"subset[n={n},k=3]", stage="h=0.9", run=run) for n in (12, 6))
    assert only(near).problem == "subset[n=20,k=3]@squared_distance"
    assert "subset[n=12,k=3] has 220 structures; the nearest that was measured is subset[n=20,k=3]" in near.notes[0]
    assert (only(exact).problem, exact.notes) == ("subset[n=6,k=3]@squared_distance", ())
    assert only(exact).sizes == "n = 6"


def test_without_times_all_average_the_same_number(tmp_path: Path) -> None:
    run = written(tmp_path, [row for row in rows(KNOWN) if row.suite != "wall_clock"])
    answer = only(recommend("subset", batch=1000, stage="h=0.9", run=run))
    assert not answer.timed
    assert (answer.best.estimator, answer.best.averaged) == ("rloo", 1000.0)
    text = " ".join(" ".join(wording.lines(recommend("subset", stage="h=0.9", run=run))).split())
    assert "No times relative to REINFORCE were taken: all get the same number of estimates." in text
    with pytest.raises(ValueError, match="has no times relative to REINFORCE; measure the suite wall_clock too"):
        recommend("subset", stage="h=0.9", loss_cost=1.0, run=run)


def test_where_nobody_may_compete_the_reasons_are_told(tmp_path: Path) -> None:
    nobody = {"reinforce": replace(REINFORCE, zero=1.0), "ste": Made()}
    with pytest.raises(
        ValueError, match=r"holds no eligible estimator for subset: .*reinforce: 100% of its averages over the budget are 0; ste: it"
    ):
        recommend("subset", stage="h=0.9", unbiased=True, run=written(tmp_path, rows(nobody)))


FIGURE = r"([+−]\.\d\d) \\?\[([+−]\.\d\d), ([+−]\.\d\d)\\?\]"


def read(figure: re.Match[str] | tuple[str, ...]) -> list[float]:
    return [float(text.replace("−", "-").replace("+", "")) for text in (figure if isinstance(figure, tuple) else figure.groups())]


def predicted(predictor: str, stage: str) -> list[str]:
    """The cells on final accuracy of a predictor in the table of all of them: of all estimators, and of the two halves."""
    table = PAGE.read_text().split("\n### Every predictor\n", 1)[1].split("\n#", 1)[0]
    rows_ = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith(f"| {predictor} | {stage} |")]
    (cells,) = rows_
    return [cells[2], cells[5]]


def test_what_a_recommendation_rests_on_is_on_the_page_of_learning() -> None:
    known, text = published.predictors(), PAGE.read_text()
    assert f"On {known['tasks']} tasks (" in text
    assert (PAGE.parents[2] / known["page"]).is_file()
    for one in (known["used"], *known["others"]):
        assert read(re.match(FIGURE, predicted(one["predictor"], one["stage"])[0])) == one["correlation"], one
    halves = re.findall(FIGURE, predicted(known["used"]["predictor"], known["used"]["stage"])[1])
    assert [read(half) for half in halves] == [known["halves"]["chosen"], known["halves"]["held_out"]]
    assert known["confirmed"] == (known["halves"]["held_out"][1] > 0)
    assert ", by which reports rank estimators, goes with final accuracy: Spearman +.43 [+.29, +.56]" in text


def test_the_how_to_shows_what_is_printed() -> None:
    blocks = (PAGE.parents[1] / "how-to/choose.md").read_text().split("```")
    shown = blocks[3].strip().splitlines()
    found = wording.lines(recommend("spanning_tree", loss_gradients=False, stage="early"))
    assert shown == found[: len(shown)]


def test_a_variance_that_is_not_resolved_neither_wins_nor_ties(tmp_path: Path) -> None:
    """An estimator with a variance from rare events on one instance does not compete."""
    best = recommend("subset", stage="h=0.9", run=written(tmp_path / "whole", rows(KNOWN))).answers[0].best.estimator
    rare = {"value": None, "low": None, "high": None, "reason": "rare events: fewer than 30 replicates carry the variance"}
    table = [
        replace(row, **rare) if row.estimator == best and row.instance == "item0" and row.suite == "bias" else row for row in rows(KNOWN)
    ]
    found = recommend("subset", stage="h=0.9", run=written(tmp_path / "rare", table))
    answer = found.answers[0]
    assert best not in (answer.best.estimator, *(one.estimator for one in answer.tied))
    assert answer.left_out[best] == "its variance is not resolved"
    assert f"{best} (its variance is not resolved)" in " ".join(" ".join(wording.lines(found)).split())

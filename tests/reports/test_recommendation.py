"""Recommendations, on tables with a known best estimator and on the published one, and the verb recommend."""

import json
import re
import shlex
from pathlib import Path

import pytest

from structgrad.reports import published, recommend
from structgrad.reports.analysis.recommendation import Recommendation, Recommended, newest_run
from structgrad.reports.verbs import recommend as wording
from structgrad.suites.problems import STAGES
from structgrad.suites.problems.regimes import REGIMES
from structgrad.suites.statistics.interval import Interval
from structgrad.suites.text import coefficient
from tests.reports.calling import call, refused
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


def test_without_gradients_of_the_loss_nobody_is_named_who_needs_them(tmp_path: Path) -> None:
    """Not even where the table has, by mistake, such an estimator on a loss that gives values only."""
    found = recommend("subset", loss_gradients=False, batch=1, stage="h=0.9", run=written(tmp_path, rows(KNOWN, losses=("black_box",))))
    assert KNOWN["ste"].rho(1) > KNOWN["rloo"].rho(1 / 2) > KNOWN["reinforce"].rho(1)
    assert named(found) == {"rloo"}
    assert only(found).left_out["ste"].startswith("it needs gradients or relaxed inputs")


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


def test_of_several_sizes_the_nearest_number_of_structures_is_taken(tmp_path: Path) -> None:
    table = rows(KNOWN, problem="subset[n=6,k=3]", count=20.0) + rows(KNOWN, problem="subset[n=20,k=3]", count=1140.0)
    run = written(tmp_path, table, catalogue={"sizes": {"subset[n=6,k=3]@squared_distance": "n = 6"}})
    near, exact = (recommend(f"subset[n={n},k=3]", stage="h=0.9", run=run) for n in (12, 6))
    assert only(near).problem == "subset[n=20,k=3]@squared_distance"
    assert "subset[n=12,k=3] has 220 structures; the nearest that was measured is subset[n=20,k=3]" in near.notes[0]
    assert (only(exact).problem, exact.notes) == ("subset[n=6,k=3]@squared_distance", ())
    assert only(exact).sizes == "n = 6"


def test_what_a_recommendation_rests_on_is_on_the_page_of_learning() -> None:
    known, text = published.predictors(), PAGE.read_text().replace("\\", "")
    assert f"trained on {known['tasks']} tasks" in text
    assert (PAGE.parents[2] / known["page"]).is_file()
    assert known["used"] in known["confirmed"]
    for one in known["confirmed"]:
        assert f"{one['predictor']} at {one['stage']} ({coefficient(Interval(*one['correlation']))})" in text
    for way, share in known["choices"].items():
        assert f"| {way} | {share} |" in text
    for task, one in known["trained"].items():
        (path,) = re.findall(rf"- \[{re.escape(task)}\]\((.*)\):", text)
        page = (PAGE.parent / path).read_text().replace("\\", "")
        assert all(f"| {name} |" in page for name, _ in one["best"])


def test_estimators_that_trained_best_are_those_that_the_wish_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five of all, for any wish; and no task without gradients of the loss for a loss that has them."""
    order = ["ste", "sparsemap", "spigot", "imle", "structured_attention", "exact_sampling", "rloo", "reinforce", "reinforce_ppo", "simple"]
    trained = {kind: {"structure": "subset", "kind": kind, "best": [[name, 0.5] for name in order]} for kind in ("elbo", "black_box")}
    facts = published.predictors()
    monkeypatch.setattr(published, "predictors", lambda: json.loads(json.dumps(facts | {"trained": trained})))

    def best(**options: bool) -> list[list[str]]:
        known = recommend("subset", stage="h=0.95", **options).predictors["trained"]
        return [[name for name, _ in one["best"]] for one in known.values()]

    assert best() == [order[:5], []]
    assert best(unbiased=True) == [["rloo", "reinforce"], []]
    assert set(best(loss_gradients=False)[0]) >= {"rloo", "reinforce"}
    assert not set(best(loss_gradients=False)[1]) & {"ste", "sparsemap", "structured_attention"}


def test_the_how_to_shows_what_is_printed() -> None:
    blocks = (PAGE.parents[1] / "how-to/choose.md").read_text().split("```")
    shown = blocks[3].strip().splitlines()
    found = wording.lines(recommend("spanning_tree", loss_gradients=False, stage="early"))
    assert shown == found[: len(shown)]


FEW_KNOWN = {"reinforce": REINFORCE, "rloo": Made(variance=40.0, unbiased=True, verdict="equivalent"), "ste": Made(bias=0.1, variance=1.0)}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return written(tmp_path / "run", rows(FEW_KNOWN, losses=("squared_distance", "black_box")))


def test_an_unknown_loss_is_refused(run: Path) -> None:
    assert "got the unknown loss 'hammin'; did you mean hamming" in refused(
        "recommend", "--oracle", "subset", "--loss", "hammin", "--run", run
    )


def test_the_command_that_is_offered_is_understood(run: Path) -> None:
    """A dry run accepts the suggested commands: for another stage, and for another structure."""
    told = call(
        "recommend", "--oracle", "subset", "--stage", "h=0.33", "--run", written(run.parent / "named", rows(FEW_KNOWN, "subset_regimes"))
    )
    offered = [
        *re.findall("`(.*?)`", " ".join(told.stdout.split())),
        *re.findall("`(.*?)`", refused("recommend", "--oracle", "ctc", "--run", run)),
    ]
    assert [shlex.split(line)[:2] for line in offered] == [["structgrad", "run"]] * 2
    for line in offered:
        result = call(*shlex.split(line)[1:], "--dry-run")
        assert result.exit_code == 0, result.output

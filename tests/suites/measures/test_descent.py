"""A common trajectory, training on one's own, and the suite of both and of equal steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import ClassVar

import pytest
import torch

from structgrad.estimators import ExactMarginalisation, LeaveOneOut, Reinforce, StraightThrough
from structgrad.oracles import Subset
from structgrad.suites.base import Instance, NonFiniteError, Problem
from structgrad.suites.measures import SUITES
from structgrad.suites.measures.draws import Draws
from structgrad.suites.measures.steps.descent import Descent, exact_errors, sampled_errors
from structgrad.suites.measures.steps.regret import steps_of, trained
from structgrad.suites.measures.steps.structure_table import StructureTable
from structgrad.suites.measures.steps.trajectory import ENTROPIES, flat_start, trajectory
from structgrad.suites.metrics import METRICS
from structgrad.suites.problems.losses import Linear
from tests.suites.planted import CONTEXT, Failing, Planted, Uphill, problem

QUICK = dataclasses.replace(CONTEXT, effort=dataclasses.replace(CONTEXT.effort, rounds=10))


def place(loss=None):
    (instance,) = problem().instances
    return StructureTable.of(Subset(2), loss or instance.loss, instance.scores)


def start(table):
    return flat_start(table, torch.Generator().manual_seed(0))


def test_stops_have_the_entropy_that_they_are_named_after():
    table = place()
    stops = trajectory(table, start(table))
    assert [stop.entropy for stop in stops] == list(ENTROPIES)
    for stop in stops:
        assert table.entropy(stop.scores) / table.log_count == pytest.approx(stop.entropy, abs=1e-10)
        torch.testing.assert_close(stop.gradient, table.gradient(stop.scores))
    values = table.expected(torch.stack([start(table), *(stop.scores for stop in stops)]))
    assert bool((values.diff() < 0).all())


def test_the_trajectory_does_not_depend_on_the_scale_of_the_loss():
    (instance,) = problem().instances
    one, other = (trajectory(table, start(table)) for table in (place(), place(lambda z: 1e4 * instance.loss(z) + 7)))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.scores, b.scores, rtol=1e-5, atol=1e-6)


def test_where_losses_tie_entropy_remains():
    table = place(lambda z: z[..., 0])
    assert [stop.entropy for stop in trajectory(table, start(table))] == [0.95]
    assert trajectory(place(lambda z: z.sum(-1) * 0), start(table)) == []


def draws(table):
    (instance,) = problem().instances
    return Draws(Subset(2), instance.loss, start(table), CONTEXT, ("regret",))


def test_steps_are_as_many_as_the_loss_evaluations_allow() -> None:
    budgets = {Reinforce(): 120, LeaveOneOut(4): 30, StraightThrough(): 40, ExactMarginalisation(): 8, Planted(): 120}
    for estimator, steps in budgets.items():
        assert steps_of(estimator, draws(place()), 120) == steps
    assert steps_of(LeaveOneOut(400), draws(place()), 120) == 1


def test_no_number_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a slow machine nor a busy one changes a row, so that a run that was killed goes on to the same numbers."""
    estimators = {"reinforce": Reinforce(), "rloo": LeaveOneOut(4), "ste": StraightThrough()}
    plain, ticks = table_of(estimators), itertools.count()
    for clock in ("perf_counter", "monotonic", "thread_time", "process_time", "time"):
        monkeypatch.setattr(time, clock, lambda: 3.0 ** (next(ticks) % 50))
    assert table_of(estimators) == plain


def test_training_by_the_exact_gradient_leaves_no_regret():
    table = place()
    exact = trained(ExactMarginalisation(), draws(table), table, 100, 4)
    assert 0 <= exact.regret.value < 0.005
    assert (exact.regret.low, exact.steps) == (None, 100)
    noisy = trained(Reinforce(), draws(table), table, 100, 8)
    assert exact.regret.value < noisy.regret.value < 0.9
    assert noisy.regret.low < noisy.regret.value < noisy.regret.high


def test_training_uphill_regrets():
    table = place()
    assert trained(Uphill(), draws(table), table, 50, 4).regret.value > 1


def test_more_time_regrets_less():
    table = place()
    few, many = (trained(ExactMarginalisation(), draws(table), table, steps, 1).regret.value for steps in (1, 60))
    assert many < few / 2


@dataclasses.dataclass(frozen=True)
class Diverging(Planted):
    """A first step of length 1, whatever its size, and infinite ones from scores that have moved by more than ``only``."""

    only: float = 0.0
    deterministic: ClassVar[bool] = True

    def estimate(self, loss, oracle, scores, generator):
        far = scores.norm(dim=-1, keepdim=True) > self.only
        return torch.where(far, math.inf, 0.01 * torch.ones_like(scores))


def test_steps_that_overflow_are_not_chosen():
    table = place()
    with pytest.raises(NonFiniteError):
        trained(Diverging(), draws(table), table, 3, 1)
    assert trained(Diverging(only=2.0), draws(table), table, 3, 1).regret.value == pytest.approx(1, abs=0.05)


def test_errors_of_one_and_of_many_estimates_agree():
    gradient, estimate = torch.tensor([1.0, 2.0]).double(), torch.tensor([2.0, 2.0]).double()
    noise = 1e-6 * torch.randn(64, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, many = exact_errors(estimate, gradient), sampled_errors(estimate + noise, gradient)
    for metric, found in one.items():
        assert found.value == pytest.approx(many[metric].value, abs=1e-6)
    assert exact_errors(estimate, 0 * gradient)["relative_bias"].value is None


def table_of(estimators, context=QUICK, instances=1):
    return list(Descent().findings(problem(instances=instances), estimators, context))


def test_the_suite_answers_for_every_estimator():
    estimators = {
        "exact": ExactMarginalisation(),
        "reinforce": Reinforce(),
        "again": Reinforce(),
        "uphill": Uphill(),
        "ste": StraightThrough(),
    }
    found = table_of(estimators, instances=2)
    assert {f.status for f in found} == {"ok"}
    assert {f.metric for f in found} <= set(METRICS)
    values = {(f.estimator, f.metric, f.setting, f.instance): f for f in found}
    assert len(values) == len(found) == 5 * 2 * (3 + 6 + 4 * 5 + 2)
    for (name, metric, setting, instance), f in values.items():
        if metric == "kl_decrease":
            assert f.reference == "expected"
            if name == "exact":
                assert f.value == pytest.approx(1, abs=1e-6)
            if name == "uphill":
                assert f.value < 0
            if name == "reinforce":
                assert f.low < f.value < f.high < 1.2
                # The same random numbers for all.
                assert f.value == values["again", metric, setting, instance].value
        if metric in ("relative_bias", "bias_of_start") and name == "exact":
            assert f.value < 1e-9
        if metric == "relative_bias" and name == "uphill":
            assert f.value == pytest.approx(2)
        if metric in ("relative_bias", "bias_of_start") and f.value is None:
            assert "rare events" in f.reason
            assert (name, setting) != ("reinforce", "h=0.9")
        elif metric == "bias_of_start" and setting == "h=0.1":
            assert f.value <= 0.5 * values[name, "relative_bias", setting, instance].value
    assert values["uphill", "regret", "", "item-0"].value > 1 > values["exact", "regret", "", "item-0"].value


def test_numbers_do_not_depend_on_the_batch_size_or_on_company():
    def own(found):
        return [f for f in found if f.estimator == "reinforce"]

    small = own(table_of({"reinforce": Reinforce()}, dataclasses.replace(QUICK, batch_size=1)))
    large = own(table_of({"ste": StraightThrough(), "reinforce": Reinforce()}))
    assert small == large


def test_one_that_raises_does_not_lose_the_others():
    found = table_of({"broken": Failing(), "ste": StraightThrough()})
    assert [(f.status, f.reason) for f in found if f.estimator == "broken"] == [("error", "RuntimeError: planted")]
    assert {f.metric for f in found if f.estimator == "ste"} >= {"kl_decrease", "rho", "regret", "steps"}


def test_a_large_space_is_skipped():
    scores = torch.zeros(20, dtype=torch.float64)
    large = Problem("large", "init", Subset(10), (Instance("item", scores, Linear(torch.ones_like(scores))),), "test")
    (found,) = Descent().findings(large, {"ste": StraightThrough()}, QUICK)
    assert found.status == "skipped"
    assert "expected at most" in found.reason


def test_the_suite_is_registered():
    assert SUITES["descent"] is Descent
    assert {suite.name for suite in SUITES.values()} == set(SUITES)

"""Training by each estimator, and the suite of that and of equal steps."""

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
from structgrad.suites.measures.descent import Descent, flat_start, steps_of, trained
from structgrad.suites.measures.draws import Draws
from structgrad.suites.measures.equal_steps import StructureTable
from structgrad.suites.metrics import METRICS
from structgrad.suites.problems.losses import Linear
from tests.suites.planted import CONTEXT, Failing, Planted, Uphill, problem

QUICK = dataclasses.replace(CONTEXT, effort=dataclasses.replace(CONTEXT.effort, rounds=10))


def place(loss=None):
    (instance,) = problem().instances
    return StructureTable.of(Subset(2), loss or instance.loss, instance.scores)


def start(table):
    return flat_start(table, torch.Generator().manual_seed(0))


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
    assert 0 <= exact.value < 0.005
    assert exact.low is None
    noisy = trained(Reinforce(), draws(table), table, 100, 8)
    assert exact.value < noisy.value < 0.9
    assert noisy.low < noisy.value < noisy.high


@dataclasses.dataclass(frozen=True)
class Diverging(Planted):
    """A first step of length 1 at any step size, and infinite ones from scores that have moved by more than ``only``."""

    only: float = 0.0
    deterministic: ClassVar[bool] = True

    def estimate(self, loss, oracle, scores, generator):
        far = scores.norm(dim=-1, keepdim=True) > self.only
        return torch.where(far, math.inf, 0.01 * torch.ones_like(scores))


def test_steps_that_overflow_are_not_chosen():
    table = place()
    with pytest.raises(NonFiniteError):
        trained(Diverging(), draws(table), table, 3, 1)
    assert trained(Diverging(only=2.0), draws(table), table, 3, 1).value == pytest.approx(1, abs=0.05)


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
    assert len(values) == len(found) == 5 * 2 * (3 + 6 + 2)
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
    assert {f.metric for f in found if f.estimator == "ste"} >= {"kl_decrease", "regret", "steps"}


def test_a_large_space_is_skipped():
    scores = torch.zeros(20, dtype=torch.float64)
    large = Problem("large", "init", Subset(10), (Instance("item", scores, Linear(torch.ones_like(scores))),), "test")
    (found,) = Descent().findings(large, {"ste": StraightThrough()}, QUICK)
    assert found.status == "skipped"
    assert "expected at most" in found.reason

"""Support and non-zeros of the forward pass; training by each estimator, and the suite of that."""

import dataclasses
import itertools
import math
import time
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from structgrad.estimators import ExactMarginalisation, LeaveOneOut, Reinforce, StraightThrough, make_estimator
from structgrad.oracles import Alignment, Categorical, ShiftReduce, Subset
from structgrad.suites.base import NonFiniteError
from structgrad.suites.measures.descent import Descent, StructureTable, steps_of, trained
from structgrad.suites.measures.draws import Draws
from structgrad.suites.measures.sparsity import Sparsity, forward
from structgrad.suites.measures.suite import Finding
from structgrad.suites.truth import exact_truth
from tests.suites.planted import CONTEXT, Failing, Planted, Sparse, Uphill, problem

SCORES = torch.tensor([1.0, 0.8, -1.0, 0.1], dtype=torch.float64)


def loss(z):
    return z.square().flatten(1).sum(-1)


@pytest.mark.parametrize(
    ("name", "support", "nonzeros"),
    [
        ("reinforce", 4, 1),
        ("ste", 1, 1),
        ("spigot", 1, 1),
        ("simple", 4, 1),
        ("imle", 4, 1),
        ("structured_attention", 4, 4),
        ("sparsemap", 2, 2),
        ("sparsemap_marginalisation", 2, 1),
        ("exact", 4, 1),
        ("sparsemax_marginalisation", 2, 1),
        ("top_k_sparsemax", 2, 1),
        ("spigot_ce", 1, 1),
        ("entmax", 3, 3),
    ],
)
def test_categorical(name, support, nonzeros):
    truth = exact_truth(loss, Categorical(), SCORES)
    found = forward(make_estimator(name), draws(Categorical(), SCORES), truth, replicates=1)
    assert (found[0], found[1].value) == (support, nonzeros)


def draws(oracle, scores):
    return Draws(oracle, loss, scores, CONTEXT, ("test",))


def test_paths_of_several_lengths_have_the_expected_number_of_parts():
    """Paths through a grid have 3 to 5 parts: exact for samples, the mean of draws for noise."""
    scores = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = exact_truth(lambda z: z.sum((-1, -2)), Alignment(), scores)
    _, exact = forward(make_estimator("reinforce"), draws(Alignment(), scores), truth, replicates=1)
    _, drawn = forward(make_estimator("ste_sample"), draws(Alignment(), scores), truth, replicates=1024)
    assert (exact.value, exact.method) == (pytest.approx(float(truth.value), abs=1e-8), "")
    assert drawn.method == "t"
    assert drawn.low < exact.value < drawn.high


def test_planted_zeros_are_found():
    table = {f.metric: f for f in Sparsity().findings(problem(), {"planted": Sparse(kept=2, vanishing=0.25)}, CONTEXT)}
    assert table["zero_gradient_rate"].low < 0.25 < table["zero_gradient_rate"].high
    assert table["gradient_nonzeros"].low < 1.5 < table["gradient_nonzeros"].high
    assert table["gradient_nonzeros"].value == pytest.approx(2 * (1 - table["zero_gradient_rate"].value))
    assert (table["support"].value, table["support"].tier) == (15, "exact")


QUICK = dataclasses.replace(CONTEXT, effort=dataclasses.replace(CONTEXT.effort, rounds=10))


def place() -> tuple[StructureTable, Draws]:
    (instance,) = problem().instances
    table = StructureTable.of(Subset(2), instance.loss, instance.scores)
    return table, Draws(Subset(2), instance.loss, table.flat_start(torch.Generator().manual_seed(0)), CONTEXT, ("regret",))


def table_of(estimators: dict[str, Any], context: Any = QUICK, instances: int = 1) -> list[Finding]:
    return list(Descent().findings(problem(instances=instances), estimators, context))


@pytest.mark.parametrize(("oracle", "event"), [(Subset(2), (5,)), (ShiftReduce("local"), (5, 5, 2))])
def test_the_table_has_the_exact_expected_loss(oracle: Any, event: tuple[int, ...]) -> None:
    scores = torch.randn(event, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return z.flatten(z.ndim - oracle.event_ndim).cumsum(-1).square().sum(-1)

    if oracle.event_ndim == 1:
        scores[3] = -math.inf
    table = StructureTable.of(oracle, loss, scores)
    assert float(table.expected(scores.flatten().unsqueeze(0))) == pytest.approx(exact_truth(loss, oracle, scores).value)


def test_steps_are_as_many_as_the_loss_evaluations_allow() -> None:
    budgets = {Reinforce(): 120, LeaveOneOut(4): 30, StraightThrough(): 40, ExactMarginalisation(): 8, Planted(): 120}
    for estimator, steps in budgets.items():
        assert steps_of(estimator, place()[1], 120) == steps
    assert steps_of(LeaveOneOut(400), place()[1], 120) == 1


def test_no_number_follows_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a slow machine nor a busy one changes a row, so that a run that was killed continues to the same numbers."""
    estimators = {"reinforce": Reinforce(), "rloo": LeaveOneOut(4), "ste": StraightThrough()}
    plain, ticks = table_of(estimators), itertools.count()
    for clock in ("perf_counter", "monotonic", "thread_time", "process_time", "time"):
        monkeypatch.setattr(time, clock, lambda: 3.0 ** (next(ticks) % 50))
    assert table_of(estimators) == plain


def test_training_by_the_exact_gradient_leaves_no_regret() -> None:
    table, draws = place()
    exact, noisy = trained(ExactMarginalisation(), draws, table, 100, 4), trained(Reinforce(), draws, table, 100, 8)
    assert 0 <= exact.value < 0.005
    assert exact.low is None
    assert exact.value < noisy.value < 0.9
    assert noisy.low < noisy.value < noisy.high


@dataclasses.dataclass(frozen=True)
class Diverging(Planted):
    """A first step of length 1 at any step size, and other numbers from scores that have moved by more than ``only``."""

    only: float = 0.0
    nan: bool = False
    deterministic: ClassVar[bool] = True

    def estimate(self, loss: Any, oracle: Any, scores: Tensor, generator: torch.Generator) -> Tensor:
        far = scores.norm(dim=-1, keepdim=True) > self.only
        return torch.where(far, math.nan if self.nan else math.inf, 0.01 * torch.ones_like(scores))


def test_steps_that_overflow_are_not_chosen_and_nan_is_reported() -> None:
    table, draws = place()
    with pytest.raises(NonFiniteError):
        trained(Diverging(), draws, table, 3, 1)
    assert trained(Diverging(only=2.0), draws, table, 3, 1).value == pytest.approx(1, abs=0.05)
    with pytest.raises(NonFiniteError, match="returned NaN in 2 of 6 runs of training, at step 2 of 3"):
        trained(Diverging(only=2.0, nan=True), draws, table, 3, 1)
    (found,) = table_of({"nan": Diverging(only=2.0, nan=True)})
    assert (found.status, found.verdict) == ("error", "broken")


def test_the_suite_answers_for_every_estimator() -> None:
    estimators = {"exact": ExactMarginalisation(), "reinforce": Reinforce(), "again": Reinforce(), "broken": Failing(), "uphill": Uphill()}
    found = table_of(estimators, instances=2)
    assert {(f.estimator, f.reason) for f in found if f.status != "ok"} == {("broken", "RuntimeError: planted")}
    values = {(f.estimator, f.metric, f.instance): f.value for f in found}
    assert len(values) == len(found) == 4 * 2 * 2 + 2
    assert values["uphill", "regret", "item-0"] > 1 > values["exact", "regret", "item-0"]
    assert values["reinforce", "regret", "item-0"] == values["again", "regret", "item-0"], "all share their random numbers"
    alone = table_of({"reinforce": Reinforce()}, dataclasses.replace(QUICK, batch_size=1), instances=2)
    assert alone == [f for f in found if f.estimator == "reinforce"]

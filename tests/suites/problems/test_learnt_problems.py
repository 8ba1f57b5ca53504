"""Items along a run of training as problems, a batch's gradient in parameters, and the time of a step."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from structgrad.estimators import ExactMarginalisation, make_estimator
from structgrad.suites.measures.learning import METRIC, ParameterBias
from structgrad.suites.measures.suite import EFFORTS, Context
from structgrad.suites.problems import load
from structgrad.suites.running.planning.plan import Machine, Plan
from structgrad.suites.running.runner import run, target_rows
from structgrad.suites.tasks import make_task, references
from structgrad.suites.tasks.training import BatchOrder
from tests.suites.measures.test_learning import NAME

LEARNT = NAME.replace("task:", "learnt:")
TASK = make_task(NAME.removeprefix("task:"))
QUICK = Context(effort=EFFORTS["quick"])


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def test_stages_are_those_of_the_exact_run():
    stages = {stage: load(LEARNT, stage, instances=3, data=None) for stage in ("init", "early", "final")}
    assert [item.name for item in stages["init"].instances] == ["item-16", "item-50", "item-83"]
    for stage, model in (("init", TASK.model(0)), ("final", references.learnt_model(TASK, ExactMarginalisation(), 0, "final"))):
        batch = TASK.batch("test", torch.tensor([50])).double()
        item = stages[stage].instances[1]
        scores = TASK.scores(model.double(), batch)[0]
        torch.testing.assert_close(item.scores, scores.detach(), rtol=1e-12, atol=1e-12)
        structures = torch.eye(3, dtype=torch.float64)
        torch.testing.assert_close(item.loss(structures), TASK.loss(model, batch)(structures.unsqueeze(1))[:, 0].detach())
    assert not torch.equal(stages["early"].instances[0].scores, stages["final"].instances[0].scores)


@pytest.fixture(scope="module")
def felt(_own_cache: object) -> dict:
    names = ("exact", "rloo[num_samples=4]", "ste")
    problem = load(LEARNT, "early", instances=2, data=None)
    found = ParameterBias().findings(problem, {name: make_estimator(name) for name in names}, QUICK)
    return {(f.estimator, f.instance, f.metric): f for f in found}


def test_the_exact_gradient_is_that_of_autograd_through_the_encoder(monkeypatch, felt):
    """Against the expectation written out, differentiated by the parameters at once."""
    model = references.learnt_model(TASK, ExactMarginalisation(), 1, "early").double()
    batch = TASK.batch("train", BatchOrder(TASK, 1)()).double()
    values = TASK.loss(model, batch)(torch.eye(3, dtype=torch.float64).unsqueeze(1).expand(3, 128, 3))
    expected = (TASK.scores(model, batch).softmax(-1) * values.T).sum(-1).mean()
    true = torch.cat([part.flatten() for part in torch.autograd.grad(expected, list(model.encoder.parameters()))])
    theta = TASK.scores(model, batch)
    point = theta.detach().argmax(-1)
    z = torch.nn.functional.one_hot(point, 3).double().requires_grad_()
    (gamma,) = torch.autograd.grad(TASK.loss(model, batch)(z).mean(), z)
    ste = torch.cat([part.flatten() for part in torch.autograd.grad(theta, list(model.encoder.parameters()), gamma)])
    assert felt["ste", "seed=1", "parameter_bias"].value == pytest.approx(float((ste - true).norm() / true.norm()), rel=1e-6)
    assert felt["ste", "seed=1", "parameter_cosine"].value == pytest.approx(float(ste @ true / ste.norm() / true.norm()), rel=1e-6)
    assert felt["exact", "seed=1", "parameter_bias"].value == pytest.approx(0, abs=1e-9)


def test_a_batch_has_every_metric_of_every_seed(felt):
    assert {key[1:] for key in felt} == {(f"seed={seed}", metric) for seed in (0, 1) for metric in METRIC.values()}
    sampled = felt["rloo[num_samples=4]", "seed=0", "parameter_bias"]
    assert (sampled.low, sampled.tier, sampled.replicates, sampled.reference) == (0.0, "mc", 64, "expected")
    assert felt["exact", "seed=0", "parameter_gain"].tier == "exact"
    variance = felt["rloo[num_samples=4]", "seed=0", "parameter_variance"]
    assert variance.low < variance.value < variance.high


def test_seconds_to_a_target_are_steps_times_their_cost(tmp_path: Path):
    plan = Plan(suites=("learning",), problems=(NAME,), estimators=("rloo", "ste"), instances=1, effort=EFFORTS["quick"])
    rows = run(plan, tmp_path, machine=Machine(jobs=0))
    steps = next(row for row in rows if row.metric == "steps_to_target" and row.estimator == "ste")
    reached = replace(steps, value=20.0, low=10.0, high=20.0, sampling="converged", reason="")
    cost = replace(steps, suite="step_time", metric="step_time", instance="", value=0.25, low=0.2, high=0.3)
    censored = replace(reached, instance="seed=1", value=None, low=12.0, high=None, sampling="budget", reason="not reached")
    found = list(target_rows([cost, reached, censored]))
    assert [(row.metric, row.value, row.low, row.high, row.unit) for row in found] == [
        ("seconds_to_target", 5.0, 2.5, 5.0, "s"),
        ("seconds_to_target", None, 3.0, None, "s"),
    ]
    assert (found[1].sampling, found[1].reason) == ("budget", "not reached")
    assert not list(target_rows([reached]))

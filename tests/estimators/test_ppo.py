"""Clipped ratios: the first inner step is REINFORCE, and a ratio that has left the interval carries no gradient."""

from __future__ import annotations

import math

import pytest
import torch

from structgrad.estimators import ConstantBaseline, ProximalPolicy, Rollout
from structgrad.oracles import Categorical
from structgrad.suites.measures.bias import measure
from tests.estimator_cases import LOSSES, exact_mean, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, make_scores, one_hots, seeded

SCORES, TABLE, GRADIENT = three_classes()
CLASSES = OracleCase(Categorical(), (3,), one_hots)


@pytest.mark.parametrize("value", [0.0, 0.7])
@oracles
def test_one_inner_step_is_reinforce(case: OracleCase, value: float) -> None:
    scores, loss = make_scores(case, "masked", rows=20), LOSSES["smooth"](case)
    ours = ProximalPolicy(inner_steps=1, value=value, num_samples=3).gradient(loss, case.oracle, scores, generator=seeded())
    theirs = ConstantBaseline(value, num_samples=3).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("inner_steps", "verdict"), [(1, "unbiased-exact"), (2, "biased"), (15, "biased")])
def test_later_steps_are_biased(inner_steps: int, verdict: str) -> None:
    assert measure(ProximalPolicy(inner_steps=inner_steps), Categorical(), table_loss, SCORES).verdict == verdict


def test_small_inner_steps_tend_to_reinforce() -> None:
    errors = [
        float((exact_mean(ProximalPolicy(step_size=step), CLASSES, table_loss, SCORES) - GRADIENT).norm()) for step in (1e-2, 1e-3, 1e-4)
    ]
    assert errors[0] < 0.05
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.1)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("advantage", [2.0, -0.5])
@pytest.mark.parametrize("ratio", [0.2, 0.69, 0.71, 1.0, 1.29, 1.31, 3.0])
def test_where_the_gradient_is_cut(ratio: float, advantage: float) -> None:
    """Old probability 1/4 of the class that was drawn, new probability ``ratio/4``; ε = 0.3."""
    p = ratio / 4
    scores = torch.tensor([math.log(p / (1 - p)), 0.0], dtype=torch.float64, requires_grad=True)
    drawn = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    rollout = Rollout(drawn, numbers(1) * 0 + advantage, numbers(1) * 0 + math.log(0.25))
    value = ProximalPolicy(clip=0.3).inner_objective(rollout, Categorical(), scores)
    (found,) = torch.autograd.grad(value, scores)
    cut = (advantage > 0 and ratio < 0.7) or (advantage < 0 and ratio > 1.3)
    expected = 0.0 if cut else ratio * advantage * (1 - p)
    torch.testing.assert_close(found, torch.tensor([expected, -expected], dtype=torch.float64), rtol=1e-12, atol=1e-15)
    clipped = min(max(ratio, 0.7), 1.3)
    assert float(value.detach()) == pytest.approx(max(ratio * advantage, clipped * advantage))


@oracles
def test_a_rollout_is_gone_over_again(case: OracleCase) -> None:
    """Steps by hand on the objective are those of the estimator."""
    scores, loss = numbers(6, *case.event), LOSSES["smooth"](case)
    estimator = ProximalPolicy(inner_steps=3, step_size=0.3, value=0.2, num_samples=2)
    rollout = estimator.rollout(loss, case.oracle, scores, generator=seeded())
    steps, theta = [], scores
    for _ in range(3):
        leaf = theta.clone().requires_grad_()
        steps.append(torch.autograd.grad(estimator.inner_objective(rollout, case.oracle, leaf).sum(), leaf)[0])
        theta = theta - 0.3 * steps[-1]
    found = estimator.gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(found, torch.stack(steps).mean(0), rtol=1e-12, atol=1e-13)
    assert not rollout.samples.requires_grad
    assert not rollout.advantages.requires_grad


@oracles
def test_infeasible_rows_have_no_inner_gradient(case: OracleCase) -> None:
    scores = make_scores(case, "masked", rows=6).requires_grad_()
    estimator = ProximalPolicy(num_samples=2)
    rollout = estimator.rollout(LOSSES["smooth"](case), case.oracle, scores, generator=seeded())
    value = estimator.inner_objective(rollout, case.oracle, scores)
    (found,) = torch.autograd.grad(value.sum(), scores)
    assert value.isfinite().all()
    assert found.isfinite().all()
    assert bool((found[0] == 0).all())

"""Baselines: running states, learned networks, and VarGrad as a loss."""

import itertools
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import ConstantBaseline, LearnedBaseline, Loss, NormalisedRewards, RunningMeanBaseline, half_variance
from structgrad.estimators.learned_baseline import FIT_SAMPLES, readable
from structgrad.oracles import Categorical
from tests.estimator_cases import LOSSES, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, enumerate_truth, pulled_back, seeded, structures

SCORES, TABLE, _ = three_classes()
P = SCORES.softmax(-1)


# The learned baseline.


class Constant(nn.Module):
    """One number for all."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value, dtype=torch.float64))

    def forward(self, scores: Tensor) -> Tensor:
        assert not scores.requires_grad
        return self.value.expand(scores.shape[:1])


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0])
def test_a_learned_baseline_learns_by_regression_and_leaves_the_rest_alone(weight: float) -> None:
    module, scores = Constant(0.7), SCORES.expand(6, 3).clone().requires_grad_()
    rates = numbers(6)
    value = LearnedBaseline(module, 2, weight).surrogate(table_loss, Categorical(), scores, generator=seeded())
    found, of_module = torch.autograd.grad((rates * value).sum(), [scores, module.value])
    known = ConstantBaseline(0.7, 2).surrogate(table_loss, Categorical(), scores, generator=seeded())
    torch.testing.assert_close(value, known)
    torch.testing.assert_close(found, torch.autograd.grad((rates * known).sum(), scores)[0])
    # d/db λ (1/N) Σ (L − b)² = −2λ (L̄ − b), and the surrogate's value is L̄.
    torch.testing.assert_close(of_module, -2 * weight * (rates * (value.detach() - 0.7)).sum())


@oracles
def test_warming_up_predicts_the_expected_loss(case: OracleCase) -> None:
    scores, loss = 0.5 * numbers(30, *case.event), LOSSES["offset"](case)
    warmed = LearnedBaseline().warmed_up(loss, case.oracle, scores, generator=seeded())
    truth = enumerate_truth(case, scores).probabilities @ loss(structures(case))
    assert warmed.module is not None
    found = warmed.module(readable(case.oracle, scores)).detach()
    spread = float(loss(structures(case)).std())
    assert float((found - truth).abs().mean()) < 0.35 * spread
    again = LearnedBaseline().warmed_up(loss, case.oracle, scores, generator=seeded())
    assert again.module is not None
    assert torch.equal(again.module(scores), warmed.module(scores))
    assert again.warmed_up(loss, case.oracle, scores, generator=seeded()) is again
    ours = warmed.gradient(loss, case.oracle, scores, generator=seeded(1))
    theirs = pickle.loads(pickle.dumps(warmed)).gradient(loss, case.oracle, scores, generator=seeded(1))
    assert torch.equal(ours, theirs)


def test_a_fitted_network_does_not_blow_up_rounding() -> None:
    """At one score tensor it can learn the mean of the losses alone."""

    def fitted(loss: Loss) -> float:
        module = LearnedBaseline().warmed_up(loss, Categorical(), SCORES, generator=seeded()).module
        assert module is not None
        return float(module(SCORES).detach())

    samples = Categorical().sample(SCORES, FIT_SAMPLES, generator=seeded())
    assert fitted(table_loss) == pytest.approx(float(table_loss(samples).mean()), rel=1e-12)
    assert fitted(lambda z: table_loss(z) * (1 + 1e-15)) == pytest.approx(fitted(table_loss), rel=1e-12)


# Normalised rewards.


def test_the_variance_takes_in_the_sample_before_the_mean_moves() -> None:
    estimator, losses = NormalisedRewards(mean=2.0, variance=3.0, decay=0.75), torch.tensor([1.0, 3.0, 5.0, 7.0])
    updated = estimator.observed(losses)
    assert updated.mean == 0.75 * 2.0 + 0.25 * 4.0
    assert updated.variance == pytest.approx(0.75 * 3.0 + 0.25 * (1 + 1 + 9 + 25) / 4)


def test_warming_up_finds_the_moments() -> None:
    warmed = NormalisedRewards(mean=1e6, variance=1e6).warmed_up(lambda z: z.sum(-1) * 3, Categorical(), SCORES, generator=seeded())
    assert warmed.mean == pytest.approx(3.0)
    assert warmed.variance == pytest.approx(0.0)
    rows = SCORES.expand(500, 3)
    warmed = NormalisedRewards().warmed_up(table_loss, Categorical(), rows, generator=seeded())
    mean = float(P @ TABLE)
    assert warmed.mean == pytest.approx(mean, abs=0.05)
    assert warmed.variance == pytest.approx(float(P @ (TABLE - mean).square()), rel=0.1)


# VarGrad as a loss.


@pytest.mark.parametrize("n", [2, 3])
@oracles
def test_the_gradient_of_half_the_variance(case: OracleCase, n: int) -> None:
    """Over all tuples of samples its mean is the gradient of ``E[L + log p]``."""
    scores = numbers(*case.event)
    truth, loss = enumerate_truth(case, scores), LOSSES["smooth"](case)
    index = torch.tensor(list(itertools.product(range(len(structures(case))), repeat=n))).T
    samples, chances = structures(case)[index], truth.probabilities[0][index].prod(0)
    leaf = scores.clone().requires_grad_()
    mean = (chances * half_variance(loss(samples), case.oracle.log_prob(samples, leaf))).sum()
    (found,) = torch.autograd.grad(mean, leaf)
    p = truth.probabilities[0]
    values = loss(structures(case)) + p.log()
    natural = torch.einsum("s,s...->...", p * (values - p @ values), structures(case))
    expected = pulled_back(case, scores.unsqueeze(0), natural.unsqueeze(0))[0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


def test_the_running_mean_moves_after_use() -> None:
    estimator, losses = RunningMeanBaseline(mean=2.0, decay=0.75), torch.tensor([1.0, 3.0, 5.0, 7.0])
    updated = estimator.observed(losses)
    assert estimator == RunningMeanBaseline(mean=2.0, decay=0.75)
    assert updated == replace(estimator, mean=0.75 * 2.0 + 0.25 * 4.0)

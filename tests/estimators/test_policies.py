"""Policies, decision by decision, and several steps on the same samples."""

import pickle

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import (
    ProximalPolicy,
    StepLearned,
)
from structgrad.oracles import ShiftReduce, Subset
from structgrad.suites.measures.bias import Sampling, measure
from tests.estimator_cases import LOSSES, numbers, oracles
from tests.helpers import OracleCase, enumerate_truth, make_scores, seeded, structures

EXACTLY = Sampling(tier="exact")


four = pytest.mark.parametrize("case", [OracleCase(ShiftReduce(law), (5, 5, 2)) for law in ("local", "global")], ids=str)


class Critic(nn.Module):
    """Values of the states of any shape: sines of the scores, times a parameter."""

    def __init__(self, case: OracleCase) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(*case.event[:-1], seed=9))
        self.seen: list[Tensor] = []

    def forward(self, scores: Tensor) -> Tensor:
        self.seen.append(scores)
        return self.weight * (scores.sum(-1).sin() + 2)


@four
def test_a_critic_is_trained_and_changes_nothing_else(case: OracleCase) -> None:
    critic, scores, loss = Critic(case), make_scores(case, "masked", rows=8).requires_grad_(), LOSSES["offset"](case)
    estimator = StepLearned(critic, num_samples=3, regression_weight=0.5)
    value = estimator.surrogate(loss, case.oracle, scores, generator=seeded())
    value.sum().backward()
    samples = case.oracle.sample(scores, 3, generator=seeded())
    losses = loss(samples)
    torch.testing.assert_close(value, losses.mean(0))
    torch.testing.assert_close(scores.grad, estimator.gradient(loss, case.oracle, scores, generator=seeded()))
    leaf = critic.weight.detach().clone().requires_grad_()
    known = torch.where(case.oracle.free_parts(scores), scores.detach(), 0)
    assert all(torch.equal(seen, known) for seen in critic.seen)
    predicted = leaf * (known.sum(-1).sin() + 2)
    errors = [
        (losses[i, row] - predicted[row, part[0], part[1]]) ** 2
        for i in range(3)
        for row in range(8)
        for part in samples[i, row].nonzero().tolist()
    ]
    torch.stack(errors).sum().mul(0.5 / 3).backward()
    torch.testing.assert_close(critic.weight.grad, leaf.grad)


@four
def test_warming_up_finds_the_mean_loss_of_every_state(case: OracleCase) -> None:
    scores, loss, space = 0.3 * numbers(*case.event), LOSSES["smooth"](case), structures(case)
    warmed = StepLearned().warmed_up(loss, case.oracle, scores.expand(500, *case.event), generator=seeded())
    law, visits = enumerate_truth(case, scores).probabilities[0], space.sum(-1)
    weights = law.reshape(-1, 1, 1) * visits
    expected = torch.einsum("s,sij->ij", loss(space), weights) / weights.sum(0)
    found = torch.tensor(warmed.values, dtype=torch.float64).reshape(expected.shape)
    reached = weights.sum(0) > 0
    expected[~reached] = law @ loss(space)  # where no sample comes
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)
    assert warmed == pickle.loads(pickle.dumps(warmed))
    assert hash(warmed) == hash(pickle.loads(pickle.dumps(warmed)))
    assert measure(warmed, case.oracle, loss, scores, sampling=EXACTLY).verdict == "unbiased-exact"
    assert StepLearned(Critic(case)).warmed_up(loss, case.oracle, scores, generator=seeded()).values == ()


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


def test_a_rollout_takes_the_name_of_an_oracle() -> None:
    estimator, scores = ProximalPolicy(num_samples=2), torch.randn(3, 4, generator=seeded())
    named, made = (estimator.rollout(lambda z: z[..., 0], oracle, scores, generator=seeded()) for oracle in ("subset[k=2]", Subset(2)))  # type: ignore[arg-type]
    assert torch.equal(named.samples, made.samples)
    assert torch.equal(estimator.inner_objective(named, "subset[k=2]", scores), estimator.inner_objective(made, Subset(2), scores))  # type: ignore[arg-type]
    assert len(list(estimator.rounds(lambda z: z[..., 0], "subset[k=2]", lambda: scores, generator=seeded()))) == 4  # type: ignore[arg-type]


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

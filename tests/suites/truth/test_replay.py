"""Replay: exact moments of the code that ships."""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from structgrad.estimators import (
    ConditionalMeanBaseline,
    DoubleControl,
    LeaveOneOut,
    MuProp,
    Reinforce,
    RunningMeanBaseline,
    SampledBaseline,
    SumAndSample,
    UnorderedSet,
)
from structgrad.oracles import Subset
from structgrad.oracles.capabilities import DrawnSet, EnumerableOracle, KBestOracle, MarginalOracle
from structgrad.suites.truth import Target, exact_truth
from structgrad.suites.truth.enumeration import fisher_information
from structgrad.suites.truth.replay import REPLAY_CAP, draws_of, replay, replay_outside, replay_samples, scripted, slots_of
from tests.helpers import ORACLE_CASES, OracleCase, make_scores
from tests.suites.cases import ORACLES, target_of

AVERAGES = [
    Reinforce(3),
    RunningMeanBaseline(0.5, num_samples=3),
    ConditionalMeanBaseline(num_samples=3),
    SampledBaseline(2),
    LeaveOneOut(3),
    MuProp(3),
]


def same_moments(estimator: Any, target: Target, slots: int) -> None:
    """Single structures and all tuples of samples give the same moments."""
    information = fisher_information(target.oracle, target.scores)
    found = replay_samples(estimator, target, slots, REPLAY_CAP, information)
    expected = replay(estimator, target, slots, information)
    assert found is not None
    size = float(expected.trace.sqrt() + expected.gradient.norm())
    torch.testing.assert_close(found.error, expected.error, rtol=1e-9, atol=1e-11 * size)
    torch.testing.assert_close(found.trace, expected.trace, rtol=1e-9, atol=0)
    torch.testing.assert_close(found.informed, expected.informed, rtol=1e-9, atol=0)


@pytest.mark.parametrize("estimator", AVERAGES, ids=repr)
@pytest.mark.parametrize("name", list(ORACLES))
def test_single_structures_give_the_moments_of_all_tuples(name, estimator):
    target = target_of(name)
    same_moments(estimator, target, slots_of(estimator, target.oracle, target.loss, target.scores))


def law_cases(*capabilities: type) -> Any:
    """Oracles with few pairs of structures, at scores that leave some."""
    few = [case for case in ORACLE_CASES if all(isinstance(case.oracle, kind) for kind in (EnumerableOracle, *capabilities))]
    few = [case for case in few if 2 < case.oracle.count(case.event) <= 150]
    cases = [pytest.param(case, regime, id=f"{case}-{regime}") for case in few for regime in (1.0, 10.0, "masked")]
    return pytest.mark.parametrize(("case", "regime"), cases)


def law_target(case: OracleCase, regime: Any) -> Target:
    """A squared loss at scores of a regime; skips the test if fewer than three structures are feasible."""
    scores = next(row for row in make_scores(case, regime) if case.oracle.free_parts(row).any())
    weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def loss(z: torch.Tensor) -> torch.Tensor:
        return ((z * weights).flatten(z.ndim - scores.ndim).sum(-1) + 0.3) ** 2

    truth = exact_truth(loss, case.oracle, scores)
    if truth.support < 3:
        pytest.skip("one structure is left")
    return Target(case.oracle, loss, scores, truth)


def peaked(gap: float) -> Target:
    scores = 0.1 * torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[:3] += gap
    weights = torch.randn(12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = lambda z: (z @ weights) ** 2  # noqa: E731
    return Target(Subset(3), loss, scores, exact_truth(loss, Subset(3), scores))


def test_samples_that_are_no_average_or_too_many_are_left_to_replicates():
    target = target_of("subset")
    assert replay_samples(DoubleControl(num_samples=4), target, 4, REPLAY_CAP) is None
    assert replay_samples(MuProp(4), target, 4, 4 * target.truth.count - 1) is None
    assert replay_samples(LeaveOneOut(2000), target, 2000, REPLAY_CAP) is None
    unknown = replace(target, truth=replace(target.truth, method="none"))
    assert replay_samples(LeaveOneOut(4), unknown, 4, REPLAY_CAP) is None


# Draws without replacement, from one pass over the structures outside the best.


def all_draws(estimator: Any, target: Target, draws: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The estimates of all ordered draws without replacement, and their probabilities."""
    space = target.oracle.enumerate(tuple(target.scores.shape), dtype=torch.float64)
    log_probs = target.oracle.log_prob(space, target.scores).log_softmax(0)
    space, log_probs = space[log_probs > -math.inf], log_probs[log_probs > -math.inf]
    ranks = torch.tensor(list(itertools.permutations(range(len(space)), draws)))
    left = torch.ones(len(ranks), len(space), dtype=torch.bool)
    weights = torch.zeros(len(ranks), dtype=torch.float64)
    for drawn in ranks.T:
        weights += log_probs[drawn] - torch.where(left, log_probs, -math.inf).logsumexp(-1)
        left.scatter_(1, drawn.unsqueeze(-1), value=False)
    rest = torch.where(left, log_probs, -math.inf).logsumexp(-1)
    dealt = scripted(target.oracle, drawn_set=DrawnSet(space[ranks.T], log_probs[ranks], rest, rest))
    rows = target.scores.expand(len(ranks), *target.scores.shape)
    return estimator.gradient(target.loss, dealt, rows, generator=torch.Generator()).flatten(1), weights.exp()


def same_moments_outside(estimator: Any, target: Target, draws: int) -> None:
    """One pass and all ordered draws give the same moments."""
    information = fisher_information(target.oracle, target.scores)
    assert draws_of(estimator, target.oracle, target.loss, target.scores) == (0, draws)
    found = replay_outside(estimator, target, draws, REPLAY_CAP, information)
    estimates, weights = all_draws(estimator, target, draws)
    mean, size = weights @ estimates, float(estimates.norm(dim=-1).max())
    assert found is not None
    torch.testing.assert_close(found.error + found.gradient, mean, rtol=1e-9, atol=1e-11 * size)
    torch.testing.assert_close(found.error, torch.zeros_like(mean), rtol=0, atol=1e-11 * size)
    variance = weights @ (estimates - mean).square().sum(-1)
    torch.testing.assert_close(found.trace, variance, rtol=1e-9, atol=1e-20 * size**2)
    informed = weights @ torch.einsum("ri,ij,rj->r", estimates, information, estimates)
    torch.testing.assert_close(found.informed, informed, rtol=1e-9, atol=1e-20 * size**2)


@law_cases(KBestOracle, MarginalOracle)
def test_one_pass_gives_the_moments_of_all_draws_for_every_oracle(case: OracleCase, regime: Any) -> None:
    same_moments_outside(SumAndSample(), law_target(case, regime), 2)


@dataclass(frozen=True)
class LastDraw(SumAndSample):
    """Takes the last one outside instead of the first: of another law."""

    def _other(self, oracle, scores, best, generator):
        flipped = oracle.sample_distinct(scores, self.k + 1, generator=generator)
        flipped = replace(flipped, structures=flipped.structures.flip(0), log_probs=flipped.log_probs.flip(-1))
        return super()._other(scripted(oracle, drawn_set=flipped), scores, best, generator)


def test_draws_of_another_form_are_left_to_replicates():
    target = peaked(0.5)
    called = (target.oracle, target.loss, target.scores)
    assert draws_of(LastDraw(2), *called) == (0, 3)
    assert replay_outside(LastDraw(2), target, 3, REPLAY_CAP) is None
    assert draws_of(UnorderedSet(4), *called) is None
    assert draws_of(UnorderedSet(4, limit=10), *called) == (0, 4)
    assert replay_outside(UnorderedSet(4, limit=10), target, 4, REPLAY_CAP) is None
    assert slots_of(SumAndSample(), *called) is None
    assert replay_outside(SumAndSample(), target, 2, target.truth.count - 1) is None

"""Baselines, their variances, what they train, and the gradients that they leave alone."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import (
    ConditionalMeanBaseline,
    ConstantBaseline,
    Estimator,
    GreedyBaseline,
    LearnedBaseline,
    LeaveOneOut,
    Loss,
    NormalisedRewards,
    OptimalBaseline,
    Reinforce,
    SampledBaseline,
    VarGrad,
    half_variance,
)
from structgrad.estimators.learned_baseline import FIT_SAMPLES, readable
from structgrad.estimators.score_function import scores_of
from structgrad.estimators.surrogates import with_gradient
from structgrad.oracles import Categorical, SamplingOracle, SeedBlocks
from structgrad.suites.measures.bias import Sampling, measure
from tests.estimator_cases import LOSSES, exact_mean, numbers, oracles, table_loss, three_classes
from tests.helpers import OracleCase, enumerate_truth, make_scores, one_hots, pulled_back, seeded, structures

SCORES, TABLE, GRADIENT = three_classes()
P = SCORES.softmax(-1)
SCORE = torch.eye(3, dtype=torch.float64) - P
CLASSES = OracleCase(Categorical(), (3,), one_hots)
EXACTLY = Sampling(tier="exact")


def variance(estimator: Estimator[Any]) -> float:
    """Trace of the covariance of one estimate on the three classes, exactly."""
    found = measure(estimator, Categorical(), table_loss, SCORES, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    relative = found.metrics["relative_variance"].value
    assert relative is not None
    return relative * float(GRADIENT.square().sum())


def of_constant(baseline: Tensor | float) -> float:
    """``Σ p (L − b)² ‖s‖² − ‖g‖²``, or with a baseline for every part."""
    terms = (TABLE.unsqueeze(-1) - baseline) * SCORE
    return float(P @ terms.square().sum(-1) - GRADIENT.square().sum())


# Variances in closed form.


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (ConstantBaseline(0.0), 0.864344),
        (ConditionalMeanBaseline(), 0.419557),
        (GreedyBaseline(), 1.206313),
        (VarGrad(2), 0.633858),
        (VarGrad(3), 0.281212),
        (VarGrad(4), 0.175569),
        (SampledBaseline(), sum(float(p) * of_constant(float(loss)) for p, loss in zip(P, TABLE, strict=True))),
    ],
    ids=str,
)
def test_the_variance(estimator: Estimator[Any], expected: float) -> None:
    assert variance(estimator) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [2, 3, 4])
def test_the_variance_of_vargrad(n: int) -> None:
    """``[Σ p (L − E L)² ‖s‖²]/N − (N−2)/(N(N−1)) ‖g‖² + Var(L) (1 − ‖p‖²)/(N(N−1))``."""
    centred, norm = TABLE - P @ TABLE, GRADIENT.square().sum()
    first = P @ (centred.square() * SCORE.square().sum(-1)) / n
    pairs = n * (n - 1)
    expected = first - (n - 2) / pairs * norm + (P @ centred.square()) * (1 - P.square().sum()) / pairs
    assert variance(VarGrad(n)) == pytest.approx(float(expected), abs=1e-12)


def test_a_greedy_baseline_can_raise_the_variance() -> None:
    assert variance(GreedyBaseline()) > variance(Reinforce()) > variance(ConditionalMeanBaseline())


@pytest.mark.parametrize("n", [2, 3])
def test_one_sample_serves_as_the_baseline_of_all(n: int) -> None:
    """Terms that share z′ are uncorrelated."""
    assert variance(SampledBaseline(n)) == pytest.approx(variance(SampledBaseline()) / n, abs=1e-12)


@oracles
def test_leave_one_out_takes_each_of_two_as_the_baseline_of_the_other(case: OracleCase) -> None:
    scores, loss = numbers(20, *case.event), LOSSES["smooth"](case)
    samples = case.oracle.sample(scores, 2, generator=seeded())
    losses, single = loss(samples), scores_of(case.oracle, samples, scores)
    gap = (losses[0] - losses[1]).reshape(-1, *[1] * len(case.event))
    expected = (gap * single[0] - gap * single[1]) / 2
    torch.testing.assert_close(LeaveOneOut(2).gradient(loss, case.oracle, scores, generator=seeded()), expected, rtol=1e-11, atol=1e-11)


# The exact mean.


@oracles
def test_the_exact_mean_is_a_constant_of_every_row(case: OracleCase) -> None:
    scores, loss = make_scores(case, "masked", rows=4), LOSSES["smooth"](case)
    means = torch.einsum("bs,s->b", enumerate_truth(case, scores).probabilities, loss(structures(case)))
    for chunk in (1, 7, 64):
        found = ConditionalMeanBaseline(2, chunk).gradient(loss, case.oracle, scores, generator=streams(4))
        for row in range(1, 4):
            expected = ConstantBaseline(float(means[row]), 2).gradient(loss, case.oracle, scores[row : row + 1], generator=streams(4, row))
            torch.testing.assert_close(found[row : row + 1], expected, rtol=1e-10, atol=1e-11)


def streams(rows: int, first: int = 0) -> SeedBlocks:
    """A stream for every row."""
    return SeedBlocks(tuple(range(10 + first, 10 + rows)), 1)


# The best constant, from pilots.


@pytest.mark.parametrize("per_part", [False, True])
@pytest.mark.parametrize("pilots", [1, 2, 3])
def test_the_mean_over_all_pilots_is_the_exact_gradient(pilots: int, per_part: bool) -> None:
    found = measure(OptimalBaseline(pilots, per_part), Categorical(), table_loss, SCORES, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_bias"].value < 1e-12  # type: ignore[operator]


@pytest.mark.parametrize("per_part", [False, True])
@oracles
def test_pilots_of_every_structure(case: OracleCase, per_part: bool) -> None:
    loss, scores = LOSSES["smooth"](case), numbers(*case.event, seed=4)
    found = measure(OptimalBaseline(2, per_part), case.oracle, loss, scores, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"


@dataclass(frozen=True)
class OwnPilots(OptimalBaseline):
    """The samples themselves are the pilots."""

    name: ClassVar[str] = "own_pilots"

    def surrogate(self, loss: Loss, oracle: SamplingOracle, scores: Tensor, *, generator: torch.Generator) -> Tensor:
        samples, state = oracle.sample(scores, self.num_samples, generator=generator), generator.get_state()
        losses, single = loss(samples), scores_of(oracle, samples, scores)
        generator.set_state(state)
        squares = single.square().sum(-1)
        baseline = (losses * squares).sum(0) / squares.sum(0)
        return with_gradient(losses.mean(0), scores, ((losses - baseline).unsqueeze(-1) * single).mean(0))


def test_the_best_constant_of_the_samples_themselves_is_biased() -> None:
    assert measure(OwnPilots(num_samples=2), Categorical(), table_loss, SCORES, sampling=EXACTLY).verdict == "biased"


@pytest.mark.parametrize("per_part", [False, True])
def test_many_pilots_find_the_best_constant(per_part: bool) -> None:
    squares = SCORE.square() if per_part else SCORE.square().sum(-1, keepdim=True)
    best = (P @ (TABLE.unsqueeze(-1) * squares)) / (P @ squares)
    found = OptimalBaseline(200_000, per_part)._baseline(table_loss, Categorical(), SCORES, seeded())
    torch.testing.assert_close(found, best, rtol=0, atol=0.02)
    if not per_part:
        assert float(best) == pytest.approx(0.866920, abs=1e-6)
        assert of_constant(float(best)) == pytest.approx(0.381539, abs=1e-6)
    assert of_constant(best) <= of_constant(0.866920) + 1e-9
    for shift in (-0.01, 0.01):
        assert of_constant(best) < of_constant(best + shift)


@oracles
def test_a_single_pilot_is_a_sampled_baseline(case: OracleCase) -> None:
    scores, loss = make_scores(case, "masked", rows=20), LOSSES["smooth"](case)
    ours = OptimalBaseline(1, num_samples=2).gradient(loss, case.oracle, scores, generator=seeded())
    theirs = SampledBaseline(2).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


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


def test_without_a_module_it_is_reinforce() -> None:
    ours = LearnedBaseline(num_samples=2).gradient(table_loss, Categorical(), SCORES.expand(9, 3), generator=seeded())
    assert torch.equal(ours, Reinforce(2).gradient(table_loss, Categorical(), SCORES.expand(9, 3), generator=seeded()))


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


def test_a_warm_baseline_is_unbiased_and_of_less_variance() -> None:
    warmed = LearnedBaseline().warmed_up(table_loss, Categorical(), SCORES, generator=seeded())
    assert variance(warmed) < 0.5


def test_a_prediction_of_another_shape() -> None:
    estimator = LearnedBaseline(lambda scores: scores)
    message = "`reinforce_learned` got a prediction of shape (4, 3) for scores of shape (4, 3); expected one number per item, (4,)"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        estimator.gradient(table_loss, Categorical(), SCORES.expand(4, 3), generator=seeded())


# Normalised rewards.


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(("mean", "spread"), [(0.0, 0.0), (1.1, 1.0), (-3.0, 25.0)])
def test_the_mean_of_normalised_rewards(mean: float, spread: float, decay: float) -> None:
    found = exact_mean(NormalisedRewards(mean, spread, decay), CLASSES, table_loss, SCORES)
    divisor = (decay * spread + (1 - decay) * (TABLE - mean).square()).sqrt().clamp(min=1)
    torch.testing.assert_close(found, (P * (TABLE - mean) / divisor) @ SCORE)


def test_small_losses_are_not_divided() -> None:
    found = measure(NormalisedRewards(mean=1.0, variance=0.5), Categorical(), lambda z: 0.3 * table_loss(z) + 1, SCORES, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"


def test_a_long_memory_divides_by_one_number() -> None:
    """The gain tends to the scale."""
    gaps = []
    for decay in (0.9, 0.99, 0.999):
        estimator = NormalisedRewards(1.0, 16.0, decay)
        assert estimator.scale == 0.25
        gaps.append(float((exact_mean(estimator, CLASSES, lambda z: 3 * table_loss(z), SCORES) - 0.25 * 3 * GRADIENT).norm()))
    assert gaps[0] / gaps[1] == pytest.approx(10, rel=0.3)
    assert gaps[1] / gaps[2] == pytest.approx(10, rel=0.05)


def test_a_short_memory_changes_the_direction() -> None:
    found = measure(NormalisedRewards(decay=0.0), Categorical(), lambda z: 10 * table_loss(z), SCORES, sampling=EXACTLY)
    assert found.verdict == "biased"
    assert found.metrics["cosine"].value < 0.99  # type: ignore[operator]


def test_the_variance_takes_in_the_sample_before_use_and_the_mean_after() -> None:
    estimator, losses = NormalisedRewards(mean=2.0, variance=3.0, decay=0.75), torch.tensor([1.0, 3.0, 5.0, 7.0])
    updated = estimator.observed(losses)
    assert updated.mean == 0.75 * 2.0 + 0.25 * 4.0
    assert updated.variance == pytest.approx(0.75 * 3.0 + 0.25 * (1 + 1 + 9 + 25) / 4)
    used = estimator._weights(torch.tensor([[5.0]]))
    assert float(used) == pytest.approx((5 - 2) / math.sqrt(0.75 * 3 + 0.25 * 9))


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


@oracles
def test_half_the_variance_gives_the_estimate_of_vargrad(case: OracleCase) -> None:
    """The loss that VarGrad sees is ``L + log p``, which no estimate differentiates."""
    scores, smooth = numbers(10, *case.event), LOSSES["smooth"](case)
    leaf = scores.clone().requires_grad_()
    samples = case.oracle.sample(scores, 4, generator=seeded())
    half_variance(smooth(samples), case.oracle.log_prob(samples, leaf)).sum().backward()
    loss = lambda z: smooth(z) + case.oracle.log_prob(z, scores)  # noqa: E731
    expected = VarGrad(4).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(leaf.grad, expected, rtol=1e-10, atol=1e-11)


def test_half_the_variance_vanishes_at_the_optimum() -> None:
    scores = (-TABLE).clone().requires_grad_()
    samples = Categorical().sample(scores, 5, generator=seeded())
    value = half_variance(table_loss(samples), Categorical().log_prob(samples, scores))
    value.backward()
    assert float(value.detach()) == pytest.approx(0, abs=1e-25)
    torch.testing.assert_close(scores.grad, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-14)


@oracles
def test_the_scores_of_single_samples(case: OracleCase) -> None:
    """Their mean under the law is 0, and that of a structure is ``z − μ`` where scores are natural parameters."""
    scores = numbers(*case.event)
    truth, space = enumerate_truth(case, scores), structures(case)
    single = scores_of(case.oracle, space, scores)
    torch.testing.assert_close(
        torch.einsum("s,s...->...", truth.probabilities[0], single), torch.zeros(case.event, dtype=torch.float64), rtol=0, atol=1e-13
    )
    if case.potentials is None:
        torch.testing.assert_close(single, space - truth.marginals[0], rtol=1e-12, atol=1e-13)


def test_a_variance_of_one_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="`half_variance` got losses of 1 samples; expected at least 2"):
        half_variance(torch.zeros(1), torch.zeros(1))

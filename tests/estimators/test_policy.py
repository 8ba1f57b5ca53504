"""Policies, decision by decision: the same estimates as of whole structures, exact means, variances and closed forms."""

from __future__ import annotations

import itertools
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from structgrad.estimators import (
    ConstantBaseline,
    Estimator,
    GreedyBaseline,
    LeaveOneOut,
    Loss,
    Reinforce,
    StepConditionalMean,
    StepGreedy,
    StepLearned,
    StepLeaveOneOut,
    StepOptimal,
    StepPPO,
    StepReinforce,
    StepSampled,
    StepStraightThrough,
    StepStraightThroughGumbel,
    make_estimator,
)
from structgrad.estimators.factorised import conditional_race
from structgrad.oracles import ShiftReduce
from structgrad.suites.measures.bias import Sampling, measure
from structgrad.suites.truth import exact_truth
from structgrad.suites.truth.replay import hooked, scripted
from tests.estimator_cases import LOSSES, VARIANTS, FixedNoise, exact_mean, numbers
from tests.helpers import OracleCase, derivations, enumerate_truth, make_scores, seeded, shift_reduce_policy, structures
from tests.laws.test_estimator_forbidden import forbidding_scores

NORMALIZATIONS = ("local", "global")
REGIMES = (0.05, 1.0, 10.0, 50.0, "ties", "equal", "masked")
EXACTLY = Sampling(tier="exact")


def derivation_case(normalization: Any, leaves: int) -> OracleCase:
    potentials = shift_reduce_policy if normalization == "local" else None
    return OracleCase(ShiftReduce(normalization), (leaves + 1, leaves + 1, 2), derivations, potentials)


normalizations = pytest.mark.parametrize("normalization", NORMALIZATIONS)
small = pytest.mark.parametrize("case", [derivation_case(n, leaves) for n in NORMALIZATIONS for leaves in (1, 2, 3, 4)], ids=str)
four = pytest.mark.parametrize("case", [derivation_case(n, 4) for n in NORMALIZATIONS], ids=str)


def feasible_scores(case: OracleCase, regime: float | str) -> Tensor:
    """One row of a regime; with forbidden parts, and still something to decide, where there is a choice at all."""
    rows = make_scores(case, regime, rows=20, seed=3)
    if regime == "masked":
        forbidden = (rows == -math.inf).flatten(1).any(-1)
        left = (enumerate_truth(case, rows).probabilities > 0).sum(-1)
        rows = rows[forbidden & (left >= min(2, len(structures(case))))]
    return rows[-1]


def scalar_loss(case: OracleCase, seed: int) -> Loss:
    weights = numbers(*case.event, seed=seed)
    return lambda z: (z * weights).flatten(-3).sum(-1).sin() + (z * weights).flatten(-3).sum(-1)


def variance(estimator: Estimator[Any], case: OracleCase, loss: Loss, scores: Tensor) -> float:
    """Trace of the covariance of one estimate, exactly."""
    truth = exact_truth(loss, case.oracle, scores)
    found = measure(estimator, case.oracle, loss, scores, truth=truth, sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    relative = found.metrics["relative_variance"].value
    assert relative is not None
    return relative * float(truth.gradient.square().sum())


def mean_loss(case: OracleCase, loss: Loss, scores: Tensor) -> float:
    return exact_truth(loss, case.oracle, scores).value


# The score function.


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@small
def test_the_scores_of_the_actions_add_up(case: OracleCase, regime: float | str) -> None:
    """A constant baseline needs no policy: the same samples give the same estimate."""
    scores, loss = make_scores(case, regime, rows=20), LOSSES["smooth"](case)
    for ours, theirs in (
        (StepReinforce(), Reinforce()),
        (StepReinforce(value=0.7, num_samples=3), ConstantBaseline(0.7, num_samples=3)),
        (StepLearned(num_samples=2), Reinforce(2)),
        (StepPPO(inner_steps=1, value=0.7, num_samples=3), ConstantBaseline(0.7, num_samples=3)),
    ):
        found = ours.gradient(loss, case.oracle, scores, generator=seeded())
        torch.testing.assert_close(found, theirs.gradient(loss, case.oracle, scores, generator=seeded()), rtol=1e-12, atol=1e-12)


@small
def test_two_samples_have_one_other(case: OracleCase) -> None:
    scores, loss = numbers(30, *case.event), LOSSES["offset"](case)
    ours = StepLeaveOneOut(2).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(ours, LeaveOneOut(2).gradient(loss, case.oracle, scores, generator=seeded()), rtol=1e-9, atol=1e-9)


@normalizations
def test_before_the_only_choice_the_best_completion_is_the_best_structure(normalization: str) -> None:
    case = derivation_case(normalization, 3)
    scores, loss = numbers(30, *case.event), LOSSES["smooth"](case)
    ours = StepGreedy(2).gradient(loss, case.oracle, scores, generator=seeded())
    torch.testing.assert_close(ours, GreedyBaseline(2).gradient(loss, case.oracle, scores, generator=seeded()))
    later = derivation_case(normalization, 5)
    scores, loss = numbers(30, *later.event), LOSSES["smooth"](later)
    ours = StepGreedy(2).gradient(loss, later.oracle, scores, generator=seeded())
    assert not torch.allclose(ours, GreedyBaseline(2).gradient(loss, later.oracle, scores, generator=seeded()))


class Critic(nn.Module):
    """Values of the states of any shape: sines of the scores, times a parameter."""

    def __init__(self, case: OracleCase) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(*case.event[:-1], seed=9))
        self.seen: list[Tensor] = []

    def forward(self, scores: Tensor) -> Tensor:
        self.seen.append(scores)
        return self.weight * (scores.sum(-1).sin() + 2)


def with_prefix_baselines(case: OracleCase) -> list[Estimator[Any]]:
    return [StepGreedy(), StepConditionalMean(), StepOptimal(), StepLearned(Critic(case)), StepLeaveOneOut(2), StepLeaveOneOut(3)]


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@small
def test_no_baseline_of_the_prefix_moves_the_mean(case: OracleCase, regime: float | str) -> None:
    scores, loss = feasible_scores(case, regime), LOSSES["smooth"](case)
    truth = exact_truth(loss, case.oracle, scores)
    norm, rounding = float(truth.gradient.norm()), 1e-14 * (abs(truth.value) + math.sqrt(truth.loss_variance))
    for estimator in [StepReinforce(value=0.4), *with_prefix_baselines(case)]:
        found = measure(estimator, case.oracle, loss, scores, truth=truth, sampling=EXACTLY)
        assert found.verdict == "unbiased-exact", estimator
        relative = found.metrics["relative_bias"].value
        assert relative is None or relative * norm <= 1e-10 * norm + rounding, estimator


class Completed:
    """Deals a sample, and then completions of its prefixes, whose probabilities under the scores that are asked for it keeps."""

    def __init__(self, real: Any, samples: Tensor, completions: Tensor) -> None:
        self.real, self.samples, self.completions, self.probabilities = real, samples, completions, torch.tensor(math.nan)

    def __call__(self, name: str, operation: Any, scores: Tensor, num_samples: int | None = None, **_: Any) -> Tensor:
        if num_samples is not None:
            return self.samples.unsqueeze(0)
        dealt = self.completions.unsqueeze(1)
        self.probabilities = self.real.log_prob(dealt, scores).exp().flatten(1).prod(-1)
        return dealt


def prefix_shared(one: Tensor, other: Tensor, step: int) -> bool:
    return bool((ShiftReduce.actions(one)[:step] == ShiftReduce.actions(other)[:step]).all())


def completions(space: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Every structure with every tuple of structures that share its prefixes."""
    for z in space:
        choices = [[other for other in space if prefix_shared(z, other, step)] for step in range(len(ShiftReduce.actions(z)))]
        for chosen in itertools.product(*choices):
            yield z, torch.stack(chosen)


def sampled_moments(case: OracleCase, loss: Loss, scores: Tensor) -> tuple[Tensor, float]:
    """The mean of `StepSampled` and the trace of its covariance, over every sample and every tuple of completions."""
    samples, completed = (torch.stack(each) for each in zip(*completions(structures(case)), strict=True))
    script = Completed(case.oracle, samples, completed)
    estimates = StepSampled().gradient(
        loss, hooked(case.oracle, ["sample"], script), scores.expand(len(samples), *case.event), generator=seeded()
    )
    weights = case.oracle.log_prob(samples, scores).exp() * script.probabilities
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    mean = torch.einsum("s,s...->...", weights, estimates)
    return mean, float(weights @ (estimates - mean).square().flatten(1).sum(-1))


@pytest.mark.parametrize("regime", REGIMES, ids=str)
@small
def test_completions_have_the_law_of_the_prefix(case: OracleCase, regime: float | str) -> None:
    scores, loss = feasible_scores(case, regime), LOSSES["smooth"](case)
    mean, _ = sampled_moments(case, loss, scores)
    torch.testing.assert_close(mean, exact_truth(loss, case.oracle, scores).gradient, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
@small
def test_a_sampled_completion_adds_the_variance_of_the_loss(case: OracleCase, scale: float) -> None:
    """To that with the mean loss of the prefix: ``Σ_t E[Var(L | a_<t) ‖∇ log π(a_t|s_t)‖²]``."""
    scores, loss, space = scale * numbers(*case.event), scalar_loss(case, 5), structures(case)
    law, losses = enumerate_truth(case, scores).probabilities[0], loss(space)
    added = 0.0
    for z, probability in zip(space, law, strict=True):
        actions = z.nonzero().tolist()
        for part in actions:
            step = 2 * part[0] - part[1]
            shared = torch.tensor([prefix_shared(z, other, step) for other in space])
            given = torch.where(shared, law, 0) / law[shared].sum()
            spread = given @ losses.square() - (given @ losses) ** 2
            leaf = scores.clone().requires_grad_()
            (score,) = torch.autograd.grad(case.oracle.step_log_probs(leaf)[tuple(part)], leaf)
            added += float(probability * spread * score.square().sum())
    mean = variance(StepConditionalMean(), case, loss, scores) if len(space) > 1 else 0.0
    assert sampled_moments(case, loss, scores)[1] == pytest.approx(mean + added, rel=1e-9, abs=1e-12)


# Variances.


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_beats_the_optimal_baseline_of_a_policy(seed: int, scale: float) -> None:
    case = derivation_case("local", 4)
    scores, loss = scale * numbers(*case.event, seed=seed), scalar_loss(case, seed + 100)
    least = variance(StepOptimal(), case, loss, scores)
    constant = StepReinforce(mean_loss(case, loss, scores))
    others = [StepReinforce(), constant, StepGreedy(), StepConditionalMean(), StepLearned(Critic(case))]
    assert all(least <= variance(other, case, loss, scores) * (1 + 1e-9) for other in others)


@dataclass(frozen=True)
class Shifted(StepOptimal):
    """Off the optimum at one state."""

    state: tuple[int, int] = (2, 2)
    shift: float = 0.0

    def _baselines(self, loss: Loss, walks: Any, generator: torch.Generator) -> Tensor:
        there = torch.zeros(walks.event, dtype=torch.float64)
        there[self.state] = self.shift
        return super()._baselines(loss, walks, generator) + there


@pytest.mark.parametrize("state", [(2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_optimal_baseline_of_a_policy_is_a_minimum(scale: float, state: tuple[int, int]) -> None:
    """The variance is a parabola of a shift at a state, with its bottom at 0."""
    case = derivation_case("local", 4)
    scores, loss = scale * numbers(*case.event, seed=3), scalar_loss(case, 103)
    below, bottom, above = (variance(Shifted(state=state, shift=shift), case, loss, scores) for shift in (-0.5, 0.0, 0.5))
    assert above - bottom == pytest.approx(below - bottom, rel=1e-8)
    assert above > bottom * (1 + 1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_where_all_actions_are_equally_likely_the_mean_of_the_prefix_is_optimal(seed: int) -> None:
    case = derivation_case("local", 4)
    scores, loss = torch.zeros(case.event, dtype=torch.float64), scalar_loss(case, seed + 100)
    mean = variance(StepConditionalMean(), case, loss, scores)
    assert mean == pytest.approx(variance(StepOptimal(), case, loss, scores), rel=1e-12)
    assert mean < variance(StepReinforce(mean_loss(case, loss, scores)), case, loss, scores)


@pytest.mark.parametrize(("normalization", "seed", "scale"), [("local", 2, 1.0), ("local", 2, 3.0), ("global", 0, 1.0), ("global", 3, 1.0)])
def test_the_mean_of_the_prefix_is_not_always_better_than_the_mean(normalization: str, seed: int, scale: float) -> None:
    """Rare actions weigh more in the variance than in the mean."""
    case = derivation_case(normalization, 4)
    scores, loss = scale * numbers(*case.event, seed=seed), scalar_loss(case, seed + 100)
    mean = variance(StepConditionalMean(), case, loss, scores)
    assert mean > 1.005 * variance(StepReinforce(mean_loss(case, loss, scores)), case, loss, scores)
    assert mean > 1.5 * variance(StepOptimal(), case, loss, scores) or normalization == "global"


@normalizations
def test_with_one_choice_the_mean_of_the_prefix_is_the_mean(normalization: str) -> None:
    case = derivation_case(normalization, 3)
    scores, loss = numbers(*case.event), scalar_loss(case, 7)
    constant = variance(StepReinforce(mean_loss(case, loss, scores)), case, loss, scores)
    assert variance(StepConditionalMean(), case, loss, scores) == pytest.approx(constant, rel=1e-10)
    assert variance(StepOptimal(), case, loss, scores) == pytest.approx(0.0, abs=1e-25)


@pytest.mark.parametrize(("normalization", "seed"), [("local", 2), ("global", 3)])
def test_the_best_completion_can_raise_the_variance(normalization: str, seed: int) -> None:
    case = derivation_case(normalization, 4)
    scores, loss = numbers(*case.event, seed=seed), scalar_loss(case, seed + 100)
    greedy = variance(StepGreedy(), case, loss, scores)
    assert greedy > 1.05 * variance(StepReinforce(), case, loss, scores)
    assert greedy > 1.5 * variance(StepReinforce(mean_loss(case, loss, scores)), case, loss, scores)


# A critic.


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
def test_a_constant_critic_is_a_constant_baseline(case: OracleCase) -> None:
    scores, loss = numbers(20, *case.event), LOSSES["smooth"](case)
    critic = StepLearned(lambda seen: torch.full(seen.shape[:-1], 0.7), num_samples=2)
    torch.testing.assert_close(
        critic.gradient(loss, case.oracle, scores, generator=seeded()),
        StepReinforce(0.7, num_samples=2).gradient(loss, case.oracle, scores, generator=seeded()),
        rtol=1e-6,
        atol=1e-6,
    )


@four
def test_warming_up_finds_the_mean_loss_of_every_state(case: OracleCase) -> None:
    scores, loss, space = 0.3 * numbers(*case.event), LOSSES["smooth"](case), structures(case)
    warmed = StepLearned().warmed_up(loss, case.oracle, scores.expand(500, *case.event), generator=seeded())
    law, visits = enumerate_truth(case, scores).probabilities[0], space.sum(-1)
    weights = law.reshape(-1, 1, 1) * visits
    expected = torch.einsum("s,sij->ij", loss(space), weights) / weights.sum(0)
    found = torch.tensor(warmed.values, dtype=torch.float64).reshape(expected.shape)
    reached = weights.sum(0) > 0
    torch.testing.assert_close(found[reached], expected[reached], rtol=0, atol=0.05)
    assert warmed == pickle.loads(pickle.dumps(warmed))
    assert hash(warmed) == hash(pickle.loads(pickle.dumps(warmed)))
    assert measure(warmed, case.oracle, loss, scores, sampling=EXACTLY).verdict == "unbiased-exact"
    assert StepLearned(Critic(case)).warmed_up(loss, case.oracle, scores, generator=seeded()).values == ()


# Proximal policy optimisation.


def test_an_action_that_went_too_far_adds_nothing() -> None:
    """SHIFT, SHIFT, then a choice at (2, 2), and one at (3, 2): only the state whose ratio has left the interval is cut."""
    case = derivation_case("local", 4)
    z = ShiftReduce.structure(torch.tensor([0, 0, 1, 0, 0, 1, 1]), torch.float64)
    old = torch.zeros(case.event, dtype=torch.float64)
    dealt: Any = scripted(case.oracle, z.reshape(1, 1, *case.event).expand(1, 2, *case.event))
    ppo = StepPPO(clip=0.2)
    for sign, action in ((1.0, -1.0), (-1.0, 1.0)):
        dealt.hook.taken = 0
        rollout = ppo.rollout(lambda z, sign=sign: 3 * sign * z[..., 0, 0, 0], dealt, old.expand(2, *case.event), generator=seeded())
        moved = torch.zeros(2, *case.event, dtype=torch.float64)
        moved[:, 2, 2, 1] = torch.tensor([0.39, 0.55]) * action  # ratios 1 ± 0.193 and 1 ± 0.268
        moved[:, 3, 2, 0] = torch.tensor([1.0, 1.0]) * -action  # far, but not in the direction that is asked for
        moved.requires_grad_()
        ppo.inner_objective(rollout, case.oracle, moved).sum().backward()
        policy = case.oracle.step_log_probs(moved.detach()).exp()
        here = 3 * sign * policy[0, 2, 2, 1] / 0.5 * policy[0, 2, 2, 0]
        torch.testing.assert_close(moved.grad[:, 2, 2, 1], torch.stack([here, torch.zeros_like(here)]))
        there = 3 * sign * policy[0, 3, 2, 0] / 0.5 * policy[0, 3, 2, 1]
        torch.testing.assert_close(moved.grad[:, 3, 2, 0], there.expand(2))
        assert int((moved.grad != 0).sum()) == 2 + 4


@four
def test_small_inner_steps_are_reinforce(case: OracleCase) -> None:
    """With an error of the first order, as long as no ratio comes near the interval's end."""
    scores, loss = numbers(20, *case.event), LOSSES["smooth"](case)
    plain = StepReinforce(0.3, num_samples=2).gradient(loss, case.oracle, scores, generator=seeded())
    errors = [
        float((StepPPO(3, step, 0.5, 0.3, 2).gradient(loss, case.oracle, scores, generator=seeded()) - plain).norm())
        for step in (1e-3, 1e-4, 1e-5)
    ]
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.05)
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.05)


@normalizations
def test_ppo_with_one_choice_in_closed_form(normalization: str) -> None:
    """One choice between two derivations, two inner steps: the ratios of the forced actions are 1."""
    case = derivation_case(normalization, 3)
    scores, loss = numbers(*case.event), scalar_loss(case, 7)
    law, space = enumerate_truth(case, scores).probabilities[0], structures(case)
    direction = {"local": torch.zeros(case.event, dtype=torch.float64), "global": space[0] - space[1]}[normalization]
    if normalization == "local":
        direction[2, 2] = torch.tensor([1.0, -1.0])
    estimates = []
    for index, (z, sign) in enumerate(zip(space, (1.0, -1.0), strict=True)):
        advantage, p = float(loss(z)) - 0.4, float(law[index])
        first = advantage * (1 - p) * sign
        # Along the direction, the difference of the scores of the two moves by twice (or by its squared norm) the coefficient.
        moved = math.log(p / (1 - p)) - 0.05 * advantage * (1 - p) * float(direction.square().sum())
        q = 1 / (1 + math.exp(-moved))
        ratio = q / p
        stopped = ratio < 0.98 if advantage > 0 else ratio > 1.02
        estimates.append((first + (0 if stopped else ratio * advantage * (1 - q) * sign)) / 2 * direction)
    expected = torch.einsum("s,s...->...", law, torch.stack(estimates))
    found = exact_mean(StepPPO(2, 0.05, 0.02, 0.4), case, loss, scores)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert measure(StepPPO(2, 0.05, 0.02, 0.4), case.oracle, loss, scores, sampling=EXACTLY).verdict == "biased"


# Straight-through.


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("leaves", [3, 4, 5])
@normalizations
def test_straight_through_leaves_out_where_an_action_leads(normalization: str, leaves: int, scale: float) -> None:
    """For a linear loss the mean is ``∇E L − Σ_s ⟨π(·|s), w(s)⟩ ∇P(s visited)``."""
    case = derivation_case(normalization, leaves)
    scores, loss, weights = scale * numbers(*case.event, seed=2), LOSSES["linear"](case), numbers(*case.event)
    leaf = scores.clone().requires_grad_()
    marginals = case.oracle.marginals(leaf)
    visited = marginals.sum(-1)
    policy = case.oracle.step_log_probs(scores).exp()
    (expected,) = torch.autograd.grad((weights * marginals).sum() - ((policy * weights).sum(-1) * visited).sum(), leaf)
    torch.testing.assert_close(exact_mean(StepStraightThrough(), case, loss, scores), expected, rtol=1e-9, atol=1e-12)
    assert measure(StepStraightThrough(), case.oracle, loss, scores, sampling=EXACTLY).verdict == "biased"


@normalizations
def test_straight_through_is_exact_where_an_action_leads_nowhere(normalization: str) -> None:
    """The loss looks at the one choice alone."""
    case = derivation_case(normalization, 3)
    weights = torch.tensor([0.7, -1.3], dtype=torch.float64)
    found = measure(StepStraightThrough(), case.oracle, lambda z: z[..., 2, 2, :] @ weights, numbers(*case.event), sampling=EXACTLY)
    assert found.verdict == "unbiased-exact"
    assert found.metrics["relative_variance"].value == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_the_temperature_divides_the_scores_of_a_policy(temperature: float) -> None:
    """Per visited state ``(diag π − ππᵀ)γ/τ`` with ``π = softmax(θ/τ)`` over the possible actions."""
    case = derivation_case("local", 4)
    scores, weights = numbers(*case.event), numbers(*case.event, seed=6)
    space = structures(case)
    dealt: Any = scripted(case.oracle, space.unsqueeze(0))
    found = StepStraightThrough(temperature).gradient(
        lambda z: (z * weights).flatten(-3).sum(-1), dealt, scores.expand(5, *case.event), generator=seeded()
    )
    both = (space > 0).any(0).all(-1)
    policy = (scores / temperature).softmax(-1)
    jacobian = policy * (weights - (policy * weights).sum(-1, keepdim=True)) / temperature
    expected = torch.where(both.unsqueeze(-1) & (space > 0).any(-1, keepdim=True), jacobian, 0)
    torch.testing.assert_close(found, expected)


# Straight-through Gumbel.


def gumbel_factor(gap: float) -> float:
    """``a((a+1) ln a − 2(a−1)) / (a−1)³`` with ``a = e^gap``: two actions, a unit loss, τ = 1."""
    a = math.exp(gap)
    return a * ((a + 1) * math.log(a) - 2 * (a - 1)) / (a - 1) ** 3 if gap else 1 / 6


def choice_by_quadrature(case: OracleCase, scores: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The mean of the shipped code for one choice, by the ratio r of the two exponential variables, of density 1/(1+r)²."""
    nodes, weights = (torch.from_numpy(values) for values in np.polynomial.legendre.leggauss(400))
    share = (nodes + 1) / 2  # r / (1 + r), which is uniform
    space, law = structures(case), enumerate_truth(case, scores).probabilities[0]
    total = torch.zeros(case.event, dtype=torch.float64)
    for z, probability in zip(space, law, strict=True):
        lost = 1 if z[2, 2, 0] else 0
        noise = torch.zeros(len(nodes), *case.event, dtype=torch.float64)
        noise[:, 2, 2, lost] = (1 - share).log() - share.log()  # −log r
        monkeypatch.setattr("structgrad.estimators.straight_through.Gumbel", lambda noise=noise: FixedNoise(noise))
        dealt: Any = scripted(case.oracle, z.expand(1, len(nodes), *case.event))
        estimator = StepStraightThroughGumbel()
        estimates = estimator.gradient(lambda z: z[..., 2, 2, 0], dealt, scores.expand(len(nodes), *case.event), generator=seeded())
        total += probability * torch.einsum("s,s...->...", weights / 2, estimates)
    return total


@pytest.mark.parametrize(("gap", "expected"), [(0.0, 0.166667), (0.8, 0.156395), (-2.5, None), (4.0, None)])
@normalizations
def test_straight_through_gumbel_of_one_choice(
    normalization: str, gap: float, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The factor of two classes, on the scores of the state, or on the difference of the two derivations."""
    case = derivation_case(normalization, 3)
    scores = torch.zeros(case.event, dtype=torch.float64)
    scores[2, 2, 0] = gap
    factor = gumbel_factor(gap)
    assert expected is None or factor == pytest.approx(expected, abs=1e-6)
    found = choice_by_quadrature(case, scores, monkeypatch)
    direction = structures(case)[0] - structures(case)[1]
    if normalization == "local":
        direction = torch.where(torch.arange(32).reshape(case.event) // 2 == 10, direction, 0)
    torch.testing.assert_close(found, factor * direction, rtol=1e-5, atol=1e-7)


def test_the_race_given_its_winner_is_the_race() -> None:
    """``P(x_a ≤ u, x_b ≤ v) = exp(−π_a e^(−u) − π_b e^(−v))``, whoever won; by midpoints."""
    log_probs = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    grid = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    gumbels = -(-torch.cartesian_prod(grid, grid).log()).log()
    won = torch.tensor([True, False])
    both = [conditional_race(log_probs, winner.expand_as(gumbels), gumbels) for winner in (won, ~won)]
    assert bool((both[0][:, 0] >= both[0][:, 1]).all())
    assert bool((both[1][:, 1] >= both[1][:, 0]).all())
    for u, v in itertools.product((-1.5, -0.5, 0.5, 2.0), repeat=2):
        found = sum(p * float(((x[:, 0] <= u) & (x[:, 1] <= v)).double().mean()) for p, x in zip((0.3, 0.7), both, strict=True))
        assert found == pytest.approx(math.exp(-0.3 * math.exp(-u) - 0.7 * math.exp(-v)), abs=2e-3)


@four
def test_straight_through_gumbel_is_a_walk_of_races(case: OracleCase) -> None:
    """The means of two ways to draw: the oracle's sample with races given their winners, and a race at every state."""
    scores, weights, rows, temperature = numbers(*case.event), numbers(*case.event, seed=6), 10_000, 0.7

    def loss(z: Tensor) -> Tensor:
        return (z * weights).flatten(-3).sum(-1).square()

    ours = StepStraightThroughGumbel(temperature).gradient(loss, case.oracle, scores.expand(rows, *case.event), generator=seeded(1))
    leaf = scores.expand(rows, *case.event).clone().requires_grad_()
    uniform = torch.rand(rows, *case.event, generator=seeded(2), dtype=torch.float64)
    noisy = case.oracle.step_log_probs(leaf) - (-uniform.log()).log()
    winners = noisy.argmax(-1)
    state, actions = torch.zeros(rows, 2, dtype=torch.int64), []
    for _ in range(7):
        chosen = winners[torch.arange(rows), state[:, 0], state[:, 1]]
        actions.append(chosen)
        state = state + torch.stack([1 - chosen, 1 - 2 * chosen], -1)
    z = ShiftReduce.structure(torch.stack(actions, -1), torch.float64).requires_grad_()
    (gamma,) = torch.autograd.grad(loss(z).sum(), z)
    visited = z.detach().sum(-1, keepdim=True) > 0
    relaxed = torch.where(visited, noisy / temperature, 0).softmax(-1)
    (theirs,) = torch.autograd.grad((relaxed * torch.where(visited, gamma, 0)).sum(), leaf)
    error = ((ours.var(0) + theirs.var(0)) / rows).sqrt()
    assert bool(((ours.mean(0) - theirs.mean(0)).abs() <= 5 * error + 1e-12).all())
    assert float(ours.mean(0).norm()) > 20 * float(error.norm())
    torch.testing.assert_close(ours.flatten(1).std(0), theirs.flatten(1).std(0), rtol=0.05, atol=1e-9)


# All of them.


NAMES = [name for name in VARIANTS if name.startswith("step_")]


@pytest.mark.parametrize("name", NAMES)
def test_forbidden_parts_under_the_global_law(name: str) -> None:
    case = derivation_case("global", 4)
    scores = forbidding_scores(case)
    for kind in ("smooth", "offset"):
        estimate = make_estimator(name).gradient(LOSSES[kind](case), case.oracle, scores, generator=seeded())
        assert estimate.isfinite().all()
        assert bool((estimate[scores == -math.inf] == 0).all())
        assert bool((estimate[~case.oracle.feasible(scores)] == 0).all())
        assert estimate.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
@normalizations
def test_padding_has_no_gradient(name: str, normalization: str) -> None:
    """There, every action is forced."""
    case = derivation_case(normalization, 5)
    padded = case.oracle.pad(numbers(40, *case.event), torch.full((40,), 3))
    estimate = make_estimator(name).gradient(LOSSES["smooth"](case), case.oracle, padded, generator=seeded())
    assert estimate.abs().sum() > 1
    assert float(estimate[:, 4:].abs().max()) < 1e-12
    assert float(estimate[:, :, 4:].abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepLearned(len, (1.0,)), "`step_learned` got a module and 1 values; expected one of them"),
    ],
)
def test_an_option_that_makes_no_sense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make()


@pytest.mark.parametrize(
    ("estimator", "leaves", "message"),
    [
        (
            StepConditionalMean(),
            10,
            "step_conditional_mean enumerates at most limit=4096 structures, and the oracle shift_reduce has 4,862 ",
        ),
        (StepOptimal(), 10, "step_optimal enumerates at most limit=4096 structures, and the oracle shift_reduce has 4,862 of the shape "),
        (
            StepLearned(values=(0.0, 1.0)),
            3,
            "step_learned has the values of 2 states, and scores of shape (4, 4, 2) have 16; choose another",
        ),
        (
            StepLearned(lambda scores: scores),
            3,
            "`step_learned` got values of shape (4, 4, 2) from its module for scores of shape (4, 4, 2); ",
        ),
    ],
)
def test_what_cannot_be_served(estimator: Estimator[Any], leaves: int, message: str) -> None:
    scores = torch.zeros(leaves + 1, leaves + 1, 2)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        estimator.gradient(lambda z: z[..., 0, 0, 0], ShiftReduce("local"), scores, generator=seeded())


def test_all_structures_up_to_the_limit_are_enumerated() -> None:
    assert ShiftReduce().count((10, 10, 2)) == 1430
    estimate = StepOptimal().gradient(lambda z: z[..., 2, 2, 0], ShiftReduce(), torch.zeros(10, 10, 2), generator=seeded())
    assert estimate.isfinite().all()

"""`ShiftReduce("local")`: a policy, and the probabilities of single actions under either normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from structgrad.oracles import ShiftReduce

GLOBAL, LOCAL = ShiftReduce(), ShiftReduce("local")
both = pytest.mark.parametrize("oracle", [GLOBAL, LOCAL], ids=["global", "local"])


def random_scores(leaves: int, scale: float = 1.0, batch: tuple[int, ...] = (), mask: float = 0.0, seed: int = 0) -> Tensor:
    """Scores whose ignored entries are NaN."""
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(*batch, leaves + 1, leaves + 1, 2, generator=generator, dtype=torch.float64)
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < mask, -math.inf)
    return torch.where(GLOBAL.read_mask((leaves + 1, leaves + 1, 2)), scores, math.nan)


def recursive_policy(row: Tensor) -> Callable[[int, int], float]:
    """The probability of SHIFT at a state, by plain recursion."""
    leaves = len(row) - 1
    known: dict[tuple[int, int], bool] = {(leaves, 1): True}

    def possible(i: int, d: int, action: int) -> bool:
        if row[i, d, action] == -math.inf or (i == leaves if action == 0 else d < 2):
            return False
        state = (i + 1, d + 1) if action == 0 else (i, d - 1)
        if state not in known:
            known[state] = possible(*state, 0) or possible(*state, 1)
        return known[state]

    def shift_probability(i: int, d: int) -> float:
        allowed = {action: math.exp(row[i, d, action].item()) for action in (0, 1) if possible(i, d, action)}
        return allowed.get(0, 0.0) / sum(allowed.values())

    return shift_probability


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("mask", [0.0, 0.15])
def test_the_policy_is_simulated_step_by_step(mask: float, compiled: bool) -> None:
    """The same uniforms, one walk at a time in plain Python."""
    rows = random_scores(6, 2.0, (12,), mask, seed=3)
    uniforms = torch.rand(12, 30, 11, dtype=torch.float64)
    policy = LOCAL.natural_parameters(rows)
    drawn = LOCAL._draw(policy, uniforms) if compiled else LOCAL._reference_draw(policy, uniforms)
    feasible = LOCAL.feasible(rows)
    assert 3 < feasible.sum() <= 12
    for b in range(12):
        shift_probability = recursive_policy(rows[b].nan_to_num(neginf=-math.inf))
        for s in range(30 if feasible[b] else 0):
            actions, i, d = [], 0, 0
            for uniform in uniforms[b, s].tolist():
                actions.append(0 if uniform < shift_probability(i, d) else 1)
                i, d = (i, d - 1) if actions[-1] else (i + 1, d + 1)
            assert ShiftReduce.actions(drawn[b, s]).tolist() == actions
    assert not drawn[~feasible].any()


@pytest.mark.parametrize("leaves", [1, 2, 6, 25])
def test_a_policy_is_normalised(leaves: int) -> None:
    scores = random_scores(leaves, 3.0, (4,)).requires_grad_()
    value = LOCAL.log_partition(scores)
    torch.testing.assert_close(value, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13)
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    assert gradient.abs().max() < 1e-14


def test_a_policy_avoids_dead_ends() -> None:
    """With no REDUCE from three trees, shifting twice must be followed by a reduction."""
    scores = torch.randn(4, 4, 2, dtype=torch.float64)
    scores[3, 3, 1] = -math.inf
    structure = ShiftReduce.structure(torch.tensor([0, 0, 1, 0, 1]), torch.float64)
    assert LOCAL.log_prob(structure, scores).item() == pytest.approx(0, abs=1e-15)
    assert LOCAL.step_log_probs(scores)[2, 2].tolist() == [-math.inf, 0.0]
    assert GLOBAL.step_log_probs(scores)[2, 2].tolist() == [-math.inf, 0.0]
    assert LOCAL.step_log_probs(scores)[3, 3].tolist() == [-math.inf, -math.inf]
    torch.testing.assert_close(LOCAL.marginals(scores), structure, rtol=0, atol=1e-15)


@both
@pytest.mark.parametrize("mask", [0.0, 0.2])
def test_steps_multiply_to_the_probability(oracle: ShiftReduce, mask: float) -> None:
    scores = random_scores(5, 2.0, (3, 4), mask, seed=1)
    every = oracle.enumerate((6, 6, 2), dtype=torch.float64)[:, None, None]
    steps = oracle.step_log_probs(scores)
    assert steps.shape == scores.shape
    assert bool((steps[..., ~oracle.read_mask((6, 6, 2))] == -math.inf).all())
    total = torch.where(every != 0, steps, 0).sum((-3, -2, -1))
    feasible = oracle.feasible(scores)
    assert 1 < feasible.sum() <= 12
    expected = oracle.log_prob(every, scores)
    torch.testing.assert_close(total[:, feasible], expected[:, feasible], rtol=1e-12, atol=1e-12)
    assert bool((steps[~feasible][:, 0, 0] == -math.inf).all())
    sums = steps.exp().sum(-1)
    assert bool(((sums - 1).abs() < 1e-14).logical_or(sums == 0).all())


@both
def test_steps_are_differentiable(oracle: ShiftReduce) -> None:
    mask = oracle.read_mask((5, 5, 2))

    def steps(scores: Tensor) -> Tensor:
        forbidden = torch.zeros(5, 5, 2, dtype=torch.bool)
        forbidden[3, 3, 1] = True
        result = oracle.step_log_probs(scores.masked_fill(forbidden, -math.inf))
        return result[mask & (result > -math.inf)]

    scores = torch.randn(5, 5, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(steps, scores)
    assert torch.autograd.gradgradcheck(steps, scores)
    (gradient,) = torch.autograd.grad(steps(scores).square().sum(), scores)
    assert gradient[3, 3, 1] == 0

from __future__ import annotations

import contextlib
import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from structgrad.oracles import Subset, kernels


def test_marginals_of_a_large_subset_stay_exact() -> None:
    """Complement: choosing k of n at θ leaves n − k of n at −θ."""
    scores = 20 * torch.randn(3, 120, dtype=torch.float64)
    torch.testing.assert_close(Subset(100).marginals(scores), 1 - Subset(20).marginals(-scores), rtol=0, atol=1e-10)
    expected = Subset(20).log_partition(-scores) + scores.sum(-1)
    torch.testing.assert_close(Subset(100).log_partition(scores), expected, rtol=1e-12, atol=1e-10)


def test_the_published_toy() -> None:
    """Ahmed et al. 2023, seed 1234: the exact gradient of a squared distance, and the bias of the marginals' backward."""
    state = np.random.RandomState(1234)
    theta, target = torch.from_numpy(state.randn(10)), torch.from_numpy(np.abs(state.randn(10)))
    oracle = Subset(5)
    every = oracle.enumerate((10,), dtype=torch.float64)
    assert len(every) == math.comb(10, 5) == 252
    theta.requires_grad_()
    expected_loss = oracle.log_prob(every, theta).exp() @ (every - target).square().sum(-1)
    marginals = oracle.marginals(theta)
    (exact,) = torch.autograd.grad(expected_loss, theta, retain_graph=True)
    (closed_form,) = torch.autograd.grad(marginals, theta, -2 * target, retain_graph=True)
    (simple,) = torch.autograd.grad(marginals, theta, 2 * (marginals.detach() - target))
    assert expected_loss.item() == pytest.approx(8.685266, abs=1e-6)
    assert exact.norm().item() == pytest.approx(0.919681, abs=1e-6)
    torch.testing.assert_close(exact, closed_form, rtol=0, atol=1e-12)
    assert 1 - torch.cosine_similarity(exact, simple, dim=0).item() == pytest.approx(0.038047, abs=1e-6)


@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0, 1000.0])
@pytest.mark.parametrize(("n", "k"), [(5, 2), (30, 7), (40, 39)])
def test_equals_elementary_symmetric_polynomials_in_many_digits(n: int, k: int, scale: float) -> None:
    row = scale * torch.randn(n, dtype=torch.float64)
    with mpmath.workdps(60):
        weights = [mpmath.e ** mpmath.mpf(score) for score in row.tolist()]

        def symmetric(numbers: list[mpmath.mpf], degree: int) -> mpmath.mpf:
            sums = [mpmath.mpf(1)] + [mpmath.mpf(0)] * degree
            for number in numbers:
                sums = [sums[0], *(sums[j] + number * sums[j - 1] for j in range(1, degree + 1))]
            return sums[degree]

        total = symmetric(weights, k)
        log_partition = float(mpmath.log(total))
        marginals = [float(w * symmetric(weights[:i] + weights[i + 1 :], k - 1) / total) for i, w in enumerate(weights)]
    assert Subset(k).log_partition(row).item() == pytest.approx(log_partition, rel=1e-13)
    # Not only close, but to a relative error: the smallest marginals here are below 1e-200.
    expected = torch.tensor(marginals, dtype=torch.float64)
    torch.testing.assert_close(Subset(k).marginals(row), expected, rtol=1e-10, atol=1e-300)
    with kernels.disabled():
        assert Subset(k).log_partition(row).item() == pytest.approx(log_partition, rel=1e-13)
        torch.testing.assert_close(Subset(k).marginals(row), expected, rtol=1e-10, atol=1e-14)


ENTRIES = st.one_of(st.floats(-3.0, 3.0), st.floats(-1e3, 1e3), st.integers(-2, 2).map(float), st.just(-math.inf))


@settings(max_examples=200, deadline=None)
@given(row=st.lists(ENTRIES, min_size=1, max_size=40), data=st.data())
def test_marginals_are_a_point_of_the_hypersimplex(row: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(row)))
    scores = torch.tensor(row, dtype=torch.float64)
    oracle, feasible = Subset(k), int((scores > -math.inf).sum()) >= k
    marginals = oracle.marginals(scores)
    with kernels.disabled():
        torch.testing.assert_close(marginals, oracle.marginals(scores), rtol=1e-10, atol=1e-12)
    assert bool(((marginals >= 0) & (marginals <= 1 + 1e-13)).all())
    assert bool((marginals[scores == -math.inf] == 0).all())
    assert marginals.sum().item() == pytest.approx(k if feasible else 0, abs=1e-11)
    assert bool((marginals[scores.argsort(stable=True)].diff() >= -1e-12).all()), "a higher score, a higher marginal"


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_more_subsets_than_a_float_can_count(compiled: bool) -> None:
    """10**360 of them."""
    scores = torch.zeros(2, 1200, dtype=torch.float64)
    scores[1, :400] = 1000.0
    equal = math.lgamma(1201) - 2 * math.lgamma(601)
    with contextlib.nullcontext() if compiled else kernels.disabled():
        assert Subset(600).log_partition(scores[0]).item() == pytest.approx(equal, rel=1e-12)
        torch.testing.assert_close(Subset(600).marginals(scores[0]), torch.full_like(scores[0], 0.5), rtol=0, atol=1e-11)
        # The first 400 are certain, and one of the other 800.
        assert Subset(401).log_partition(scores[1]).item() == pytest.approx(4e5 + math.log(800), rel=1e-15)


@pytest.mark.parametrize("k", [1, 20, 299, 300])
@pytest.mark.parametrize("scale", [0.05, 1.0, 50.0, 1e5])
def test_extreme_uniforms_of_parts_that_are_taken(k: int, scale: float) -> None:
    """Always k parts that may be taken, the same ones with kernels and without."""
    rows = scale * torch.randn(4, 300, dtype=torch.float64)
    rows[1], rows[2, 7], rows[3, k - 1 :] = rows[1].round(), -math.inf, -math.inf
    assert Subset(k)._noise_size((300,)) == k
    uniforms = torch.rand(4, 6, k, dtype=torch.float64)
    uniforms[:, 1], uniforms[:, 2] = 0.0, 1 - 2**-53
    drawn = Subset(k)._draw(rows, uniforms)
    possible = (rows > -math.inf).sum(-1, keepdim=True) >= k
    assert torch.equal(drawn.sum(-1), torch.where(possible, k, 0).double().expand(-1, 6))
    assert not drawn[(rows == -math.inf).unsqueeze(1).expand_as(drawn)].any()
    with kernels.disabled():
        assert (Subset(k)._draw(rows, uniforms) == drawn).double().mean() > 0.99


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
def test_samples_of_many_parts_have_their_marginals(compiled: bool) -> None:
    scores, generator = torch.randn(257, dtype=torch.float64), torch.Generator().manual_seed(0)
    with contextlib.nullcontext() if compiled else kernels.disabled():
        drawn = Subset(5).sample(scores, 4000, generator=generator)
    p = Subset(5).marginals(scores)
    deviations = (drawn.mean(0) - p) / (p * (1 - p) / 4000).sqrt()
    assert deviations.square().mean() == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("k", [1, 5, 33, 60])
def test_ties_at_the_last_place_go_to_the_lowest_index(k: int, compiled: bool) -> None:
    scores = torch.randint(-2, 3, (20, 60)).double()
    order = scores.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    expected = torch.zeros_like(scores).scatter_(-1, order, 1)
    if compiled:
        assert torch.equal(Subset(k).argmax(scores), expected)
    else:
        assert torch.equal(Subset(k)._argmax(scores).double(), expected)


def test_the_k_best_of_many_parts() -> None:
    scores = torch.randn(2, 400, dtype=torch.float64)
    # Two parts are in all of them, and every other one in turn: the worst case for leaving parts out beforehand.
    scores[1] = -torch.arange(400.0)
    scores[1, [7, 300]] = 1000.0
    best = Subset(3).kbest(scores, 50)
    for row in range(2):
        top = scores[row].sort(descending=True).values[:60]
        expected = sorted((sum(chosen) for chosen in itertools.combinations(top.tolist(), 3)), reverse=True)[:50]
        np.testing.assert_allclose((best[:, row] @ scores[row]).numpy(), expected, rtol=1e-12)
        assert len(best[:, row].unique(dim=0)) == 50
    assert bool((best.sum(-1) == 3).all())

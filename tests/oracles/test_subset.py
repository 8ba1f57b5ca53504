from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from structgrad.oracles import Subset
from structgrad.oracles.subset import capped_simplex, systematic_atoms


@pytest.mark.parametrize("k", [0, -1, 1.0, True, "2", None])
def test_k_must_be_a_positive_integer(k: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"`Subset` got k={k!r}; expected an integer of at least 1")):
        Subset(k)  # type: ignore[arg-type]


def test_k_must_not_exceed_n() -> None:
    message = "got n=3 parts for k=4; expected n >= k, choose a smaller k"
    with pytest.raises(ValueError, match=f"`argmax` {message}"):
        Subset(4).argmax(torch.zeros(3))
    with pytest.raises(ValueError, match=f"`enumerate` {message}"):
        Subset(4).enumerate((3,))


def test_the_event_shape_by_name() -> None:
    assert Subset.event_shape(length=7) == (7,)


def test_systematic_sampling_of_equal_parts() -> None:
    atoms, weights = systematic_atoms(torch.full((1, 4), 0.5, dtype=torch.float64), 2)
    assert {tuple(atom.tolist()): weight.item() for atom, weight in zip(atoms[0], weights[0], strict=True) if weight > 0} == {
        (1, 0, 1, 0): 0.5,
        (0, 1, 0, 1): 0.5,
    }


@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 2), (30, 1), (30, 15), (30, 29), (30, 30), (100, 7)])
def test_systematic_atoms_write_the_point(n: int, k: int) -> None:
    points = capped_simplex(torch.randn(20, n, dtype=torch.float64), k)
    atoms, weights = systematic_atoms(points, k)
    torch.testing.assert_close(torch.einsum("bm,bmn->bn", weights, atoms), points, rtol=0, atol=1e-10)
    used = atoms[weights > 0]
    assert bool((used.sum(-1) == k).all())
    assert bool(((used == 0) | (used == 1)).all())


def bisected(row: np.ndarray, k: int) -> np.ndarray:
    """clip(θ − τ, 0, 1) with τ found by bisection."""
    low, high = row.min() - 1, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(row - middle, 0, 1).sum() > k else (low, middle)
    result: np.ndarray = np.clip(row - low, 0, 1)
    return result


@pytest.mark.parametrize("scale", [0.0, 0.05, 1.0, 5.0, 50.0])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (7, 3), (30, 1), (30, 29), (30, 30), (64, 10), (65, 10), (200, 100), (200, 200)])
def test_the_capped_simplex_against_bisection(n: int, k: int, scale: float) -> None:
    for rows in (scale * torch.randn(10, n, dtype=torch.float64), (scale * torch.randn(10, n, dtype=torch.float64)).round()):
        expected = np.stack([bisected(row, k) for row in rows.numpy()])
        torch.testing.assert_close(capped_simplex(rows, k), torch.from_numpy(expected), rtol=0, atol=1e-10)


def test_k_one_is_categorical() -> None:
    from structgrad.oracles import Categorical

    scores = torch.randn(6, 9, dtype=torch.float64)
    for call in ("argmax", "log_partition", "marginals", "entropy"):
        torch.testing.assert_close(getattr(Subset(1), call)(scores), getattr(Categorical(), call)(scores), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(Subset(1).project(scores).mean, Categorical().project(scores).mean, rtol=0, atol=1e-12)


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


def test_the_gibbs_law_is_not_that_of_gumbel_top_k() -> None:
    scores = torch.tensor([2.0, 0.0, 0.0], dtype=torch.float64)
    weights = scores.exp()
    pairs = torch.stack([weights[0] * weights[1], weights[0] * weights[2], weights[1] * weights[2]])
    probabilities = Subset(2).log_prob(Subset(2).enumerate((3,), dtype=torch.float64), scores).exp()
    torch.testing.assert_close(probabilities, pairs / pairs.sum(), rtol=1e-12, atol=0)
